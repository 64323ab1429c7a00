//! The names of the tensors of a model's state, as workers send and receive them.

use crate::ids::StageId;
use std::fmt;

/// The prefix of the names of optimizer state. A parameter's name never has it, because it begins
/// with a layer's name.
const OPTIMIZER: &str = "optimizer/";
/// The same for a slice of a parameter or buffer.
const SLICE: &str = "slice/";

/// The name of a parameter or buffer, such as `0.weight`, or of optimizer state under PyTorch's
/// names, such as `optimizer/0.weight.exp_avg`. A replica's shard of that is flat, and its name
/// ends with its first element: `optimizer/0.weight.exp_avg[1024]`. So does the name of any slice
/// of it. A slice of a parameter or buffer is flat, too: `slice/0.weight[1024]`.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StateName<'a> {
    /// Whether it names optimizer state.
    pub optimizer: bool,
    /// The parameter's name. For optimizer state, a dot and the name of its kind follow.
    pub name: &'a str,
    /// The first element of a shard or slice. `None` for the whole.
    pub start: Option<u64>,
}

impl<'a> StateName<'a> {
    /// A parameter or buffer.
    pub fn of_parameter(name: &'a str) -> Self {
        StateName { optimizer: false, name, start: None }
    }

    /// Elements of a parameter or buffer from this one on, in row-major order.
    pub fn of_slice(name: &'a str, start: u64) -> Self {
        StateName { optimizer: false, name, start: Some(start) }
    }

    /// Optimizer state.
    pub fn of_optimizer(name: &'a str, start: Option<u64>) -> Self {
        StateName { optimizer: true, name, start }
    }

    /// Reads a name.
    pub fn parse(text: &'a str) -> Self {
        let part = |rest: &'a str| {
            let (name, start) = rest.strip_suffix(']')?.rsplit_once('[')?;
            Some((name, start.parse().ok()?))
        };
        if let Some((name, start)) = text.strip_prefix(SLICE).and_then(part) {
            return Self::of_slice(name, start);
        }
        let Some(rest) = text.strip_prefix(OPTIMIZER) else { return Self::of_parameter(text) };
        match part(rest) {
            Some((name, start)) => Self::of_optimizer(name, Some(start)),
            None => Self::of_optimizer(rest, None),
        }
    }

    /// The parameter of optimizer state, and the name of its kind.
    pub fn kept(&self) -> Option<(&'a str, &'a str)> {
        self.name.rsplit_once('.').filter(|_| self.optimizer)
    }

    /// The name of the parameter or buffer, or of the parameter whose optimizer state it is.
    pub fn parameter(&self) -> &'a str {
        self.kept().map_or(self.name, |(parameter, _)| parameter)
    }

    /// The stages that receive the tensor, of the [holders](crate::Plan::holders) of its parameter.
    pub fn receivers<'s>(&self, holders: &'s [StageId]) -> &'s [StageId] {
        // Only the owner has the optimizer state.
        match self.optimizer {
            true => holders.get(..1).unwrap_or(holders),
            false => holders,
        }
    }
}

impl fmt::Display for StateName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.optimizer, self.start) {
            (true, _) => f.write_str(OPTIMIZER)?,
            (false, Some(_)) => f.write_str(SLICE)?,
            (false, None) => {}
        }
        f.write_str(self.name)?;
        self.start.map_or(Ok(()), |start| write!(f, "[{start}]"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_it_was_made_of() {
        let names = [
            StateName::of_parameter("0.weight"),
            StateName::of_parameter("odd[3]"),
            StateName::of_parameter("slice/x"),
            StateName::of_slice("0.weight", 7),
            StateName::of_optimizer("a.b.weight.exp_avg", None),
            StateName::of_optimizer("0.weight.step", Some(1024)),
        ];
        for name in names {
            assert_eq!(StateName::parse(&name.to_string()), name);
        }
        assert_eq!(names[5].to_string(), "optimizer/0.weight.step[1024]");
        assert_eq!(names[5].kept(), Some(("0.weight", "step")));
        assert_eq!(names[3].to_string(), "slice/0.weight[7]");
        assert_eq!((names[0].kept(), StateName::parse("optimizer/x").kept()), (None, None));
        assert_eq!((names[0].parameter(), names[5].parameter()), ("0.weight", "0.weight"));
        assert_eq!(StateName::parse("optimizer/a.b[x]"), StateName::of_optimizer("a.b[x]", None));
    }

    #[test]
    fn optimizer_state_goes_to_the_owner_alone() {
        let holders = [StageId(1), StageId(4)];
        let (weight, state) =
            (StateName::of_parameter("0.weight"), StateName::of_optimizer("0.weight.step", None));
        assert_eq!(weight.receivers(&holders), holders);
        assert_eq!(state.receivers(&holders), [StageId(1)]);
        assert!(state.receivers(&[]).is_empty());
    }
}
