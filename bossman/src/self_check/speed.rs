//! Measures tokens a second.

use crate::run_file::{Length, RunFile};
use crate::self_check::preset::Preset;
use crate::self_check::report::{Findings, Problem};
use crate::self_check::scene::Scene;
use crate::self_check::trial::{median_seconds, train};
use crate::{Determinism, Precision};

/// The first steps, which are slower: one measures the layers.
const FIRST: usize = 3;
const MEASURED: usize = 10;

/// The runs: the end of the names of their figures, workers, and kernels.
const RUNS: [(&str, usize, Determinism); 3] = [
    ("1_worker", 1, Determinism::Strict),
    ("2_workers", 2, Determinism::Strict),
    ("1_worker_fast", 1, Determinism::Fast),
];

/// Trains in bfloat16 on one worker and on two of the same device.
///
/// # Errors
/// A run fails.
pub(super) async fn check(scene: &Scene) -> Result<Findings, Problem> {
    if scene.preset == Preset::Tiny {
        return Ok(Findings::skipped("preset tiny gives the device no work worth measuring"));
    }
    let tokens = scene.sizes.batch * scene.sizes.length;
    let mut findings = Findings::default().figure("tokens_a_step", tokens);
    let mut parts = Vec::new();
    for (name, workers, determinism) in RUNS {
        let file = RunFile {
            precision: Precision::Bf16,
            determinism,
            length: Some(Length::Steps((FIRST + MEASURED) as u64)),
            ..scene.run_file()
        };
        let steps = train(&file, scene.fleet(workers)).await;
        let steps = steps.map_err(|error| Problem::of(name, &error))?;
        let seconds = median_seconds(&steps, FIRST);
        let rate = f64::from(tokens) / seconds.max(f64::MIN_POSITIVE);
        findings = findings
            .figure(format!("step_ms_{name}"), seconds * 1e3)
            .figure(format!("tokens_per_s_{name}"), rate);
        parts.push(format!("{} {rate:.0}", name.replace('_', " ")));
    }
    Ok(findings.text(format!("tokens/s in bf16: {}", parts.join(", "))))
}
