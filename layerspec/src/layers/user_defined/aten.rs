//! Operators of PyTorch by their names. The model file declares the shapes that the boss needs;
//! only workers know the operators.

use super::args::ARGS;
use super::declared::{flops, located, types, OUT};
use super::{Arg, Args, DeclaredOutput, FLOPS};
use crate::layers::{layer, Arity, Rules};
use crate::yaml::Reader;
use crate::{Dim, OutOfRange, TensorType};

/// The word that stands for whether the layer is being trained.
const TRAINING: &str = "training";

/// The longest name of an operator.
const MAX_NAME: usize = 200;

/// The most arguments.
const MAX_ARGUMENTS: usize = 64;

/// The longest text of an argument.
const MAX_TEXT: usize = 256;

/// The most elements of a list.
const MAX_ELEMENTS: usize = 1024;

const OP: Reader<String> =
    Reader::new("the name of an operator, as roll or div.Tensor_mode", |node| {
        node.as_text().filter(|name| is_operator(name)).map(str::to_owned)
    });

/// Its name, and after a point its overload.
fn is_operator(name: &str) -> bool {
    let (base, overload) = name.split_once('.').unwrap_or((name, "default"));
    let small = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let of_base = |letter: u8| small(letter) || letter == b'_';
    let of_overload = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'_';
    name.len() <= MAX_NAME
        && !base.is_empty()
        && !overload.is_empty()
        && base.bytes().all(of_base)
        && overload.bytes().all(of_overload)
}

const OPERATOR_ARGS: Reader<Args> =
    Reader::new("a mapping of names to numbers, text, `true`, `false` or lists of these", |node| {
        (ARGS.read)(node).filter(is_small)
    });

fn is_small(args: &Args) -> bool {
    let is_short = |arg: &Arg| match arg {
        Arg::Text(text) => text.len() <= MAX_TEXT,
        Arg::List(_) => false,
        Arg::Flag(_) | Arg::Integer(_) | Arg::Number(_) | Arg::Size { .. } => true,
    };
    let fits = |arg: &Arg| match arg {
        Arg::List(list) => list.len() <= MAX_ELEMENTS && list.iter().all(is_short),
        other => is_short(other),
    };
    args.iter().count() <= MAX_ARGUMENTS && args.iter().all(|(_, arg)| fits(arg))
}

layer! {
    /// An operator of PyTorch, `torch.ops.aten`, that BossMan has no layer for; see [Any operator
    /// of PyTorch](#any-operator-of-pytorch). It takes one input or more, and has no parameters.
    Aten {
        /// Its name, with its overload if it has one.
        op: String = OP;
        /// Its arguments that are no tensors, by their names in PyTorch. A symbol of its inputs'
        /// shapes stands for that size, `training` for whether the model is being trained.
        args: Args = OPERATOR_ARGS, or Args::default() => "{}";
        /// The shapes of its outputs: numbers, and symbols of its inputs' shapes.
        out: Option<Vec<DeclaredOutput>> = OUT, or None => "like the first input";
        /// Floating-point operations of a forward pass for each sample.
        flops: Option<u64> = FLOPS, or None => "one for each element of the first output";
    }
}

impl Aten {
    /// Records the input and dimension of each size among the arguments.
    pub(super) fn locate_sizes(&mut self, inputs: &[TensorType]) {
        self.args.locate(|symbol| located(symbol, inputs));
    }
}

impl Rules for Aten {
    fn arity(&self) -> Arity {
        Arity::Any
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let is_training = |arg: &Arg| match arg {
            Arg::Text(word) | Arg::Size { symbol: word, .. } => word == TRAINING,
            _ => false,
        };
        if located(TRAINING, inputs).is_some() && self.args.iter().any(|(_, arg)| is_training(arg))
        {
            return Err(format!(
                "`args`: `{TRAINING}` says whether the model is being trained; give the size of \
                 this name in its inputs another one"
            ));
        }
        types(self.out.as_deref(), inputs)
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        flops(self.flops, &[], inputs, outputs)
    }
}
