//! `bossman self-check`: whole runs on a device, with the programs that users have.
//!
//! ```text
//!     cli/self_check.rs -> mod.rs -> report.rs       the results of the sections
//!                           |-> device.rs            the worker program's own self-check
//!                           |     |-> settings.rs    what to check; section.rs, preset.rs
//!                           |-> cuts.rs  replicas.rs  resume.rs  errors.rs  speed.rs
//!                           |     |-> timed.rs       models whose speed is measured
//!                           |     |-> trial.rs       a run, and its steps
//!                           |     |-> compare.rs     the losses of two runs
//!                           |-> prediction.rs        the step that `schedule: auto` predicts
//!                                 |-> scene.rs       files and workers of the runs; gpt.yaml
//!                                       |-> preset.rs  their sizes
//! ```
//!
//! Nothing here needs files of the user or a network beyond this machine.

mod compare;
mod cuts;
mod device;
mod errors;
mod prediction;
mod preset;
mod replicas;
mod report;
mod resume;
mod scene;
mod section;
mod settings;
mod speed;
mod timed;
mod trial;

use crate::self_check::report::Report;
use crate::self_check::scene::Scene;
use crate::BossManError;

pub use preset::Preset;
pub use report::{SectionResult, Summary};
pub use section::Section;
pub use settings::Settings;

/// Checks whole runs on a device. Hands on the result of each section as soon as it ends.
///
/// # Errors
/// The files of the runs cannot be written. A section that fails is no error.
pub async fn run(
    settings: &Settings,
    on_result: impl FnMut(&SectionResult),
) -> Result<Summary, BossManError> {
    let mut report = Report::new(&settings.only, on_result);
    let Some(devices) = device::check(settings, &mut report).await else {
        return Ok(report.stopped());
    };
    let scene = Scene::new(settings.preset, devices)?;
    report.section(Section::Cuts, cuts::check(&scene)).await;
    report.section(Section::Replicas, replicas::check(&scene)).await;
    report.section(Section::Resume, resume::check(&scene)).await;
    report.section(Section::Errors, errors::check(&scene)).await;
    report.section(Section::Prediction, prediction::check(&scene)).await;
    speed::check(&scene, &mut report).await;
    Ok(report.ended())
}
