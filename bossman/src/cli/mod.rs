//! The command line: its commands and flags, and the code that carries them out.
//!
//! ```text
//! Command -> inspect (check, plan)   runs (train, serve, eval, predict)   status
//!         -> text (generate, translate)   export   import   checkpoint   data
//!         -> run_folders (runs, log)   verify   new_project (new)   self_check
//! fleet: the flags for workers, run_argument: a run file or a run's folder; both are shared
//! ```

mod checkpoint;
mod data;
mod export;
mod fleet;
mod import;
mod inspect;
mod new_project;
mod run_argument;
mod run_folders;
mod runs;
mod self_check;
mod shell_word;
mod status;
mod text;
mod verify;

use anyhow::Result;
use bossman::output;
use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write;

/// Trains a neural network across the machines at hand.
#[derive(Parser)]
#[command(name = "bossman", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  bossman check model.yaml                    shapes, parameters, FLOPs; or the first mistake
  bossman train run.yaml --local 2            train on this machine with two worker processes
  bossman train run.yaml --workers 2          wait for two workers on other machines
  bossman serve run.yaml --local 1            train with workers that join and leave
  bossman plan run.yaml --local 2 --timeline  predicted time of each schedule on these workers
  bossman eval run.yaml --local 2 --weights w.safetensors
  bossman generate run.yaml --local 2 --weights w.safetensors --prompt \"My fellow citizens\"

Exit codes: 0 done; 1 it failed, and standard error says why; 2 the command line is wrong; 130 or \
                        143 interrupted.";

#[derive(Subcommand)]
enum Command {
    /// Check a model or run file, and print the layers with shapes, parameters and costs.
    Check(inspect::Check),
    /// Measure a run's layers on its workers, and print the predicted time of each schedule.
    Plan(inspect::Plan),
    /// Train as a run file says.
    Train(runs::Train),
    /// Train as a run file says, in a pool: workers may join and leave at any moment.
    Serve(runs::Serve),
    /// List the runs that have folders here: state, steps, loss, and whether they can go on.
    Runs(run_folders::Runs),
    /// Print what happened in a run.
    Log(run_folders::Log),
    /// Compare a run's folder with its receipt, and repeat parts of the run.
    Verify(verify::Verify),
    /// Print how a run does: for whom it waits, its step, its workers.
    Status(status::Status),
    /// Test trained weights on a part of a run's data.
    Eval(runs::Eval),
    /// Write a model's outputs for data to a file.
    Predict(runs::Predict),
    /// Write text with a language model, token by token across the workers.
    Generate(text::Generate),
    /// Translate texts with a model of an encoder and a decoder.
    Translate(text::Translate),
    /// Write weights for other programs: in files, as another type, or as a folder of Hugging Face.
    Export(export::Export),
    /// Make a model file and a run file from a folder of Hugging Face's transformers.
    Import(import::Import),
    /// List, check or delete the checkpoints of a run.
    #[command(subcommand)]
    Checkpoint(checkpoint::Checkpoint),
    /// Data sets to start with.
    #[command(subcommand)]
    Data(data::Data),
    /// Make a Rust project that trains with BossMan.
    New(new_project::New),
    /// Check whole runs on a device of this machine, with a line for each section.
    SelfCheck(self_check::SelfCheck),
    /// Print this user's join ticket, made at the first call.
    Ticket,
    /// Print completions for a shell.
    #[command(after_help = "Example: bossman completions bash > \
                            ~/.local/share/bash-completion/completions/bossman")]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// Carries out what the command line says. Returns the exit code.
pub(crate) fn run() -> u8 {
    let command = Arguments::parse().command;
    let result = runtime::start_log().map_err(Into::into).and_then(|()| execute(command));
    match result {
        Ok(()) => 0,
        Err(e) => {
            output::warn(&format!("bossman: {e:#}"));
            match e.downcast_ref::<fleet::Interrupted>() {
                Some(interrupted) => interrupted.code,
                None => 1,
            }
        }
    }
}

/// Ends the process without libtorch's clean-up. That takes a third of the time of a short command,
/// and frees only what the system frees anyway.
pub(crate) fn exit_now(code: u8) -> ! {
    std::io::stdout().flush().ok();
    signal_hook::low_level::exit(code.into())
}

fn execute(command: Command) -> Result<()> {
    match command {
        Command::Check(check) => check.run(),
        Command::Plan(plan) => plan.run(),
        Command::Train(train) => train.run(),
        Command::Serve(serve) => serve.run(),
        Command::Runs(runs) => runs.run(),
        Command::Log(log) => log.run(),
        Command::Verify(verify) => verify.run(),
        Command::Status(status) => status.run(),
        Command::Eval(eval) => eval.run(),
        Command::Predict(predict) => predict.run(),
        Command::Generate(generate) => generate.run(),
        Command::Translate(translate) => translate.run(),
        Command::Export(export) => export.run(),
        Command::Import(import) => import.run(),
        Command::Checkpoint(checkpoint) => checkpoint.run(),
        Command::Data(data) => data.run(),
        Command::New(new) => new.run(),
        Command::SelfCheck(check) => check.run(),
        Command::Ticket => ticket(),
        Command::Completions { shell } => completions(shell),
    }
}

fn ticket() -> Result<()> {
    let identity = link::Identity::load_or_create()?;
    identity.warnings().iter().for_each(|text| output::warn(&format!("warning: {text}")));
    output::print_line(&identity.ticket().to_string())?;
    Ok(())
}

fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "bossman", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(())
}
