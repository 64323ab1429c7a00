use super::*;
use crate::{import, ImportOptions, Model, StateDict};
use std::path::PathBuf;
use testkit::mutate::fuzz;

/// The types of values.
const UINT: u32 = 4;
const FLOAT: u32 = 6;
const FLAG: u32 = 7;
const TEXT: u32 = 8;
const LIST: u32 = 9;
/// The types of tensors.
const F32: u32 = 0;
const Q8_0: u32 = 8;

/// A GGUF file in the making.
#[derive(Clone, Default)]
struct Maker {
    values: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Maker {
    fn value(&mut self, key: &str, kind: u32, bytes: &[u8]) {
        self.values.push([&text(key)[..], &kind.to_le_bytes(), bytes].concat());
    }

    fn size(&mut self, key: &str, size: u32) {
        self.value(key, UINT, &size.to_le_bytes());
    }

    fn texts(&mut self, key: &str, texts: &[&str]) {
        let head = [&TEXT.to_le_bytes()[..], &(texts.len() as u64).to_le_bytes()].concat();
        let texts: Vec<u8> = texts.iter().flat_map(|one| text(one)).collect();
        self.value(key, LIST, &[head, texts].concat());
    }

    /// A tensor of this shape, the innermost size last.
    fn tensor(&mut self, name: &str, shape: &[u64], kind: u32, bytes: &[u8]) {
        let mut entry = [&text(name)[..], &(shape.len() as u32).to_le_bytes()].concat();
        shape.iter().rev().for_each(|size| entry.extend(size.to_le_bytes()));
        entry.extend(kind.to_le_bytes());
        entry.extend((self.data.len() as u64).to_le_bytes());
        self.tensors.push(entry);
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(32), 0);
    }

    fn singles(&mut self, name: &str, shape: &[u64]) {
        let numbers = (0..shape.iter().product()).map(|number| (number as f32 * 0.37).sin());
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        self.tensor(name, shape, F32, &bytes);
    }

    fn bytes(&self) -> Vec<u8> {
        let counts = [self.tensors.len() as u64, self.values.len() as u64];
        let mut file = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
        counts.iter().for_each(|count| file.extend(count.to_le_bytes()));
        self.values.iter().chain(&self.tensors).for_each(|part| file.extend(part));
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }
}

/// A Llama of one block, two heads of four and one key-value head, and the tokens a, b and ab.
fn llama() -> Maker {
    let mut maker = Maker::default();
    maker.value("general.architecture", TEXT, &text("llama"));
    for (key, size) in [
        ("embedding_length", 8),
        ("feed_forward_length", 6),
        ("block_count", 1),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("context_length", 64),
        ("rope.dimension_count", 4),
    ] {
        maker.size(&format!("llama.{key}"), size);
    }
    maker.value("llama.attention.layer_norm_rms_epsilon", FLOAT, &1e-5f32.to_le_bytes());
    maker.value("tokenizer.ggml.model", TEXT, &text("gpt2"));
    maker.value("tokenizer.ggml.pre", TEXT, &text("smollm"));
    maker.texts("tokenizer.ggml.tokens", &["a", "b", "ab", "<end>"]);
    maker.texts("tokenizer.ggml.merges", &["a b"]);
    let kinds = [1i32, 1, 1, 3].map(i32::to_le_bytes).concat();
    let head = [&5u32.to_le_bytes()[..], &4u64.to_le_bytes()].concat();
    maker.value("tokenizer.ggml.token_type", LIST, &[head, kinds].concat());
    maker.singles("token_embd.weight", &[4, 8]);
    for (name, shape) in [
        ("attn_norm", &[8][..]),
        ("attn_q", &[8, 8]),
        ("attn_k", &[4, 8]),
        ("attn_v", &[4, 8]),
        ("attn_output", &[8, 8]),
        ("ffn_norm", &[8]),
        ("ffn_gate", &[6, 8]),
        ("ffn_up", &[6, 8]),
        ("ffn_down", &[8, 6]),
    ] {
        maker.singles(&format!("blk.0.{name}.weight"), shape);
    }
    maker.singles("output_norm.weight", &[8]);
    maker
}

