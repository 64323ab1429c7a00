//! The sizes of the first batch against every layer of the model.

use crate::data::fixed_batch::FixedBatch;
use crate::data::{Dataset, Order};
use crate::run_file::RunFile;
use crate::BossManError;
use layerspec::{Bindings, LayerGraph};

/// Checks that each input has the sizes that the model expects, and that each layer takes them. So
/// a sequence that is longer than the model's positions is found before any worker is.
pub(super) fn check(
    file: &RunFile,
    graph: &LayerGraph,
    data: &Dataset,
) -> Result<(), BossManError> {
    let together = match FixedBatch::of(graph) {
        // Whether the samples fill batches is checked with the run.
        Some(fixed) if fixed.samples > data.samples() => return Ok(()),
        Some(fixed) => fixed.samples,
        None => file.batch_size.min(data.samples()),
    };
    let batch = Order::new(data.samples(), None, 0).at(0..together);
    let numbers: Vec<i64> = batch.iter().filter_map(|number| data.number(*number)).collect();
    let mut bindings = Bindings::new();
    for (id, sizes) in graph.inputs().iter().zip(data.sizes(&numbers)?) {
        let value = graph.value(*id);
        if let Err(why) = value.ty.shape.match_sizes(&sizes, &mut bindings) {
            let problem =
                format!("expected {}, but a batch of the data has {sizes:?} ({why})", value.ty);
            return Err(BossManError::Input { name: value.name.clone(), problem });
        }
    }
    graph
        .check_batch(&bindings)
        .map_err(|fault| fault.in_file(&file.model.display().to_string()).into())
}
