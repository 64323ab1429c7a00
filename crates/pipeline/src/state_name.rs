//! The names of the tensors of a model's state, as workers send and receive them.

use std::fmt;

/// The prefix of the names of optimizer state. A parameter's name never has it, because it begins
/// with a layer's name.
const OPTIMIZER: &str = "optimizer/";

/// The name of a parameter or buffer, such as `0.weight`, or of optimizer state under PyTorch's
/// names, such as `optimizer/0.weight.exp_avg`. A replica's shard of that is flat, and its name
/// ends with its first element: `optimizer/0.weight.exp_avg[1024]`.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StateName<'a> {
    /// Whether it names optimizer state.
    pub optimizer: bool,
    /// The parameter's name. For optimizer state, a dot and the name of its kind follow.
    pub name: &'a str,
    /// The first element of a shard. `None` for the whole.
    pub start: Option<u64>,
}

impl<'a> StateName<'a> {
    /// A parameter or buffer.
    pub fn of_parameter(name: &'a str) -> Self {
        StateName { optimizer: false, name, start: None }
    }

    /// Optimizer state.
    pub fn of_optimizer(name: &'a str, start: Option<u64>) -> Self {
        StateName { optimizer: true, name, start }
    }

    /// Reads a name.
    pub fn parse(text: &'a str) -> Self {
        let Some(rest) = text.strip_prefix(OPTIMIZER) else { return Self::of_parameter(text) };
        let part = rest.strip_suffix(']').and_then(|rest| rest.rsplit_once('['));
        match part.and_then(|(name, start)| Some((name, start.parse().ok()?))) {
            Some((name, start)) => Self::of_optimizer(name, Some(start)),
            None => Self::of_optimizer(rest, None),
        }
    }

    /// The parameter of optimizer state, and the name of its kind.
    pub fn kept(&self) -> Option<(&'a str, &'a str)> {
        self.name.rsplit_once('.').filter(|_| self.optimizer)
    }
}

impl fmt::Display for StateName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.optimizer {
            f.write_str(OPTIMIZER)?;
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
            StateName::of_optimizer("a.b.weight.exp_avg", None),
            StateName::of_optimizer("0.weight.step", Some(1024)),
        ];
        for name in names {
            assert_eq!(StateName::parse(&name.to_string()), name);
        }
        assert_eq!(names[3].to_string(), "optimizer/0.weight.step[1024]");
        assert_eq!(names[3].kept(), Some(("0.weight", "step")));
        assert_eq!((names[0].kept(), StateName::parse("optimizer/x").kept()), (None, None));
        assert_eq!(StateName::parse("optimizer/a.b[x]"), StateName::of_optimizer("a.b[x]", None));
    }
}
