//! The `bossman` command.

use anyhow::{Context, Result};
use bossman::run_file::RunFile;
use bossman::train::{self, Score, Settings};
use clap::{Parser, Subcommand};
use layerspec::{Bindings, LayerGraph};
use std::path::PathBuf;
use std::process::ExitCode;

/// Trains a neural network across the machines at hand.
#[derive(Parser)]
#[command(name = "bossman", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  bossman check model.yaml                    shapes, parameters, FLOPs; or what is wrong where
  bossman train run.yaml --local 2            train on this machine with two worker processes
  bossman train run.yaml --workers 2          wait for two workers on other machines";

#[derive(Subcommand)]
enum Command {
    /// Check a model file and print its layers with shapes, parameters and costs.
    Check {
        /// The model file.
        model: PathBuf,
        /// A size for a word in the input shapes, as seq=128; may be given several times.
        #[arg(long = "dim", value_name = "WORD=SIZE", value_parser = dim)]
        dims: Vec<(String, u64)>,
    },
    /// Train as a run file says.
    Train(Train),
    /// Print this user's join ticket, made at the first call.
    Ticket,
}

#[derive(clap::Args)]
struct Train {
    /// The run file.
    run: PathBuf,
    /// Start this many workers on this machine; they end with the boss.
    #[arg(long, value_name = "N", default_value_t = 0)]
    local: usize,
    /// Workers in all; those that are not local join from other machines.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Compute threads of each local worker [default: the cores shared out]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// UDP port to listen on [default: MODEL_PORT, else 1024; any free one where all workers are local]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Write a line of JSON for every step.
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Start from these weights (.safetensors, PyTorch's names).
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Write the final weights (.safetensors, PyTorch's names).
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Take samples in the order of the file.
    #[arg(long)]
    no_shuffle: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Check { model, dims } => check(&model, dims),
        Command::Train(train) => self::train(train),
        Command::Ticket => ticket(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bossman: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn dim(text: &str) -> Result<(String, u64), String> {
    let (word, size) = text.split_once('=').ok_or("expected WORD=SIZE, as seq=128")?;
    let size = size.parse().ok().filter(|size| *size > 0).ok_or("expected a size of 1 or more, as seq=128")?;
    Ok((word.to_string(), size))
}

fn check(model: &PathBuf, dims: Vec<(String, u64)>) -> Result<()> {
    let graph = LayerGraph::from_file(model)?;
    let mut bindings = Bindings::new();
    for (word, size) in dims {
        let words = graph.words();
        if !words.contains(&word) {
            let words: Vec<_> = words.into_iter().collect();
            anyhow::bail!("--dim {word}={size}: the model's inputs have no such word, but {}", words.join(", "));
        }
        bindings.set(&word, size);
    }
    print!("{}", graph.table(&bindings));
    for warning in graph.warnings() {
        eprintln!("warning: {}: {warning}", model.display());
    }
    Ok(())
}

fn train(arguments: Train) -> Result<()> {
    let Train { run, local, workers, threads, port, metrics, init, save, no_shuffle } = arguments;
    let file = RunFile::from_file(run)?;
    let threads = threads.map(usize::from);
    let settings = Settings { workers, local, threads, port, metrics, init, save, no_shuffle };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = train::run(&file, &settings) => outcome.map(Some),
            _ = tokio::signal::ctrl_c() => Ok(None),
        }
    });
    let outcome = outcome?.context("interrupted; nothing was saved")?;
    println!("{} steps in {:.1} s", outcome.steps, outcome.time.as_secs_f64());
    match outcome.test {
        Some(Score::Accuracy(share)) => println!("test accuracy {:.2} %", share * 100.0),
        Some(Score::Loss(loss)) => println!("test loss {loss:.6}"),
        None => {}
    }
    if let Some(path) = &settings.save {
        println!("weights written to {}", path.display());
    }
    Ok(())
}

fn ticket() -> Result<()> {
    println!("{}", link::Identity::load_or_create()?.ticket());
    Ok(())
}
