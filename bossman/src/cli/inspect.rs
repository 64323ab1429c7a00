//! `bossman check` and `bossman plan`: facts about a model, without training it.

use super::fleet::{self, until_interrupted, Fleet};
use super::run_argument::{self, Reads, Trust};
use anyhow::Result;
use bossman::check::Samples;
use bossman::output;
use bossman::run_file::RunFile;
use bossman::{plan, Candidates, FileKind, Model};
use layerspec::{Bindings, LayerGraph};
use serde_json::{json, Value};
use std::convert::Infallible;
use std::path::{Path, PathBuf};

/// The samples that `bossman check` shows.
const SHOWN_SAMPLES: u64 = 3;

#[derive(clap::Args)]
#[command(after_help = "Example: bossman check model.yaml --dim batch=32 --dim seq=128")]
pub(crate) struct Check {
    /// The model file; or a run file or the folder of a run, whose data is checked, too.
    model: PathBuf,
    #[command(flatten)]
    trust: Trust,
    /// Check every sample of the data, not only the first 1,000 of each part and the last.
    #[arg(long)]
    all: bool,
    /// Show the layers that each of N local workers would get.
    #[arg(long, value_name = "N", value_parser = fleet::count)]
    local: Option<usize>,
    /// A size for a word in the input shapes, as seq=128; may be given several times.
    #[arg(long = "dim", value_name = "WORD=SIZE", value_parser = dim)]
    dims: Vec<(String, u64)>,
    /// A likely guess for --dim. It exists to name that flag.
    #[arg(long, hide = true, value_name = "WORD=SIZE", value_parser = bind)]
    bind: Option<Infallible>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Example: bossman plan run.yaml --local 2 --timeline")]
pub(crate) struct Plan {
    /// The run file, or the folder of a run.
    run: PathBuf,
    #[command(flatten)]
    trust: Trust,
    #[command(flatten)]
    fleet: Fleet,
    /// Draw the timeline of the schedule that would run.
    #[arg(long, conflicts_with = "json")]
    timeline: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn dim(text: &str) -> Result<(String, u64), String> {
    let (word, size) = text.split_once('=').ok_or("expected WORD=SIZE, as seq=128")?;
    let size = size
        .parse()
        .ok()
        .filter(|size| *size > 0)
        .ok_or("expected a size of 1 or more, as seq=128")?;
    Ok((word.to_string(), size))
}

fn bind(text: &str) -> Result<Infallible, String> {
    Err(format!("sizes are given with --dim; write --dim {text}"))
}

/// The path of the model, and the run file if the argument is one, or the folder of a run.
fn model_and_run(path: &Path, trust: &Trust) -> Result<(PathBuf, Option<RunFile>)> {
    if !path.is_dir() {
        let text = layerspec::yaml::read_file(path)?;
        if FileKind::of(&text) != Some(FileKind::Run) {
            return Ok((path.to_path_buf(), None));
        }
    }
    let (run, _) = run_argument::shown(path, trust, Reads::Data)?;
    Ok((run.model.clone(), Some(run)))
}

impl Check {
    pub(crate) fn run(self) -> Result<()> {
        let (path, run) = model_and_run(&self.model, &self.trust)?;
        if run.is_none() && (self.all || self.local.is_some()) {
            anyhow::bail!("{}: is a model file; --all and --local need a run file", path.display());
        }
        let model = Model::from_file(&path)?;
        let graph = model.graph();
        let bindings = bindings(graph, &self.dims)?;
        let samples = if self.all { Samples::All } else { Samples::FirstAndLast };
        let with_data = run.as_ref().filter(|run| run.data.is_some());
        let sizes = with_data.map(|run| run.check_data(&model, samples)).transpose()?;
        if self.json {
            let mut json = layers(graph, &bindings);
            if let Some(sizes) = sizes {
                json["data"] = serde_json::to_value(sizes)?;
            }
            if let (Some(run), Some(workers)) = (&run, self.local) {
                json["workers"] = run.show_workers(&model, workers)?.into();
            }
            output::print_line(&format!("{json:#}"))?;
        } else {
            output::print(&graph.summary(&bindings))?;
            if let Some(run) = &run {
                match sizes {
                    Some(sizes) => output::print_line(&format!("data: {sizes}"))?,
                    None => output::print_line("data: none, so it cannot be trained")?,
                };
                dry_run(run, &model, self.local)?;
            }
        }
        let of_length = match (with_data, sizes) {
            (Some(run), Some(sizes)) => run.length_warnings(sizes.train)?,
            _ => Vec::new(),
        };
        for warning in graph.warnings().iter().map(ToString::to_string).chain(of_length) {
            output::warn(&format!("warning: {warning}"));
        }
        Ok(())
    }
}

fn bindings(graph: &LayerGraph, dims: &[(String, u64)]) -> Result<Bindings> {
    let mut bindings = Bindings::new();
    let words = graph.symbols();
    for (word, size) in dims {
        if !words.contains(word) {
            let words: Vec<_> = words.into_iter().collect();
            anyhow::bail!(
                "--dim {word}={size}: the model's inputs have no such word, but {}",
                words.join(", ")
            );
        }
        bindings.set(word, *size);
    }
    Ok(bindings)
}

/// Prints the first samples as the model sees them, and who gets which layers.
fn dry_run(run: &RunFile, model: &Model, local: Option<usize>) -> Result<()> {
    let count = run.data.as_ref().map(|_| SHOWN_SAMPLES);
    for line in count.map_or(Ok(Vec::new()), |count| run.show_samples(model, count))? {
        output::print_line(&line)?;
    }
    for line in local.map_or(Ok(Vec::new()), |workers| run.show_workers(model, workers))? {
        output::print_line(&line)?;
    }
    Ok(())
}

fn layers(graph: &LayerGraph, bindings: &Bindings) -> Value {
    let types = |ids: &[layerspec::ValueId]| -> Vec<Value> {
        let values = ids.iter().map(|id| graph.value(*id));
        values.map(|value| json!({"name": value.name, "type": value.ty.to_string()})).collect()
    };
    let layer = |layer: &layerspec::Layer| {
        let params = graph
            .own_params(layer.id)
            .iter()
            .map(|param| param.shape.iter().product::<u64>())
            .sum::<u64>();
        let flops = graph.cost(layer.id, bindings).map(|cost| cost.flops);
        json!({"name": layer.name, "kind": layer.kind.name(), "outputs": types(&layer.outputs),
            "params": params,
               "flops": flops})
    };
    let layers: Vec<Value> = graph.layers().iter().map(layer).collect();
    json!({"model": graph.name(), "inputs": types(graph.inputs()),
        "outputs": types(graph.outputs()),
           "params": graph.param_count(), "layers": layers})
}

impl Plan {
    pub(crate) fn run(self) -> Result<()> {
        let (file, _) = run_argument::shown(&self.run, &self.trust, Reads::Data)?;
        let report =
            until_interrupted("nothing was measured", plan::run(&file, &self.fleet.settings()))?;
        if self.json {
            output::print_line(&format!("{:#}", candidates(&report)))?;
            return Ok(());
        }
        output::print(&report.to_string())?;
        if self.timeline {
            output::print(&format!("\n{}", report.timeline()))?;
        }
        Ok(())
    }
}

fn candidates(report: &Candidates) -> Value {
    let best = report.choice.best(|_| true);
    let one = |candidate: &pipeline::auto::Candidate| {
        let refused = candidate.refused.as_ref().map(ToString::to_string);
        json!({"schedule": candidate.kind.to_string(), "stages": candidate.plan.stages.len(),
               "step_ms": candidate.step_time as f64 / 1e6, "bubble": candidate.bubble,
               "replicas": candidate.replicas, "peak_bytes": candidate.peak_bytes,
                "refused": refused,
               "taken": best.is_some_and(|best| std::ptr::eq(best, candidate))})
    };
    let link = |(from, to, link): &(
        pipeline::ids::WorkerId,
        Option<pipeline::ids::WorkerId>,
        pipeline::message::LinkReport,
    )| {
        json!({"from": from.0, "to": to.map(|to| to.0), "round_trip_us": link.rtt.0,
               "bytes_per_second": link.bytes_per_second, "shared_memory": link.shared_memory})
    };
    let schedules: Vec<Value> = report.choice.candidates.iter().map(one).collect();
    let links: Vec<Value> = report.links.iter().map(link).collect();
    json!({"schedules": schedules, "links": links, "collective": report.collective})
}
