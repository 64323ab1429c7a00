use crate::engine::config::Mode;
use crate::engine::error::layer_error;
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::activation::dropout::dropout_mask;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::sizes::size;
use layerspec::layers::{Nonlinearity, GRU, LSTM, RNN};
use layerspec::LayerKind;
use tch::{Device, Tensor};
use tensor::memory::fills_its_memory;
use tensor::TensorError;

/// A layer that goes through a sequence step by step.
#[derive(Debug)]
pub(crate) struct Recurrent {
    cell: Cell,
    hidden_size: u64,
    num_layers: u64,
    bias: bool,
    batch_first: bool,
    dropout: f64,
    bidirectional: bool,
    /// The names of its parameters, in libtorch's order.
    names: Vec<&'static str>,
}

/// The kind of a step, with cuDNN's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Relu = 0,
    Tanh = 1,
    Lstm = 2,
    Gru = 3,
}

macro_rules! recurrent {
    ($layer:expr, $cell:expr, $names:expr) => {
        Recurrent {
            cell: $cell,
            hidden_size: $layer.hidden_size,
            num_layers: $layer.num_layers,
            bias: $layer.bias,
            batch_first: $layer.batch_first,
            dropout: $layer.dropout,
            bidirectional: $layer.bidirectional,
            names: $names,
        }
    };
}

impl Recurrent {
    pub(crate) fn rnn(layer: &RNN, names: Vec<&'static str>) -> Self {
        let cell = match layer.nonlinearity {
            Nonlinearity::Tanh => Cell::Tanh,
            Nonlinearity::Relu => Cell::Relu,
        };
        recurrent!(layer, cell, names)
    }

    pub(crate) fn gru(layer: &GRU, names: Vec<&'static str>) -> Self {
        recurrent!(layer, Cell::Gru, names)
    }

    pub(crate) fn lstm(layer: &LSTM, names: Vec<&'static str>) -> Self {
        recurrent!(layer, Cell::Lstm, names)
    }

    /// Layers without dropout, which draw no random numbers. The last layer's states at
    /// every step, then all layers' after the last step.
    fn run(
        &self,
        layers: i64,
        mode: Mode,
        x: &Tensor,
        states: &[Tensor],
        params: &[&Tensor],
    ) -> Result<Vec<Tensor>, TensorError> {
        let &Recurrent { bias, bidirectional: both, batch_first, .. } = self;
        let (p, train) = (0.0, mode == Mode::Train);
        let first = states.first().ok_or_else(|| layer_error("expected a state, got none"))?;
        let (output, state) = match self.cell {
            Cell::Tanh => x.f_rnn_tanh(first, params, bias, layers, p, train, both, batch_first)?,
            Cell::Relu => x.f_rnn_relu(first, params, bias, layers, p, train, both, batch_first)?,
            Cell::Gru => x.f_gru(first, params, bias, layers, p, train, both, batch_first)?,
            Cell::Lstm => {
                let states: Vec<&Tensor> = states.iter().collect();
                let (output, hidden, cell) =
                    x.f_lstm(&states, params, bias, layers, p, train, both, batch_first)?;
                return Ok(vec![output, hidden, cell]);
            }
        };
        Ok(vec![output, state])
    }

    /// The states before the first step: the given ones, or zeros.
    fn states(&self, input: &Tensor, given: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        if !given.is_empty() {
            return Ok(given.iter().map(Tensor::shallow_clone).collect());
        }
        let samples = input.size().get(usize::from(!self.batch_first)).copied().unwrap_or(0);
        let shape = [size(self.num_layers)? * self.directions(), samples, size(self.hidden_size)?];
        let zeros = || Ok(Tensor::f_zeros(shape, (input.f_kind()?, input.device()))?);
        let count = if self.cell == Cell::Lstm { 2 } else { 1 };
        (0..count).map(|_| zeros()).collect()
    }

    fn directions(&self) -> i64 {
        if self.bidirectional {
            2
        } else {
            1
        }
    }

