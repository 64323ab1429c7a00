//! The validation of a model on a part of a run's data.

use crate::data::fixed_batch::FixedBatch;
use crate::data::read_ahead::ReadAhead;
use crate::data::{Dataset, Order, Part, Source};
use crate::inference::score::Score;
use crate::inference::translation_score::Translations;
use crate::run_file::RunFile;
use crate::train::validation_result::ValidationResult;
use crate::{BossMan, BossManError};
use layerspec::Bindings;

/// The samples of a batch in evaluation, which saves nothing for backward.
const EVALUATION_BATCH: u64 = 256;
/// The most bytes of a value of the model in such a batch.
const MAX_VALUE_BYTES: u64 = 128 << 20;

/// Runs a part of the data through the model in evaluation mode, and translates if the run file
/// asks for it.
///
/// # Errors
/// A worker failed, a file cannot be read, or the model's fixed batch size does not divide the
/// samples.
pub async fn validate(
    boss: &mut BossMan,
    file: &RunFile,
    part: Part,
    data: &Dataset,
) -> Result<ValidationResult, BossManError> {
    if let Some(fixed) = FixedBatch::of(boss.model().graph()) {
        fixed.check_divisible("the data", data.samples())?;
    }
    let order = Order::new(data.samples(), None, 0);
    let size = batch_size(boss, file, data)?;
    let starts = (0..data.samples()).step_by(usize::try_from(size).unwrap_or(usize::MAX));
    let of = data.clone();
    let batches = ReadAhead::start(
        starts.map(move |start| Ok(of.batch(&order.at(start..start.saturating_add(size)))?)),
    );
    let score = Score::of_read(boss, batches).await?;
    let translations = match (&file.translate, file.pairs(part)) {
        (Some(how), Some(texts)) => Some(Translations::of(boss, texts, data, how).await?),
        _ => None,
    };
    Ok(ValidationResult { score, translations })
}

/// The samples of a batch in evaluation, which saves nothing for backward. It does not depend on
/// the workers, so that the result does not.
fn batch_size(boss: &BossMan, file: &RunFile, data: &Dataset) -> Result<u64, BossManError> {
    let graph = boss.model().graph();
    let most = match (FixedBatch::of(graph), file.source(Part::Train)) {
        (Some(fixed), _) => return Ok(fixed.samples),
        // Texts are long.
        (None, Some(Source::Text(_) | Source::Pairs(_))) => file.batch_size,
        (None, _) => EVALUATION_BATCH.max(file.batch_size),
    };
    let mut one = Bindings::new();
    for (id, sizes) in graph.inputs().iter().zip(data.sizes(&[0])?) {
        // A sample that does not fit is found when it is read.
        graph.value(*id).ty.shape.match_sizes(&sizes, &mut one).ok();
    }
    let largest = graph.values().iter().filter_map(|value| value.ty.bytes(&one)).max();
    let fits = MAX_VALUE_BYTES / largest.unwrap_or(1).max(1);
    Ok(most.min(fits).max(1))
}
