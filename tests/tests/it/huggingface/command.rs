//! Tests `bossman import` as a program: the whole road to a trained model and its text, and folders
//! that are not as they should be.

use super::{recorded, within_limit};
use bossman::StateDict;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use tests::programs::{Ended, TestFolder};

/// Copies a recorded model into a folder.
pub(super) fn copied(case: &str, place: &TestFolder) -> PathBuf {
    let copy = place.file("hf");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(recorded().join(case).join("model")).unwrap() {
        let file = entry.unwrap();
        std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    copy
}

pub(super) async fn import(place: &TestFolder, folder: &Path, to: &Path, more: &[&str]) -> Ended {
    let arguments = ["import", folder.to_str().unwrap(), "--to", to.to_str().unwrap()];
    place.start("bossman", &[&arguments[..], more].concat()).end().await
}

/// Replaces a text that must be in a file.
pub(super) fn replace(path: &Path, old: &str, new: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(old), "{old} is not in {text}");
    std::fs::write(path, text.replace(old, new)).unwrap();
}

/// The recorded case, a mistake to make in its folder, the file that is at fault, and what the
/// message says of it.
type Mistake = (&'static str, fn(&Path), &'static str, &'static str);

#[test]
fn a_folder_that_is_not_as_it_should_be_is_refused_in_one_line() {
    let mistakes: [Mistake; 5] = [
        (
            "llama",
            |folder| std::fs::remove_file(folder.join("config.json")).unwrap(),
            "config.json",
            "is missing; name a folder as `save_pretrained`",
        ),
        (
            "llama-tied",
            |folder| {
                let path = folder.join("model.safetensors");
                let content = std::fs::read(&path).unwrap();
                std::fs::write(&path, &content[..content.len() - 10]).unwrap();
            },
            "model.safetensors",
            "has 24534 bytes, but its header describes 24544",
        ),
        (
            "llama-sharded",
            |folder| {
                let shard = folder.join("model-00002-of-00003.safetensors");
                std::fs::remove_file(shard).unwrap();
            },
            "model-00002-of-00003.safetensors",
            "is missing, but ",
        ),
        (
            "llama",
            |folder| replace(&folder.join("config.json"), "LlamaForCausalLM", "T5Model"),
            "config.json",
            "`architectures` is [\"T5Model\"]: BossMan imports LlamaForCausalLM, ",
        ),
        (
            "llama",
            |folder| replace(&folder.join("tokenizer.json"), "\"w62\":62", "\"w62\":64"),
            "tokenizer.json",
            "its last token has the number 64, but `vocab_size` in ",
        ),
    ];
    within_limit(async {
        for (case, make_mistake, file, problem) in mistakes {
            let place = TestFolder::new();
            let folder = copied(case, &place);
            make_mistake(&folder);
            let to = place.file("new");
            let ended = import(&place, &folder, &to, &[]).await;
            assert_eq!(ended.output, [""; 0]);
            let line = ended.error_line();
            let expected = format!("bossman: {}: {problem}", folder.join(file).display());
            assert!(line.starts_with(&expected), "{line}\nexpected {expected}");
            assert!(!to.exists(), "{problem}: something was written");
        }
    });
}

#[test]
fn a_folder_with_something_in_it_is_not_written_to() {
    within_limit(async {
        let place = TestFolder::new();
        let folder = copied("llama", &place);
        let to = place.file("new");
        std::fs::create_dir(&to).unwrap();
        std::fs::write(to.join("mine"), "text").unwrap();
        let line = import(&place, &folder, &to, &[]).await.error_line();
        assert_eq!(line, format!("bossman: {}: is not empty; name a new folder", to.display()));
        let names: Vec<_> =
            std::fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["mine"]);
    });
}

#[test]
fn a_folder_is_imported_trained_on_a_text_and_asked_for_text() {
    within_limit(async {
        let place = TestFolder::new();
        let folder = copied("llama", &place);
        // 18 samples. Of so few, a share of 0.02 would have none.
        let text = (0..1200).fold(String::new(), |mut text, number| {
            write!(text, "w{} ", (number * number + number / 2) % 63).unwrap();
            text
        });
        let path = |name: &str| place.file(name).to_str().unwrap().to_string();
        std::fs::write(path("text.txt"), text).unwrap();
        let to = place.file("new");
        let imported = import(&place, &folder, &to, &["--data", &path("text.txt")]).await;
        let imported = imported.expect_success();
        assert_eq!(imported.errors, [""; 0]);
        let run = to.join("run.yaml");
        replace(&run, "steps: 100\n", "steps: 2\n");
        let run = run.to_str().unwrap();
        let told = format!("bossman train {run} --local 2");
        assert_eq!(imported.output.last(), Some(&told));

        let local = ["--local", "2", "--threads", "1"];
        let (weights, metrics) = (path("w.safetensors"), path("m.jsonl"));
        let train = ["train", run, "--save", &weights, "--metrics", &metrics];
        let command = [&train[..], &local[..]].concat();
        place.start("bossman", &command).end().await.expect_success();
        let lines = std::fs::read_to_string(&metrics).unwrap();
        let steps = lines.lines().filter(|line| line.starts_with("{\"step\""));
        assert_eq!(steps.count(), 2, "{lines}");
        // The names are those of the folder, so the weights can go back to transformers.
        let (before, after) =
            (StateDict::load(&folder).unwrap(), StateDict::load(&weights).unwrap());
        assert_eq!(before.iter().count(), after.iter().count());
        for (name, tensor) in before.iter() {
            let trained = after.get(name).unwrap();
            assert_eq!(tensor.size(), trained.size(), "{name}");
            assert!(!trained.equal(tensor), "{name} was not trained");
        }

        let expected = std::fs::read(recorded().join("llama").join("expected.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
        let words = |key: &str| -> Vec<String> {
            let tokens = expected[key].as_array().unwrap();
            tokens.iter().map(|token| format!("w{token}")).collect()
        };
        let (prompt, whole) =
            (words("prompt").join(" "), [words("prompt"), words("generated")].concat().join(" "));
        let ask = ["generate", run, "--temperature", "0", "--max-new-tokens", "12", "--prompt"];
        let ask = [&ask[..], &[prompt.as_str()][..], &local[..]].concat();
        let said = place.start("bossman", &ask).end().await.expect_success();
        assert_eq!(said.output, [whole]);
        let ask = [&ask[..], &["--weights", weights.as_str()][..]].concat();
        let said = place.start("bossman", &ask).end().await.expect_success().output.join("\n");
        assert!(said.starts_with(&prompt) && said.len() > prompt.len(), "{said}");
    });
}