    /// Layer after layer, with dropout between them. libtorch's own would not draw from the call's
    /// random numbers.
    fn run_with_dropout(
        &self,
        ctx: &OpContext<'_>,
        input: &Tensor,
        states: &[Tensor],
        params: &[&Tensor],
    ) -> Result<Vec<Tensor>, TensorError> {
        let (layers, directions) = (size(self.num_layers)?, self.directions());
        let of_direction = if self.bias { 4 } else { 2 };
        let of_layer = if self.bidirectional { 2 * of_direction } else { of_direction };
        let mut x = input.shallow_clone();
        let mut last: Vec<Vec<Tensor>> = states.iter().map(|_| Vec::new()).collect();
        for (layer, params) in (0..layers).zip(params.chunks(of_layer)) {
            let states =
                states.iter().map(|state| Ok(state.f_narrow(0, layer * directions, directions)?));
            let states: Vec<Tensor> = states.collect::<Result<_, TensorError>>()?;
            let mut made = self.run(1, ctx.mode, &x, &states, params)?.into_iter();
            x = made.next().ok_or_else(|| layer_error("libtorch gave no output"))?;
            last.iter_mut().zip(made).for_each(|(all, state)| all.push(state));
            if layer + 1 < layers {
                let purpose = format!("dropout after {layer}");
                x = x.f_mul(&dropout_mask(ctx, &purpose, &x.size(), x.f_kind()?, self.dropout)?)?;
            }
        }
        let last = last.iter().map(|all| Ok(Tensor::f_cat(all, 0)?));
        std::iter::once(Ok(x)).chain(last).collect()
    }
}

/// Makes the weights of a recurrent layer parts of one block of memory, as cuDNN wants them. Else
/// it copies them in each pass, with a warning. Nothing to do for other layers and devices.
///
/// # Errors
/// libtorch fails.
pub(crate) fn join_weights(kind: &LayerKind, weights: &[&Tensor]) -> Result<(), TensorError> {
    let layer = match kind {
        LayerKind::RNN(layer) => (Recurrent::rnn(layer, Vec::new()), layer.input_size),
        LayerKind::GRU(layer) => (Recurrent::gru(layer, Vec::new()), layer.input_size),
        LayerKind::LSTM(layer) => (Recurrent::lstm(layer, Vec::new()), layer.input_size),
        _ => return Ok(()),
    };
    let (layer, input_size) = layer;
    // With dropout each layer of the stack is a call of its own, to which no block fits.
    if (layer.dropout != 0.0 && layer.num_layers > 1) || !use_cudnn(weights)? {
        return Ok(());
    }
    let of_direction = if layer.bias { 4 } else { 2 };
    let _block = tch::no_grad(|| {
        Tensor::f_internal_cudnn_rnn_flatten_weight(
            weights,
            of_direction,
            size(input_size)?,
            layer.cell as i64,
            size(layer.hidden_size)?,
            0,
            size(layer.num_layers)?,
            layer.batch_first,
            layer.bidirectional,
        )
        .map_err(TensorError::from)
    })?;
    Ok(())
}

/// Whether cuDNN computes with these weights, and each has memory of its own.
fn use_cudnn(weights: &[&Tensor]) -> Result<bool, TensorError> {
    for weight in weights {
        let is_on_gpu = matches!(weight.device(), Device::Cuda(_));
        if !is_on_gpu || !weight.f_cudnn_is_acceptable()? || !fills_its_memory(weight) {
            return Ok(false);
        }
    }
    Ok(!weights.is_empty())
}

impl Differentiable for Recurrent {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (input, given) =
            inputs.split_first().ok_or_else(|| layer_error("expected an input, got none"))?;
        let states = self.states(input, given)?;
        let params: Vec<&Tensor> =
            self.names.iter().map(|name| ctx.param(name)).collect::<Result<_, _>>()?;
        if self.dropout != 0.0 && ctx.training() && self.num_layers > 1 {
            return self.run_with_dropout(ctx, input, &states, &params);
        }
        self.run(size(self.num_layers)?, ctx.mode, input, &states, &params)
    }

    fn depends_on_graph(&self) -> bool {
        true
    }
}
