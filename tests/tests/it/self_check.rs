//! Tests `bossman self-check` on the CPU: its sections, their lines, and what is refused. On a GPU
//! it is tested in `gpu.rs`.

use serde_json::Value;
#[cfg(target_os = "linux")]
use std::process::Stdio;
use std::time::Duration;
#[cfg(target_os = "linux")]
use tests::programs::program;
use tests::programs::TestFolder;

/// The time limit of all sections; far longer than they take.
const PATIENCE: Duration = Duration::from_secs(180);

#[tokio::test]
async fn whole_runs_are_right_on_the_cpu() {
    let place = TestFolder::new();
    let arguments = ["self-check", "--preset", "tiny", "--device", "cpu", "--json"];
    let only = ["--only", "cuts,replicas,resume,errors,prediction,speed"];
    let check = place.start("bossman", &[&arguments[..], &only].concat());
    let ended = check.end_within(PATIENCE).await.expect_success();
    let lines: Vec<Value> =
        ended.output.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sections: Vec<&str> = lines.iter().map(|line| line["section"].as_str().unwrap()).collect();
    assert_eq!(sections, ["cuts", "replicas", "resume", "errors", "prediction", "speed"]);
    for line in &lines {
        assert!(line["ok"] == true && line["problem"].is_null(), "{line}");
        assert!(line["seconds"].as_f64().unwrap() >= 0.0, "{line}");
    }
    let figures = |index: usize| &lines[index]["figures"];
    assert_eq!(figures(0)["largest_difference"], 0.0);
    assert!(figures(0)["difference_from_cpu"].is_null());
    assert_eq!(figures(1)["collective"], "quic");
    assert!(figures(2)["resumed_after_step"].as_u64().unwrap() >= 4);
    assert!(figures(3)["wrong_token"].as_str().unwrap().contains("layer words"));
    assert!(figures(4)["measured_ms"].as_f64().unwrap() > 0.0);
    assert!(figures(5)["skipped"].is_string());
}

#[tokio::test]
async fn a_section_has_a_line_for_people() {
    let place = TestFolder::new();
    let arguments = ["self-check", "--device", "cpu", "--only", "speed"];
    let ended = place.start("bossman", &arguments).end_within(PATIENCE).await.expect_success();
    let expected = "speed ... skipped: preset tiny gives the device no work worth measuring";
    assert_eq!(ended.output, [expected]);
}

#[tokio::test]
async fn a_device_that_is_not_there_fails_and_what_follows_is_not_checked() {
    let place = TestFolder::new();
    let arguments = ["self-check", "--device", "cuda:99", "--only", "cuts,speed"];
    let ended = place.start("bossman", &arguments).end_within(PATIENCE).await;
    assert_eq!(ended.status.code(), Some(1));
    let line = ended.output.join("\n");
    assert!(line.starts_with("device.driver ... failed ("), "{line}");
    assert!(line.contains("cuda:99: not on this machine"), "{line}");
    let last = ended.errors.last().unwrap();
    assert_eq!(last, "bossman: device.driver failed; not checked: cuts, speed");
}

/// Its disk is full.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_report_that_cannot_be_written_is_an_error() {
    let place = TestFolder::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut check = tokio::process::Command::new(program("bossman"));
    check.args(["self-check", "--device", "cpu", "--only", "speed"]).kill_on_drop(true);
    check.env("BOSSMAN_CONFIG_DIR", place.file("config")).stdin(Stdio::null());
    let check = check.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let ended = tokio::time::timeout(PATIENCE, check.wait_with_output()).await.unwrap().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    let expected = "bossman: standard output: No space left on device";
    assert!(said.lines().last().unwrap().starts_with(expected), "{said}");
}

#[tokio::test]
async fn unknown_sections_and_presets_are_mistakes_of_the_command_line() {
    let place = TestFolder::new();
    for (flag, expected) in
        [("--only", "one of device, cuts"), ("--preset", "tiny, small or large")]
    {
        let ended = place.start("bossman", &["self-check", flag, "all"]).end().await;
        let said = ended.errors.join("\n");
        assert!(ended.status.code() == Some(2) && said.contains(expected), "{said}");
    }
}
