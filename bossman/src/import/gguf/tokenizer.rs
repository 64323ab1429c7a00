//! The tokenizer in a GGUF file as a `tokenizer.json` of Hugging Face's `tokenizers`.

use super::container::{Gguf, Value};
use crate::BossManError;
use serde_json::{json, Map, Value as Json};

/// The kinds of tokens that text never becomes by merging.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// llama.cpp's name of Llama 3's tokenizer.
const LLAMA3_NAME: &str = "llama-bpe";
/// How Llama 3 splits text before it merges letters.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// How Qwen 2 does.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The tokenizer. `None` if it is of a kind that has no counterpart here.
///
/// # Errors
/// The file's lists do not fit together.
pub(super) fn tokenizer(gguf: &Gguf) -> Result<Option<Json>, BossManError> {
    let text = |key: &str| match gguf.metadata.get(key) {
        Some(Value::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    if text("tokenizer.ggml.model") != Some("gpt2") {
        return Ok(None);
    }
    let Some(pre_tokenizer) = text("tokenizer.ggml.pre").and_then(pre_tokenizer) else {
        return Ok(None);
    };
    let texts = |key: &str| -> Result<Vec<&str>, BossManError> {
        let list = match gguf.metadata.get(key) {
            Some(Value::List(list)) => list,
            _ => return Err(gguf.problem(format!("has no list `{key}`"))),
        };
        let texts = list.iter().map(|value| match value {
            Value::Text(text) => Ok(text.as_str()),
            _ => Err(gguf.problem(format!("`{key}` is no list of texts"))),
        });
        texts.collect()
    };
    let tokens = texts("tokenizer.ggml.tokens")?;
    let merges = texts("tokenizer.ggml.merges")?;
    let kinds = match gguf.metadata.get("tokenizer.ggml.token_type") {
        Some(Value::List(kinds)) if kinds.len() == tokens.len() => kinds.as_slice(),
        None => &[],
        Some(_) => {
            let problem = format!(
                "`tokenizer.ggml.token_type` is no list of {} numbers, one for each token",
                tokens.len()
            );
            return Err(gguf.problem(problem));
        }
    };
    let kinds = kinds.iter().chain(std::iter::repeat(&Value::Integer(1)));
    let added = (0u64..).zip(&tokens).zip(kinds).filter_map(|((id, content), kind)| {
        let is_control = *kind == Value::Integer(CONTROL);
        (is_control || *kind == Value::Integer(USER_DEFINED)).then(|| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": is_control})
        })
    });
    let added: Vec<Json> = added.collect();
    let ids = (0u64..).zip(&tokens);
    let vocab: Map<String, Json> =
        ids.map(|(id, token)| ((*token).to_string(), id.into())).collect();
    if vocab.len() != tokens.len() {
        return Err(gguf.problem("has two tokens of one text"));
    }
    Ok(Some(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor(gguf, &tokens)?,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": text("tokenizer.ggml.pre") == Some(LLAMA3_NAME),
            "vocab": vocab,
            "merges": merges,
        },
    })))
}

/// The `tokenizer_config.json` beside it. Without the name of a class, transformers takes Llama's
/// tokenizer for a model of Llama's kind, which splits text at other places.
pub(super) fn tokenizer_config(gguf: &Gguf, max_positions: &Json) -> Json {
    let value = |key: &str| gguf.metadata.get(&format!("tokenizer.ggml.{key}"));
    let token = |name: &str| match (value(&format!("{name}_token_id")), value("tokens")) {
        (Some(Value::Integer(id)), Some(Value::List(tokens))) => {
            match tokens.get(usize::try_from(*id).ok()?) {
                Some(Value::Text(text)) => Some(Json::from(text.as_str())),
                _ => None,
            }
        }
        _ => None,
    };
    let names = [
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("pad_token", "padding"),
    ];
    let mut config: Map<String, Json> =
        names.into_iter().filter_map(|(key, name)| Some((key.to_string(), token(name)?))).collect();
    if let Some(Value::Text(template)) = gguf.metadata.get("tokenizer.chat_template") {
        config.insert("chat_template".into(), template.as_str().into());
    }
    config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    config.insert("model_max_length".into(), max_positions.clone());
    config.into()
}

/// The special tokens around a text: `null` if there are none.
///
/// # Errors
/// The file asks for a token that it does not have.
fn post_processor(gguf: &Gguf, tokens: &[&str]) -> Result<Json, BossManError> {
    let value = |key: &str| gguf.metadata.get(&format!("tokenizer.ggml.{key}"));
    // As in llama.cpp.
    let is_llama3 = value("pre") == Some(&Value::Text(LLAMA3_NAME.into()));
    let mut special = Map::new();
    let mut around = |name: &str, default: bool| -> Result<Option<Json>, BossManError> {
        let (adds, key) = (format!("add_{name}_token"), format!("{name}_token_id"));
        let asked = match value(&adds) {
            Some(Value::Flag(asked)) => *asked,
            _ => default,
        };
        if !asked {
            return Ok(None);
        }
        let id = match value(&key) {
            Some(Value::Integer(id)) => usize::try_from(*id).ok(),
            _ => None,
        };
        let Some((id, text)) = id.and_then(|id| Some((id, *tokens.get(id)?))) else {
            return Err(gguf.problem(format!("`tokenizer.ggml.{key}` is no token that it has")));
        };
        special.insert(text.into(), json!({"id": text, "ids": [id], "tokens": [text]}));
        Ok(Some(json!({"SpecialToken": {"id": text, "type_id": 0}})))
    };
    let begin = around("bos", is_llama3 && value("bos_token_id").is_some())?;
    let end = around("eos", false)?;
    let text = |id: &str| {
        let sequence = json!({"Sequence": {"id": id, "type_id": 0}});
        let parts = [begin.clone(), Some(sequence), end.clone()];
        parts.into_iter().flatten().collect::<Vec<Json>>()
    };
    let (single, pair) = (text("A"), [text("A"), text("B")].concat());
    Ok(match special.is_empty() {
        true => Json::Null,
        false => json!({"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": special}),
    })
}

/// Letters for bytes. Perhaps it splits text as GPT-2 does.
fn byte_level(splits: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": splits})
}

/// How text is split before letters are merged, by llama.cpp's name of it.
fn pre_tokenizer(name: &str) -> Option<Json> {
    let pattern = |pattern: &str| {
        let split = json!({"type": "Split", "pattern": {"Regex": pattern},
            "behavior": "Isolated", "invert": false});
        json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
    };
    match name {
        "gpt-2" => Some(byte_level(true)),
        "smollm" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            Some(json!({"type": "Sequence", "pretokenizers": [digits, byte_level(true)]}))
        }
        LLAMA3_NAME => Some(pattern(LLAMA3)),
        "qwen2" => Some(pattern(QWEN2)),
        _ => None,
    }
}
