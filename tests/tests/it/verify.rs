//! Tests receipts and `bossman verify`: honest runs verify, and every change is named.

use bossman::receipt::{Hashed, Receipt};
use bossman::StateDict;
use std::path::{Path, PathBuf};
use tests::programs::{Ended, TestFolder};
use tests::Case;

/// A run and its folder.
struct Run {
    place: TestFolder,
    folder: PathBuf,
}

impl Run {
    /// Trains without a fault.
    async fn quiet(case: &Case, steps: usize, more: &str, flags: &[&str]) -> Self {
        let place = TestFolder::new();
        let file = place.run_file(case, steps, more);
        let all = ["train", file.to_str().unwrap(), "--name", "run", "--threads", "1"];
        place.start("bossman", &[&all, flags].concat()).end().await.expect_success();
        let folder = place.file("run-folders/run");
        Run { place, folder }
    }

    async fn verify(&self, flags: &[&str]) -> Ended {
        let all = ["verify", self.folder.to_str().unwrap()];
        self.place.start("bossman", &[&all, flags].concat()).end().await
    }

    /// Verifies the run, and returns what differs.
    async fn difference(&self) -> String {
        let ended = self.verify(&["--all", "--trust"]).await;
        assert_eq!(ended.status.code(), Some(1), "{:?}", ended.output);
        let differs = ended.errors.iter().find(|line| line.starts_with("differs: "));
        differs.unwrap_or_else(|| ended.errors.last().unwrap()).clone()
    }

    /// Replaces a file for the time of `check`, and expects the difference to have these parts.
    async fn with(&self, path: &Path, content: Vec<u8>, parts: &[&str]) {
        let before = std::fs::read(path).unwrap();
        assert!(before != content, "{} is not changed", path.display());
        std::fs::write(path, content).unwrap();
        let difference = self.difference().await;
        for part in parts {
            assert!(difference.contains(part), "{part} is not in: {difference}");
        }
        std::fs::write(path, before).unwrap();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.join(name)).unwrap()
    }

    /// The hash of this content, as a receipt has it.
    fn hashed(&self, content: &[u8]) -> Hashed {
        let path = self.place.file("content");
        std::fs::write(&path, content).unwrap();
        Hashed::of_file(&path).unwrap().unwrap()
    }
}

/// Everything in a folder, with its content.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(content(&path)),
            false => found.push((path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    found.sort();
    found
}

const MORE: &str = "microbatches: 4\ncheckpoint: {every: 4, keep: 1}\nreceipt: {audit: 1}";

/// The weights are a file without content of a terabyte, whose hash takes many minutes.
#[tokio::test]
async fn a_signal_ends_the_comparison_of_large_files() {
    let run = Run::quiet(&Case::branchy(), 2, "microbatches: 4", &["--local", "1"]).await;
    let weights = run.folder.join("weights.safetensors");
    std::fs::File::options().write(true).open(weights).unwrap().set_len(1 << 40).unwrap();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let arguments = ["verify", run.folder.to_str().unwrap()];
        let mut verify = run.place.start("bossman", &arguments);
        verify.line("receipt of bossman").await;
        verify.signal(signal);
        let ended = verify.end().await;
        assert_eq!(ended.status.code(), Some(code));
        assert_eq!(ended.errors.last().unwrap(), "bossman: interrupted; nothing more was compared");
    }
}

