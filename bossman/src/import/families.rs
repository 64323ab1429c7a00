//! The families that are known, and the one of a configuration. Code in a folder is never executed.

use super::bert_like::{bert, gpt2, roberta, vit};
use super::family::Family;
use super::hf_config::HfConfig;
use super::llama_like::{gemma2, gemma3, gpt_neox, llama, mistral, phi3, qwen2, qwen3, smollm3};
use crate::BossManError;
use serde_json::Value;

const FAMILIES: [&Family; 13] = [
    &llama::LLAMA,
    &mistral::MISTRAL,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &smollm3::SMOLLM3,
    &gemma2::GEMMA2,
    &gemma3::GEMMA3,
    &phi3::PHI3,
    &gpt2::GPT2,
    &gpt_neox::GPT_NEOX,
    &bert::BERT,
    &roberta::ROBERTA,
    &vit::VIT,
];

/// The family of a configuration, and the architecture's name.
pub(super) fn family_of(
    config: &HfConfig,
) -> Result<(&'static Family, &'static str), BossManError> {
    let known = || FAMILIES.into_iter().flat_map(|family| family.architectures.iter().copied());
    let names = known().collect::<Vec<_>>().join(", ");
    let Some(listed) = config.list("architectures")?.filter(|listed| !listed.is_empty()) else {
        let problem = format!(
            "has no `architectures`; write the class of the model there, as `\"architectures\": \
             [\"LlamaForCausalLM\"]`. Known are: {names}"
        );
        return Err(BossManError::file(config.path(), problem));
    };
    let listed: Vec<&str> = listed.iter().filter_map(Value::as_str).collect();
    for family in FAMILIES {
        let mut names = family.architectures.iter().copied();
        if let Some(name) = names.find(|name| listed.contains(name)) {
            return Ok((family, name));
        }
    }
    let code = match config.value("auto_map") {
        Some(_) => ". Its `auto_map` names code in the folder, which is never executed",
        None => "",
    };
    Err(config.refused("architectures", &format!("BossMan imports {names}{code}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Result<&'static str, String> {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("config.json"), text).unwrap();
        let config = HfConfig::read(place.path()).unwrap();
        family_of(&config).map(|(_, name)| name).map_err(|e| e.to_string())
    }

    #[test]
    fn an_architecture_is_known_by_its_name_alone() {
        let with_code =
            r#"{"architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModel": "m"}}"#;
        assert_eq!(found(with_code), Ok("LlamaForCausalLM"));
        let error = found(r#"{"architectures": ["XModel"], "auto_map": {"AutoModel": "m"}}"#);
        let error = error.unwrap_err();
        for part in ["`architectures` is [\"XModel\"]", "LlamaModel", "is never executed"] {
            assert!(error.contains(part), "{error}");
        }
        let error = found(r#"{"architectures": ["XModel"]}"#).unwrap_err();
        assert!(!error.contains("auto_map"), "{error}");
        let error = found("{}").unwrap_err();
        assert!(error.contains("config.json: has no `architectures`; write"), "{error}");
    }
}
