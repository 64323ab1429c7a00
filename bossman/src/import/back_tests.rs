//! Tests the way back: what an import has read is exported, changed or not, for transformers.

use super::bert_like::bert_tests::{bert, bert_tensors, dense, NORM};
use super::bert_like::gpt2_tests::{gpt2, gpt2_tensors};
use super::test_folder::{named, Folder};
use super::tests::config;
use super::*;
use crate::run_file::{RunFile, Weights};
use crate::{ExportSettings, HuggingFaceExport, StateDict};
use serde_json::json;
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};

const AS_IT_WAS: ExportSettings = ExportSettings { dtype: None, max_shard_bytes: None };

fn llama_tensors() -> Vec<(String, Vec<i64>)> {
    let outer: [(&str, &[i64]); 2] = [("embed_tokens.weight", &[32, 8]), ("norm.weight", &[8])];
    let of_layer: [(&str, &[i64]); 10] = [
        ("input_layernorm.weight", &[8]),
        ("self_attn.q_proj.weight", &[8, 8]),
        ("self_attn.k_proj.weight", &[4, 8]),
        ("self_attn.v_proj.weight", &[4, 8]),
        ("self_attn.o_proj.weight", &[8, 8]),
        ("self_attn.rotary_emb.inv_freq", &[2]),
        ("post_attention_layernorm.weight", &[8]),
        ("mlp.gate_proj.weight", &[16, 8]),
        ("mlp.up_proj.weight", &[16, 8]),
        ("mlp.down_proj.weight", &[8, 16]),
    ];
    let layers = (0..2).flat_map(|layer| named(&format!("model.layers.{layer}."), &of_layer));
    named("model.", &outer).into_iter().chain(layers).collect()
}

/// A Llama whose head is the embedding, which the files have twice.
fn llama() -> Folder {
    let config = config("LlamaForCausalLM", &json!({"tie_word_embeddings": true}));
    let folder = Folder::new(&config, &llama_tensors());
    let tied = |state: &mut StateDict| {
        let embedding = state.get("model.embed_tokens.weight").unwrap().copy();
        state.insert("lm_head.weight", &embedding);
    };
    change_source(&folder, tied);
    folder
}

fn source(folder: &Folder) -> PathBuf {
    folder.place.path().join("small")
}

/// Changes the weights of the folder that was or will be imported.
fn change_source(folder: &Folder, change: impl FnOnce(&mut StateDict)) {
    let mut state = StateDict::load(source(folder)).unwrap();
    change(&mut state);
    state.save(source(folder).join("model.safetensors")).unwrap();
}

fn imported(folder: &Folder, head: Head) -> (Model, Weights) {
    folder.import(&ImportOptions { head, ..ImportOptions::default() }).unwrap();
    run_of(&folder.place.path().join("to"))
}

fn run_of(folder: &Path) -> (Model, Weights) {
    let run = RunFile::from_file(folder.join("run.yaml")).unwrap();
    (Model::from_file(&run.model).unwrap(), run.weights.unwrap())
}

/// The weights that a run begins with.
fn first_weights((model, weights): &(Model, Weights)) -> StateDict {
    let files = StateDict::load(&weights.path).unwrap();
    weights.rename.apply(&files, model).unwrap().fit_to(model.graph()).unwrap()
}

/// The same weights with another value.
fn changed(weights: &StateDict) -> StateDict {
    let mut other = StateDict::default();
    weights.iter().for_each(|(name, tensor)| other.insert(name, &(tensor * 2 + 1)));
    other
}

fn write(
    (model, weights): &(Model, Weights),
    values: &StateDict,
    to: &Path,
    settings: &ExportSettings,
) -> Result<StateDict, String> {
    HuggingFaceExport::new(&weights.path, &weights.rename, model, to)
        .and_then(|way| way.write(values, settings))
        .map_err(|e| e.to_string())
}

fn expect_same(found: &StateDict, expected: &StateDict) {
    let names =
        |state: &StateDict| state.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(found), names(expected));
    for (name, tensor) in expected.iter() {
        let other = found.get(name).unwrap();
        assert_eq!((other.size(), other.kind()), (tensor.size(), tensor.kind()), "{name}");
        assert!(other.equal(tensor), "{name}");
    }
}

#[test]
fn a_trained_llama_goes_back_and_is_imported_with_the_same_parameters() {
    let folder = llama();
    let run = imported(&folder, Head::default());
    let trained = changed(&first_weights(&run));
    let back = folder.place.path().join("back");
    let written = write(&run, &trained, &back, &AS_IT_WAS).unwrap();
    let found = StateDict::load(&back).unwrap();
    expect_same(&found, &written);
    let files = StateDict::load(source(&folder)).unwrap();
    assert_eq!(found.iter().count(), files.iter().count());
    let buffer = "model.layers.1.self_attn.rotary_emb.inv_freq";
    assert!(found.get(buffer).unwrap().equal(files.get(buffer).unwrap()));
    let [head, embedding] =
        ["lm_head.weight", "model.embed_tokens.weight"].map(|name| found.get(name).unwrap());
    assert!(head.equal(embedding));
    let config = |folder: &Path| std::fs::read(folder.join("config.json")).unwrap();
    assert_eq!(config(&back), config(&source(&folder)));
    let again = folder.place.path().join("again");
    import(&back, &again, &ImportOptions::default()).unwrap();
    expect_same(&first_weights(&run_of(&again)), &trained);
    let error = write(&run, &trained, &back, &AS_IT_WAS).unwrap_err();
    assert!(error.ends_with("back: is there already; name a new folder"), "{error}");
}

