//! The sliding windows of a model's layers, by the keys `layer_types`, `sliding_window` and, of
//! Qwen's, `use_sliding_window` and `max_window_layers`.

use crate::import::hf_config::HfConfig;
use crate::BossManError;

/// Of `Qwen2Config` and `Qwen3Config`.
const QWEN_WINDOW: u64 = 4096;
const QWEN_LAYERS_WITHOUT: u64 = 28;

/// The window of each of `count` layers. `slides` says which have it without `layer_types`.
pub(super) fn windows(
    config: &HfConfig,
    window: Option<u64>,
    count: usize,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<Option<u64>>, BossManError> {
    let key = "layer_types";
    let Some(listed) = config.list(key)? else {
        return Ok((0..count).map(|layer| window.filter(|_| slides(layer))).collect());
    };
    if listed.len() != count {
        let why = format!("expected a list of num_hidden_layers ({count}) names");
        return Err(config.refused(key, &why));
    }
    let of_layer = |kind: Option<&str>| match (kind, window) {
        (Some("full_attention"), _) => Ok(None),
        (Some("sliding_attention"), Some(_)) => Ok(window),
        (Some("sliding_attention"), None) => Err(config.refused(
            key,
            "`sliding_attention` needs a `sliding_window` that is in use; see \
             `use_sliding_window`",
        )),
        _ => {
            let why = "expected a list of `full_attention` and `sliding_attention`";
            Err(config.refused(key, why))
        }
    };
    listed.iter().map(|kind| of_layer(kind.as_str())).collect()
}

/// The window of each layer of Qwen2 and Qwen3: without `layer_types`, all after the first
/// `max_window_layers` have it.
pub(super) fn qwen_windows(
    config: &HfConfig,
    count: usize,
) -> Result<Vec<Option<u64>>, BossManError> {
    let window = match config.flag_or("use_sliding_window", false)? {
        true => config.size_or_none("sliding_window", Some(QWEN_WINDOW))?,
        false => None,
    };
    let without = config.count_or("max_window_layers", QWEN_LAYERS_WITHOUT)?;
    windows(config, window, count, |layer| layer as u64 >= without)
}
