//! A dry run: the first samples as the model sees them, and the layers of each worker.

use crate::data::{Dataset, LoadedTokenizer, Part, Source};
use crate::run_file::RunFile;
use crate::{BossManError, Model};
use pipeline::ids::WorkerId;
use tch::{Kind, Tensor};

/// The numbers of a tensor that are shown.
const SHOWN: i64 = 6;
/// The letters of a text that are shown.
const LETTERS: usize = 60;

impl RunFile {
    /// Describes the first `count` samples to train on, a line each: for each input and the target
    /// the dtype, the shape and the first numbers, after every conversion.
    ///
    /// # Errors
    /// A file cannot be read, or does not fit the model.
    pub fn show_samples(&self, model: &Model, count: u64) -> Result<Vec<String>, BossManError> {
        let file = self.clone().with_data_at_boss();
        let data = file.parts(model)?.train;
        let count = i64::try_from(count.min(data.samples())).unwrap_or(i64::MAX);
        (0..count).map(|number| file.show_sample(model, &data, number)).collect()
    }

    fn show_sample(
        &self,
        model: &Model,
        data: &Dataset,
        number: i64,
    ) -> Result<String, BossManError> {
        let graph = model.graph();
        let (first, others) = data.inputs(&[number])?;
        let mut parts = Vec::new();
        for (place, id) in graph.inputs().iter().enumerate() {
            let name = &graph.value(*id).name;
            let input = if place == 0 { Some(&first) } else { others.get(name) };
            let Some(input) = input else { continue };
            parts.push(format!("{name} {}", show(input)?));
            if let (0, Some(Source::Text(text))) = (place, self.source(Part::Train)) {
                let tokens: Vec<i64> = numbers(input, i64::MAX)?;
                let tokens: Vec<u32> =
                    tokens.into_iter().filter_map(|token| token.try_into().ok()).collect();
                let text = LoadedTokenizer::load(&text.tokenizer)?.decode(&tokens)?;
                let begin: String = text.chars().take(LETTERS).collect();
                parts.push(format!("as text {begin:?}"));
            }
        }
        if let Some(target) = data.batch(&[number])?.target() {
            parts.push(format!("target {}", show(target)?));
        }
        Ok(format!("sample {}: {}", number + 1, parts.join("; ")))
    }

    /// Describes what each of `workers` workers gets, a line each.
    ///
    /// # Errors
    /// The model cannot be cut for them.
    pub fn show_workers(&self, model: &Model, workers: usize) -> Result<Vec<String>, BossManError> {
        let plan = self.builder(model.clone()).plan(workers)?;
        let graph = model.graph();
        let of_worker = |worker: WorkerId| {
            let held = plan
                .stages
                .iter()
                .filter(|spec| plan.stage_placement.of(spec.stage).contains(&worker));
            let stages = held.filter_map(|spec| {
                let (first, last) = (spec.layers.first()?, spec.layers.last()?);
                let params: u64 = spec
                    .layers
                    .iter()
                    .flat_map(|layer| graph.own_params(layer.id))
                    .map(|param| param.elements().unwrap_or(u64::MAX))
                    .fold(0, u64::saturating_add);
                let layers = match spec.layers.len() {
                    1 => format!("layer {}", first.name),
                    count => format!("{count} layers, {} to {}", first.name, last.name),
                };
                Some(format!("{layers}, with {params} parameters"))
            });
            format!("{worker}: {}", stages.collect::<Vec<_>>().join("; "))
        };
        let workers = u16::try_from(workers).unwrap_or(u16::MAX);
        Ok((0..workers).map(|worker| of_worker(WorkerId(worker))).collect())
    }
}

/// The dtype, the shape of a sample, the first numbers, and the range if there are more.
fn show(batch: &Tensor) -> Result<String, BossManError> {
    let dtype = tensor::dtype_of(batch)?;
    let shape: Vec<i64> = batch.size().into_iter().skip(1).collect();
    let is_whole = !batch.is_floating_point();
    let first: Vec<String> = match is_whole {
        true => numbers::<i64>(batch, SHOWN)?.iter().map(ToString::to_string).collect(),
        false => numbers::<f64>(batch, SHOWN)?.iter().map(|number| short(*number)).collect(),
    };
    let shape = if shape.is_empty() { String::new() } else { format!(" {shape:?}") };
    let mut text = format!("{dtype}{shape}: {}", first.join(" "));
    if batch.numel() as i64 > SHOWN {
        let all = batch.f_to_kind(Kind::Double).map_err(tensor::TensorError::from)?;
        let range = [all.f_min(), all.f_max()]
            .map(|number| number.and_then(f64::try_from).map_err(tensor::TensorError::from));
        let [least, most] = range;
        text += &format!(" ... ({} to {})", short(least?), short(most?));
    }
    Ok(text)
}

/// Four digits behind the point at most.
fn short(number: f64) -> String {
    ((number * 1e4).round() / 1e4).to_string()
}

/// The first numbers of a tensor.
fn numbers<T: tch::kind::Element>(batch: &Tensor, most: i64) -> Result<Vec<T>, BossManError>
where
    Vec<T>: TryFrom<Tensor, Error = tch::TchError>,
{
    let first = || {
        let flat = batch.f_to_kind(T::KIND)?.f_reshape([-1])?;
        let most = most.min(flat.numel() as i64);
        Vec::<T>::try_from(flat.f_narrow(0, 0, most)?)
    };
    Ok(first().map_err(tensor::TensorError::from)?)
}
