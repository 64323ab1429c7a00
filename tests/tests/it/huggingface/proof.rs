//! Compares logits, training and text of imported models with those of transformers.

use super::{within_limit, Case};
use bossman::data::Text;
use bossman::{Batch, BossMan, Generation, Generator, Optimizer, Sampling, StateDict, Variables};
use tch::{Kind, Tensor};
use tests::Training;

/// The most by which an element may differ, as a share of its tensor's largest, or a loss, as a
/// share of the loss.
const TOLERANCE: f64 = 1e-5;
/// The same for a trained bias of keys. It adds nearly the same to the scores of all keys, which
/// softmax takes out again. So its gradient is the small difference of large numbers, with their
/// rounding, and Adam's first steps are as large for it as for others.
const TOLERANCE_OF_KEYS_BIAS: f64 = 1e-4;

/// The cases that are trained with replicas, too: one of each family, and those whose weights are
/// tied or lie in several files. All are trained by one worker and by three, which cuts each layer.
const WITH_REPLICAS: [&str; 15] = [
    "bert",
    "gemma2",
    "gemma3",
    "gpt2",
    "llama",
    "llama-sharded",
    "llama-tied",
    "mistral",
    "phi-3",
    "pythia",
    "qwen2",
    "qwen3",
    "roberta",
    "smollm-3",
    "vit",
];

/// The heads of all recorded models of GPT-NeoX.
const HEADS: i64 = 3;

/// The worst difference, as a share of the largest expected element. It is NaN if one is found.
fn worst(expected: &Tensor, found: &Tensor) -> f64 {
    assert_eq!((expected.size(), expected.kind()), (found.size(), found.kind()));
    let (expected, found) = (expected.to_kind(Kind::Double), found.to_kind(Kind::Double));
    let largest = expected.abs().max().double_value(&[]);
    (&expected - &found).abs().max().double_value(&[]) / largest
}

/// A trained parameter without what only rounding decides. A bias of keys changes nothing if
/// positions are not turned into keys, since it adds the same to the scores of all keys: its
/// gradient would be zero without rounding.
fn compared(name: &str, tensor: &Tensor) -> Tensor {
    if name.ends_with("attention.qkv_proj.bias") {
        // A head has its query, key and value side by side. A part of it is not turned.
        let heads = tensor.view([HEADS, 3, -1]);
        return Tensor::cat(&[heads.select(1, 0), heads.select(1, 2)], 0);
    }
    if !name.ends_with("in_proj_bias") {
        return tensor.shallow_clone();
    }
    let of_each = tensor.chunk(3, 0);
    Tensor::cat(&[&of_each[0], &of_each[2]], 0)
}

#[test]
fn outputs_beside_padding_are_those_of_transformers() {
    within_limit(async {
        let cases = Case::all_masked();
        assert!(cases.len() >= 4, "only {} cases have padding", cases.len());
        for case in cases {
            let mut boss = case.boss(2, None).await;
            boss.eval();
            let mut others = Variables::new();
            for name in case.masked_inputs().iter().filter(|name| *name != "input_ids") {
                let tensor = case.tensor(&format!("masked.{name}"));
                let is_mask = name == "key_padding_mask";
                let kind = if is_mask { Kind::Bool } else { Kind::Int64 };
                others = others.with(name, &tensor.to_kind(kind));
            }
            let found = boss.forward(case.tensor("masked.input_ids"), others).await.unwrap();
            boss.shutdown().await;
            let error = worst(case.tensor("masked.outputs"), &found);
            println!("{:16} with padding: outputs {error:.1e}", case.name);
            assert!(error <= TOLERANCE, "{}: outputs are off by {error:.1e}", case.name);
        }
    });
}

/// Compares the logits before training with those of transformers.
async fn expect_recorded_logits(case: &Case, boss: &mut BossMan, what: &str) {
    boss.eval();
    let found = boss.forward(case.tensor(case.input()), Variables::new()).await.unwrap();
    let error = worst(case.tensor("outputs"), &found);
    println!("{what}: outputs {error:.1e}");
    // In this form, NaN fails.
    assert!(error <= TOLERANCE, "{what}: outputs are off by {error:.1e}");
}

/// Takes the steps that are recorded. Returns their losses, and the parameters after them.
async fn train(
    case: &Case,
    workers: usize,
    replicas: Option<u16>,
    what: &str,
) -> (Vec<f32>, StateDict) {
    let mut boss = case.boss(workers, replicas).await;
    expect_recorded_logits(case, &mut boss, what).await;
    let lr = case.figures["lr"].as_f64().unwrap();
    let size = case.figures["batch_size"].as_i64().unwrap();
    boss.send_optimizer(Optimizer::adamw(lr)).await.unwrap();
    boss.train();
    let [ids, targets] = case.samples();
    let mut losses = Vec::new();
    for step in 0..case.losses().len() as i64 {
        let begin = step * size % ids.size()[0];
        let part = |all: &Tensor| all.narrow(0, begin, size);
        let batch = Batch::new(&part(&ids), &part(&targets));
        losses.push(boss.train_step(&batch).await.unwrap().loss);
    }
    let trained = boss.state_dict().await.unwrap();
    boss.shutdown().await;
    (losses, trained)
}