#[tokio::test]
async fn a_quiet_run_verifies_and_nothing_is_written() {
    let run = Run::quiet(&Case::branchy(), 20, MORE, &["--local", "2"]).await;
    let before = content(&run.folder);
    for workers in ["1", "3"] {
        let said = run.verify(&["--all", "--local", workers]).await.expect_success().output;
        let equal = said.iter().filter(|line| line.contains("equal to the bit")).count();
        assert!(equal >= 2, "{said:?}");
        let to_the_end = said.iter().find(|line| line.contains("to step 20: equal"));
        assert!(to_the_end.is_some_and(|line| line.contains("1 files of tensors")), "{said:?}");
    }
    assert!(content(&run.folder) == before, "verify has written something");

    // One checkpoint is kept beside the last one, and two windows do not begin at the beginning.
    let kept = std::fs::read_dir(run.folder.join("checkpoints")).unwrap();
    let kept = kept.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert!(kept == 1 || kept == 2, "{kept}");
    let receipt = Receipt::read(&run.folder).unwrap();
    let steps: Vec<u64> = receipt.digests.iter().map(|digest| digest.step).collect();
    assert_eq!(steps, [4, 8, 12, 16, 20]);
    // It can be shown to anyone.
    let text = String::from_utf8(run.read("receipt.json")).unwrap();
    let home = run.place.file("");
    for private in [home.to_str().unwrap(), "127.0.0.1", "address", "host"] {
        assert!(!text.contains(private), "{private} is in {text}");
    }
}

/// One pipeline repeats what replicas computed, whatever they shared or sharded.
#[tokio::test]
async fn runs_of_replicas_verify_on_one_pipeline() {
    let sharded = "microbatches: 4\nreplicas: 2\nshard: parameters\naccumulate: 2\n\
                   clip_grad_norm: 0.5\nprecision: bf16\ncheckpoint: {every: 4}";
    let unequal = "microbatches: 4\nreplicas: [2, 1]\ncheckpoint: {every: 4}";
    for (more, workers) in [(sharded, "2"), (unequal, "3")] {
        let run = Run::quiet(&Case::branchy(), 8, more, &["--local", workers]).await;
        let said = run.verify(&["--all", "--local", "2"]).await.expect_success().output;
        let to_the_end = said.iter().find(|line| line.contains("to step 8: equal to the bit"));
        assert!(to_the_end.is_some(), "{more}: {said:?}");
    }
}

/// Its weights have several slices, which are sent while the next step computes.
const WIDE: &str = "
model: wide
inputs: {x: [batch, 8]}
layers:
  - Linear: {in_features: 8, out_features: 200000}
  - Tanh
  - Linear: {in_features: 200000, out_features: 4}
";

/// Each window begins with a checkpoint of slices, and another layout trains from there to the
/// digest of the next one.
#[tokio::test]
async fn checkpoints_of_many_slices_are_the_state_between_two_steps() {
    for more in ["", "\nreplicas: 2\nshard: optimizer", "\nreplicas: 2\nshard: parameters"] {
        let place = TestFolder::new();
        std::fs::write(place.file("wide.yaml"), WIDE).unwrap();
        let more = format!("microbatches: 4\ncheckpoint: {{every: 2, keep: 9}}{more}");
        let file = place.run_file(&Case::branchy(), 6, &more);
        let text = std::fs::read_to_string(&file).unwrap();
        let (_, rest) = text.split_once('\n').unwrap();
        std::fs::write(&file, format!("model: wide.yaml\n{rest}")).unwrap();
        let train = ["train", file.to_str().unwrap(), "--name", "run", "--threads", "1"];
        let train = [&train[..], &["--local", "2"]].concat();
        place.start("bossman", &train).end().await.expect_success();
        let folder = place.file("run-folders/run");
        let run = Run { place, folder };
        let said = run.verify(&["--all", "--local", "2"]).await.expect_success().output;
        let equal = said.iter().filter(|line| line.contains("equal to the bit")).count();
        assert_eq!(equal, 3, "{more}: {said:?}");
    }
}

