//! `bossman check` and `bossman plan`: facts about a model, without training it.

use super::fleet::{until_interrupted, Fleet};
use super::run_argument;
use anyhow::Result;
use bossman::output;
use bossman::run_file::RunFile;
use bossman::{plan, Candidates, Model};
use layerspec::{Bindings, LayerGraph};
use serde_json::{json, Value};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Example: bossman check model.yaml --dim batch=32 --dim seq=128")]
pub(crate) struct Check {
    /// The model file, or a run file, whose data is checked too.
    model: PathBuf,
    /// A size for a word in the input shapes, as seq=128; may be given several times.
    #[arg(long = "dim", value_name = "WORD=SIZE", value_parser = dim)]
    dims: Vec<(String, u64)>,
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

/// The path of the model, and the run file if the argument is one.
fn model_and_run(path: &Path) -> Result<(PathBuf, Option<RunFile>)> {
    if path.is_dir() {
        return Ok((run_argument::shown(path)?.0.model, None));
    }
    let text = layerspec::yaml::read_file(path)?;
    let is_run =
        text.lines().any(|line| line.starts_with("data:") || line.starts_with("optimizer:"));
    if !is_run {
        return Ok((path.to_path_buf(), None));
    }
    let run = RunFile::from_file(path)?;
    Ok((run.model.clone(), Some(run)))
}

impl Check {
    pub(crate) fn run(self) -> Result<()> {
        let (model, run) = model_and_run(&self.model)?;
        let graph = LayerGraph::from_file(&model)?;
        let mut bindings = Bindings::new();
        for (word, size) in self.dims {
            let words = graph.symbols();
            if !words.contains(&word) {
                let words: Vec<_> = words.into_iter().collect();
                anyhow::bail!(
                    "--dim {word}={size}: the model's inputs have no such word, but {}",
                    words.join(", ")
                );
            }
            bindings.set(&word, size);
        }
        let check_data = |run: &RunFile| run.check_data(&Model::from_file(&model)?);
        if self.json {
            let mut json = layers(&graph, &bindings);
            if let Some(run) = &run {
                json["data"] = serde_json::to_value(check_data(run)?)?;
            }
            output::print_line(&format!("{json:#}"))?;
        } else {
            output::print(&graph.summary(&bindings))?;
            if let Some(run) = &run {
                output::print_line(&format!("data: {}", check_data(run)?))?;
            }
        }
        for warning in graph.warnings() {
            output::warn(&format!("warning: {}: {warning}", model.display()));
        }
        Ok(())
    }
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
        let (file, _) = run_argument::shown(&self.run)?;
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
