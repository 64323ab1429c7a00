//! Measures the speed of training, and the memory that it takes.

use crate::fleet::FleetSettings;
use crate::run_file::{Length, RunFile};
use crate::self_check::preset::Preset;
use crate::self_check::report::{Findings, Problem, Report};
use crate::self_check::scene::Scene;
use crate::self_check::section::Section;
use crate::self_check::timed::{Timed, WIDE_BYTES};
use crate::self_check::trial::{median_seconds, train};
use crate::{BossManError, Determinism, Precision};
use std::path::Path;

/// The first steps, which are slower: one measures the layers.
const FIRST: usize = 3;
const MEASURED: usize = 10;

/// Runs: the end of the names of their figures, workers of the one device, and kernels.
type Runs = &'static [(&'static str, usize, Determinism)];

const ONE: Runs = &[("1_worker", 1, Determinism::Strict), ("1_worker_fast", 1, Determinism::Fast)];
const ONE_AND_TWO: Runs = &[
    ("1_worker", 1, Determinism::Strict),
    ("2_workers", 2, Determinism::Strict),
    ("1_worker_fast", 1, Determinism::Fast),
];

/// Trains in bfloat16 on one worker, and a GPT also on two of the same device.
pub(super) async fn check(scene: &Scene, report: &mut Report<'_>) {
    let Some(sizes) = scene.preset.timed_sizes() else {
        let reason = "preset tiny gives the device no work worth measuring";
        report.section(Section::Speed, async { Ok(Findings::skipped(reason)) }).await;
        return;
    };
    let gpt = async { measure(scene, Timed::gpt(scene, &sizes)?, ONE_AND_TWO).await };
    report.part(Section::Speed, "gpt", gpt).await;
    if scene.preset != Preset::Large {
        return;
    }
    let resnet50 = async { measure(scene, Timed::resnet50(scene)?, ONE).await };
    report.part(Section::Speed, "resnet50", resnet50).await;
    let wide = async {
        if scene.devices.memory.is_none_or(|bytes| bytes < WIDE_BYTES) {
            let gib = WIDE_BYTES >> 30;
            let reason = format!("a billion parameters need a GPU with {gib} GiB");
            return Ok(Findings::skipped(reason));
        }
        measure(scene, Timed::wide(scene)?, ONE).await
    };
    report.part(Section::Speed, "wide", wide).await;
}

/// Trains in several ways.
async fn measure(scene: &Scene, timed: Timed, runs: Runs) -> Result<Findings, Problem> {
    let Timed { unit, units, flops, .. } = timed;
    let mut findings = Findings::default().figure(format!("{unit}_a_step"), units);
    let mut parts = Vec::new();
    for (name, workers, determinism) in runs {
        let file = RunFile {
            // Nobody splits a batch for one worker.
            microbatches: if *workers == 1 { 1 } else { timed.run.microbatches },
            precision: Precision::Bf16,
            determinism: *determinism,
            length: Some(Length::Steps((FIRST + MEASURED) as u64)),
            ..timed.run.clone()
        };
        let peaks = scene.file(&format!("peaks-{unit}-{name}"));
        std::fs::create_dir_all(&peaks).map_err(|error| BossManError::io(&peaks, &error))?;
        let fleet = FleetSettings { peak_memory: Some(peaks.clone()), ..scene.fleet(*workers) };
        let steps = train(&file, fleet).await;
        let steps = steps.map_err(|error| Problem::of(name, &error))?;
        let seconds = median_seconds(&steps, FIRST).max(f64::MIN_POSITIVE);
        let rate = f64::from(units) / seconds;
        findings = findings
            .figure(format!("step_ms_{name}"), seconds * 1e3)
            .figure(format!("{unit}_per_s_{name}"), rate)
            .figure(format!("tflop_s_{name}"), flops / seconds / 1e12)
            .figure(format!("peak_bytes_{name}"), sum_of_peaks(&peaks, *workers));
        parts.push(format!("{} {rate:.0}", name.replace('_', " ")));
    }
    Ok(findings.text(format!("{unit}/s in bf16: {}", parts.join(", "))))
}

/// The sum of what the workers took at most, in bytes. `None` if it is unknown of one of them, as
/// on CPUs.
fn sum_of_peaks(folder: &Path, workers: usize) -> Option<u64> {
    let peak = |number: usize| {
        let text = std::fs::read_to_string(folder.join(number.to_string())).ok()?;
        text.parse::<u64>().ok()
    };
    (0..workers).map(peak).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_workers_is_known_if_each_has_written_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        assert_eq!(sum_of_peaks(folder.path(), 1), None);
        write("0", "1073741824").unwrap();
        assert_eq!(sum_of_peaks(folder.path(), 1), Some(1 << 30));
        assert_eq!(sum_of_peaks(folder.path(), 2), None);
        write("1", "24").unwrap();
        assert_eq!(sum_of_peaks(folder.path(), 2), Some((1 << 30) + 24));
        write("1", "many").unwrap();
        assert_eq!(sum_of_peaks(folder.path(), 2), None);
    }
}
