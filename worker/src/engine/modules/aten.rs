//! Operators of PyTorch by their names. `crates/tensor/cpp/aten.cpp` has the rule that says which
//! are allowed. Autograd computes their backward pass.

use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::custom::{check, checked, outline};
use layerspec::layers::{Arg, Aten, DeclaredOutput};
use layerspec::DType;
use parking_lot::Mutex;
use std::ops::Range;
use tch::Tensor;
use tensor::aten::{ArgumentKind, Operator, Outline, Value};
use tensor::TensorError;

/// The most sets of input shapes that are remembered.
const MOST_KNOWN: usize = 64;

/// A value of `args` for the argument at this place of the schema.
#[derive(Debug)]
struct Given {
    argument: usize,
    kind: ArgumentKind,
    value: Arg,
}

/// The inputs that an argument gets.
#[derive(Debug)]
struct Fed {
    argument: usize,
    ports: Range<usize>,
    is_list: bool,
}

/// An operator with its arguments.
#[derive(Debug)]
pub(crate) struct AtenLayer {
    operator: Operator,
    given: Vec<Given>,
    fed: Vec<Fed>,
    out: Option<Vec<DeclaredOutput>>,
    /// The modes and inputs whose outputs were foretold.
    known: Mutex<Vec<(bool, Vec<Outline>)>>,
}

impl AtenLayer {
    /// Finds the operator and checks that its arguments are all there, each of its type.
    pub(crate) fn new(layer: Aten, inputs: usize) -> Result<Self, TensorError> {
        let operator = Operator::find(&layer.op)?;
        let fed = feed(&operator, inputs)?;
        let given = give(&operator, &layer)?;
        Ok(Self { operator, given, fed, out: layer.out, known: Mutex::default() })
    }

    fn values<'a>(
        &self,
        training: bool,
        inputs: &'a [Tensor],
    ) -> Result<Vec<(usize, Value<'a>)>, TensorError> {
        let size = |port: usize, dim: usize| inputs.get(port)?.size().get(dim).copied();
        let mut values = Vec::new();
        for Fed { argument, ports, is_list } in &self.fed {
            let Some(tensors) = inputs.get(ports.clone()) else {
                return Err(layer_error(format!("expected an input {}", ports.end)));
            };
            let value = match (*is_list, tensors) {
                (false, [tensor]) => Value::Tensor(tensor),
                _ => Value::Tensors(tensors.iter().collect()),
            };
            values.push((*argument, value));
        }
        for Given { argument, kind, value } in &self.given {
            let value = converted(*kind, value, training, &size).map_err(layer_error)?;
            values.push((*argument, value));
        }
        Ok(values)
    }

    /// Compares the outputs with the model file before memory is taken for them. Once for all
    /// inputs of these shapes.
    fn foretell(
        &self,
        training: bool,
        inputs: &[Tensor],
        values: &[(usize, Value<'_>)],
    ) -> Result<(), TensorError> {
        let shapes: Vec<Outline> = inputs.iter().map(outline).collect::<Result<_, _>>()?;
        let call = (training, shapes);
        if self.known.lock().contains(&call) {
            return Ok(());
        }
        if let Some(outputs) = self.operator.outline(values)? {
            check(&outputs, self.out.as_deref(), inputs)?;
        }
        let mut known = self.known.lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.push(call);
        Ok(())
    }
}

impl Differentiable for AtenLayer {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let values = self.values(ctx.training(), inputs)?;
        self.foretell(ctx.training(), inputs, &values)?;
        checked(self.operator.call(&values)?, self.out.as_deref(), inputs)
    }

    /// It may: some operators have another kernel then.
    fn depends_on_graph(&self) -> bool {
        true
    }
}

/// Gives the inputs to the tensors of the schema, in order. A list takes all that are left.
fn feed(operator: &Operator, inputs: usize) -> Result<Vec<Fed>, TensorError> {
    let mut fed = Vec::new();
    let mut next = 0;
    for (place, argument) in operator.arguments().iter().enumerate() {
        let is_list = match argument.kind {
            ArgumentKind::Tensor => false,
            ArgumentKind::Tensors => true,
            _ => continue,
        };
        if next == inputs {
            if argument.required {
                let (number, name) = (next + 1, &argument.name);
                return Err(operator.invalid(format!("its input {number}, `{name}`, is missing")));
            }
            continue;
        }
        let end = if is_list { inputs } else { next + 1 };
        fed.push(Fed { argument: place, ports: next..end, is_list });
        next = end;
    }
    if next < inputs {
        return Err(operator.invalid(format!("expected at most {next} inputs, found {inputs}")));
    }
    Ok(fed)
}