/// Writes a file in a new folder, and imports it into another.
fn imported(bytes: &[u8]) -> (tempfile::TempDir, PathBuf, Result<crate::Imported, BossManError>) {
    let place = tempfile::tempdir().unwrap();
    let [file, to] = ["tiny.gguf", "model"].map(|name| place.path().join(name));
    std::fs::write(&file, bytes).unwrap();
    let imported = import(&file, &to, &ImportOptions::default());
    (place, to, imported)
}

#[test]
fn a_file_becomes_a_folder_that_is_imported() {
    let (_place, to, imported) = imported(&llama().bytes());
    let imported = imported.unwrap();
    assert_eq!((imported.architecture.as_str(), imported.warnings.len()), ("LlamaForCausalLM", 0));
    let model = Model::from_file(&imported.model).unwrap();
    assert_eq!(model.graph().name(), "tiny");
    let weights = StateDict::load(to.join("source")).unwrap();
    weights.fit_to(model.graph()).unwrap();
    let numbers =
        |name: &str, row: i64| Vec::<f32>::try_from(weights.get(name).unwrap().get(row)).unwrap();
    let of_file = |row: u16| -> Vec<f32> {
        (row * 8..row * 8 + 8).map(|number| (f32::from(number) * 0.37).sin()).collect()
    };
    // Rows of values keep their places. Those of queries and keys lie in pairs in the file.
    assert_eq!(numbers("model.layers.0.self_attn.v_proj.weight", 1), of_file(1));
    assert_eq!(numbers("model.layers.0.self_attn.k_proj.weight", 1), of_file(2));
    assert_eq!(numbers("model.layers.0.self_attn.q_proj.weight", 6), of_file(5));
    let tokenizer = std::fs::read(to.join("source/tokenizer.json")).unwrap();
    let tokenizer: Json = serde_json::from_slice(&tokenizer).unwrap();
    assert_eq!(tokenizer["model"]["vocab"]["ab"], 2);
    assert_eq!(tokenizer["added_tokens"][0]["content"], "<end>");
}

/// The special tokens around a text of a tokenizer that asks for these, and its end token.
fn around(pre: &str, adds: &[(&str, u8)], bos: u32) -> Result<Json, String> {
    let mut maker = Maker::default();
    maker.value("tokenizer.ggml.model", TEXT, &text("gpt2"));
    maker.value("tokenizer.ggml.pre", TEXT, &text(pre));
    maker.texts("tokenizer.ggml.tokens", &["a", "<end>", "<begin>"]);
    maker.texts("tokenizer.ggml.merges", &[]);
    maker.size("tokenizer.ggml.bos_token_id", bos);
    maker.size("tokenizer.ggml.eos_token_id", 1);
    for (name, value) in adds {
        maker.value(&format!("tokenizer.ggml.add_{name}_token"), FLAG, &[*value]);
    }
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("tiny.gguf");
    std::fs::write(&file, maker.bytes()).unwrap();
    let gguf = Gguf::read(&file).unwrap();
    let tokenizer = tokenizer::tokenizer(&gguf).map_err(|error| error.to_string())?.unwrap();
    let parts = tokenizer["post_processor"]["single"].as_array().cloned().unwrap_or_default();
    Ok(parts
        .into_iter()
        .map(|part| {
            let special = part["SpecialToken"]["id"].clone();
            if special.is_null() {
                part["Sequence"]["id"].clone()
            } else {
                special
            }
        })
        .collect())
}

#[test]
fn transformers_is_told_the_class_of_the_tokenizer_and_where_a_turn_ends() {
    use serde_json::json;
    let mut maker = llama();
    maker.size("tokenizer.ggml.eos_token_id", 3);
    maker.size("tokenizer.ggml.eot_token_id", 1);
    maker.value("tokenizer.chat_template", TEXT, &text("{{ messages }}"));
    let (_place, to, imported) = imported(&maker.bytes());
    assert_eq!(imported.unwrap().warnings, [""; 0]);
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(to.join("source").join(name)).unwrap()).unwrap()
    };
    let config = read("config.json");
    assert_eq!(config["eos_token_id"], json!([3, 1]));
    let expected = json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>",
        "chat_template": "{{ messages }}",
        "clean_up_tokenization_spaces": false,
        "model_max_length": config["max_position_embeddings"]});
    assert_eq!(read("tokenizer_config.json"), expected);
    let run = std::fs::read_to_string(to.join("run.yaml")).unwrap();
    assert!(run.contains("  eos: [\"<end>\", b]\n"), "{run}");
}

