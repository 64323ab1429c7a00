//! The tokenizer of a `tokenizer.json`, as Hugging Face's `tokenizers` reads it.

use serde_json::Value;
use std::panic::AssertUnwindSafe;
use tokenizers::{Encoding, Token, Tokenizer};

/// The most that replacements may lengthen a text.
const MAX_GROWTH: f64 = 1024.0;

/// A loaded `tokenizer.json`. Its own truncation and padding are off, because samples are cut and
/// padded elsewhere.
#[derive(Clone, Debug)]
pub struct TokenizerFile {
    tokenizer: Box<Tokenizer>,
    unknown: Option<u32>,
}

impl TokenizerFile {
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let file = serde_json::from_slice(bytes).unwrap_or_default();
        check_growth(&file)?;
        let tokenizer = caught(|| Tokenizer::from_bytes(bytes).map_err(|e| e.to_string()));
        let mut tokenizer = tokenizer.map_err(|e| format!("is no tokenizer.json: {e}"))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        let unknown = unknown_token(&file, &tokenizer);
        Ok(TokenizerFile { tokenizer: Box::new(tokenizer), unknown })
    }

    /// The token that stands for text which has no other, if there is one.
    pub(super) fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    pub(super) fn encode(&self, text: &str, into: &mut Vec<u32>) -> Result<(), String> {
        let encoding = self.encoding(text, false)?;
        into.extend(encoding.get_ids());
        Ok(())
    }

    /// Appends the text's tokens with the special ones that the file puts around a text.
    pub(super) fn encode_with_special_tokens(
        &self,
        text: &str,
        into: &mut Vec<u32>,
    ) -> Result<(), String> {
        let encoding = self.encoding(text, true)?;
        into.extend(encoding.get_ids());
        Ok(())
    }

    /// The special tokens that the file puts before a text. Only the post-processor is asked, with
    /// a token that stands for any text: the vocabulary need not have a token of a certain text.
    pub(super) fn begin_tokens(&self) -> Result<Vec<u32>, String> {
        let text = Encoding::from_tokens(vec![Token::new(0, "a".into(), (0, 1))], 0);
        let whole = || self.tokenizer.post_process(text, None, true).map_err(|e| e.to_string());
        let whole = caught(whole)?;
        let special = whole.get_special_tokens_mask();
        let of_text = special.iter().position(|special| *special == 0);
        Ok(whole.get_ids()[..of_text.unwrap_or(0)].to_vec())
    }

    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        caught(|| self.tokenizer.decode(tokens, true).map_err(|e| e.to_string()))
    }

    fn encoding(&self, text: &str, special: bool) -> Result<Encoding, String> {
        caught(|| self.tokenizer.encode_fast(text, special).map_err(|e| e.to_string()))
    }

    /// Returns the number of tokens, with or without those that the file adds to its vocabulary.
    pub(super) fn size(&self, added: bool) -> usize {
        self.tokenizer.get_vocab_size(added)
    }

    pub(super) fn token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }
}

/// Unigram models have the number of the token, and the others its text.
fn unknown_token(file: &Value, tokenizer: &Tokenizer) -> Option<u32> {
    let model = &file["model"];
    match model["unk_token"].as_str() {
        Some(text) => tokenizer.token_to_id(text),
        None => model["unk_id"].as_u64().and_then(|id| id.try_into().ok()),
    }
}

/// The library panics on some rules.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let done = std::panic::catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Err("its rules contradict each other or the text".into()))
}

/// Checks that replacements, each of which sees what the one before made, do not make a text grow
/// without bound. 24 of one letter by two make 16 million letters of one.
fn check_growth(file: &Value) -> Result<(), String> {
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        let growth = growth(&file[part]);
        if growth > MAX_GROWTH {
            return Err(format!(
                "the replacements of its `{part}` make a text up to {growth:.0} times as long; \
                 {MAX_GROWTH} is the most"
            ));
        }
    }
    Ok(())
}

/// The factor by which a rule, or a sequence of rules, may lengthen a text. Factors multiply only
/// where a rule replaces what an earlier one has made.
fn growth(part: &Value) -> f64 {
    let mut rules = Vec::new();
    collect_rules(part, &mut rules);
    let (mut once, mut again, mut made) = (1.0_f64, 1.0_f64, Vec::new());
    for rule in rules.into_iter().filter(|rule| rule["type"] == "Replace") {
        let content = rule["content"].as_str().unwrap_or_default();
        let pattern = rule["pattern"]["String"].as_str();
        // An expression may match one byte of anything.
        let own = content.len() as f64 / pattern.map_or(1, |text| text.len().max(1)) as f64;
        let is_fed = |made: &Vec<&str>| match pattern {
            Some(pattern) => made.iter().any(|text| text.contains(pattern)),
            None => !made.is_empty(),
        };
        match is_fed(&made) {
            true => again *= own.max(1.0),
            false => once = once.max(own),
        }
        made.push(content);
    }
    once * again
}