/// A BERT whose output layer, which is not imported, is a copy of the embedding.
fn masked_bert() -> Folder {
    let more = [dense("cls.predictions.decoder", [32, 8]), bert_tensors("bert.", NORM)].concat();
    let folder = Folder::new(&bert("BertForMaskedLM", &json!({})), &more);
    change_source(&folder, |state| {
        let copy = state.get("bert.embeddings.word_embeddings.weight").unwrap().copy();
        state.insert("cls.predictions.decoder.weight", &copy);
    });
    folder
}

/// The files of a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| (PathBuf::from(entry.file_name()), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// Joined rows, transposed matrices, tied heads and copies, as other types and in several files.
#[test]
fn weights_in_files_become_the_folder_of_weights_in_memory() {
    let gpt2 = Folder::new(&gpt2(&json!({})), &gpt2_tensors("transformer."));
    for (folder, head) in
        [(llama(), Head::default()), (gpt2, Head::default()), (masked_bert(), Head::None)]
    {
        let run = imported(&folder, head);
        let trained = changed(&first_weights(&run));
        let at = |name: String| folder.place.path().join(name);
        let file = Weights::of(at("trained.safetensors".into()));
        trained.save(&file.path).unwrap();
        let dtypes = [None, Some(Kind::Half), Some(Kind::BFloat16)];
        for (number, dtype) in dtypes.into_iter().enumerate() {
            let max_shard_bytes = dtype.map(|_| 1000);
            let settings = ExportSettings { dtype, max_shard_bytes };
            let memory = at(format!("memory-{number}"));
            let written = write(&run, &trained, &memory, &settings).unwrap();
            let streamed = at(format!("streamed-{number}"));
            let (model, source) = &run;
            let way = HuggingFaceExport::new(&source.path, &source.rename, model, &streamed);
            let count = way.unwrap().write_files(&file.path, &file.rename, &settings).unwrap();
            assert_eq!(count, written.iter().count());
            assert!(files(&streamed) == files(&memory), "{settings:?}");
            expect_same(&StateDict::load(&streamed).unwrap(), &written);
        }
    }
}

#[test]
fn a_source_that_changes_before_it_is_copied_is_an_error_and_nothing_stays() {
    let folder = llama();
    let (model, source) = &imported(&folder, Head::default());
    let back = folder.place.path().join("back");
    let way = HuggingFaceExport::new(&source.path, &source.rename, model, &back).unwrap();
    change_source(&folder, |state| {
        let other = state.get("model.norm.weight").unwrap() + 1;
        state.insert("model.norm.weight", &other);
    });
    let error = way.write_files(&source.path, &source.rename, &AS_IT_WAS).unwrap_err().to_string();
    assert!(
        error.contains("was replaced, changed or deleted after its header was read"),
        "{error}"
    );
    let left = std::fs::read_dir(folder.place.path()).unwrap().count();
    assert_eq!(left, 2, "something stayed beside the source and the import");
}

#[test]
fn joined_and_transposed_tensors_go_back_bit_for_bit() {
    let bert_config = bert("BertModel", &json!({}));
    let bert_tensors = [bert_tensors("", NORM), dense("pooler.dense", [8, 8])].concat();
    for (config, tensors) in [
        (gpt2(&json!({})), gpt2_tensors("transformer.")),
        (gpt2(&json!({})), gpt2_tensors("")),
        (bert_config, bert_tensors),
    ] {
        let folder = Folder::new(&config, &tensors);
        let run = imported(&folder, Head::default());
        let back = folder.place.path().join("back");
        write(&run, &first_weights(&run), &back, &AS_IT_WAS).unwrap();
        let files = StateDict::load(source(&folder)).unwrap();
        expect_same(&StateDict::load(&back).unwrap(), &files);
    }
}

#[test]
fn an_unused_output_layer_stays_a_copy_of_the_embedding() {
    let folder = masked_bert();
    let (embedding, output) =
        ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight");
    let run = imported(&folder, Head::None);
    let trained = changed(&first_weights(&run));
    let back = folder.place.path().join("back");
    write(&run, &trained, &back, &AS_IT_WAS).unwrap();
    let (found, files) =
        (StateDict::load(&back).unwrap(), StateDict::load(source(&folder)).unwrap());
    assert!(found.get(output).unwrap().equal(found.get(embedding).unwrap()));
    assert!(!found.get(output).unwrap().equal(files.get(output).unwrap()));
    let bias = "cls.predictions.decoder.bias";
    assert!(found.get(bias).unwrap().equal(files.get(bias).unwrap()));
}

