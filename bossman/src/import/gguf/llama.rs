//! Llama in a GGUF file: its keys as those of `config.json`, and its tensors under transformers'
//! names.

use super::container::{Entry, Gguf, Value};
use crate::BossManError;
use serde_json::{json, Map, Value as Json};

/// The architecture in GGUF files.
const ARCHITECTURE: &str = "llama";

/// The order of the rows of a tensor.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// As in transformers.
    Same,
    /// The elements of each of these heads lie in pairs that turn together. In transformers the
    /// first elements of all pairs come before the second ones.
    Paired { heads: usize },
}

/// A tensor under its name in transformers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Renamed<'a> {
    pub(super) name: String,
    pub(super) entry: &'a Entry,
    pub(super) rows: RowOrder,
}

/// The keys of a model, with defaults.
struct Keys<'a>(&'a Gguf);

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.metadata.get(&format!("{ARCHITECTURE}.{key}"))
    }

    fn size(&self, key: &str) -> Result<Option<u64>, BossManError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Integer(size @ 1..)) => Ok(Some(size.unsigned_abs())),
            Some(_) => Err(self.0.problem(format!("`{ARCHITECTURE}.{key}` is no size"))),
        }
    }

    fn need(&self, key: &str) -> Result<u64, BossManError> {
        let missing = || self.0.problem(format!("has no key `{ARCHITECTURE}.{key}`"));
        self.size(key)?.ok_or_else(missing)
    }

    /// A number as it was before it was rounded to single precision.
    fn number(&self, key: &str) -> Result<Option<f64>, BossManError> {
        let number = match self.get(key) {
            None => return Ok(None),
            Some(Value::Single(number)) => number.to_string().parse().ok(),
            Some(Value::Float(number)) => Some(*number),
            Some(_) => None,
        };
        let wrong = || self.0.problem(format!("`{ARCHITECTURE}.{key}` is no number"));
        number.filter(|number: &f64| number.is_finite()).map(Some).ok_or_else(wrong)
    }
}

/// The `config.json` of the model.
///
/// # Errors
/// It is of another architecture, or a key is missing, or asks for what Llama does not have here.
pub(super) fn config(gguf: &Gguf) -> Result<Json, BossManError> {
    if let Some(Value::Integer(parts @ 2..)) = gguf.metadata.get("split.count") {
        let problem = format!(
            "is one of {parts} files of a model; join them with `llama-gguf-split --merge`"
        );
        return Err(gguf.problem(problem));
    }
    match gguf.metadata.get("general.architecture") {
        Some(Value::Text(name)) if name == ARCHITECTURE => {}
        Some(Value::Text(name)) => {
            let problem = format!(
                "has the architecture `{}`; `{ARCHITECTURE}` is known. Take the folder of \
                 transformers instead",
                crate::output::printable(name, 100)
            );
            return Err(gguf.problem(problem));
        }
        _ => return Err(gguf.problem("does not name its architecture")),
    }
    if gguf.tensor("rope_freqs.weight").is_some() {
        return Err(gguf.problem(
            "has `rope_freqs.weight`, which hides how its angles are scaled; take the folder of \
             transformers instead",
        ));
    }
    let keys = Keys(gguf);
    for key in ["attention.sliding_window", "attention.causal"] {
        if keys.get(key).is_some_and(|value| *value != Value::Flag(true)) {
            let problem = format!("has the key `{ARCHITECTURE}.{key}`, which Llama has not");
            return Err(gguf.problem(problem));
        }
    }
    let heads = keys.need("attention.head_count")?;
    let vocabulary = gguf.tensor("token_embd.weight").and_then(|entry| entry.shape.first());
    let vocabulary = vocabulary.ok_or_else(|| gguf.problem("has no tensor token_embd.weight"))?;
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": keys.need("embedding_length")?,
        "intermediate_size": keys.need("feed_forward_length")?,
        "num_hidden_layers": keys.need("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv")?.unwrap_or(heads),
        "max_position_embeddings": keys.need("context_length")?,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
        "rope_theta": keys.number("rope.freq_base")?.unwrap_or(10000.0),
        "vocab_size": vocabulary,
        "tie_word_embeddings": gguf.tensor("output.weight").is_none(),
        "attention_bias": gguf.tensor("blk.0.attn_q.bias").is_some(),
        "mlp_bias": gguf.tensor("blk.0.ffn_up.bias").is_some(),
        "torch_dtype": "float32",
    });
    if let Json::Object(config) = &mut config {
        let head_dim = keys.size("rope.dimension_count")?;
        config.extend(head_dim.map(|size| ("head_dim".into(), size.into())));
        config.extend(scaling(gguf, &keys)?.map(|scaling| ("rope_scaling".into(), scaling)));
        config.extend(ends(gguf));
    }
    Ok(config)
}

