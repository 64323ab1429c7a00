//! Tests a disk that is full when a checkpoint is written.

use super::{at_once, Run, EVERY, PATIENCE};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tests::programs::program;
use tokio::process::Command;

/// Mounts a disk of `$1` kilobytes at `$2` and runs `$3`. Then lists the disk's files in `$5`,
/// gives the disk more room, and runs `$4`.
const SCRIPT: &str = "mount -t tmpfs -o size=$1k none \"$2\" && sh -c \"$3\" && (cd \"$2\" && \
                      find . -type f) > \"$5\" && mount -o remount,size=64m \"$2\" && sh -c \"$4\"";

/// Returns the kilobytes that a folder takes on a disk with blocks of 4 KiB.
fn kilobytes(path: &Path) -> u64 {
    let metadata = path.metadata().unwrap();
    if !metadata.is_dir() {
        return metadata.size().div_ceil(4096) * 4;
    }
    4 + std::fs::read_dir(path).unwrap().map(|entry| kilobytes(&entry.unwrap().path())).sum::<u64>()
}

/// CKPT-5.
#[tokio::test]
async fn a_disk_that_is_full_costs_checkpoints_and_no_steps() {
    // A private disk needs a private namespace, which not every system allows.
    let mut probe = Command::new("unshare");
    let probe = probe.args(["-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]).output().await;
    if !probe.is_ok_and(|output| output.status.success()) {
        return eprintln!("left out: nothing can be mounted here");
    }
    let whole = at_once("1", EVERY).await;
    let quiet = whole.outputs();
    let one = kilobytes(&whole.place.file("c/step-00000040"));

    let run = Run::new();
    run.write(21, EVERY);
    let folder = run.place.file("c");
    std::fs::create_dir(&folder).unwrap();
    let line = |flags: &[&str]| {
        let words =
            [vec![program("bossman").to_str().unwrap().to_string()], run.arguments("2", flags)]
                .concat();
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ")
    };
    let begin = line(&[]);
    // The same run file, with more steps.
    let file = run.place.file("run.yaml");
    let go_on = format!(
        "sed -i 's/^steps: 21$/steps: 40/' '{}' && {}",
        file.display(),
        line(&["--resume"])
    );
    // Room for one checkpoint, and for a part of the next.
    let size = (one * 3 / 2).to_string();
    let listing = run.place.file("listing");
    let [disk, list] = [&folder, &listing].map(|path| path.to_str().unwrap());
    let arguments = ["-Urm", "sh", "-c", SCRIPT, "sh", &size, disk, &begin, &go_on, list];
    let boss = run.place.start_by(Command::new("unshare"), "unshare", &arguments, &[]);
    let ended = boss.end_within(2 * PATIENCE).await.expect_success();

    let warned = |step: &str| {
        ended
            .errors
            .iter()
            .any(|line| line.contains(step) && line.contains("No space left on device"))
    };
    assert!(warned("step-00000014") && warned("step-00000021"), "{:#?}", ended.errors);
    // The remains of the failed checkpoints do not take the room of the next one.
    let left = std::fs::read_to_string(listing).unwrap();
    assert!(left.contains("step-00000007/manifest.json"), "{left}");
    let is_known = |line: &str| line.contains("step-00000007/") || line == "./lock";
    assert!(left.lines().all(is_known), "{left}");
    assert!(
        ended.output.iter().any(|line| line.contains("resuming from the checkpoint of step 7")),
        "{:#?}",
        ended.output
    );
    assert!(run.outputs() == quiet, "{:#?}\n{:#?}", run.outputs().0, quiet.0);
}