/// Compares a training with that of transformers.
fn expect_recorded(case: &Case, what: &str, losses: &[f32], trained: &StateDict) {
    let expected = case.losses();
    assert_eq!(expected.len(), losses.len(), "{what}");
    let mut worst_loss = 0.0f64;
    for (step, (expected, found)) in (1..).zip(expected.iter().zip(losses)) {
        let error = (expected - f64::from(*found)).abs() / expected;
        assert!(error <= TOLERANCE, "{what}: step {step} has loss {found}, expected {expected}");
        worst_loss = worst_loss.max(error);
    }
    let expected = case.trained();
    let names = |state: &StateDict| -> Vec<String> {
        state.iter().map(|(name, _)| name.to_string()).collect()
    };
    assert_eq!(names(&expected), names(trained), "{what}");
    let (mut worst_weight, mut worst_bias) = (0.0f64, 0.0f64);
    for (name, tensor) in expected.iter() {
        let found = trained.get(name).unwrap();
        let error = worst(&compared(name, tensor), &compared(name, found));
        let (most, shown) = match name.ends_with("k_proj.bias") {
            true => (TOLERANCE_OF_KEYS_BIAS, &mut worst_bias),
            false => (TOLERANCE, &mut worst_weight),
        };
        assert!(error <= most, "{what}: {name} is off by {error:.1e}");
        *shown = f64::max(*shown, error);
    }
    println!(
        "{what}: losses {worst_loss:.1e}, weights {worst_weight:.1e}, biases of keys \
         {worst_bias:.1e}"
    );
}

#[test]
fn logits_and_training_are_those_of_transformers() {
    within_limit(async {
        let mut with_replicas = 0;
        for case in Case::all() {
            // Gradients of replicas are summed in another order, even if there is one.
            let pairs = [[(1, None), (3, None)], [(1, Some(1)), (2, Some(2))]];
            let has_replicas = WITH_REPLICAS.contains(&case.name.as_str());
            with_replicas += usize::from(has_replicas);
            for pair in &pairs[..if has_replicas { 2 } else { 1 }] {
                let mut trainings = Vec::new();
                for &(workers, replicas) in pair {
                    let what = format!("{:16} {workers} workers", case.name);
                    let (losses, trained) = train(&case, workers, replicas, &what).await;
                    expect_recorded(&case, &what, &losses, &trained);
                    trainings.push(Training::new(&losses, trained.iter()));
                }
                trainings[0].assert_same(&trainings[1], &format!("{}: {pair:?}", case.name));
            }
        }
        assert_eq!(with_replicas, WITH_REPLICAS.len(), "cases have other names");
    });
}

#[test]
fn greedy_text_is_that_of_transformers_with_and_without_a_cache() {
    within_limit(async {
        let mut texts = 0;
        for case in Case::all() {
            let Some([prompt, expected]) = case.text() else { continue };
            texts += 1;
            let mut boss = case.boss(2, None).await;
            boss.eval();
            // transformers was told to go on behind the end.
            let text = Text { eos: Vec::new(), ..case.run.text().unwrap() };
            let generator = Generator::new(boss.model(), &text).unwrap();
            assert_eq!(generator.why_not_incremental(), None, "{}", case.name);
            let words: Vec<String> = prompt.iter().map(|token| format!("w{token}")).collect();
            let what = Generation {
                prompt: words.join(" "),
                max_new_tokens: expected.len() as u64,
                sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            };
            let made = generator.generate(&mut boss, &what, |_| {}).await.unwrap();
            let found: Vec<i64> = made.tokens.iter().map(|token| i64::from(*token)).collect();
            assert_eq!(found, expected, "{}, with a cache", case.name);

            // Without a cache, the whole text goes through the model at once: the likeliest token
            // after each of its positions is the next one.
            let whole = [&prompt[..], &expected[..expected.len() - 1]].concat();
            let row = Tensor::from_slice(&whole).unsqueeze(0);
            let logits = boss.forward(&row, Variables::new()).await.unwrap().select(0, 0);
            let (begin, count) = (prompt.len() as i64 - 1, expected.len() as i64);
            let likeliest = logits.narrow(0, begin, count).argmax(1, false);
            let found = Vec::<i64>::try_from(&likeliest).unwrap();
            assert_eq!(found, expected, "{}, without a cache", case.name);
            boss.shutdown().await;
        }
        assert!(texts >= 2, "only {texts} cases write text");
    });
}
