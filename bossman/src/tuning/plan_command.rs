//! The command `bossman plan`: measures a run's layers on its workers and predicts the time of each
//! schedule.

use crate::data::fixed_batch::FixedBatch;
use crate::data::{Order, Part};
use crate::events::{Console, Events, Stream};
use crate::run_file::RunFile;
use crate::workers::fleet_settings::FleetSettings;
use crate::{BossManError, Candidates, Model};

/// Measures the layers of a run on its workers, with the sizes of its first batch. Nothing is
/// trained.
///
/// # Errors
/// Anything in the files, the workers or the network; see [`BossManError`].
pub async fn run(file: &RunFile, settings: &FleetSettings) -> Result<Candidates, BossManError> {
    let model = Model::from_file(&file.model)?;
    let data = file.checked_part(Part::Train, &model)?;
    // One step is measured.
    FixedBatch::of(model.graph())
        .map_or(Ok(()), |fixed| fixed.check_run(file, data.samples(), 1))?;
    let workers = settings.worker_count(file)?;
    let builder = file.builder(model);
    builder.check(workers)?;
    // With no line to paste elsewhere, the table is all that is printed.
    let host = settings.host(workers);
    let host = match settings.local == workers {
        true => host.quiet(),
        false => host.events(Events::on(Console::new(Stream::Stderr))),
    };
    let mut boss = builder.build(host.wait().await?)?;
    boss.distribute_model().await?;
    boss.send_optimizer(file.optimizer).await?;
    let numbers = Order::new(data.samples(), None, 0).at(0..file.batch_size);
    let batch = data.batch(&numbers)?;
    let candidates = boss.candidates(&batch).await?;
    boss.shutdown().await;
    Ok(candidates)
}
