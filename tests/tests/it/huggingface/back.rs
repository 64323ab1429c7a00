//! Tests the way back: `bossman export` makes the folder again that an import has read.

use super::command::{copied, import, replace};
use super::{within_limit, Case};
use bossman::{ExportSettings, HuggingFaceExport, StateDict};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use tests::programs::{Ended, TestFolder};

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The files that are no weights.
fn other_names(folder: &Path) -> BTreeSet<String> {
    names(folder).into_iter().filter(|name| !name.contains("safetensors")).collect()
}

#[test]
fn untouched_weights_go_back_as_they_were() {
    for case in Case::all() {
        let place = TestFolder::new();
        let (source, to) = (case.folder.join("model"), place.file("back"));
        let rename = &case.run.weights.as_ref().unwrap().rename;
        let way = HuggingFaceExport::new(&source, rename, &case.model, &to).unwrap();
        assert_eq!(way.fresh(), [""; 0]);
        way.write(&case.weights, &ExportSettings { dtype: None, max_shard_bytes: None }).unwrap();
        let (before, after) = (StateDict::load(&source).unwrap(), StateDict::load(&to).unwrap());
        assert_eq!(before.iter().count(), after.iter().count(), "{}", case.name);
        for (name, tensor) in before.iter() {
            let found = after.get(name).unwrap();
            let same = (tensor.size(), tensor.kind()) == (found.size(), found.kind());
            assert!(same && tensor.equal(found), "{}: {name}", case.name);
        }
        // Names, types, shapes and bytes.
        assert_eq!(before.digest().unwrap(), after.digest().unwrap(), "{}", case.name);
        assert_eq!(other_names(&source), other_names(&to), "{}", case.name);
        for name in other_names(&source) {
            let read = |folder: &Path| std::fs::read(folder.join(&name)).unwrap();
            assert_eq!(read(&source), read(&to), "{}: {name}", case.name);
        }
    }
}

async fn export(place: &TestFolder, run: &str, to: &Path, more: &[&str]) -> Ended {
    let arguments = ["export", run, "--to", to.to_str().unwrap()];
    place.start("bossman", &[&arguments[..], more].concat()).end().await
}

#[test]
fn a_trained_run_becomes_a_folder_that_is_imported_again() {
    within_limit(async {
        let place = TestFolder::new();
        let folder = copied("gpt2", &place);
        let text = (0..7000).fold(String::new(), |mut text, number| {
            write!(text, "w{} ", (number * number + number / 2) % 63).unwrap();
            text
        });
        let path = |name: &str| place.file(name).to_str().unwrap().to_string();
        std::fs::write(path("text.txt"), text).unwrap();
        let to = place.file("new");
        import(&place, &folder, &to, &["--data", &path("text.txt")]).await.expect_success();
        let run = to.join("run.yaml");
        replace(&run, "steps: 100\n", "steps: 1\n");
        let run = run.to_str().unwrap();
        let train = ["train", run, "--name", "mine", "--local", "1", "--threads", "1"];
        place.start("bossman", &train).end().await.expect_success();

        // The folder of the run tells what it began with.
        let mine = path("run-folders/mine");
        let back = place.file("back");
        let ended = export(&place, &mine, &back, &[]).await.expect_success();
        assert_eq!(ended.errors, [format!("run folder {mine}")]);
        let (before, after) = (StateDict::load(&folder).unwrap(), StateDict::load(&back).unwrap());
        assert_eq!(before.iter().count(), after.iter().count());
        for (name, tensor) in before.iter() {
            let found = after.get(name).unwrap();
            assert!(found.size() == tensor.size() && !found.equal(tensor), "{name}");
        }
        let again = place.file("again");
        import(&place, &back, &again, &[]).await.expect_success();
        // An export and an import have not changed the run's own weights.
        let kinds = ["weights.best.safetensors", "weights.safetensors"];
        let mut own = kinds.map(|name| place.file("run-folders/mine").join(name)).into_iter();
        let own = own.find(|file| file.is_file()).unwrap();
        let whole = place.file("whole.safetensors");
        let imported = again.join("run.yaml");
        export(&place, imported.to_str().unwrap(), &whole, &[]).await.expect_success();
        let digest = |file: &Path| StateDict::load(file).unwrap().digest().unwrap();
        assert_eq!(digest(&own), digest(&whole));

        // So does that of a run that goes on with the weights of the first.
        let goes_on = ["train", run, "--name", "second", "--local", "1", "--threads", "1"];
        let latest = place.file("run-folders/latest").join(own.file_name().unwrap());
        let goes_on = [&goes_on[..], &["--weights", latest.to_str().unwrap()]].concat();
        place.start("bossman", &goes_on).end().await.expect_success();
        let (second, further) = (path("run-folders/second"), place.file("further"));
        let ended = export(&place, &second, &further, &[]).await.expect_success();
        // The source was compared with the receipt of the first run, without a warning.
        assert_eq!(ended.errors, [format!("run folder {second}")]);
        assert_eq!(names(&further), names(&back));
        assert_ne!(digest(&further), digest(&back));

        // A run file alone does not.
        let weights = own.to_str().unwrap();
        let by_file = place.file("by-file");
        let ended = export(&place, run, &by_file, &["--weights", weights]).await.expect_success();
        let [warning] = &ended.errors[..] else { panic!("{:?}", ended.errors) };
        assert!(warning.starts_with("warning: no receipt tells"), "{warning}");
        assert_eq!(digest(&by_file), digest(&back));

        // Another source is noticed.
        let wrong = place.file("wrong");
        std::fs::copy(back.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
        let ended = export(&place, &mine, &wrong, &[]).await;
        assert_eq!(ended.status.code(), Some(1));
        let error = ended.errors.last().unwrap();
        assert!(error.contains("does not hold the weights that the run began with"), "{error}");
        assert!(!wrong.exists());
        let ended = export(&place, &mine, &back, &[]).await;
        let error = ended.errors.last().unwrap();
        assert!(error.ends_with("back: is there already; name a new folder"), "{error}");
        let left = names(&place.file("")).into_iter().find(|name| name.starts_with(".bossman-"));
        assert_eq!(left, None);
        // The weights alone are written as ever.
        let alone = place.file("alone.safetensors");
        export(&place, &mine, &alone, &[]).await.expect_success();
        assert_eq!(digest(&alone), digest(&own));
    });
}
