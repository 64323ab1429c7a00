//! Tests the folder that a run leaves, and the commands that take it.

use std::path::{Path, PathBuf};
use tests::programs::{free_port, Ended, Process, TestFolder};
use tests::Case;

/// A run that validates and has checkpoints in its folder.
const MORE: &str = "microbatches: 4\ncheckpoint: {every: 2}";

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn events(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("events.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn kinds(folder: &Path) -> Vec<String> {
    events(folder).iter().map(|event| event["event"].as_str().unwrap().to_string()).collect()
}

/// A run file, and commands that work with its folder.
struct Run {
    place: TestFolder,
    file: PathBuf,
}

impl Run {
    fn new(steps: usize, more: &str) -> Self {
        let place = TestFolder::new();
        let file = place.run_file(&Case::branchy(), steps, more);
        Run { place, file }
    }

    fn runs(&self, name: &str) -> PathBuf {
        self.place.file("run-folders").join(name)
    }

    fn train(&self, flags: &[&str]) -> Process {
        let all = ["train", self.file.to_str().unwrap(), "--local", "1", "--threads", "1"];
        self.place.start("bossman", &[&all, flags].concat())
    }

    async fn trained(&self, flags: &[&str]) -> Ended {
        self.train(flags).end().await.expect_success()
    }

    async fn command(&self, arguments: &[&str]) -> Ended {
        self.place.start("bossman", arguments).end().await
    }
}

/// The name is that of the folder of the run file, which is `run.yaml`.
fn derived(run: &Run) -> String {
    let folder = run.file.parent().unwrap().file_name().unwrap().to_str().unwrap();
    folder.trim_start_matches('.').to_string()
}

#[tokio::test]
async fn a_run_leaves_everything_in_its_folder() {
    let run = Run::new(6, MORE);
    let said = run.trained(&[]).await;
    let (name, latest) = (derived(&run), run.runs("latest"));
    let folder = run.runs(&name);
    assert_eq!(said.output[0], format!("run folder {}", folder.display()));
    assert_eq!(std::fs::read_link(&latest).unwrap(), Path::new(&name));
    assert_eq!(
        names(&folder),
        [
            "checkpoints",
            "events.jsonl",
            "lock",
            "log.txt",
            "metrics.jsonl",
            "model.yaml",
            "name",
            "owner",
            "receipt.json",
            "run.yaml",
            "weights.safetensors"
        ]
    );
    assert_eq!(std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap().lines().count(), 6);
    let kinds = kinds(&folder);
    for kind in ["folder", "waiting", "joined", "planned", "started", "weights_saved", "ended"] {
        assert!(kinds.iter().any(|found| found == kind), "no {kind} in {kinds:?}");
    }
    assert_eq!(kinds.iter().filter(|kind| *kind == "step").count(), 6);

    // Commands take the folder, and tell which one it is.
    let weights = run.place.file("exported.safetensors");
    let latest = latest.to_str().unwrap();
    let exported = run.command(&["export", latest, "--to", weights.to_str().unwrap()]).await;
    let exported = exported.expect_success();
    assert_eq!(exported.errors, [format!("run folder {}", folder.display())]);
    assert_eq!(
        std::fs::read(&weights).unwrap(),
        std::fs::read(folder.join("weights.safetensors")).unwrap()
    );
    let listed = run.command(&["checkpoint", "ls", latest]).await.expect_success();
    assert_eq!(listed.output.len(), 3);
    assert!(listed.output[2].starts_with("step-00000006"), "{:?}", listed.output);
}

/// The folder holds the run as it was carried out, so a copy elsewhere trains to the same bits.
#[tokio::test]
async fn a_copied_folder_gives_the_same_bits_elsewhere() {
    let run = Run::new(6, MORE);
    run.trained(&["--no-shuffle", "--name", "mine"]).await;
    let (folder, copy) = (run.runs("mine"), run.place.file("elsewhere/copied"));
    std::fs::create_dir_all(&copy).unwrap();
    for name in ["run.yaml", "model.yaml", "owner", "weights.safetensors"] {
        std::fs::copy(folder.join(name), copy.join(name)).unwrap();
    }
    let read = |folder: &Path, name: &str| std::fs::read(folder.join(name)).unwrap();
    let path = copy.to_str().unwrap();
    let train = ["train", path, "--local", "1", "--threads", "1"];
    run.command(&train).await.expect_success();
    let again = run.runs("copied");
    let weights = "weights.safetensors";
    assert!(read(&folder, weights) == read(&again, weights), "the weights differ");
    // Comments have the prediction of a step, which is measured anew.
    let keys = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join("run.yaml")).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(keys(&folder), keys(&again));
    let eval = |folder: String| {
        let run = &run;
        async move {
            let all = ["eval", &folder, "--local", "1", "--threads", "1", "--data", "train"];
            run.command(&all).await.expect_success().output
        }
    };
    let found = eval(folder.to_str().unwrap().into()).await;
    assert_eq!(eval(path.into()).await, found);
    assert!(found[0].contains("samples: accuracy"), "{found:?}");
}

