//! The keys of rotary position embeddings, of transformers 4 (`rope_theta`, `rope_scaling`) and 5
//! (`rope_parameters`).

use crate::import::hf_config::HfConfig;
use crate::run_file::yaml_text::Yaml;
use crate::BossManError;
use serde_json::Value;

/// A kind of scaling that `LlamaAttention` has.
struct Type {
    /// Transformers' name.
    name: &'static str,
    /// The further keys that it takes. Transformers reads over others, and warns.
    keys: &'static [&'static str],
}

/// The length of the first training, which some configurations have beside the mapping.
const ORIGINAL_LENGTH: &str = "original_max_position_embeddings";

const TYPES: [Type; 5] = [
    Type { name: "linear", keys: &["factor"] },
    Type { name: "dynamic", keys: &["factor"] },
    Type {
        name: "llama3",
        keys: &["factor", "low_freq_factor", "high_freq_factor", ORIGINAL_LENGTH],
    },
    Type {
        name: "yarn",
        keys: &[
            "factor",
            ORIGINAL_LENGTH,
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
    },
    Type {
        name: "longrope",
        keys: &["short_factor", "long_factor", ORIGINAL_LENGTH, "attention_factor", "factor"],
    },
];

/// The angles of a model's positions.
#[derive(Debug)]
pub(super) struct Rope {
    pub(super) theta: f64,
    /// The argument `rope_scaling`, if angles are scaled.
    pub(super) scaling: Option<Yaml>,
    /// The share of a head that turns.
    pub(super) part: f64,
}

/// The angles of all layers of a model.
#[derive(Debug)]
pub(super) struct Ropes {
    pub(super) usual: Rope,
    /// Those of layers with a window, if they have their own.
    pub(super) local: Option<Rope>,
}

impl From<Rope> for Ropes {
    fn from(usual: Rope) -> Self {
        Ropes { usual, local: None }
    }
}

impl Rope {
    /// Reads the keys. As in transformers 5, `rope_scaling` comes before `rope_parameters`, and a
    /// key in them before the same one outside.
    pub(super) fn of(config: &HfConfig, default_theta: f64) -> Result<Self, BossManError> {
        for keys in [Some(config), parameters(config)?.as_ref()].into_iter().flatten() {
            if keys.number_or("partial_rotary_factor", 1.0)? != 1.0 {
                let why = "layers of this family turn whole heads, which is 1.0";
                return Err(keys.refused("partial_rotary_factor", why));
            }
        }
        Rope::of_part(config, default_theta)
    }

    /// The same for a family whose layers may turn a part of each head.
    pub(super) fn of_part(config: &HfConfig, default_theta: f64) -> Result<Self, BossManError> {
        let theta = config.number_or("rope_theta", default_theta)?;
        let part = config.number_or("partial_rotary_factor", 1.0)?;
        let Some(parameters) = parameters(config)? else {
            return Ok(Rope { theta, scaling: None, part });
        };
        for kind in ["full_attention", "sliding_attention"] {
            let why = "angles of a kind of layer are not known; all layers have the same";
            parameters.expect(kind, &[], why)?;
        }
        let part = parameters.number_or("partial_rotary_factor", part)?;
        Ok(Rope { part, ..Rope::of_all_layers(config, Some(&parameters), theta)? })
    }

    /// Reads the mapping of all layers, which is in `config`. As in transformers 5, the length of
    /// the first training beside the mapping comes before the one in it.
    pub(super) fn of_all_layers(
        config: &HfConfig,
        parameters: Option<&HfConfig>,
        default_theta: f64,
    ) -> Result<Self, BossManError> {
        let has_length = config.value(ORIGINAL_LENGTH).is_some();
        Rope::read(parameters, has_length.then_some(config), default_theta)
    }

    /// Reads the mapping of one kind of layer.
    pub(super) fn of_parameters(
        parameters: Option<&HfConfig>,
        default_theta: f64,
    ) -> Result<Self, BossManError> {
        Rope::read(parameters, None, default_theta)
    }

    /// Reads a mapping. `length` has the length of the first training in its place.
    fn read(
        parameters: Option<&HfConfig>,
        length: Option<&HfConfig>,
        default_theta: f64,
    ) -> Result<Self, BossManError> {
        let Some(parameters) = parameters else {
            return Ok(Rope { theta: default_theta, scaling: None, part: 1.0 });
        };
        let theta = parameters.number_or("rope_theta", default_theta)?;
        Ok(Rope { theta, scaling: scaling(parameters, length)?, part: 1.0 })
    }
}

/// The most factors of a list. There is one for each pair of elements of a head, and each layer
/// writes them again.
const MAX_FACTORS: usize = 512;

/// The mapping of a model whose layers all have the same angles.
pub(super) fn parameters(config: &HfConfig) -> Result<Option<HfConfig>, BossManError> {
    match config.mapping("rope_scaling")? {
        Some(scaling) => Ok(Some(scaling)),
        None => config.mapping("rope_parameters"),
    }
}

/// The argument `rope_scaling`, with the numbers as the configuration has them. `length` has the
/// length of the first training, if that is not in the mapping.
fn scaling(parameters: &HfConfig, length: Option<&HfConfig>) -> Result<Option<Yaml>, BossManError> {
    let key = if parameters.value("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = match parameters.text(key)?.unwrap_or("default") {
        // Its name in early configurations.
        "su" => "longrope",
        kind => kind,
    };
    if kind == "default" {
        return Ok(None);
    }
    let Some(found) = TYPES.iter().find(|known| known.name == kind) else {
        let names: Vec<&str> = TYPES.iter().map(|known| known.name).collect();
        let why = format!("expected one of default, {}", names.join(", "));
        return Err(parameters.refused(key, &why));
    };
    let mut entries = vec![("rope_type".to_string(), kind.into())];
    for key in found.keys {
        let keys = length.filter(|_| *key == ORIGINAL_LENGTH).unwrap_or(parameters);
        if let Some(value) = keys.value(key) {
            let value = yaml(value).ok_or_else(|| {
                let why = format!(
                    "expected a number, `true`, `false` or a list of numbers, {MAX_FACTORS} at most"
                );
                keys.refused(key, &why)
            })?;
            entries.push(((*key).to_string(), value));
        }
    }
    Ok(Some(Yaml::Map(entries)))
}

/// Numbers and flags as JSON writes them, which YAML reads as the same.
fn yaml(value: &Value) -> Option<Yaml> {
    match value {
        Value::Number(_) | Value::Bool(_) => Some(Yaml::Plain(value.to_string())),
        Value::Array(items) if items.len() <= MAX_FACTORS && items.iter().all(Value::is_number) => {
            Some(Yaml::List(items.iter().filter_map(yaml).collect()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_file::yaml_text::flow_text;

    fn rope(text: &str) -> Result<(f64, Option<String>), String> {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("config.json"), text).unwrap();
        let config = HfConfig::read(place.path()).unwrap();
        let rope = Rope::of(&config, 10000.0).map_err(|e| e.to_string())?;
        Ok((rope.theta, rope.scaling.as_ref().map(flow_text)))
    }

    #[test]
    fn both_forms_of_the_keys_are_read() {
        assert_eq!(rope("{}"), Ok((10000.0, None)));
        assert_eq!(rope(r#"{"rope_theta": 5e5, "rope_scaling": null}"#), Ok((5e5, None)));
        let five = r#"{"rope_parameters": {"rope_theta": 2.0, "rope_type": "default"}}"#;
        assert_eq!(rope(five), Ok((2.0, None)));
        let llama3 = r#"{"rope_theta": 500000.0, "rope_scaling": {"factor": 32.0,
            "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"}}"#;
        let expected = "{rope_type: llama3, factor: 32.0, low_freq_factor: 1.0, \
                        high_freq_factor: 4.0, original_max_position_embeddings: 8192}";
        assert_eq!(rope(llama3), Ok((5e5, Some(expected.into()))));
        let su = r#"{"rope_scaling": {"type": "su", "original_max_position_embeddings": 4096,
            "short_factor": [1.0, 2], "long_factor": [3.5]}}"#;
        let expected = "{rope_type: longrope, short_factor: [1.0, 2], long_factor: [3.5], \
                        original_max_position_embeddings: 4096}";
        assert_eq!(rope(su), Ok((10000.0, Some(expected.into()))));
    }

    #[test]
    fn the_inner_key_comes_first_and_rope_scaling_before_rope_parameters() {
        let both = r#"{"rope_theta": 7.0, "rope_parameters": {"rope_theta": 3.0},
            "rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}}"#;
        let expected = "{rope_type: dynamic, factor: 2.0}";
        assert_eq!(rope(both), Ok((7.0, Some(expected.into()))));
        let empty = r#"{"rope_scaling": {}, "rope_theta": 7.0,
            "rope_parameters": {"rope_theta": 3.0, "rope_type": "default", "factor": 2.0}}"#;
        assert_eq!(rope(empty), Ok((3.0, None)));
    }

    #[test]
    fn the_length_of_the_first_training_may_stand_beside_the_mapping() {
        let beside = |scaling: &str| {
            let text = format!(
                r#"{{"original_max_position_embeddings": 16, "rope_scaling": {{{scaling}}}}}"#
            );
            rope(&text).map(|(_, scaling)| scaling.unwrap())
        };
        let original = "original_max_position_embeddings: 16";
        let cases = [
            (
                r#""rope_type": "llama3", "factor": 8.0"#,
                format!("{{rope_type: llama3, factor: 8.0, {original}}}"),
            ),
            (
                r#""rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]"#,
                format!(
                    "{{rope_type: longrope, short_factor: [1.0], long_factor: [2.0], {original}}}"
                ),
            ),
            // It comes first.
            (
                r#""type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32"#,
                format!("{{rope_type: yarn, factor: 2.0, {original}}}"),
            ),
        ];
        for (scaling, expected) in cases {
            assert_eq!(beside(scaling), Ok(expected), "{scaling}");
        }
        let text = r#"{"original_max_position_embeddings": "x", "rope_scaling": {"type": "yarn"}}"#;
        let error = rope(text).unwrap_err();
        assert!(error.contains("`original_max_position_embeddings` is \"x\": expected"), "{error}");
    }

    #[test]
    fn keys_that_a_type_does_not_take_are_left_out() {
        let text = r#"{"original_max_position_embeddings": 16, "rope_scaling": {"type": "dynamic",
            "factor": 2.0, "original_max_position_embeddings": 32, "beta_fast": null}}"#;
        let expected = "{rope_type: dynamic, factor: 2.0}";
        assert_eq!(rope(text), Ok((10000.0, Some(expected.into()))));
    }

    #[test]
    fn what_is_not_known_is_named() {
        let cases = [
            (r#"{"rope_scaling": {"type": "x"}}"#, "`rope_scaling.type` is \"x\": expected one of"),
            (
                r#"{"rope_scaling": {"type": "yarn", "factor": "2"}}"#,
                "`rope_scaling.factor` is \"2\": expected a number",
            ),
            (r#"{"partial_rotary_factor": 0.5}"#, "`partial_rotary_factor` is 0.5"),
            (
                r#"{"rope_parameters": {"partial_rotary_factor": 0.5}}"#,
                "`rope_parameters.partial_rotary_factor` is 0.5",
            ),
            (
                r#"{"rope_parameters": {"full_attention": {"rope_theta": 2.0}}}"#,
                "`rope_parameters.full_attention` is {\"rope_theta\":2.0}",
            ),
        ];
        for (text, expected) in cases {
            let error = rope(text).unwrap_err();
            assert!(error.contains(expected) && error.contains("config.json"), "{error}");
        }
    }
}