/// The scaling of the angles.
fn scaling(gguf: &Gguf, keys: &Keys<'_>) -> Result<Option<Json>, BossManError> {
    match keys.get("rope.scaling.type") {
        // As in llama.cpp.
        None => match keys.number("rope.scaling.factor")?.or(keys.number("rope.scale_linear")?) {
            Some(factor) if factor != 1.0 => {
                Ok(Some(json!({"rope_type": "linear", "factor": factor})))
            }
            _ => Ok(None),
        },
        Some(Value::Text(none)) if none == "none" => Ok(None),
        Some(Value::Text(linear)) if linear == "linear" => {
            let factor = keys.number("rope.scaling.factor")?.unwrap_or(1.0);
            Ok(Some(json!({"rope_type": "linear", "factor": factor})))
        }
        Some(other) => Err(gguf.problem(format!(
            "scales its angles by {other:?}; only `linear` is known. Take the folder of \
             transformers instead"
        ))),
    }
}

/// The ids of the tokens at the beginning and the end. A turn of a chat may end with another token
/// than a text.
fn ends(gguf: &Gguf) -> Map<String, Json> {
    let id = |name: &str| match gguf.metadata.get(&format!("tokenizer.ggml.{name}_token_id")) {
        Some(Value::Integer(id)) => Some(Json::from(*id)),
        _ => None,
    };
    let (eos, eot) = (id("eos"), id("eot"));
    let eos = match eot.filter(|eot| eos.as_ref() != Some(eot)) {
        Some(eot) => Some(eos.into_iter().chain([eot]).collect()),
        None => eos,
    };
    let ids = [("bos_token_id", id("bos")), ("eos_token_id", eos)];
    ids.into_iter().filter_map(|(key, id)| Some((key.to_string(), id?))).collect()
}

/// All tensors, under transformers' names.
///
/// # Errors
/// A tensor has no counterpart, or rows that heads do not divide.
pub(super) fn tensors(gguf: &Gguf) -> Result<Vec<Renamed<'_>>, BossManError> {
    let keys = Keys(gguf);
    let heads = keys.need("attention.head_count")?;
    let key_value_heads = keys.size("attention.head_count_kv")?.unwrap_or(heads);
    let renamed = |entry| {
        let unknown =
            || gguf.problem(format!("has a tensor `{}`, which Llama has not", entry_name(entry)));
        let name = name(&entry.name).ok_or_else(unknown)?;
        let heads = match () {
            () if name.contains(".q_proj.") => heads,
            () if name.contains(".k_proj.") => key_value_heads,
            () => return Ok(Renamed { name, entry, rows: RowOrder::Same }),
        };
        let heads = usize::try_from(heads).unwrap_or(usize::MAX);
        let rows = entry.shape.first().copied().unwrap_or(0);
        match rows.is_multiple_of(heads.saturating_mul(2)) {
            true => Ok(Renamed { name, entry, rows: RowOrder::Paired { heads } }),
            false => {
                Err(gguf.problem(format!("`{}` has {rows} rows for {heads} heads", entry.name)))
            }
        }
    };
    gguf.tensors.iter().map(renamed).collect()
}

fn entry_name(entry: &Entry) -> String {
    crate::output::printable(&entry.name, 100)
}

/// The name in transformers.
fn name(name: &str) -> Option<String> {
    let outside = match name {
        "token_embd.weight" => "model.embed_tokens.weight",
        "output_norm.weight" => "model.norm.weight",
        "output.weight" => "lm_head.weight",
        _ => "",
    };
    if !outside.is_empty() {
        return Some(outside.into());
    }
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let number: u32 = number.parse().ok().filter(|parsed: &u32| parsed.to_string() == number)?;
    let (part, kind) =
        rest.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{number}.{part}.{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_transformers_names() {
        let golden = [
            ("token_embd.weight", Some("model.embed_tokens.weight")),
            ("blk.7.attn_k.bias", Some("model.layers.7.self_attn.k_proj.bias")),
            ("blk.29.ffn_norm.weight", Some("model.layers.29.post_attention_layernorm.weight")),
            ("blk.x.ffn_norm.weight", None),
            ("blk.1.ffn_gate_exps.weight", None),
            ("blk.1.ffn_up.scale", None),
        ];
        for (gguf, expected) in golden {
            assert_eq!(name(gguf).as_deref(), expected, "{gguf}");
        }
    }
}