/// EVENT-1, EVENT-2.
#[tokio::test]
async fn a_run_goes_on_in_its_folder_and_a_new_one_never_enters_it() {
    let run = Run::new(6, MORE);
    run.trained(&[]).await;
    let name = derived(&run);
    // A line that a crash has torn.
    let log = run.runs(&name).join("events.jsonl");
    let mut text = std::fs::read(&log).unwrap();
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    text.truncate(text.len() - 3);
    std::fs::write(&log, &text).unwrap();
    let longer = std::fs::read_to_string(&run.file).unwrap().replace("steps: 6", "steps: 8");
    std::fs::write(&run.file, longer).unwrap();
    let resumed = run.trained(&["--resume"]).await.output;
    let told = "2 steps in";
    let is_told = |line: &String| line.contains(told) && line.ends_with("8 with those before");
    assert!(resumed.iter().any(is_told), "{resumed:?}");
    let folder = run.runs(&name);
    let log = ["log", folder.to_str().unwrap()];
    let shown = run.command(&log).await.expect_success().output;
    assert!(shown.iter().any(is_told), "{shown:?}");
    assert!(shown.last().unwrap().starts_with("weights of step 8: "), "{shown:?}");
    let text = std::fs::read_to_string(folder.join("events.jsonl")).unwrap();
    assert!(text.lines().count() > lines);
    let torn = text.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_err());
    assert_eq!(torn.count(), 1);
    assert_eq!(std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap().lines().count(), 8);

    // A new run gets the next number, and goes on there.
    run.trained(&[]).await;
    let both = ["latest".to_string(), name.clone(), format!("{name}-2")];
    assert_eq!(names(&run.place.file("run-folders")), both);
    run.trained(&["--resume=if-any"]).await;
    let second = run.runs(&format!("{name}-2"));
    run.command(&["train", second.to_str().unwrap(), "--local", "1", "--resume"])
        .await
        .expect_success();
    assert_eq!(names(&run.place.file("run-folders")), both);

    let refused = run.train(&["--name", &name]).end().await.error_line();
    assert!(refused.contains("is the folder of another run"), "{refused}");
}

/// One microbatch for each worker would be more than the batch has samples.
#[tokio::test]
async fn a_folder_of_small_batches_is_read_again() {
    let run = Run::new(3, "");
    let text = std::fs::read_to_string(&run.file).unwrap();
    let small = text.replace(&format!("batch_size: {}", tests::BATCH), "batch_size: 2");
    assert_ne!(small, text);
    std::fs::write(&run.file, small).unwrap();
    let all = ["train", run.file.to_str().unwrap(), "--local", "3", "--threads", "1"];
    run.command(&all).await.expect_success();
    let folder = run.runs("latest");
    let said = run.command(&["verify", folder.to_str().unwrap(), "--local", "2"]).await;
    let said = said.expect_success().output;
    assert!(said.last().unwrap().contains("equal to the bit"), "{said:?}");
}

#[tokio::test]
async fn a_mistake_leaves_no_folder() {
    let run = Run::new(6, "microbatches: 4");
    let missing = run.train(&["--weights", "none.safetensors"]).end().await.error_line();
    assert!(missing.contains("none.safetensors"), "{missing}");
    let none = run.train(&["--resume"]).end().await.error_line();
    assert!(none.contains("the run file has no `checkpoint`"), "{none}");
    assert!(!run.place.file("run-folders").exists());

    std::fs::write(&run.file, std::fs::read_to_string(&run.file).unwrap() + MORE).unwrap();
    let text = std::fs::read_to_string(&run.file).unwrap().replacen("microbatches: 4\n", "", 1);
    std::fs::write(&run.file, text).unwrap();
    let none = run.train(&["--resume"]).end().await.error_line();
    assert!(none.contains("--resume: there is no run `"), "{none}");
    let none = run.train(&["--no-run-folder"]).end().await.error_line();
    assert!(none.contains("`checkpoint` needs `dir`, because the run has no folder"), "{none}");
    assert!(!run.place.file("run-folders").exists());
}

