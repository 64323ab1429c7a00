//! Compares a stored state with the model and the optimizer that it is for.

use crate::weights::shown_text::shown;
use crate::weights::state_dict::Expected;
use crate::BossManError;
use layerspec::DType;
use pipeline::optimizer::OptimizerSpec;
use pipeline::{StateName, TensorMeta};
use std::collections::{BTreeMap, BTreeSet};

/// The kind of optimizer state that is a number. The others have the shape of their parameter.
const STEP: &str = "step";

/// Whether the optimizer takes state. Without momentum, SGD leaves that of a run with momentum.
pub(super) fn keeps_state(optimizer: &OptimizerSpec) -> bool {
    !optimizer.state_kinds().is_empty()
}

/// Checks names and metas of a whole state.
///
/// # Errors
/// All differences are listed.
pub(super) fn check_state<'a>(
    expected: &Expected,
    optimizer: &OptimizerSpec,
    metas: impl Iterator<Item = (&'a str, &'a TensorMeta)>,
) -> Result<(), BossManError> {
    let (optimizer_state, weights): (Vec<_>, BTreeMap<_, _>) = {
        let (state, weights): (Vec<_>, Vec<_>) =
            metas.partition(|(name, _)| StateName::parse(name).optimizer);
        (state, weights.into_iter().collect())
    };
    let mut problems = weight_problems(expected, &weights);
    problems.extend(optimizer_problems(expected, optimizer, optimizer_state.into_iter()));
    listed(problems)
}

/// Checks names and metas of optimizer state. A parameter may have none, but not a part of it.
///
/// # Errors
/// All differences are listed.
pub(super) fn check_optimizer_state<'a>(
    expected: &Expected,
    optimizer: &OptimizerSpec,
    metas: impl Iterator<Item = (&'a str, &'a TensorMeta)>,
) -> Result<(), BossManError> {
    listed(optimizer_problems(expected, optimizer, metas))
}

fn listed(problems: Vec<String>) -> Result<(), BossManError> {
    match problems.is_empty() {
        true => Ok(()),
        false => Err(BossManError::StateDict(problems)),
    }
}

fn weight_problems(expected: &Expected, found: &BTreeMap<&str, &TensorMeta>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, want) in &expected.owned {
        match found.get(name.as_str()) {
            Some(found) if **found == want.meta => {}
            Some(found) => problems.push(format!("`{name}`: expected {}, got {found}", want.meta)),
            None => problems.push(format!("`{name}`: missing; expected {}", want.meta)),
        }
    }
    let unknown = found.keys().filter(|name| !expected.owned.contains_key(**name));
    problems.extend(unknown.map(|name| stranger(name)));
    problems
}

fn optimizer_problems<'a>(
    expected: &Expected,
    optimizer: &OptimizerSpec,
    metas: impl Iterator<Item = (&'a str, &'a TensorMeta)>,
) -> Vec<String> {
    if !keeps_state(optimizer) {
        return Vec::new();
    }
    let (mut problems, kinds) = (Vec::new(), optimizer.state_kinds());
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (text, meta) in metas {
        let name = StateName::parse(text);
        let of = name
            .kept()
            .and_then(|(parameter, kind)| Some((parameter, kind, expected.owned.get(parameter)?)));
        let Some((parameter, kind, want)) = of else {
            problems.push(stranger(name.name));
            continue;
        };
        found.entry(parameter).or_default().insert(kind);
        let shape = if kind == STEP { Vec::new() } else { want.meta.shape.clone() };
        let want = TensorMeta { dtype: DType::Float32, shape };
        if !kinds.contains(&kind) {
            let name = shown(name.name);
            problems.push(format!("`{name}`: {} has no such state", optimizer.name()));
        } else if *meta != want {
            problems.push(format!("`{}`: expected {want}, got {meta}", name.name));
        }
    }
    for (parameter, there) in found {
        let missing = kinds.iter().filter(|kind| !there.contains(*kind));
        let problem = |kind: &&str| {
            format!("`{parameter}.{kind}`: missing; other state of the parameter is there")
        };
        problems.extend(missing.map(problem));
    }
    problems
}

fn stranger(name: &str) -> String {
    format!("`{}`: the model has no such parameter", shown(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::state_dict::expected;
    use crate::Model;

    const MODEL: &str = "
inputs: {x: [batch, 2]}
layers:
  - Linear: {in_features: 2, out_features: 3, bias: false}
    name: a
";

    fn problems(optimizer: OptimizerSpec, state: &[(&str, DType, &[u64])]) -> Vec<String> {
        let meta = |dtype: DType, shape: &[u64]| TensorMeta { dtype, shape: shape.to_vec() };
        let state: Vec<(&str, TensorMeta)> =
            state.iter().map(|(name, dtype, shape)| (*name, meta(*dtype, shape))).collect();
        let model = Model::from_yaml(MODEL).unwrap();
        let metas = state.iter().map(|(name, meta)| (*name, meta));
        match check_state(&expected(model.graph()), &optimizer, metas) {
            Ok(()) => Vec::new(),
            Err(BossManError::StateDict(problems)) => problems,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn every_difference_is_listed() {
        use DType::{Float32, Int64};
        let adam = OptimizerSpec::adam(0.1);
        let whole: [(&str, DType, &[u64]); 4] = [
            ("a.weight", Float32, &[3, 2]),
            ("optimizer/a.weight.exp_avg", Float32, &[3, 2]),
            ("optimizer/a.weight.exp_avg_sq", Float32, &[3, 2]),
            ("optimizer/a.weight.step", Float32, &[]),
        ];
        assert!(problems(adam, &whole).is_empty());
        assert!(problems(adam, &whole[..1]).is_empty(), "the optimizer starts fresh");
        let missing = "`a.weight.step`: missing; other state of the parameter is there";
        assert_eq!(problems(adam, &whole[..3]), [missing]);
        let strange: [(&str, DType, &[u64]); 5] = [
            ("a.weight", Int64, &[3, 2]),
            ("b.weight", Float32, &[3, 2]),
            ("optimizer/a.weight.momentum_buffer", Float32, &[2, 3]),
            ("optimizer/b.weight.momentum_buffer", Float32, &[3, 2]),
            ("optimizer/a.weight.step", Float32, &[]),
        ];
        let expected = [
            "`a.weight`: expected float32 [3, 2], got int64 [3, 2]",
            "`b.weight`: the model has no such parameter",
            "`a.weight.momentum_buffer`: expected float32 [3, 2], got float32 [2, 3]",
            "`b.weight.momentum_buffer`: the model has no such parameter",
            "`a.weight.step`: SGD has no such state",
        ];
        assert_eq!(problems(OptimizerSpec::sgd_momentum(0.1, 0.9), &strange), expected);
        assert!(problems(OptimizerSpec::sgd(0.1), &whole).is_empty(), "it has no use for state");
        let expected = ["`a.weight`: missing; expected float32 [3, 2]"];
        assert_eq!(problems(OptimizerSpec::sgd(0.1), &[]), expected);
    }
}