#[test]
fn a_text_gets_the_special_tokens_that_the_file_asks_for() {
    use serde_json::json;
    for (pre, adds, expected) in [
        ("smollm", &[][..], json!([])),
        ("smollm", &[("bos", 1)], json!(["<begin>", "A"])),
        ("smollm", &[("bos", 1), ("eos", 1)], json!(["<begin>", "A", "<end>"])),
        ("smollm", &[("eos", 1)], json!(["A", "<end>"])),
        // llama.cpp adds it unless the file says no.
        ("llama-bpe", &[], json!(["<begin>", "A"])),
        ("llama-bpe", &[("bos", 0)], json!([])),
    ] {
        assert_eq!(around(pre, adds, 2).unwrap(), expected, "{pre} {adds:?}");
    }
    let error = around("smollm", &[("bos", 1)], 3).unwrap_err();
    assert!(error.ends_with("`tokenizer.ggml.bos_token_id` is no token that it has"), "{error}");
}

#[test]
fn what_cannot_be_converted_is_one_error_and_leaves_nothing() {
    let changed = |change: fn(&mut Maker)| {
        let mut maker = llama();
        change(&mut maker);
        maker.bytes()
    };
    let whole = llama().bytes();
    let golden: [(Vec<u8>, &str); 9] = [
        (b"GGML".to_vec(), "is no GGUF file"),
        (whole[..whole.len() - 8].to_vec(), "is truncated: tensor `output_norm.weight` ends at"),
        (whole[..100].to_vec(), "its header goes on behind the end"),
        (
            [&b"GGUF"[..], &3u32.to_le_bytes(), &u64::MAX.to_le_bytes(), &[0; 8]].concat(),
            "it has more than 4000000 values",
        ),
        (
            changed(|maker| maker.value("split.count", 2, &2u16.to_le_bytes())),
            "is one of 2 files of a model; join them with `llama-gguf-split --merge`",
        ),
        (
            changed(|maker| maker.value("general.architecture", TEXT, &text("mamba"))),
            "has the architecture `mamba`; `llama` is known",
        ),
        (
            changed(|maker| maker.tensor("blk.0.attn_gate.weight", &[1], F32, &[0; 4])),
            "has a tensor `blk.0.attn_gate.weight`, which Llama has not",
        ),
        (
            changed(|maker| maker.singles("output_norm.weight", &[8])),
            "tensor `output_norm.weight` is there twice",
        ),
        (
            changed(|maker| maker.tensor("x", &[32], 6, &[0; 22])),
            "tensor `x` has type 6; F32, F16, BF16, Q8_0,",
        ),
    ];
    for (bytes, expected) in golden {
        let (_place, to, imported) = imported(&bytes);
        let error = imported.unwrap_err().to_string();
        assert!(error.contains("tiny.gguf: ") && error.contains(expected), "{error}");
        assert!(!to.join("source").exists() && !to.join("model.yaml").exists());
    }
}

#[test]
fn a_tokenizer_of_another_kind_is_left_out_with_a_warning() {
    let mut maker = llama();
    maker.value("tokenizer.ggml.model", TEXT, &text("llama"));
    let (place, to, imported) = imported(&maker.bytes());
    let expected = "tiny.gguf: has no tokenizer of a kind that is known";
    let warnings = imported.unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
    std::fs::remove_dir_all(&to).unwrap();
    let data = Some(place.path().join("text.txt"));
    let options = ImportOptions { data, ..ImportOptions::default() };
    let error = import(&place.path().join("tiny.gguf"), &to, &options).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_header_of_any_content_is_read_or_refused() {
    let mut maker = llama();
    maker.tensor("quants", &[2, 32], Q8_0, &[1; 68]);
    let pieces = ["\0\0\0\0\0\0\0\0", "\u{1}\0\0\0", "\t\0\0\0", "GGUF"];
    fuzz("gguf", &[maker.bytes()], &pieces, |bytes| {
        let size = bytes.len() as u64;
        if let Ok(gguf) = Gguf::parse(bytes, size, Path::new("tiny.gguf")) {
            llama::config(&gguf).ok();
            llama::tensors(&gguf).ok();
            tokenizer::tokenizer(&gguf).ok();
        }
    });
}
