//! Checks that every kind of layer computes what PyTorch does.

use crate::engine::EngineError;
use crate::self_check::report::{Findings, Problem};
use crate::self_check::{comparison, kernels, records};
use serde_json::{json, Value as Json};
use tch::Device;
use tensor::determinism::Kernels;
use tensor::threads;

/// What the three errors of a case are about.
const SORTS: [&str; 3] = ["outputs", "input gradients", "parameter gradients"];
const FIGURES: [&str; 3] = ["outputs", "input_gradients", "parameter_gradients"];
/// The most layers that a line names.
const NAMED: usize = 5;

/// Runs every recorded layer forward and backward, and compares. The records were made with one
/// thread. Several round their sums in another order, so the layers compute with one, too.
///
/// # Errors
/// A layer fails, or its results differ by too much.
pub(crate) fn check(device: Device) -> Result<Findings, Problem> {
    let count = threads::count();
    threads::set_count(1);
    let checked = compare_all(device);
    threads::set_count(count);
    checked
}

fn compare_all(device: Device) -> Result<Findings, Problem> {
    let cases = records::cases()?;
    let tolerances = comparison::Tolerances::of(device);
    let mut worst = <[Worst; 3]>::default();
    let mut wrong = Vec::new();
    let mut without = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().unwrap_or_default();
        match compare(case, name, device) {
            Ok((errors, kernels)) => {
                if kernels != Kernels::Deterministic {
                    without.push(name);
                }
                let largest = errors.iter().flatten().copied().fold(0.0, f64::max);
                let tolerance = tolerances.for_case(case);
                if largest > tolerance {
                    wrong.push(format!("{name} ({largest:.1e}, at most {tolerance:e})"));
                }
                for (worst, error) in worst.iter_mut().zip(errors) {
                    worst.include(error.unwrap_or(0.0), name);
                }
            }
            Err(error) => match kernels::tensor_error(&error) {
                Some(source) if source.is_device_broken() => {
                    return Err(Problem::at(&format!("{name}: "), source));
                }
                _ => wrong.push(format!("{name} ({error})")),
            },
        }
    }
    let mut findings = Findings::new(summary(cases.len(), &worst, without.len()))
        .figure("cases", cases.len())
        .figure("wrong", wrong.len())
        .figure("tolerance", tolerances.others)
        .figure("tolerance_recurrent", tolerances.recurrent)
        .figure("without_deterministic_kernels", without);
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
        "{} of {} layers do not compute what PyTorch does: {named}{more}; do not train on this \
         device: update its driver and check again, and report this if it stays",
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

fn summary(cases: usize, worst: &[Worst; 3], without: usize) -> String {
    let column = |(sort, Worst { error, case }): (&str, &Worst)| match case.is_empty() {
        true => format!("{sort} 0"),
        false => format!("{sort} {error:.1e} ({case})"),
    };
    let columns: Vec<String> = SORTS.into_iter().zip(worst).map(column).collect();
    let without = match without {
        0 => String::new(),
        1 => "; 1 has no deterministic kernel".into(),
        more => format!("; {more} have no deterministic kernel"),
    };
    let columns = columns.join(", ");
    format!("{cases} cases as in PyTorch; largest relative errors: {columns}{without}")
}

/// The errors of a case, as of [`comparison::errors`], and the kernels that computed it.
fn compare(
    case: &Json,
    name: &str,
    device: Device,
) -> Result<([Option<f64>; 3], Kernels), EngineError> {
    let graph = comparison::model(case)?;
    let recorded = records::recorded(name)?;
    let (found, kernels) = kernels::deterministic_if_possible(device, || {
        comparison::run(comparison::stage(&graph, device), case, &recorded)
    })?;
    Ok((comparison::errors(&found, &recorded)?, kernels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_layers_without_deterministic_kernels() {
        let worst = <[Worst; 3]>::default();
        let errors = "3 cases as in PyTorch; largest relative errors: outputs 0, input gradients \
                      0, parameter gradients 0";
        assert_eq!(summary(3, &worst, 0), errors);
        let one = format!("{errors}; 1 has no deterministic kernel");
        assert_eq!(summary(3, &worst, 1), one);
        let two = format!("{errors}; 2 have no deterministic kernel");
        assert_eq!(summary(3, &worst, 2), two);
    }
}
