//! User-defined layers. The model file declares the shapes and costs that the boss needs; only
//! workers have the code.

mod args;
mod aten;
mod declared;
mod name;

pub use args::{Arg, Args};
pub use aten::Aten;
pub use declared::{DeclaredOutput, DeclaredParam, Size};
pub use name::ParamName;

use super::file::{check_path, HASH};
use super::{layer, Arity, BadArgument, LayerKind, Rules};
use crate::yaml::{Reader, COUNT, TEXT};
use crate::{Dim, OutOfRange, ParamSpec, TensorType};
use args::ARGS;
use declared::{flops, specs, types, OUT, PARAMS, PARAMS_OF_FILE};

const FLOPS: Reader<Option<u64>> =
    Reader::new("a whole number, 0 or more", |node| (COUNT.read)(node).map(Some));

layer! {
    /// A layer in Rust that the worker program was built with; see [Layers of your
    /// own](#layers-of-your-own). It takes one input or more.
    Custom {
        /// Its name in the worker program.
        layer: String = TEXT;
        /// Its arguments, which its own code checks.
        args: Args = ARGS, or Args::default() => "{}";
        /// Its parameters. Without `init`, matrices are initialised like those of `Linear`, and
        /// vectors are zero.
        params: Vec<DeclaredParam> = PARAMS, or Vec::new() => "{}";
        /// The shapes of its outputs: numbers, and symbols of its inputs' shapes.
        out: Option<Vec<DeclaredOutput>> = OUT, or None => "like the first input";
        /// Floating-point operations of a forward pass for each sample.
        flops: Option<u64> = FLOPS, or None => "an estimate from its parameters";
    }
}

layer! {
    /// A module that `torch.jit.save` has written, trained like any other layer. Its parameters
    /// begin as the file has them. The workers run it only if they were started with
    /// `--allow-torchscript`; see [Layers of your own](#layers-of-your-own). It takes one input or
    /// more.
    TorchScript {
        /// The file; relative to the model file.
        path: String = TEXT;
        /// Every parameter of the module with its shape. The names are those of PyTorch's
        /// `named_parameters()`.
        params: Vec<DeclaredParam> = PARAMS_OF_FILE, or Vec::new() => "{}";
        /// The shapes of its outputs: numbers, and symbols of its inputs' shapes.
        out: Option<Vec<DeclaredOutput>> = OUT, or None => "like the first input";
        /// Floating-point operations of a forward pass for each sample.
        flops: Option<u64> = FLOPS, or None => "an estimate from its parameters";
        /// The file's SHA-256, if no other contents are accepted.
        sha256: Option<String> = HASH, or None => "that of the file";
    }
}

impl LayerKind {
    /// Whether an output can have a gradient by its declared type. Layers that declare no types
    /// make floating-point numbers of floating-point numbers.
    pub fn makes_floating(&self, output: usize) -> bool {
        let declared = match self {
            LayerKind::Custom(layer) => &layer.out,
            LayerKind::TorchScript(layer) => &layer.out,
            LayerKind::Aten(layer) => &layer.out,
            _ => return true,
        };
        let declared = declared.as_ref().and_then(|outputs| outputs.get(output));
        declared.is_none_or(|output| output.dtype.is_floating())
    }

    /// Records the source of the symbols in the outputs of a user-defined layer, and in the
    /// arguments of an operator. Other layers need no record.
    pub(crate) fn locate_symbols(&mut self, inputs: &[TensorType]) {
        let out = match self {
            LayerKind::Custom(layer) => &mut layer.out,
            LayerKind::TorchScript(layer) => &mut layer.out,
            LayerKind::Aten(layer) => {
                layer.locate_sizes(inputs);
                &mut layer.out
            }
            _ => return,
        };
        declared::locate_symbols(out.as_deref_mut().unwrap_or_default(), inputs);
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
        check_path(&self.path)
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