/// The rules of a part in their order, those in sequences too.
fn collect_rules<'a>(part: &'a Value, rules: &mut Vec<&'a Value>) {
    for key in ["normalizers", "pretokenizers", "decoders"] {
        let inner = part[key].as_array();
        inner.into_iter().flatten().for_each(|rule| collect_rules(rule, rules));
    }
    rules.push(part);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokenizer(more: &[(&str, Value)]) -> Vec<u8> {
        let mut file = json!({
            "version": "1.0",
            "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
        });
        for (key, value) in more {
            file[*key] = value.clone();
        }
        serde_json::to_vec(&file).unwrap()
    }

    #[test]
    fn rules_on_which_the_library_panics_are_an_error() {
        let chunks = json!({"type": "FixedLength", "length": 0});
        let strip = json!({"type": "Strip", "content": "a", "start": 0, "stop": 5});
        let file = TokenizerFile::from_bytes(&tokenizer(&[("pre_tokenizer", chunks)])).unwrap();
        let error = file.encode("aa", &mut Vec::new()).unwrap_err();
        assert!(error.contains("its rules contradict"), "{error}");
        let file = TokenizerFile::from_bytes(&tokenizer(&[("decoder", strip)])).unwrap();
        assert!(file.decode(&[0]).unwrap_err().contains("its rules contradict"));
    }

    #[test]
    fn the_tokens_before_a_text_are_those_of_the_post_processor() {
        let begin = |more: &[(&str, Value)]| {
            TokenizerFile::from_bytes(&tokenizer(more)).unwrap().begin_tokens().unwrap()
        };
        let of = |processor: Value| begin(&[("post_processor", processor)]);
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true});
        let bert = json!({"type": "BertProcessing", "sep": ["[SEP]", 8], "cls": ["[CLS]", 7]});
        let roberta = json!({"type": "RobertaProcessing", "sep": ["</s>", 6], "cls": ["<s>", 5],
            "trim_offsets": true, "add_prefix_space": true});
        let special = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let template = |single: Vec<Value>| {
            json!({"type": "TemplateProcessing", "single": single, "pair": [],
                "special_tokens": {"<bos>": {"id": "<bos>", "ids": [9], "tokens": ["<bos>"]}}})
        };
        let llama = template(vec![special("<bos>"), text.clone()]);
        let both = json!({"type": "Sequence", "processors": [bytes.clone(), llama.clone()]});
        assert_eq!(begin(&[]), [0; 0]);
        assert_eq!(of(bytes), [0; 0]);
        assert_eq!(of(bert), [7]);
        assert_eq!(of(roberta), [5]);
        assert_eq!(of(llama), [9]);
        assert_eq!(of(both), [9]);
        assert_eq!(of(template(vec![text, special("<bos>")])), [0; 0]);
        // It makes a text of nothing.
        let deletes = json!({"type": "Replace", "pattern": {"String": "a"}, "content": ""});
        let processor = template(vec![
            special("<bos>"),
            json!({"Sequence": {"id": "A",
            "type_id": 0}}),
        ]);
        assert_eq!(begin(&[("normalizer", deletes), ("post_processor", processor)]), [9]);
    }

    #[test]
    fn replacements_that_make_a_text_grow_without_bound_are_an_error() {
        let twice = |pattern: &str| {
            let pattern = json!({"String": pattern});
            json!({"type": "Replace", "pattern": pattern, "content": "aa"})
        };
        let chain = |rules: usize, pattern: &str| {
            let rules = vec![twice(pattern); rules];
            tokenizer(&[("normalizer", json!({"type": "Sequence", "normalizers": rules}))])
        };
        let error = TokenizerFile::from_bytes(&chain(24, "a")).unwrap_err();
        assert!(error.contains("`normalizer` make a text up to 16777216 times"), "{error}");
        TokenizerFile::from_bytes(&chain(10, "a")).unwrap();
        TokenizerFile::from_bytes(&chain(24, "bb")).unwrap();
        // Each makes a text longer, and none sees what another one has made.
        let fractions = ["½", "¼", "¾"]
            .repeat(9)
            .into_iter()
            .map(|sign| json!({"type": "Replace", "pattern": {"String": sign}, "content": "1/2"}));
        let rules: Vec<Value> = fractions.collect();
        let sequence = json!({"type": "Sequence", "normalizers": rules});
        TokenizerFile::from_bytes(&tokenizer(&[("normalizer", sequence)])).unwrap();
    }
}
