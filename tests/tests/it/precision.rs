//! Tests mixed precision with real processes. The cut does not show, and a precision that a machine
//! lacks is refused before the start.

use bossman::StateDict;
use tch::Device;
use tests::device::device;
use tests::programs::{Ended, TestFolder};
use tests::sample::sampled;
use tests::{one_process, Case, Training};

/// Trains with this number of local workers in this precision. Writes the losses and weights into
/// the folder.
async fn train(place: &TestFolder, case: &Case, workers: &str, precision: &str) -> Ended {
    let run = place.short_run(case, &format!("microbatches: 4\nprecision: {precision}"));
    let (metrics, weights) =
        (place.file(&format!("{workers}.jsonl")), place.file(&format!("{workers}.safetensors")));
    let outcome = [
        "--metrics",
        metrics.to_str().unwrap(),
        "--save",
        weights.to_str().unwrap(),
        "--no-shuffle",
    ];
    let fixed = ["train", run.to_str().unwrap(), "--local", workers, "--threads", "1"];
    place.start("bossman", &[&fixed[..], &outcome].concat()).end().await
}

fn outputs(place: &TestFolder, workers: &str) -> Training {
    let metrics = std::fs::read_to_string(place.file(&format!("{workers}.jsonl"))).unwrap();
    Training::of_files(
        &metrics,
        &StateDict::load(place.file(&format!("{workers}.safetensors"))).unwrap(),
    )
}

#[tokio::test]
async fn in_bf16_the_cut_does_not_show() {
    for case in sampled([Case::skip(), Case::tied(), Case::convnet()], 2) {
        let place = TestFolder::new();
        for workers in ["1", "3"] {
            train(&place, &case, workers, "bf16").await.expect_success();
        }
        outputs(&place, "1")
            .assert_same(&outputs(&place, "3"), &format!("{}, three workers", case.name));
        let full = one_process(&case, 4);
        let differs =
            std::panic::catch_unwind(|| full.assert_same(&outputs(&place, "1"), &"in f32"))
                .is_err();
        assert!(differs, "{}: nothing was rounded", case.name);
    }
}

/// The loss is scaled by 65,536 at first. With targets of this size, gradients overflow until the
/// scale is a fraction of that.
#[tokio::test]
async fn in_fp16_steps_that_overflow_are_skipped_and_the_cut_does_not_show() {
    if device() == Device::Cpu {
        return;
    }
    let place = TestFolder::new();
    let case = Case::skip().with_targets_times(30.0);
    for workers in ["1", "3"] {
        train(&place, &case, workers, "fp16").await.expect_success();
    }
    outputs(&place, "1").assert_same(&outputs(&place, "3"), &"three workers");
    let metrics = std::fs::read_to_string(place.file("1.jsonl")).unwrap();
    let skipped: Vec<bool> = metrics.lines().map(|line| !line.contains("\"lr\"")).collect();
    assert!(skipped[0], "the first step did not overflow: {metrics}");
    assert!(!skipped[skipped.len() - 1], "the scale never fitted: {metrics}");
}

#[tokio::test]
async fn fp16_on_a_cpu_is_refused_before_the_start() {
    if tensor::device::all().len() > 1 {
        return; // the workers would use the GPU
    }
    let place = TestFolder::new();
    let line = train(&place, &Case::skip(), "2", "fp16").await.error_line();
    let expected = "`precision: fp16` needs a CUDA GPU, and this worker computes on cpu; take \
                    `precision: bf16`";
    assert!(line.contains(expected), "{line}");
}
