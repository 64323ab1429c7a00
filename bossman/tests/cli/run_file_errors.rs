//! Golden texts: the errors of a run file with one mistake.

use crate::{bossman, example, said, Draft};

/// The error of a run file with this line, without its path.
fn run_file_error(line: &str) -> String {
    let name = format!("run-{}.yaml", line.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    let text = std::fs::read_to_string(example("digits/run.yaml")).unwrap();
    let key = line.split(':').next().unwrap();
    let others = text.lines().filter(|other| other.split(':').next() != Some(key));
    let text: Vec<&str> = others.chain([line]).collect();
    let run = Draft::new(&name, &text.join("\n"));
    let (_, errors) =
        said(bossman(&["train", run.path(), "--local", "1"], &[("BOSSMAN_WORKER", "/no/such")]), 1);
    let (place, message) = errors
        .strip_prefix(&format!("bossman: {}:", run.path()))
        .unwrap()
        .split_once(": ")
        .unwrap();
    assert!(place.contains(':'), "no line and column: {errors}");
    message.trim_end().to_string()
}

const COMPRESSED: &str =
    "`shard: gradients` cannot be combined with `compress`: a replica sums its \
                          gradients before it compresses them; use `shard: optimizer`";

const SUMMED_FIRST: &str =
    "`shard: gradients` cannot be combined with `reduction: fast`: a replica \
                            would sum its gradients before it sends any; use `shard: optimizer`";

const IN_ONE_ORDER: &str = "`shard: parameters` cannot be combined with `schedule: interleaved`, \
                            `zb-v` or `ready`: replicas must run their stages in the same order; \
                            use `schedule: gpipe`";

#[test]
fn mistakes_in_a_run_file_are_named() {
    let golden = [
        (
            "schedule: zbv",
            "unknown schedule `zbv`; expected one of gpipe, 1f1b, interleaved, zb-h1, zb-v, \
             ready, auto; did you mean `zb-v`?",
        ),
        ("accumulate: 0", "`accumulate`: expected a whole number, 1 or more, found `0`"),
        (
            "clip_grad_norm: 0",
            "`clip_grad_norm`: expected a number above 0 (for no limit, leave the key out), found \
             `0`",
        ),
        (
            "recompute: ful",
            "`recompute`: expected `none`, `selective` or `full`, found `ful`; did you mean \
             `full`?",
        ),
        ("precision: half", "`precision`: expected `f32`, `bf16` or `fp16`, found `half`"),
        (
            "determinism: fas",
            "`determinism`: expected `strict` or `fast`, found `fas`; did you mean `fast`?",
        ),
        ("lr_schedule: cosin", "unknown learning-rate schedule `cosin`; did you mean `cosine`?"),
        (
            "lr_schedule: cosine",
            "missing argument `total_steps`: expected a whole number, 1 or more",
        ),
        (
            "lr_schedule: {linear: {total_steps: 10, warmup: 20}}",
            "invalid total_steps: 10; expected more than the 20 of warm-up",
        ),
        (
            "lr_schedule: {step: {step_size: 5, gama: 0.5}}",
            "unknown argument `gama`; did you mean `gamma`?",
        ),
        ("chunks: 1", "`chunks`: expected 2 or more stages a worker, found `1`"),
        (
            "chunks: 3",
            "`chunks: 3` requires `schedule: interleaved`, `schedule: gpipe`, or `shard: \
             parameters` without a schedule: other schedules fix the stages of a worker",
        ),
        (
            "replicas: many",
            "`replicas`: expected `auto`, a number of workers for each stage, or a list of such \
             numbers, found `many`",
        ),
        (
            "loss: {CrossEntropyLoss: {weight: [0, 1], label_smoothing: 0.1}}",
            "`weight`: with `label_smoothing` every class needs a weight above 0, because a \
             microbatch whose targets all have weight 0 has no mean; `ignore_index` leaves a class \
             out",
        ),
        (
            "loss: {CrossEntropyLoss: {class_dim: 2}}",
            "`class_dim`: expected 1, or -1 for the last dimension, found `2`",
        ),
        ("replicas: [2, 0]", "`replicas`: expected a whole number, 1 or more, found `0`"),
        (
            "compress: int8",
            "`compress: int8` requires `replicas`: without replicas no gradients are exchanged",
        ),
        (
            "compress: fp8\nreplicas: 2",
            "`compress`: expected `f32`, `bf16`, `int8` or `int4`, found `fp8`",
        ),
        (
            "shard: optimizer",
            "`shard: optimizer` requires `replicas`: without replicas there is nothing to shard",
        ),
        ("shard: gradients\nreplicas: 2\ncompress: int8", COMPRESSED),
        ("shard: gradients\nreplicas: 2\nreduction: fast", SUMMED_FIRST),
        (
            "reduction: fast",
            "`reduction: fast` requires `replicas`: without replicas no gradients are exchanged",
        ),
        ("reduction: slow\nreplicas: 2", "`reduction`: expected `exact` or `fast`, found `slow`"),
        (
            "collective: mpi\nreplicas: 2",
            "`collective`: expected `auto`, `quic` or `nccl`, found `mpi`",
        ),
        (
            "collective: nccl",
            "`collective: nccl` requires `replicas`: without replicas no gradients are exchanged",
        ),
        (
            "collective: nccl\nreplicas: 1",
            "`collective: nccl` requires two replicas of a stage: one replica exchanges no \
             gradients",
        ),
        (
            "collective: nccl\nreplicas: [1, 1]",
            "`collective: nccl` requires two replicas of a stage: one replica exchanges no \
             gradients",
        ),
        (
            "collective: nccl\nreplicas: 2\ncompress: bf16",
            "`collective: nccl` cannot be combined with `compress`: NCCL sums float32",
        ),
        (
            "collective: nccl\nreplicas: 2\nshard: optimizer",
            "`collective: nccl` cannot be combined with `shard`: with NCCL each replica gets all \
             sums",
        ),
        (
            "collective: nccl\nreplicas: 2\nreduction: exact",
            "`collective: nccl` cannot be combined with `reduction: exact`: NCCL sums in an order \
             of its own",
        ),
        (
            "shard: weights\nreplicas: 2",
            "`shard`: expected `none`, `optimizer`, `gradients` or `parameters`, found `weights`",
        ),
        (
            "shard: parameters\nreplicas: auto",
            "`shard: parameters` cannot be combined with `replicas: auto`: the worker groups \
             decide the shards; give `replicas` a number",
        ),
        ("schedule: interleaved\nreplicas: 2\nshard: parameters", IN_ONE_ORDER),
        ("schedule: zb-v\nreplicas: 2\nshard: parameters", IN_ONE_ORDER),
        ("schedule: ready\nreplicas: 2\nshard: parameters", IN_ONE_ORDER),
        ("data: {train: a.csv, on: worker}", "`on`: expected `boss` or `workers`, found `worker`"),
        ("checkpoint: {dir: c}", "missing key `every`"),
        (
            "checkpoint: {dir: c, every: 0}",
            "`every`: expected a whole number, 1 or more, found `0`",
        ),
        (
            "checkpoint: {dir: c, every: {steps: 5, minutes: 1}}",
            "`every`: give `steps` or `minutes`",
        ),
        (
            "checkpoint: {dir: c, every: {minutes: 0}}",
            "`minutes`: expected a number of minutes above 0, and no more than a year has, found \
             `0`",
        ),
        (
            "checkpoint: {dir: c, every: 5, keep_best: bleu}",
            "`keep_best`: expected `loss` or `accuracy`, found `bleu`",
        ),
        (
            "redundancy: twice",
            "`redundancy`: expected `none`, `checkpoint`, `neighbour` or `{neighbour: STEPS}`, \
             found `twice`",
        ),
        (
            "redundancy: checkpoint",
            "`redundancy: checkpoint` requires `checkpoint`: the run has no checkpoints",
        ),
        (
            "redundancy: {neighbour: 0}",
            "`neighbour`: expected a whole number, 1 or more, found `0`",
        ),
        ("redundancy: {neighbor: 5}", "unknown key `neighbor`; did you mean `neighbour`?"),
        ("guards: {nonfinite: raise}", "`nonfinite`: expected `stop` or `skip`, found `raise`"),
        (
            "guards: {every: 5}",
            "unknown key `every`: expected one of nonfinite, layers_every, chance_after",
        ),
        ("data: {trian: a.csv}", "unknown key `trian`; did you mean `train`?"),
        (
            "data: {train: [a.csv]}",
            "`train`: expected a path or a format (`Name`, or `Name: {argument: value}`), found a \
             list",
        ),
        ("data: {train: {idxx: {images: a}}}", "unknown format `idxx`; did you mean `idx`?"),
        ("data: {train: {idx: {images: a}}}", "missing argument `labels`: expected text"),
        (
            "data: {train: {npz: {path: a, inputs: x}}}",
            "`inputs`: expected a mapping of the model's inputs, found `x`",
        ),
        (
            "data: {train: {text: {path: a.txt}}}",
            "missing argument `sequence_length`: expected a whole number, 1 or more",
        ),
        (
            "data: {train: {pairs: {path: a, length: 5, max_length: 9}}}",
            "give `length` or `max_length`, not both",
        ),
        (
            "data: {train: {pairs: {path: a, keys: [en]}}}",
            "`keys`: expected two keys, found a list",
        ),
        (
            "data: {train: {pairs: {path: a, inputs: {sorce: x}}}}",
            "unknown input `sorce`; did you mean `source`?",
        ),
        (
            "data: {train: a.csv, validation: {split: 1}}",
            "`split`: expected a number between 0 and 1, as 0.1, found `1`",
        ),
        (
            "data: {train: a.csv, normalize: {std: [1, 0]}}",
            "`std`: expected a number that is not 0, found `0`",
        ),
        (
            "group_by_length: true",
            "`group_by_length` requires `pairs` to train on: only pairs have lengths of their own",
        ),
        (
            "lr_schedule: {linear: {total_steps: 4, start_factor: 0.5}}",
            "`start_factor` needs `warmup`, in whose first step it is the factor",
        ),
        (
            "translate: {beams: 0}",
            "`translate` requires `pairs` to train on: only pairs can be translated",
        ),
        (
            "weights: {path: a, fresh: head}",
            "`fresh`: expected a list of names in the model, found `head`",
        ),
        ("acumulate: 2", "unknown key `acumulate`; did you mean `accumulate`?"),
    ];
    let found: Vec<_> = golden.iter().map(|(line, _)| (*line, run_file_error(line))).collect();
    let found: Vec<_> = found.iter().map(|(line, error)| (*line, error.as_str())).collect();
    assert_eq!(found, golden);
}
