//! A worker program that knows one layer more than others: `Swish` (Ramachandran et al. 2017, arXiv:1710.05941) with a slope
//! to learn for each feature, and noise in training.

use worker::{Args, CustomLayer, Forward, Tensor, TensorError, Worker};

/// `x * sigmoid(beta * x)`, where `x` is a little off in training.
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
    fn forward(&self, call: &Forward<'_>) -> Result<Vec<Tensor>, TensorError> {
        let mut x = call.input(0)?.shallow_clone();
        if call.training() {
            // From this stream, a run's numbers are the same wherever the layer is.
            let noise = call.random("swish noise")?.normal(&x.size(), x.f_kind()?, 0.0, self.noise)?;
            x = x.f_add(&noise)?;
        }
        Ok(vec![x.f_mul(&x.f_mul(call.param("beta")?)?.f_sigmoid()?)?])
    }
}

fn main() {
    Worker::new().layer("Swish", Swish::new).main()
}