#[tokio::test]
async fn every_change_is_found_and_named() {
    let run = Run::quiet(&Case::branchy(), 6, "microbatches: 4", &["--local", "1"]).await;
    let file = |name: &str| run.folder.join(name);
    let flipped = |mut bytes: Vec<u8>| {
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    };
    let weights = flipped(run.read("weights.safetensors"));
    run.with(&file("weights.safetensors"), weights.clone(), &["weights.safetensors: its SHA-256"])
        .await;
    let data = run.place.file("data.safetensors");
    let changed = flipped(std::fs::read(&data).unwrap());
    run.with(&data, changed, &["data.safetensors: is not the file of the train data"]).await;
    let run_file = String::from_utf8(run.read("run.yaml")).unwrap();
    let longer = run_file.replace("steps: 6", "steps: 7").into_bytes();
    run.with(&file("run.yaml"), longer, &["run.yaml: its SHA-256"]).await;
    let metrics = String::from_utf8(run.read("metrics.jsonl")).unwrap();
    let other_loss = metrics.replacen("\"loss\":", "\"loss\":1", 1).into_bytes();
    let parts = ["metrics.jsonl: the lines of steps 1 to 6"];
    run.with(&file("metrics.jsonl"), other_loss.clone(), &parts).await;
    let receipt = Receipt::read(&run.folder).unwrap();
    let digest = receipt.digests[0].digest.clone();
    let other_digest = format!("{}{}", if &digest[..1] == "0" { 1 } else { 0 }, &digest[1..]);
    let replaced = |name: &str| {
        String::from_utf8(run.read(name)).unwrap().replace(&digest, &other_digest).into_bytes()
    };
    run.with(&file("receipt.json"), replaced("receipt.json"), &["receipt.json: was changed"]).await;
    let parts = ["events.jsonl: the digest of step 6 is"];
    run.with(&file("events.jsonl"), replaced("events.jsonl"), &parts).await;

    // Someone makes a new receipt for what was changed. The repetition finds it.
    let original = run.read("receipt.json");
    let mut forged = receipt.clone();
    forged.digests[0].metrics = Some(run.hashed(&other_loss));
    forged.write(&run.folder).unwrap();
    let parts = ["from the beginning to step 6: step 1: its loss is ", "metrics.jsonl has 1"];
    run.with(&file("metrics.jsonl"), other_loss, &parts).await;
    let mut forged = receipt.clone();
    forged.files.insert("weights.safetensors".into(), run.hashed(&weights));
    forged.write(&run.folder).unwrap();
    let there = StateDict::load(file("weights.safetensors")).unwrap();
    run.with(&file("weights.safetensors"), weights, &["weights.safetensors: tensor `"]).await;
    assert!(there.iter().count() > 1);
    let mut forged = receipt.clone();
    forged.digests[0].digest = other_digest.clone();
    forged.write(&run.folder).unwrap();
    let parts = ["step 6: the digest of the repeated state is not that of receipt.json"];
    run.with(&file("events.jsonl"), replaced("events.jsonl"), &parts).await;
    // Lines that are missing, or there twice.
    let lines: Vec<&str> = metrics.split_inclusive('\n').collect();
    for (lines, part) in [
        ([&lines[..2], &lines[3..]].concat(), "step 3: metrics.jsonl has no loss of it"),
        ([&lines[..3], &lines[2..]].concat(), "metrics.jsonl: step 3 comes after step 3"),
    ] {
        let lines = lines.concat().into_bytes();
        let mut forged = receipt.clone();
        forged.digests[0].metrics = Some(run.hashed(&lines));
        forged.write(&run.folder).unwrap();
        run.with(&file("metrics.jsonl"), lines, &[part]).await;
    }
    // Weights of a step that is not repeated.
    for step in [0, 5, 7] {
        let mut forged = receipt.clone();
        forged.weights.insert("weights.safetensors".into(), step);
        forged.write(&run.folder).unwrap();
        let difference = run.difference().await;
        let is_found = difference.contains(&format!("says that step {step} made it"))
            || difference.contains("events.jsonl: its steps of the weights");
        assert!(is_found, "{difference}");
    }
    std::fs::write(file("receipt.json"), original).unwrap();
    run.verify(&["--all"]).await.expect_success();
}

