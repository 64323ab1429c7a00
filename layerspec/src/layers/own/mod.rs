//! Layers whose code is the user's own. The model file says of them what the boss must know; the code is where they run.

mod args;
mod declared;
mod name;

pub use args::{Arg, Args};
pub use declared::{Declared, Made, Size};
pub use name::ParamName;

use super::{bad, layer, Arity, BadArgument, LayerKind, Rules};
use crate::yaml::{Reader, COUNT, TEXT};
use crate::{Dim, OutOfRange, ParamSpec, TensorType};
use args::ARGS;
use declared::{flops, specs, types, OUT, PARAMS, PARAMS_OF_FILE};

/// A file's SHA-256 has this many digits.
const DIGITS: usize = 64;

const FLOPS: Reader<Option<u64>> = Reader::new("a whole number, 0 or more", |node| (COUNT.read)(node).map(Some));

const HASH: Reader<Option<String>> = Reader::new("64 hexadecimal digits", |node| {
    let digits = node.as_text()?.to_ascii_lowercase();
    is_hash(&digits).then_some(Some(digits))
});

fn is_hash(digits: &str) -> bool {
    digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit))
}

layer! {
    /// A layer in Rust that the worker program was built with; see [Layers of your own](#layers-of-your-own). It takes
    /// one input or more.
    Custom {
        /// The name under which the worker program has it.
        layer: String = TEXT;
        /// Its arguments, which its own code checks.
        args: Args = ARGS, or Args::default() => "{}";
        /// Its parameters. Where no `init` is given, matrices are filled as those of `Linear`, vectors are zero.
        params: Vec<Declared> = PARAMS, or Vec::new() => "{}";
        /// What comes out: sizes, and words of its inputs' shapes.
        out: Option<Vec<Made>> = OUT, or None => "like the first input";
        /// Floating-point operations of a forward pass for each sample.
        flops: Option<u64> = FLOPS, or None => "an estimate from its parameters";
    }
}

layer! {
    /// A module that `torch.jit.save` has written, trained like any other layer. Its parameters begin as the file has
    /// them. The workers run it only where they were started with `--allow-torchscript`; see [Layers of your
    /// own](#layers-of-your-own). It takes one input or more.
    TorchScript {
        /// The file; relative to the model file.
        path: String = TEXT;
        /// Every parameter of the module with its shape. The names are those of PyTorch's `named_parameters()`.
        params: Vec<Declared> = PARAMS_OF_FILE, or Vec::new() => "{}";
        /// What comes out: sizes, and words of its inputs' shapes.
        out: Option<Vec<Made>> = OUT, or None => "like the first input";
        /// Floating-point operations of a forward pass for each sample.
        flops: Option<u64> = FLOPS, or None => "an estimate from its parameters";
        /// The file's SHA-256, where no other contents are to be taken.
        sha256: Option<String> = HASH, or None => "that of the file";
    }
}

impl LayerKind {
    /// Tells a layer of the user's own what its inputs are; others know by themselves.
    pub(crate) fn meet_inputs(&mut self, inputs: &[TensorType]) {
        let out = match self {
            LayerKind::Custom(layer) => &mut layer.out,
            LayerKind::TorchScript(layer) => &mut layer.out,
            _ => return,
        };
        declared::find_words(out.as_deref_mut().unwrap_or_default(), inputs);
    }
}

impl Rules for Custom {
    fn arity(&self) -> Arity {
        Arity::Any
    }

    fn params(&self) -> Vec<ParamSpec> {
        specs(&self.params)
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        types(self.out.as_deref(), inputs)
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        flops(self.flops, &self.params, inputs, outputs)
    }
}

impl Rules for TorchScript {
    fn arity(&self) -> Arity {
        Arity::Any
    }

    fn check(&self) -> Result<(), BadArgument> {
        match self.path.is_empty() {
            true => Err(bad("path", "the name of a file")),
            false => Ok(()),
        }
    }

    fn params(&self) -> Vec<ParamSpec> {
        specs(&self.params)
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        types(self.out.as_deref(), inputs)
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Result<Dim, OutOfRange> {
        flops(self.flops, &self.params, inputs, outputs)
    }
}
