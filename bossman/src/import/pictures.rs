//! Pictures that a model takes, and what `preprocessor_config.json` says of their numbers.

use super::family::Output;
use super::hf_config::HfConfig;
use crate::data::disk;
use crate::run_file::yaml_text::{flow_text, list, Yaml};
use crate::BossManError;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The file that says how transformers prepares pictures.
const FILE: &str = "preprocessor_config.json";
/// What the elements of a picture are multiplied by, and `image_mean` and `image_std`, where the
/// file does not say: those of `ViTImageProcessor`.
const RESCALE_FACTOR: f64 = 1.0 / 255.0;
const MEAN: f64 = 0.5;
const STD: f64 = 0.5;

/// The pictures of a model.
#[derive(Debug)]
pub(super) struct Pictures {
    /// The points of a side.
    size: u64,
    /// `normalize` of a run file, unless numbers go in as they are.
    normalize: Option<Yaml>,
    /// What the user may not expect.
    pub(super) warnings: Vec<String>,
}

impl Pictures {
    /// Reads how a folder's pictures are prepared.
    pub(super) fn read(folder: &Path, channels: u64, size: u64) -> Result<Self, BossManError> {
        let path = folder.join(FILE);
        let Some(config) = HfConfig::read_file(&path)? else {
            let problem = "is missing, so run.yaml does not say how to normalize pictures; add \
                           `normalize` to its data";
            let warnings = vec![BossManError::file(&path, problem).to_string()];
            return Ok(Pictures { size, normalize: None, warnings });
        };
        let mut entries: Vec<(String, Yaml)> = Vec::new();
        if config.flag_or("do_rescale", true)? {
            entries.push(("divide".to_string(), divisor(&config)?.into()));
        }
        if config.flag_or("do_normalize", true)? {
            let mean = of_channels(&config, "image_mean", MEAN, channels, f64::is_finite)?;
            let is_divisor = |number: f64| number.is_finite() && number != 0.0;
            let std = of_channels(&config, "image_std", STD, channels, is_divisor)?;
            entries.extend([("mean".to_string(), list(mean)), ("std".to_string(), list(std))]);
        }
        let warnings = match config.flag_or("do_resize", true)? {
            true => {
                let problem = format!(
                    "transformers resizes pictures, but BossMan does not: they must have {size} x \
                     {size} points"
                );
                vec![BossManError::file(&path, problem).to_string()]
            }
            false => Vec::new(),
        };
        let normalize = (!entries.is_empty()).then_some(Yaml::Map(entries));
        Ok(Pictures { size, normalize, warnings })
    }

    /// Writes the pictures to train on, or how to add them. `folder` is as a run file has it.
    pub(super) fn write_data(&self, lines: &mut String, folder: Option<&str>, output: Output) {
        let normalize = self.normalize.as_ref().map(flow_text);
        let size = self.size;
        let Some(folder) = folder else {
            let train = match output {
                Output::Classes => "{images: {folder: pictures}}",
                _ => "train.safetensors",
            };
            let more = normalize.map(|of| format!(", normalize: {of}")).unwrap_or_default();
            writeln!(
                lines,
                "# Pictures have {size} x {size} points; they are not resized.\n# To train, add \
                 samples and the length of training, for example:\n# data: {{train: \
                 {train}{more}}}\n# steps: 100"
            )
            .ok();
            return;
        };
        writeln!(
            lines,
            "data:\n  train:\n    images:\n      # A folder for each class. Pictures have {size} x \
             {size} points; they are not resized.\n      folder: {folder}"
        )
        .ok();
        if let Some(normalize) = normalize {
            writeln!(lines, "  normalize: {normalize}").ok();
        }
        lines.push_str("  validation: {split: 0.1}        # this share is not trained on\n");
    }
}

/// The absolute path of the folder to train on.
pub(super) fn existing(path: &Path, output: Output) -> Result<PathBuf, BossManError> {
    if output != Output::Classes {
        let problem = "--data is a folder of pictures for each class: the model needs its head, \
                       and one label for a picture; leave out --data, or --head";
        return Err(BossManError::Usage(problem.into()));
    }
    let io = |e: std::io::Error| BossManError::io(path, &e);
    match disk::metadata(path).map_err(io)?.is_some_and(|there| there.is_dir()) {
        true => std::path::absolute(path).map_err(io),
        false => {
            let problem = "is no folder; the model takes pictures, so name a folder with --data \
                           that has a folder for each class";
            Err(BossManError::file(path, problem))
        }
    }
}

/// The number to divide by: 255 for the factor 0.00392156862745098.
fn divisor(config: &HfConfig) -> Result<f64, BossManError> {
    let factor = config.number_or("rescale_factor", RESCALE_FACTOR)?;
    let divisor = 1.0 / factor;
    if factor == 0.0 || !divisor.is_finite() {
        return Err(config.refused("rescale_factor", "expected a number that is not 0"));
    }
    let whole = divisor.round();
    Ok(if (divisor - whole).abs() <= 1e-9 * divisor.abs() { whole } else { divisor })
}

/// A number for each channel.
fn of_channels(
    config: &HfConfig,
    key: &str,
    default: f64,
    channels: u64,
    is_right: impl Fn(f64) -> bool,
) -> Result<Vec<f64>, BossManError> {
    let numbers = match config.value(key) {
        None => Some(vec![default]),
        Some(Value::Array(items)) => items.iter().map(Value::as_f64).collect(),
        Some(number) => number.as_f64().map(|number| vec![number]),
    };
    let fits = |numbers: &Vec<f64>| {
        (numbers.len() == 1 || numbers.len() as u64 == channels)
            && numbers.iter().all(|number| is_right(*number))
    };
    numbers.filter(fits).ok_or_else(|| {
        let why = format!("expected a number for each of num_channels ({channels}), fit to use");
        config.refused(key, &why)
    })
}