/// On another kind of processor stored tensors are compared alone, within the tolerance.
#[tokio::test]
async fn another_kind_of_processor_compares_stored_tensors() {
    let run = Run::quiet(&Case::branchy(), 6, "microbatches: 4", &["--local", "1"]).await;
    let mut receipt = Receipt::read(&run.folder).unwrap();
    let kind = std::mem::replace(&mut receipt.sessions[0].workers[0].processor, "z80".into());
    receipt.clone().write(&run.folder).unwrap();
    let events = String::from_utf8(run.read("events.jsonl")).unwrap().replace(&kind, "z80");
    std::fs::write(run.folder.join("events.jsonl"), events).unwrap();
    let said = run.verify(&["--all"]).await.expect_success().output;
    let last = said.last().unwrap();
    assert!(last.contains("1 files of tensors are equal within the tolerance"), "{said:?}");

    let path = run.folder.join("weights.safetensors");
    let weights = StateDict::load(&path).unwrap();
    let mut other = StateDict::default();
    let mut names = weights.iter();
    let (first, tensor) = names.next().unwrap();
    other.insert(first, &(tensor * 1.5));
    names.for_each(|(name, tensor)| other.insert(name, tensor));
    other.save(&path).unwrap();
    receipt.files.insert("weights.safetensors".into(), run.hashed(&std::fs::read(&path).unwrap()));
    receipt.write(&run.folder).unwrap();
    let difference = run.difference().await;
    assert!(difference.contains(&format!("tensor `{first}`: an element differs")), "{difference}");
}

#[tokio::test]
async fn inexact_sums_are_compared_by_hash_alone() {
    let more = "microbatches: 4\nreplicas: 2\nreduction: fast";
    let run = Run::quiet(&Case::branchy(), 6, more, &["--local", "2"]).await;
    let said = run.verify(&["--all"]).await.expect_success().output;
    assert!(said[1].starts_with("only hashes are compared: `reduction: fast`"), "{said:?}");
    assert_eq!(said.len(), 3, "{said:?}");
}

/// A worker is killed, then the boss, and the run goes on in another layout.
#[tokio::test]
async fn a_run_with_two_kills_and_another_layout_verifies() {
    let more = "microbatches: 4\ncheckpoint: {every: 20}";
    let place = TestFolder::new();
    let file = place.run_file(&Case::convnet(), 200, more);
    let (mut boss, at) = place.boss(&file, 2, &["--name", "run"]).await;
    let stays = place.worker(&at.port, &[]);
    let killed = place.worker(&at.port, &[]);
    boss.line(" written").await;
    killed.signal("KILL");
    boss.line("recovery: resuming with 1 of 2 workers").await;
    boss.line(" written").await;
    boss.signal("KILL");
    boss.end().await;
    drop(stays);
    let folder = place.file("run-folders/run");
    let run = Run { place, folder };
    let none = run.verify(&[]).await.errors;
    assert!(none[1].contains("receipt.json: is not there"), "{none:?}");

    let path = run.folder.to_str().unwrap();
    let resume = ["train", path, "--resume", "--local", "3", "--threads", "1"];
    run.place.start("bossman", &resume).end().await.expect_success();
    let receipt = Receipt::read(&run.folder).unwrap();
    let workers: Vec<_> = receipt.sessions.iter().map(|session| session.workers.len()).collect();
    assert_eq!(workers, [2, 1, 3]);
    // Each has the plan that it carried out.
    for session in &receipt.sessions {
        let [plan] = &session.plans[..] else { panic!("{:?}", session.plans) };
        assert_eq!(plan.from, session.from);
        let workers = plan.stages.iter().flat_map(|stage| &stage.workers);
        let known = |id| session.workers.iter().any(|worker| worker.worker == id);
        assert!(workers.copied().all(known), "{session:?}");
    }
    assert_eq!(receipt.changes.len(), 1);
    let said = run.verify(&["--all", "--local", "2"]).await.expect_success().output;
    let last = said.last().unwrap();
    assert!(last.contains("to step 200: equal to the bit"), "{said:?}");
}