fn is_tensor_kind(kind: ArgumentKind) -> bool {
    matches!(kind, ArgumentKind::Tensor | ArgumentKind::Tensors)
}

/// Finds the arguments that the model file gives.
fn give(operator: &Operator, layer: &Aten) -> Result<Vec<Given>, TensorError> {
    let mut given = Vec::new();
    for (name, value) in layer.args.iter() {
        let known = operator.arguments().iter().enumerate().find(|(_, known)| known.name == name);
        match known {
            None => {
                let names = operator.arguments().iter();
                let names: Vec<&str> = names
                    .filter(|known| {
                        !is_tensor_kind(known.kind) && known.kind != ArgumentKind::Other
                    })
                    .map(|known| known.name.as_str())
                    .collect();
                let expected = match names.is_empty() {
                    true => "none".to_owned(),
                    false => format!("one of {}", names.join(", ")),
                };
                let problem = format!("unknown argument `{name}`: expected {expected}");
                return Err(operator.invalid(problem));
            }
            Some((_, known)) if is_tensor_kind(known.kind) => {
                let problem = format!("argument `{name}` is a tensor: it takes an input");
                return Err(operator.invalid(problem));
            }
            Some((argument, known)) => {
                let value = value.clone();
                // A size that fits: the real ones are not known yet.
                let wrong =
                    |problem: String| operator.invalid(format!("argument `{name}`: {problem}"));
                converted(known.kind, &value, false, &|_, _| Some(1)).map_err(wrong)?;
                given.push(Given { argument, kind: known.kind, value });
            }
        }
    }
    for (place, known) in operator.arguments().iter().enumerate() {
        let is_given = given.iter().any(|given| given.argument == place);
        if known.required && !is_tensor_kind(known.kind) && !is_given {
            let (name, expected) = (&known.name, known.kind.expected());
            return Err(operator.invalid(format!("missing argument `{name}`: expected {expected}")));
        }
    }
    Ok(given)
}

/// A value as the schema wants it. `size` gives the size of an input's dimension.
fn converted(
    kind: ArgumentKind,
    value: &Arg,
    training: bool,
    size: &dyn Fn(usize, usize) -> Option<i64>,
) -> Result<Value<'static>, String> {
    let refused = || {
        let found = match value {
            Arg::Text(text) => format!("`{text}`"),
            Arg::Size { symbol, .. } => format!("`{symbol}`, a size of its inputs"),
            other => format!("{other:?}"),
        };
        format!("expected {}, found {found}", kind.expected())
    };
    let int = |value: &Arg| match value {
        Arg::Integer(number) => Some(*number),
        Arg::Size { port, dim, .. } => size(*port, *dim),
        _ => None,
    };
    let float = |value: &Arg| match value {
        Arg::Number(number) => Some(*number),
        other => int(other).map(|number| number as f64),
    };
    let flag = |value: &Arg| match value {
        Arg::Flag(flag) => Some(*flag),
        Arg::Text(word) if word == "training" => Some(training),
        _ => None,
    };
    let text = |value: &Arg| match value {
        Arg::Text(text) | Arg::Size { symbol: text, .. } => Some(text.clone()),
        _ => None,
    };
    let found = match (kind, value) {
        (ArgumentKind::Int, _) => int(value).map(Value::Int),
        (ArgumentKind::Float, _) => float(value).map(Value::Float),
        (ArgumentKind::Number, Arg::Flag(flag)) => Some(Value::Bool(*flag)),
        (ArgumentKind::Number, Arg::Number(number)) => Some(Value::Float(*number)),
        (ArgumentKind::Number, _) => int(value).map(Value::Int),
        (ArgumentKind::Bool, _) => flag(value).map(Value::Bool),
        (ArgumentKind::Text, _) => text(value).map(Value::Text),
        (ArgumentKind::Dtype, _) => {
            text(value).and_then(|name| name.parse::<DType>().ok()).map(Value::Dtype)
        }
        (ArgumentKind::Ints, Arg::List(list)) => {
            list.iter().map(int).collect::<Option<_>>().map(Value::Ints)
        }
        (ArgumentKind::Ints, _) => int(value).map(Value::Int),
        (ArgumentKind::Floats, Arg::List(list)) => {
            list.iter().map(float).collect::<Option<_>>().map(Value::Floats)
        }
        (ArgumentKind::Floats, _) => float(value).map(Value::Float),
        (ArgumentKind::Bools, Arg::List(list)) => {
            list.iter().map(flag).collect::<Option<_>>().map(Value::Bools)
        }
        (ArgumentKind::Bools, _)
        | (ArgumentKind::Tensor, _)
        | (ArgumentKind::Tensors, _)
        | (ArgumentKind::Other, _) => None,
    };
    found.ok_or_else(refused)
}
