//! The models whose speed is measured: GPTs, ResNet-50, and a model that is all parameters.

use crate::run_file::RunFile;
use crate::self_check::preset::Sizes;
use crate::self_check::report::Problem;
use crate::self_check::scene::{save, Scene};
use crate::{BossManError, Model};
use layerspec::{Bindings, LayerGraph};
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// ResNet-50 of He et al. 2015 with torchvision's strides.
const RESNET50: &str = include_str!("resnet50.yaml");
/// Pictures in a step, and in the file.
const PICTURES: u32 = 64;
/// Pixels of a side.
const SIDE: i64 = 224;

/// Linear layers of this width that have a billion parameters together.
const WIDTH: i64 = 4096;
const LAYERS: u32 = 60;
/// The bytes that they take in training with Adam, and some for the rest.
pub(super) const WIDE_BYTES: u64 = 18 << 30;

/// A model, and what a step of it is.
pub(super) struct Timed {
    pub(super) run: RunFile,
    /// What a step has many of.
    pub(super) unit: &'static str,
    pub(super) units: u32,
    /// The floating-point operations of a step: a backward pass has twice those of a forward pass.
    pub(super) flops: f64,
}

impl Timed {
    /// # Errors
    /// The model file cannot be read.
    fn new(
        run: RunFile,
        unit: &'static str,
        units: u32,
        length: u32,
    ) -> Result<Self, BossManError> {
        let model = Model::from_file(&run.model)?;
        let forward = forward_flops(model.graph(), run.batch_size, length.into());
        Ok(Timed { run, unit, units, flops: 3.0 * forward })
    }

    /// A GPT of these sizes.
    ///
    /// # Errors
    /// Its files cannot be written.
    pub(super) fn gpt(scene: &Scene, sizes: &Sizes) -> Result<Self, Problem> {
        let run = scene.other_gpt(sizes)?;
        Ok(Timed::new(run, "tokens", sizes.batch * sizes.length, sizes.length)?)
    }

    /// ResNet-50 on random pictures.
    ///
    /// # Errors
    /// Its files cannot be written.
    pub(super) fn resnet50(scene: &Scene) -> Result<Self, Problem> {
        let shape = [i64::from(PICTURES), 3, SIDE, SIDE];
        let pictures = Tensor::f_rand(shape, (Kind::Float, Device::Cpu)).map_err(failed)?;
        let classes = Tensor::f_randint(1000, [shape[0]], (Kind::Int64, Device::Cpu));
        save(&scene.file("resnet50.safetensors"), &pictures, &classes.map_err(failed)?)?;
        scene.write("resnet50.yaml", RESNET50)?;
        let run = format!(
            "model: resnet50.yaml\ndata: {{train: resnet50.safetensors}}\nloss: \
             CrossEntropyLoss\noptimizer: {{SGD: {{lr: 0.1, momentum: 0.9}}}}\nbatch_size: \
             {PICTURES}\nmicrobatches: 1\nsteps: 1\n"
        );
        let run = RunFile::from_file(scene.write("resnet50-run.yaml", &run)?)?;
        Ok(Timed::new(run, "pictures", PICTURES, 1)?)
    }

    /// A billion parameters and one sample, so that a step is hardly more than the optimizer's.
    ///
    /// # Errors
    /// Its files cannot be written.
    pub(super) fn wide(scene: &Scene) -> Result<Self, Problem> {
        let sample = Tensor::f_ones([1, WIDTH], (Kind::Float, Device::Cpu)).map_err(failed)?;
        save(&scene.file("wide.safetensors"), &sample, &sample)?;
        let model = format!(
            "model: wide\ninputs:\n  x: [batch, {WIDTH}]\nlayers:\n  - name: layers\n    repeat: \
             {LAYERS}\n    layers:\n      - Linear: {{in_features: {WIDTH}, out_features: {WIDTH}, \
             bias: false}}\n"
        );
        scene.write("wide.yaml", &model)?;
        let run = "model: wide.yaml\ndata: {train: wide.safetensors}\nloss: MSELoss\noptimizer: \
                   {AdamW: {lr: 1e-5}}\nbatch_size: 1\nmicrobatches: 1\nsteps: 1\n";
        let run = RunFile::from_file(scene.write("wide-run.yaml", run)?)?;
        let parameters = LAYERS.saturating_mul((WIDTH * WIDTH).try_into().unwrap_or(u32::MAX));
        Ok(Timed::new(run, "parameters", parameters, 1)?)
    }
}

/// The floating-point operations of a forward pass over a batch.
fn forward_flops(graph: &LayerGraph, batch: u64, length: u64) -> f64 {
    let size = |word: &str| if graph.batch() == Some(word) { batch } else { length };
    let words = graph.symbols();
    let sizes = words.iter().fold(Bindings::new(), |sizes, word| sizes.with(word, size(word)));
    let costs = graph.layers().iter().filter_map(|layer| graph.cost(layer.id, &sizes));
    costs.map(|cost| cost.flops as f64).sum()
}

fn failed(error: tch::TchError) -> Problem {
    BossManError::from(TensorError::from(error)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::self_check::device::Devices;
    use crate::self_check::preset::Preset;

    #[test]
    fn the_models_are_those_that_their_names_say() {
        let scene = Scene::new(Preset::Large, Devices::cpu()).unwrap();
        let parameters =
            |timed: &Timed| Model::from_file(&timed.run.model).unwrap().graph().param_count();
        let resnet50 = Timed::resnet50(&scene).unwrap();
        assert_eq!(parameters(&resnet50), 25_557_032, "torchvision's");
        // 4.1 billion multiplications and additions for a picture.
        let forward = resnet50.flops / 3.0 / f64::from(PICTURES);
        assert!((8.1e9..8.6e9).contains(&forward), "{forward:e}");
        let wide = Timed::wide(&scene).unwrap();
        assert_eq!(parameters(&wide), 1_006_632_960);
        let gpt = Timed::gpt(&scene, &Preset::Large.timed_sizes().unwrap()).unwrap();
        assert_eq!(parameters(&gpt), 354_871_296);
        assert_eq!((gpt.unit, gpt.units), ("tokens", 8192));
    }
}
