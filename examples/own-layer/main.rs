//! A worker program with one custom layer: `Swish` (Ramachandran et al. 2017, arXiv:1710.05941).
//!
//! The layer learns a slope for each feature, and adds noise in training.

use worker::{Args, CustomLayer, ForwardContext, Tensor, TensorError, Worker};

/// Computes `x * sigmoid(beta * x)`. In training, noise is added to `x`.
struct Swish {
    noise: f64,
}

impl Swish {
    fn new(args: &Args) -> Result<Self, String> {
        args.known(&["noise"])?;
        Ok(Swish { noise: args.number("noise")? })
    }
}

impl CustomLayer for Swish {
    fn forward(&self, ctx: &ForwardContext<'_>) -> Result<Vec<Tensor>, TensorError> {
        let mut x = ctx.input(0)?.shallow_clone();
        if ctx.training() {
            // Numbers from this stream are the same wherever the layer is placed.
            let noise =
                ctx.random("swish noise")?.normal(&x.size(), x.f_kind()?, 0.0, self.noise)?;
            x = x.f_add(&noise)?;
        }
        Ok(vec![x.f_mul(&x.f_mul(ctx.param("beta")?)?.f_sigmoid()?)?])
    }
}

fn main() {
    Worker::new().layer("Swish", Swish::new).main()
}