/// While a run lasts, its folder is locked, and no file of it holds the ticket.
/// EVENT-3, EVENT-8, JOIN-1.
#[tokio::test]
async fn one_process_trains_in_a_folder_and_the_ticket_is_not_in_it() {
    let run = Run::new(1_000_000_000, "microbatches: 4\ncheckpoint: {every: 1}");
    let port = free_port();
    let all = ["train", run.file.to_str().unwrap(), "--workers", "1", "--port", &port];
    let mut boss = run.place.start("bossman", &all);
    let line = boss.line("MODEL_TICKET=").await;
    let ticket = line.split("MODEL_TICKET=").nth(1).unwrap().split(' ').next().unwrap();
    let worker = run.place.worker(&port, &[]);
    boss.line(" written").await;
    let refused = run.train(&["--resume"]).end().await.error_line();
    let holder = format!("process {} trains in this folder", boss.id());
    assert!(refused.contains(&holder), "{refused}");
    boss.signal("KILL");
    boss.end().await;
    drop(worker);
    let folder = run.runs(&derived(&run));
    for name in names(&folder).iter().filter(|name| *name != "checkpoints") {
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(ticket) && !text.contains("bossman1-"), "{name} has the ticket");
    }
}

/// A checkpoint for its score alone is written only if it is the best so far, and pushes out none
/// to resume from.
#[tokio::test]
async fn the_best_checkpoint_is_kept_beside_the_last_ones() {
    let run = Run::new(60, "microbatches: 4\ncheckpoint: {every: 25, keep: 2, keep_best: loss}");
    let text = std::fs::read_to_string(&run.file).unwrap();
    let from = "data: {train: data.safetensors}";
    assert!(text.contains(from));
    let data = "data: {train: data.safetensors, validation: {split: 0.25}}";
    std::fs::write(&run.file, text.replace(from, data)).unwrap();
    let none = run.place.file("none");
    std::fs::create_dir(&none).unwrap();
    let none = run.command(&["checkpoint", "ls", none.to_str().unwrap()]).await.expect_success();
    assert!(none.errors[0].ends_with("there are no checkpoints"), "{:?}", none.errors);

    run.trained(&[]).await;
    let folder = run.runs(&derived(&run));
    let steps = |kind: &str, with: &dyn Fn(&serde_json::Value) -> bool| {
        let events = events(&folder).into_iter();
        let events = events.filter(|event| event["event"] == kind && with(event));
        events.map(|event| event["step"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let best = steps("validated", &|event| event["best"] == true);
    assert!(best.len() < steps("validated", &|_| true).len(), "each one is the best");
    let mut expected = [best.clone(), vec![25, 50, 60]].concat();
    expected.sort();
    expected.dedup();
    assert_eq!(steps("checkpoint", &|event| event["outcome"] == "written"), expected);
    let best = best.last().unwrap();
    let mut kept = names(&folder.join("checkpoints"));
    kept.retain(|name| name != "lock");
    let mut expected = vec![*best, 50, 60];
    expected.sort();
    expected.dedup();
    assert_eq!(kept, expected.iter().map(|step| format!("step-{step:08}")).collect::<Vec<_>>());

    let listed = run.command(&["checkpoint", "ls", folder.to_str().unwrap()]).await;
    let of_best = format!("step-{best:08}  ");
    for line in listed.expect_success().output {
        assert!(line.contains("iB  2"), "no size or time: {line}");
        let is_best = line.starts_with(&of_best);
        assert_eq!(line.contains("  best loss"), is_best, "{line}");
    }
}

/// Files that the user puts elsewhere are there as links.
#[tokio::test]
async fn files_elsewhere_are_linked() {
    let run = Run::new(4, "microbatches: 4");
    let (weights, metrics) = (run.place.file("w.safetensors"), run.place.file("m.jsonl"));
    let flags = ["--save", weights.to_str().unwrap(), "--metrics", metrics.to_str().unwrap()];
    run.trained(&flags).await;
    let folder = run.runs(&derived(&run));
    assert_eq!(std::fs::read_link(folder.join("weights.safetensors")).unwrap(), weights);
    assert_eq!(std::fs::read_link(folder.join("metrics.jsonl")).unwrap(), metrics);
    let exported = run.place.file("e.safetensors");
    let export = ["export", folder.to_str().unwrap(), "--to", exported.to_str().unwrap()];
    run.command(&export).await.expect_success();
    assert_eq!(std::fs::read(exported).unwrap(), std::fs::read(weights).unwrap());
}

/// A run that goes on may put its files elsewhere from then on. They move there, and stay there.
#[tokio::test]
async fn files_move_elsewhere_when_a_run_goes_on() {
    let run = Run::new(4, MORE);
    run.trained(&[]).await;
    let lengthen = |from: &str, to: &str| {
        let longer = std::fs::read_to_string(&run.file).unwrap().replace(from, to);
        std::fs::write(&run.file, longer).unwrap();
    };
    let folder = run.runs(&derived(&run));
    let (weights, metrics) = (run.place.file("w.safetensors"), run.place.file("m.jsonl"));
    let flags = ["--save", weights.to_str().unwrap(), "--metrics", metrics.to_str().unwrap()];
    lengthen("steps: 4", "steps: 6");
    run.trained(&[&flags[..], &["--resume"]].concat()).await;
    let lines = || std::fs::read_to_string(&metrics).unwrap().lines().count();
    assert_eq!(lines(), 6);
    let after_6 = std::fs::read(&weights).unwrap();
    assert_eq!(std::fs::read_link(folder.join("weights.safetensors")).unwrap(), weights);
    lengthen("steps: 6", "steps: 8");
    run.trained(&["--resume"]).await;
    assert_eq!(lines(), 8);
    assert_eq!(std::fs::read_link(folder.join("metrics.jsonl")).unwrap(), metrics);
    assert!(std::fs::read(&weights).unwrap() != after_6, "the weights are not saved");

    // A file of the user is not replaced by another.
    std::fs::remove_file(folder.join("metrics.jsonl")).unwrap();
    std::fs::copy(&metrics, folder.join("metrics.jsonl")).unwrap();
    lengthen("steps: 8", "steps: 9");
    let refused = run.train(&[&flags[..], &["--resume"]].concat()).end().await.error_line();
    assert!(refused.contains("m.jsonl: is not replaced by the run's own"), "{refused}");
}

/// `runs` tells how each run ended, and `prune` deletes old ones. `log` tells what happened.
#[tokio::test]
async fn runs_are_listed_followed_and_pruned() {
    let run = Run::new(6, MORE);
    run.trained(&["--name", "first"]).await;
    let longer = std::fs::read_to_string(&run.file).unwrap().replace("steps: 6", "steps: 1000000");
    std::fs::write(&run.file, longer).unwrap();
    let mut boss = run.train(&["--name", "second"]);
    boss.line(" written").await;
    let second = run.runs("second");
    let follow = ["log", second.to_str().unwrap(), "--follow"];
    let mut follower = run.place.start("bossman", &follow);
    follower.line("checkpoint of step 2 written").await;

    let state = |ended: &Ended, name: &str| {
        let of = |line: &String| serde_json::from_str::<serde_json::Value>(line).unwrap();
        let found = ended.output.iter().map(of).find(|run| run["name"] == name).unwrap();
        (found["state"].as_str().unwrap().to_string(), found["resumes_from"].as_u64())
    };
    let list = run.command(&["runs", "--json"]).await.expect_success();
    assert_eq!(state(&list, "first"), ("ended".into(), None));
    assert_eq!(state(&list, "second"), ("running".into(), None));
    // A run that lasts is not deleted.
    run.command(&["runs", "prune", "--keep", "0"]).await.expect_success();
    assert_eq!(names(&run.place.file("run-folders")), ["latest", "second"]);

    boss.signal("INT");
    assert_eq!(boss.end().await.status.code(), Some(130));
    follower.line("interrupted").await;
    follower.end().await.expect_success();
    let (found, from) = state(&run.command(&["runs", "--json"]).await.expect_success(), "second");
    assert!(found == "interrupted" && from.unwrap() >= 2, "{found} {from:?}");

    let mut boss = run.train(&["--resume", "--name", "second"]);
    boss.line("resuming from the checkpoint of step").await;
    boss.signal("KILL");
    boss.end().await;
    let list = run.command(&["runs", "--json"]).await.expect_success();
    assert_eq!(state(&list, "second").0, "crashed");
    let table = run.command(&["runs"]).await.expect_success().output;
    assert!(table[1].starts_with("second  crashed") && table[1].contains("from step"), "{table:?}");

    // `latest` leads to the newest run that is left.
    run.command(&["runs", "prune", "--keep", "0"]).await.expect_success();
    assert_eq!(names(&run.place.file("run-folders")), Vec::<String>::new());
    let latest = run.runs("latest");
    std::os::unix::fs::symlink("second", &latest).unwrap();
    let gone = run.command(&["eval", latest.to_str().unwrap()]).await.error_line();
    assert!(gone.contains("latest: leads to ") && gone.ends_with("which is gone"), "{gone}");
    let none = run.command(&["runs", "--runs-dir", "nowhere"]).await.error_line();
    assert!(none.contains("nowhere: there is no such folder"), "{none}");
}

/// The lines that `status` prints about a folder.
async fn status(run: &Run, folder: &Path) -> Vec<String> {
    let said = run.command(&["status", folder.to_str().unwrap()]).await.expect_success();
    assert!(said.errors[0].starts_with("run folder "), "{:?}", said.errors);
    said.output
}

/// A boss answers by its folder while it waits and trains. Afterwards the folder tells how it
/// ended.
#[tokio::test]
async fn a_folder_tells_how_its_run_does() {
    let run = Run::new(1_000_000_000, "microbatches: 4");
    let latest = run.runs("latest");
    let (mut boss, at) = run.place.boss(&run.file, 2, &[]).await;
    let said = status(&run, &latest).await;
    assert!(said[0].starts_with("waiting for 2 of 2 workers, for ") && said.len() == 1, "{said:?}");
    let first = run.place.worker(&at.port, &[]);
    boss.line("worker 0 joined").await;
    let said = status(&run, &latest).await;
    assert!(said[0].starts_with("waiting for 1 of 2 workers, for "), "{said:?}");
    assert!(said[1].starts_with("workers: 0 on ") && said.len() == 2, "{said:?}");
    let second = run.place.worker(&at.port, &[]);
    boss.line("step 1/").await;
    let said = status(&run, &run.runs(&derived(&run))).await;
    assert!(said[0].starts_with("training: step ") && said[0].ends_with(", 2 of 2 workers"));
    assert!(said[0].contains(" of 1000000000, loss "), "{said:?}");
    let json = ["status", latest.to_str().unwrap(), "--json"];
    let said = run.command(&json).await.expect_success().output;
    let json: serde_json::Value = serde_json::from_str(&said[0]).unwrap();
    assert_eq!((&json["phase"], &json["wait"]), (&"training".into(), &serde_json::Value::Null));
    assert_eq!(json["workers"].as_array().unwrap().len(), 2);
    boss.signal("INT");
    assert_eq!(boss.end().await.status.code(), Some(130));
    drop((first, second));
    let said = status(&run, &latest).await;
    assert!(said[0].starts_with("the run was interrupted: step "), "{said:?}");
}

/// Its port is any free one, which nobody knows but the folder.
#[tokio::test]
async fn a_folder_tells_how_a_run_of_this_machine_alone_does() {
    let run = Run::new(1_000_000_000, "microbatches: 4");
    let all = ["train", run.file.to_str().unwrap(), "--local", "2", "--threads", "1"];
    let mut boss = run.place.start("bossman", &all);
    boss.line("step 1/").await;
    let latest = run.runs("latest");
    let said = status(&run, &latest).await;
    assert!(said[0].starts_with("training: step ") && said[0].ends_with(", 2 of 2 workers"));
    boss.signal("KILL");
    boss.end().await;
    assert!(latest.join("address").is_file());
    let said = status(&run, &latest).await;
    assert!(said[0].starts_with("the run's process ended without a word: step "), "{said:?}");

    let run = Run::new(6, "microbatches: 4");
    run.trained(&[]).await;
    let said = status(&run, &run.runs("latest")).await;
    assert!(said[0].starts_with("the run has ended: step 6 of 6, loss "), "{said:?}");
}