/// Somebody else's folder is input: nothing outside it is read unless the user names it.
#[tokio::test]
async fn the_folder_of_somebody_else_reads_only_below_itself() {
    let more = "microbatches: 4\ncheckpoint: {every: 3}";
    let run = Run::quiet(&Case::branchy(), 6, more, &["--local", "1"]).await;
    let config = run.place.file("another-user");
    let as_another = |command: &'static str, flags: &[&str]| {
        let all = [&[command, run.folder.to_str().unwrap()], flags].concat();
        let environment = [("BOSSMAN_CONFIG_DIR", config.to_str().unwrap())];
        run.place.start_with("bossman", &all, &environment).end()
    };
    let place = run.place.file("");
    let here = ["--data-dir", place.to_str().unwrap()];
    let local = ["--local", "1", "--data", "train"];
    let ended = as_another("verify", &[]).await;
    assert_eq!(ended.status.code(), Some(1));
    let refused = ended.errors.last().unwrap();
    let data = format!(
        "`data` is {}, which is not in this folder",
        place.join("data.safetensors").display()
    );
    for part in [&data, "--data-dir", "--trust"] {
        assert!(refused.contains(part), "{refused}");
    }
    let refused = as_another("eval", &local).await.errors;
    assert!(refused.last().unwrap().contains(&data), "{refused:?}");
    as_another("verify", &here).await.expect_success();
    as_another("verify", &["--trust"]).await.expect_success();
    as_another("eval", &[&local[..], &here].concat()).await.expect_success();
    let exported = run.place.file("exported.safetensors");
    as_another("export", &["--to", exported.to_str().unwrap()]).await.expect_success();

    // A link out of the folder is followed for its owner alone.
    let (inside, outside) =
        (run.folder.join("weights.safetensors"), place.join("moved.safetensors"));
    std::fs::rename(&inside, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &inside).unwrap();
    run.verify(&[]).await.expect_success();
    let refused = as_another("verify", &here).await.errors;
    assert!(refused.last().unwrap().contains("is a link out of this folder"), "{refused:?}");

    // A run file that was changed is nobody's.
    let path = run.folder.join("run.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("seed: ", "seed: 1")).unwrap();
    let refused = run.verify(&[]).await.errors;
    assert!(refused.last().unwrap().contains("Your bossman did not write"), "{refused:?}");
}

/// The flag `--weights` of the first process is not repeated when the run goes on.
#[tokio::test]
async fn a_run_from_weights_that_goes_on_verifies() {
    let more = "microbatches: 4\ncheckpoint: {every: 3}";
    let first = Run::quiet(&Case::branchy(), 3, more, &["--local", "1"]).await;
    let weights = first.folder.join("weights.safetensors");
    let place = TestFolder::new();
    let file = place.run_file(&Case::branchy(), 6, more);
    let train =
        ["train", file.to_str().unwrap(), "--name", "run", "--threads", "1", "--local", "1"];
    let from = ["--weights", weights.to_str().unwrap()];
    place.start("bossman", &[&train[..], &from].concat()).end().await.expect_success();
    let text = std::fs::read_to_string(&file).unwrap().replace("steps: 6", "steps: 8");
    std::fs::write(&file, text).unwrap();
    place.start("bossman", &[&train[..], &["--resume"]].concat()).end().await.expect_success();
    let run = Run { folder: place.file("run-folders/run"), place };
    let said = run.verify(&["--all"]).await.expect_success().output;
    assert!(said.iter().any(|line| line.starts_with("from the beginning")), "{said:?}");
    let receipt = Receipt::read(&run.folder).unwrap();
    assert!(receipt.inputs.as_ref().is_some_and(|inputs| inputs.initial_weights.is_some()));
    let mut changed = std::fs::read(&weights).unwrap();
    *changed.last_mut().unwrap() ^= 1;
    run.with(&weights, changed, &["the initial weights: are not those of receipt.json"]).await;
}
