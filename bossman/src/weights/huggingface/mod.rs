//! The way back: weights become a folder of Hugging Face's transformers again, with the names, the
//! shapes and the other files of the folder that they came from.
//!
//! ```text
//! HuggingFaceExport -> draft (a folder that appears whole or not at all)
//!                   -> assembled (a tensor is made when it is written)
//!                      -> plan (what each tensor is made of) -> part
//!                   -> other_files (configuration, tokenizer, licence) -> config_dtype
//! ```

mod assembled;
mod config_dtype;
mod draft;
mod other_files;
mod part;
mod plan;

use super::export::ExportSettings;
use super::model::Model;
use super::rename_rules::RenameRules;
use super::shards::write_model;
use super::tensor_headers::TensorHeaders;
use super::tensor_source::{collect, TensorSource};
use super::weight_files::WeightFiles;
use crate::data::disk;
use crate::{BossManError, StateDict};
use assembled::Assembled;
use draft::Draft;
use other_files::OtherFiles;
use plan::Plan;
use std::path::{Path, PathBuf};

/// The most bytes of tensors in a file, unless the user says another number.
const MAX_SHARD_BYTES: u64 = 5_000_000_000;

/// Whether a path is a folder as transformers writes it.
#[must_use]
pub fn is_huggingface(path: &Path) -> bool {
    path.join("config.json").is_file()
}

/// A way back for a model's weights into a new folder of Hugging Face's transformers. The folder
/// that they came from, the source, gives names, shapes, types and the files beside the weights.
///
/// ```no_run
/// use bossman::run_file::RunFile;
/// use bossman::{ExportSettings, HuggingFaceExport, Model, StateDict};
/// use std::path::Path;
///
/// let run = RunFile::from_file("mine/run.yaml")?;
/// let model = Model::from_file(&run.model)?;
/// let source = run.weights.expect("bossman import writes it");
/// let to = Path::new("llama-mine");
/// let export = HuggingFaceExport::new(&source.path, &source.rename, &model, to)?;
/// let weights = StateDict::load("weights.safetensors")?;
/// export.write(&weights, &ExportSettings { dtype: None, max_shard_bytes: None })?;
/// # Ok::<(), bossman::BossManError>(())
/// ```
pub struct HuggingFaceExport<'a> {
    source: PathBuf,
    headers: TensorHeaders,
    rename: &'a RenameRules,
    model: &'a Model,
    plan: Plan,
    other_files: OtherFiles,
    /// Deletes what was written, unless all of it was.
    draft: Draft,
}

impl<'a> HuggingFaceExport<'a> {
    /// Checks that weights of a model can go back: the source is a folder of transformers, `rename`
    /// makes the model of it, and the new folder `to` is not there. Reads no weights.
    ///
    /// # Errors
    /// The source is no such folder, its tensors are not those of the model, or `to` exists or
    /// cannot be made.
    pub fn new(
        source: &Path,
        rename: &'a RenameRules,
        model: &'a Model,
        to: &Path,
    ) -> Result<Self, BossManError> {
        let config = source.join("config.json");
        if !disk::is_file(&config).map_err(|e| BossManError::io(&config, &e))? {
            let problem = "is missing, so this is no folder of Hugging Face; name in `weights` of \
                           the run file the folder that `bossman import` read, or take `--format \
                           safetensors`";
            return Err(BossManError::file(&config, problem));
        }
        let draft = Draft::begin(source, to)?;
        let headers = TensorHeaders::read(source)?;
        let plan = Plan::new(&headers, rename, model)?;
        let other_files = OtherFiles::of(source)?;
        Ok(HuggingFaceExport {
            source: source.to_path_buf(),
            headers,
            rename,
            model,
            plan,
            other_files,
            draft,
        })
    }

    /// The parameters of the model that the source does not have. They are written under their own
    /// names, which transformers may not know.
    #[must_use]
    pub fn fresh(&self) -> &[String] {
        &self.plan.fresh
    }

    /// Refuses a source that is not what a run began with, by the digest in the run's receipt.
    /// Reads the weights of the source, a few megabytes at a time.
    ///
    /// # Errors
    /// The digests differ, or the weights cannot be read.
    pub fn check_source(&self, initial_weights: &str) -> Result<(), BossManError> {
        let found = WeightFiles::find(&self.source, self.rename, self.model)?;
        let digest = found.digest()?.to_string();
        if digest == initial_weights {
            return Ok(());
        }
        let problem = format!(
            "does not hold the weights that the run began with: their SHA-256 is {digest}, that in \
             the receipt is {initial_weights}. Put the first files back, or take `--format \
             safetensors`"
        );
        Err(BossManError::file(&self.source, problem))
    }

    /// Writes the new folder, which transformers' `from_pretrained` loads. The weights are checked
    /// against the model first. Tensors have the types of the source, or floating-point parameters
    /// the one of `dtype`. Without `max_shard_bytes` a file has 5 GB at most. Returns the tensors.
    ///
    /// # Errors
    /// The weights do not fit the model, or a file cannot be read or written. Then nothing stays.
    pub fn write(
        self,
        weights: &StateDict,
        settings: &ExportSettings,
    ) -> Result<StateDict, BossManError> {
        let HuggingFaceExport { headers, model, plan, other_files, draft, .. } = self;
        let weights = weights.fit_to(model.graph())?;
        let dtype = settings.float_dtype()?;
        let tensors = collect(&Assembled::new(&plan, &weights, &headers, dtype)?)?;
        write_folder(&tensors, &other_files, draft, settings)?;
        Ok(tensors)
    }

    /// As [`HuggingFaceExport::write`], with weights that stay in their files, as
    /// [`export_files`](crate::export_files) takes them. Returns the number of tensors.
    ///
    /// # Errors
    /// Those of [`HuggingFaceExport::write`], or a file of the weights or the source changes
    /// meanwhile. Then nothing stays.
    pub fn write_files(
        self,
        weights: &Path,
        rename: &RenameRules,
        settings: &ExportSettings,
    ) -> Result<usize, BossManError> {
        let HuggingFaceExport { headers, model, plan, other_files, draft, .. } = self;
        let weights = WeightFiles::find_all(weights, rename, model)?;
        let tensors = Assembled::new(&plan, &weights, &headers, settings.float_dtype()?)?;
        write_folder(&tensors, &other_files, draft, settings)
    }
}

/// Fills the draft with the tensors and the other files. Returns the number of tensors.
fn write_folder(
    tensors: &dyn TensorSource,
    other_files: &OtherFiles,
    draft: Draft,
    settings: &ExportSettings,
) -> Result<usize, BossManError> {
    other_files.copy(draft.path(), settings.dtype)?;
    let most = settings.max_shard_bytes.unwrap_or(MAX_SHARD_BYTES);
    let count = write_model(tensors, draft.path(), most)?;
    draft.finish()?;
    Ok(count)
}
