//! Writes weights for other programs: in one file or several, as another floating-point type.

use super::rename_rules::RenameRules;
use super::safetensors_files::write_file;
use super::shards::write_sharded;
use super::tensor_source::{as_type, collect, TensorSource};
use super::weight_files::WeightFiles;
use crate::{BossManError, Model, StateDict};
use layerspec::DType;
use pipeline::TensorMeta;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use tch::{Kind, Tensor};

/// The form in which weights are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportSettings {
    /// The type of floating-point tensors. `None` leaves them as they are, or as they were in the
    /// folder that they go back to.
    pub dtype: Option<Kind>,
    /// The most bytes of tensors in a file. `None` is one file, or files of 5 GB for Hugging Face.
    pub max_shard_bytes: Option<u64>,
}

impl ExportSettings {
    /// The type of floating-point tensors.
    ///
    /// # Errors
    /// It is none of floating-point numbers.
    pub(super) fn float_dtype(&self) -> Result<Option<DType>, BossManError> {
        self.dtype.map(float_dtype).transpose()
    }
}

/// Writes a model's weights to a safetensors file, or with `max_shard_bytes` to a folder of several
/// and their index, as Hugging Face's libraries read it. The weights are checked against the model
/// first.
///
/// # Errors
/// The weights do not fit the model (every difference is listed), or a file cannot be written.
pub fn export(
    weights: &StateDict,
    model: &Model,
    to: &Path,
    settings: &ExportSettings,
) -> Result<StateDict, BossManError> {
    let fitting = weights.fit_to(model.graph())?;
    let whole = collect(&Converted::new(&fitting, settings)?)?;
    write(&whole, to, settings)?;
    Ok(whole)
}

/// As [`export`], with weights that stay in their files: a few megabytes are in memory at a time,
/// or a matrix that `rename` transposes. `weights` is a safetensors file, an index of several, or
/// the folder of one of them or of a checkpoint. Returns the number of tensors.
///
/// ```no_run
/// use bossman::rename::RenameRules;
/// use bossman::{export_files, ExportSettings, Model};
/// use std::path::Path;
///
/// let model = Model::from_file("model.yaml")?;
/// let settings = ExportSettings { dtype: Some(tch::Kind::BFloat16), max_shard_bytes: None };
/// let (from, to) = (Path::new("weights.safetensors"), Path::new("half.safetensors"));
/// let tensors = export_files(from, &RenameRules::default(), &model, to, &settings)?;
/// assert!(tensors > 0);
/// # Ok::<(), bossman::BossManError>(())
/// ```
///
/// # Errors
/// Those of [`export`], or the weights cannot be read, or change meanwhile. Then no file has been
/// replaced.
pub fn export_files(
    weights: &Path,
    rename: &RenameRules,
    model: &Model,
    to: &Path,
    settings: &ExportSettings,
) -> Result<usize, BossManError> {
    let found = WeightFiles::find_all(weights, rename, model)?;
    write(&Converted::new(&found, settings)?, to, settings)
}

fn write(
    tensors: &dyn TensorSource,
    to: &Path,
    settings: &ExportSettings,
) -> Result<usize, BossManError> {
    match settings.max_shard_bytes {
        Some(most) => write_sharded(tensors, to, most),
        None => {
            StateDict::can_save(to)?;
            write_file(tensors, to, None)
        }
    }
}

/// Tensors of which the floating-point ones become another type when they are read.
struct Converted<'a> {
    tensors: &'a dyn TensorSource,
    dtype: Option<DType>,
}

impl<'a> Converted<'a> {
    fn new(tensors: &'a dyn TensorSource, settings: &ExportSettings) -> Result<Self, BossManError> {
        Ok(Converted { tensors, dtype: settings.float_dtype()? })
    }
}

impl TensorSource for Converted<'_> {
    fn metas(&self) -> Result<BTreeMap<String, TensorMeta>, BossManError> {
        let mut metas = self.tensors.metas()?;
        metas.values_mut().for_each(|meta| meta.dtype = written(meta.dtype, self.dtype));
        Ok(metas)
    }

    fn has_slices(&self, name: &str) -> bool {
        self.tensors.has_slices(name)
    }

    fn elements(&self, name: &str, elements: Range<u64>) -> Result<Tensor, BossManError> {
        let found = self.tensors.elements(name, elements)?;
        as_type(name, &found, written(tensor::dtype_of(&found)?, self.dtype))
    }
}

/// The type in which tensors of a type are written. `None` leaves it as it is.
pub(super) fn written(dtype: DType, wanted: Option<DType>) -> DType {
    wanted.filter(|_| dtype.is_floating()).unwrap_or(dtype)
}

/// A type for weights.
///
/// # Errors
/// It is none of floating-point numbers.
pub(super) fn float_dtype(kind: Kind) -> Result<DType, BossManError> {
    let found = DType::ALL.into_iter().find(|dtype| tensor::kind_of(*dtype) == kind);
    let problem = || format!("{kind:?}: weights are floating-point numbers");
    found.filter(|dtype| dtype.is_floating()).ok_or_else(|| BossManError::Usage(problem()))
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
