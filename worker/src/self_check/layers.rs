//! Checks that every kind of layer computes what PyTorch does.

use crate::engine::EngineError;
use crate::self_check::report::{Findings, Problem};
use crate::self_check::{comparison, records};
use serde_json::{json, Value as Json};
use tch::Device;
use tensor::determinism::{choose_kernels, Kernels};
use tensor::TensorError;

/// What the three errors of a case are about.
const SORTS: [&str; 3] = ["outputs", "input gradients", "parameter gradients"];
const FIGURES: [&str; 3] = ["outputs", "input_gradients", "parameter_gradients"];
/// The most layers that a line names.
const NAMED: usize = 5;

/// Runs every recorded layer forward and backward, and compares.
///
/// # Errors
/// A layer fails, or its results differ by too much.
pub(crate) fn check(device: Device) -> Result<Findings, Problem> {
    let cases = records::cases()?;
    let tolerance = comparison::tolerance(device);
    choose(device, Kernels::Deterministic)?;
    let mut worst = <[Worst; 3]>::default();
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().unwrap_or_default();
        match compare(case, name, device) {
            Ok(errors) => {
                let largest = errors.iter().flatten().copied().fold(0.0, f64::max);
                if largest > tolerance {
                    wrong.push(format!("{name} ({largest:.1e})"));
                }
                for (worst, error) in worst.iter_mut().zip(errors) {
                    worst.include(error.unwrap_or(0.0), name);
                }
            }
            Err(error) => match tensor_error(&error) {
                Some(source) if source.is_device_broken() => {
                    return Err(Problem::at(&format!("{name}: "), source));
                }
                _ => wrong.push(format!("{name} ({error})")),
            },
        }
    }
    let mut findings = Findings::new(summary(cases.len(), &worst))
        .figure("cases", cases.len())
        .figure("wrong", wrong.len())
        .figure("tolerance", tolerance);
    for (name, Worst { error, case }) in FIGURES.into_iter().zip(&worst) {
        findings = findings.figure(name, json!({"error": error, "case": case}));
    }
    if wrong.is_empty() {
        return Ok(findings);
    }
    let more = match wrong.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = wrong[..wrong.len().min(NAMED)].join(", ");
    let problem = format!(
        "{} of {} layers are not within {tolerance:e} of PyTorch: {named}{more}; do not train on \
         this device: update its driver and check again, and report this if it stays",
        wrong.len(),
        cases.len()
    );
    Err(Problem::new(problem).with(findings))
}

/// The largest error of a sort, and its case.
#[derive(Default)]
struct Worst {
    error: f64,
    case: String,
}

impl Worst {
    fn include(&mut self, error: f64, case: &str) {
        if error > self.error {
            *self = Worst { error, case: case.into() };
        }
    }
}

fn summary(cases: usize, worst: &[Worst; 3]) -> String {
    let column = |(sort, Worst { error, case }): (&str, &Worst)| match case.is_empty() {
        true => format!("{sort} 0"),
        false => format!("{sort} {error:.1e} ({case})"),
    };
    let columns: Vec<String> = SORTS.into_iter().zip(worst).map(column).collect();
    format!("{cases} cases as in PyTorch; largest relative errors: {}", columns.join(", "))
}

/// The errors of a case, as of [`comparison::errors`].
fn compare(case: &Json, name: &str, device: Device) -> Result<[Option<f64>; 3], EngineError> {
    let graph = comparison::model(case)?;
    let recorded = records::recorded(name)?;
    let run = || {
        let stage = comparison::stage(&graph, device);
        let found = tensor::panics::catch(|| comparison::run(stage, case, &recorded));
        found.map_err(EngineError::from).and_then(|found| found)
    };
    let found = match run() {
        // A property of libtorch, and no fault of this device.
        Err(error) if tensor_error(&error).is_some_and(TensorError::lacks_deterministic_kernel) => {
            choose(device, Kernels::FullPrecision)?;
            let found = run();
            choose(device, Kernels::Deterministic)?;
            found?
        }
        found => found?,
    };
    Ok(comparison::errors(&found, &recorded)?)
}

/// Other devices have no choice.
fn choose(device: Device, kernels: Kernels) -> Result<(), TensorError> {
    match device {
        Device::Cuda(_) => choose_kernels(kernels),
        _ => Ok(()),
    }
}

/// The error of libtorch, if it is one.
fn tensor_error(error: &EngineError) -> Option<&TensorError> {
    match error {
        EngineError::Layer { source, .. } | EngineError::Loss { source, .. } => Some(source),
        EngineError::Tensor(source) => Some(source),
        _ => None,
    }
}