#[test]
fn another_type_stands_in_the_configuration_and_files_have_a_limit() {
    let folder = llama();
    let run = imported(&folder, Head::default());
    let back = folder.place.path().join("back");
    let settings = ExportSettings { dtype: Some(Kind::Half), max_shard_bytes: Some(2000) };
    write(&run, &first_weights(&run), &back, &settings).unwrap();
    assert!(back.join("model.safetensors.index.json").is_file());
    assert!(!back.join("model.safetensors").exists());
    let found = StateDict::load(&back).unwrap();
    let norm = found.get("model.norm.weight").unwrap();
    assert_eq!(norm.kind(), Kind::Half);
    // What the model does not use stays as it is.
    let buffer = found.get("model.layers.0.self_attn.rotary_emb.inv_freq").unwrap();
    assert_eq!(buffer.kind(), Kind::Float);
    let config = std::fs::read_to_string(back.join("config.json")).unwrap();
    assert!(config.contains("\"torch_dtype\": \"float16\""), "{config}");
}

#[test]
fn what_does_not_fit_is_named_in_one_error_and_nothing_stays() {
    let folder = llama();
    let run = imported(&folder, Head::default());
    let values = first_weights(&run);
    let back = folder.place.path().join("back");
    let refused = |values: &StateDict| {
        let error = write(&run, values, &back, &AS_IT_WAS).unwrap_err();
        let left = std::fs::read_dir(folder.place.path()).unwrap().count();
        assert_eq!(left, 2, "something stayed beside the source and the import");
        error
    };
    let error = refused(&StateDict::default());
    assert!(error.contains("the weights do not fit the model"), "{error}");
    change_source(&folder, |state| {
        let zeros = |sizes: &[i64]| Tensor::zeros(sizes, (Kind::Float, Device::Cpu));
        state.insert("model.norm.weight", &zeros(&[9]));
        state.insert("model.more.weight", &zeros(&[1]));
        state.0.remove("model.layers.0.mlp.up_proj.weight");
    });
    let error = refused(&values);
    for part in [
        "model.safetensors: the weights cannot go back to these files",
        "`model.norm.weight`: expected [8], got [9]",
        "`model.more.weight`: the model has no such parameter",
        "`model.layers.0.mlp.up_proj.weight`: missing",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(error.lines().count(), 4, "{error}");
    change_source(&folder, |state| state.0.retain(|name, _| name.ends_with("norm.weight")));
    let error = refused(&values);
    assert!(error.lines().count() == 12 && error.contains("\n  and "), "{error}");
    std::fs::remove_file(source(&folder).join("config.json")).unwrap();
    let error = refused(&values);
    assert!(error.contains("config.json: is missing, so this is no folder"), "{error}");
}

#[test]
fn parameters_that_the_source_lacks_keep_their_names() {
    let folder = llama();
    let mut run = imported(&folder, Head::default());
    let values = first_weights(&run);
    change_source(&folder, |state| drop(state.0.remove("model.norm.weight")));
    run.1.rename.fresh("model.norm.weight").unwrap();
    let back = folder.place.path().join("back");
    let (model, weights) = &run;
    let way = HuggingFaceExport::new(&weights.path, &weights.rename, model, &back).unwrap();
    assert_eq!(way.fresh(), ["model.norm.weight"]);
    way.write(&values, &AS_IT_WAS).unwrap();
    let found = StateDict::load(&back).unwrap();
    let norm = |state: &StateDict| state.get("model.norm.weight").unwrap().copy();
    assert!(norm(&found).equal(&norm(&values)));
    change_source(&folder, |state| state.insert("model.norm.weight", &norm(&values)));
    let error = write(&run, &values, &folder.place.path().join("b"), &AS_IT_WAS).unwrap_err();
    assert!(error.contains("`model.norm.weight`: is `fresh` in the run file"), "{error}");
}

#[test]
fn a_source_that_is_not_what_the_run_began_with_is_refused() {
    let folder = llama();
    let (model, weights) = &imported(&folder, Head::default());
    let back = folder.place.path().join("back");
    let way = HuggingFaceExport::new(&weights.path, &weights.rename, model, &back).unwrap();
    let digest = |state: &StateDict| state.digest().unwrap().to_string();
    let run = (model.clone(), weights.clone());
    let first = digest(&first_weights(&run));
    way.check_source(&first).unwrap();
    change_source(&folder, |state| {
        let other = state.get("model.norm.weight").unwrap() + 1;
        state.insert("model.norm.weight", &other);
    });
    let error = way.check_source(&first).unwrap_err().to_string();
    assert!(error.contains(&first) && error.contains(&digest(&first_weights(&run))), "{error}");
}
