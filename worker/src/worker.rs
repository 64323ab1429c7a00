//! A worker program with layers of its own.

use crate::engine::{CustomLayer, CustomLayers};
use crate::program::{self, options::Options};
use layerspec::layers::Args;

/// A worker program, to which layers in Rust can be added:
///
/// ```no_run
/// use worker::{Args, CustomLayer, ForwardContext, Tensor, TensorError, Worker};
///
/// /// `x * sigmoid(beta * x)`.
/// struct Swish;
///
/// impl CustomLayer for Swish {
///     fn forward(&self, ctx: &ForwardContext<'_>) -> Result<Vec<Tensor>, TensorError> {
///         let x = ctx.input(0)?;
///         Ok(vec![x.f_mul(&x.f_mul(ctx.param("beta")?)?.f_sigmoid()?)?])
///     }
/// }
///
/// fn main() {
///     Worker::new().layer("Swish", |args: &Args| args.known(&[]).map(|()| Swish)).main()
/// }
/// ```
///
/// It has the flags and environment variables of the `worker` program. Every worker of a run whose
/// stages have the layer must be such a program. The boss needs only the model file, which says
/// `Custom: {layer: Swish, params: {beta: [512]}}`.
#[derive(Debug, Clone, Default)]
pub struct Worker {
    layers: CustomLayers,
}

impl Worker {
    /// The `worker` program as it is.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer under the name that model files give as `layer`. `make` reads the layer's
    /// arguments when a model arrives. The boss shows its error before training begins.
    #[must_use]
    pub fn layer<L: CustomLayer + 'static>(
        mut self,
        name: &str,
        make: impl Fn(&Args) -> Result<L, String> + Send + Sync + 'static,
    ) -> Self {
        self.layers = self.layers.with(name, make);
        self
    }

    /// The program with its arguments.
    pub fn main(self) -> ! {
        program::run::main(self.layers)
    }

    /// Becomes the worker program if a boss started this program as a local worker, and returns
    /// otherwise.
    ///
    /// A boss whose `main` begins with this call can be the program of its own local workers:
    /// `Host::worker_program(std::env::current_exe()?)`. Call it before any thread starts, so not
    /// below `#[tokio::main]`.
    pub fn main_if_local(self) {
        if Options::is_local_worker() {
            self.main()
        }
    }
}
