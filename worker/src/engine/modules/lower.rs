//! The table from a layer's kind to its ops. A new kind of layer is a file of this folder and an
//! entry here.

use crate::engine::layer_files::Constants;
use crate::engine::layers::custom_layers::CustomLayers;
use crate::engine::layers::lowered_layer::{LoweredLayer, LoweredOp};
use crate::engine::layers::op::Op;
use crate::engine::modules::activation::dropout::DropoutOp;
use crate::engine::modules::aten::AtenLayer;
use crate::engine::modules::attention::{llama, multihead_attention, positions, transformer};
use crate::engine::modules::by_autograd::AutogradOp;
use crate::engine::modules::constant::ConstantTensor;
use crate::engine::modules::custom::{RustLayer, TorchScriptLayer};
use crate::engine::modules::weighted::conv::Convolution;
use crate::engine::modules::weighted::parameter;
use crate::engine::modules::weighted::recurrent::Recurrent;
use layerspec::{Layer, LayerKind};
use parking_lot::Mutex;
use tch::Device;
use tensor::TensorError;

/// A `match` over a layer's kind. The arguments of a kind after `ops` are an [`Op`] themselves;
/// those of a kind after `autograd` become one by [`AutogradOp`].
macro_rules! op_of_kind {
    ($kind:expr, ops: [$($Op:ident)*], autograd: [$($Autograd:ident)*], $($others:tt)*) => {
        match $kind {
            $(LayerKind::$Op(layer) => Box::new(layer) as Box<dyn Op>,)*
            $(LayerKind::$Autograd(layer) => Box::new(AutogradOp(layer)),)*
            $($others)*
        }
    };
}

/// The ops of a layer, on this device. [`CustomLayers`] has the code of a kind that is not built
/// in, and what a layer takes from files. `constants` are those of the stage so far.
///
/// # Errors
/// The worker lacks or refuses the code of a custom layer or an operator, or lacks a file.
pub(crate) fn lower(
    layer: &Layer,
    custom_layers: &CustomLayers,
    constants: &mut Constants,
    device: Device,
) -> Result<LoweredLayer, TensorError> {
    let (inputs, outputs) = (layer.inputs.len(), layer.outputs.len());
    let names: Vec<&'static str> = layer.kind.params().iter().map(|param| param.name).collect();
    let op = op_of_kind! { layer.kind.clone(),
        ops: [
            Linear Embedding LayerNorm
            ReLU GELU SiLU Sigmoid Tanh Softmax LogSoftmax Identity Scale
            Flatten Unflatten Reshape Transpose Permute Squeeze Unsqueeze Roll Flip Add Concat
        ],
        autograd: [
            Bilinear RMSNorm GroupNorm BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm2d
            LearnedPositions RotaryEmbedding
            LeakyReLU PReLU ReLU6 ELU CELU SELU Mish Softplus LogSigmoid Softmin Softsign Hardtanh
            Hardsigmoid Hardswish Hardshrink Softshrink Tanhshrink Threshold GLU
            Clamp Abs Exp Sqrt Rsqrt
            MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d
            AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d
            AdaptiveMaxPool2d Upsample PixelShuffle PixelUnshuffle Pad
            Slice Select Index Split Chunk Stack Expand Mul Sub Div MatMul Mean Sum MaskedFill
            ScaledDotProductAttention
        ],
        LayerKind::MultiheadAttention(layer) => {
            return Ok(multihead_attention::lower(&layer, inputs))
        }
        LayerKind::TransformerEncoderLayer(layer) => {
            return Ok(transformer::lower_encoder(&layer, inputs))
        }
        LayerKind::TransformerDecoderLayer(layer) => {
            return Ok(transformer::lower_decoder(&layer, inputs))
        }
        LayerKind::PositionalEncoding(layer) => return Ok(positions::lower(&layer)),
        LayerKind::LlamaAttention(layer) => return Ok(llama::lower_attention(&layer, inputs)),
        LayerKind::LlamaMLP(layer) => return Ok(llama::lower_mlp(&layer)),
        LayerKind::Parameter(layer) => parameter::op(layer),
        LayerKind::Conv1d(layer) => return Ok(layer.lower()),
        LayerKind::Conv2d(layer) => return Ok(layer.lower()),
        LayerKind::Conv3d(layer) => return Ok(layer.lower()),
        LayerKind::ConvTranspose1d(layer) => return Ok(layer.lower()),
        LayerKind::ConvTranspose2d(layer) => return Ok(layer.lower()),
        LayerKind::ConvTranspose3d(layer) => return Ok(layer.lower()),
        LayerKind::Dropout(layer) => Box::new(DropoutOp::of(&layer)),
        LayerKind::Dropout2d(layer) => Box::new(DropoutOp::of_channels(&layer)),
        LayerKind::DropPath(layer) => Box::new(DropoutOp::of_paths(&layer)),
        LayerKind::RNN(layer) => Box::new(AutogradOp(Recurrent::rnn(&layer, names.clone()))),
        LayerKind::GRU(layer) => Box::new(AutogradOp(Recurrent::gru(&layer, names.clone()))),
        LayerKind::LSTM(layer) => Box::new(AutogradOp(Recurrent::lstm(&layer, names.clone()))),
        LayerKind::Custom(layer) => Box::new(AutogradOp(RustLayer {
            layer: custom_layers.make_custom(&layer)?,
            out: layer.out,
        })),
        LayerKind::Constant(layer) => {
            let tensor = custom_layers.files().constant_on(&layer, device, constants)?;
            Box::new(AutogradOp(ConstantTensor { tensor, expand: layer.expand }))
        }
        LayerKind::TorchScript(layer) => {
            let script = Mutex::new(custom_layers.files().script(&layer, device)?);
            Box::new(AutogradOp(TorchScriptLayer { script, out: layer.out }))
        }
        LayerKind::Aten(layer) => Box::new(AutogradOp(AtenLayer::new(layer, inputs)?)),
    };
    let params = names.iter().map(|name| (*name, *name)).collect();
    // A layer of one op.
    let nodes = vec![LoweredOp { op, inputs: (0..inputs).collect(), outputs, params }];
    Ok(LoweredLayer { nodes, outputs: (inputs..inputs + outputs).collect() })
}
