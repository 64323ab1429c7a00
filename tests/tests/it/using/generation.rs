//! Tests text and translations against the outputs of the whole model.

use super::{boss, likeliest, pairs, row, within_limit, TRANSLATOR, WRITER};
use bossman::data::{Text, Tokenizer};
use bossman::{
    Batch, BossMan, BossManError, ClassDim, Classes, Generation, Generator, Loss, Sampling, Score,
    Search, Translator, Variables,
};
use tch::{Device, Kind, Tensor};

#[test]
fn text_is_what_the_whole_model_would_say_token_by_token() {
    within_limit(async {
        let text = Text {
            paths: Vec::new(),
            tokenizer: Tokenizer::Bytes,
            sequence_length: 12,
            eos: vec![],
        };
        // The model's own positions bound a text without a length.
        let model = bossman::Model::from_yaml(WRITER).unwrap();
        let most = model.graph().max_positions().unwrap();
        let endless = Text { sequence_length: u64::MAX, ..text.clone() };
        let generator = Generator::new(&model, &endless).unwrap();
        assert_eq!(generator.unseen_tokens(&"x".repeat(most as usize + 3)).unwrap(), 3);
        // The model receives the last twelve of the other's twenty tokens.
        for (workers, prompt, unseen) in [(1, "Hello", 0), (3, "Hello, I am far away", 8)] {
            let mut boss = boss(WRITER, workers).await;
            let generator = Generator::new(boss.model(), &text).unwrap();
            assert_eq!(generator.why_not_incremental(), None);
            assert_eq!(generator.unseen_tokens(prompt).unwrap(), unseen);
            let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
            let what = Generation { prompt: prompt.into(), max_new_tokens: 30, sampling };
            let mut pieces = String::new();
            let made =
                generator.generate(&mut boss, &what, |piece| pieces.push_str(piece)).await.unwrap();
            assert_eq!((made.tokens.len(), &made.text), (30, &pieces));

            // Past twelve tokens, the model receives the last six anew, and then those and the
            // following ones.
            let mut tokens: Vec<i64> = prompt.bytes().map(i64::from).collect();
            let mut start = unseen;
            while tokens.len() < prompt.len() + 30 {
                if tokens.len() - start > 12 {
                    start = tokens.len() - 6;
                }
                tokens.push(likeliest(
                    &boss.forward(&row(&tokens[start..]), Variables::new()).await.unwrap(),
                ));
            }
            let found: Vec<i64> = made.tokens.iter().map(|token| i64::from(*token)).collect();
            assert_eq!(found, tokens[prompt.len()..]);
            boss.shutdown().await;
        }
    });
}

/// Without its last layer, the model gives `[batch, positions, vocabulary]`.
#[test]
fn a_model_with_classes_in_the_last_dimension_says_and_scores_the_same() {
    within_limit(async {
        let text = Text {
            paths: Vec::new(),
            tokenizer: Tokenizer::Bytes,
            sequence_length: 12,
            eos: vec![],
        };
        let mut found = Vec::new();
        let of = |class_dim| Loss::CrossEntropyLoss {
            classes: Classes { class_dim, ..Classes::default() },
            label_smoothing: 0.0,
        };
        let short = WRITER.replace("  - Transpose: {dim0: 1, dim1: 2}\n", "");
        let x = Tensor::arange(24, (Kind::Int64, Device::Cpu)).view([2, 12]);
        let target = (&x * 7).remainder(128);
        for (model, class_dim) in [(WRITER, ClassDim::Second), (&short, ClassDim::Last)] {
            let mut boss = boss(model, 2).await;
            boss.set_loss(of(class_dim));
            let generator = Generator::new(boss.model(), &text).unwrap();
            let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
            let what = Generation { prompt: "Hello".into(), max_new_tokens: 20, sampling };
            let made = generator.generate(&mut boss, &what, |_| {}).await.unwrap();
            let batch = Batch::new(&x, &target);
            let score = Score::of(&mut boss, [Ok::<_, BossManError>(batch)]).await.unwrap();
            found.push((made, score));
            boss.shutdown().await;
        }
        let [(second_text, second), (last_text, last)] = &found[..] else { unreachable!() };
        assert_eq!(second_text, last_text);
        assert_eq!(second.accuracy, last.accuracy);
        assert!((second.loss - last.loss).abs() < 1e-6, "{second} {last}");
    });
}

#[test]
fn translations_are_what_the_whole_model_would_say() {
    within_limit(async {
        let texts = pairs();
        let mut boss = boss(TRANSLATOR, 2).await;
        let translator = Translator::new(boss.model(), &texts).unwrap();
        assert_eq!(translator.why_not_incremental(), None);
        let search = Search { max_length: 8, ..Search::default() };
        let sources = ["one", "another text", "x"];
        let together = translator.translate(&mut boss, &sources, &search).await.unwrap();
        for (source, found) in sources.iter().zip(&together) {
            let tokens: Vec<i64> = source.bytes().map(i64::from).chain([257]).collect();
            let padding = Tensor::zeros([1, tokens.len() as i64], (Kind::Bool, Device::Cpu));
            let mut target = vec![256];
            while target.len() < 9 && target.last() != Some(&257) {
                let variables =
                    Variables::new().with("target", &row(&target)).with("source_padding", &padding);
                target.push(likeliest(&boss.forward(&row(&tokens), variables).await.unwrap()));
            }
            let bytes: Vec<u8> = target[1..].iter().map(|token| *token as u8).collect();
            assert_eq!(found, &String::from_utf8(bytes).unwrap(), "{source}");
        }
        // The beams of each text stay with it.
        let wide = Search { beams: 3, ..search };
        let all = translator.translate(&mut boss, &sources, &wide).await.unwrap();
        for (source, found) in sources.iter().zip(all) {
            assert_eq!(
                translator.translate(&mut boss, &[source], &wide).await.unwrap(),
                [found],
                "{source}"
            );
        }
        boss.shutdown().await;
    });
}

/// Finished texts leave the batch, and the others continue as if they were alone.
#[test]
fn translations_that_end_at_different_times_do_not_disturb_each_other() {
    within_limit(async {
        let mut boss = boss(&TRANSLATOR.replace("out_features: 128", "out_features: 259"), 2).await;
        let translator = Translator::new(boss.model(), &pairs()).unwrap();
        let sources = ["a rather long text, the longest of all", "another text", "x", "one"];
        let mut apart = false;
        // The likelier the end, the sooner it comes. With some of these values, the texts do not
        // all end at once.
        for likelier in 1..=12 {
            let mut state = boss.state_dict().await.unwrap();
            let bias = state.get("6.bias").unwrap().copy();
            let _ = bias.get(257).fill_(0.25 * f64::from(likelier));
            state.insert("6.bias", &bias);
            boss.load_state_dict(&state).await.unwrap();
            for beams in [1, 3] {
                let search = Search { beams, max_length: 12, ..Search::default() };
                let together = translator.translate(&mut boss, &sources, &search).await.unwrap();
                for (source, found) in sources.iter().zip(&together) {
                    let alone = translator.translate(&mut boss, &[source], &search).await.unwrap();
                    assert_eq!(alone, [found.as_str()], "{source}");
                }
                apart |=
                    together.iter().any(|text| text.chars().count() != together[0].chars().count());
            }
        }
        assert!(apart, "all texts always end at once: the test has become blunt");
        boss.shutdown().await;
    });
}

/// If an encoder's output does not begin with the batch, everything is computed again, with the
/// same result.
#[test]
fn a_recurrent_encoder_translates_the_slow_way() {
    within_limit(async {
        let encoder = "  - GRU: {input_size: 16, hidden_size: 16, batch_first: true}\n    \
                       out_variables: [memory, last]\n";
        let start = TRANSLATOR.find("  - TransformerEncoderLayer").unwrap();
        let end = TRANSLATOR
            .find("  - Embedding: {num_embeddings: 259, embedding_dim: 16}\n    input")
            .unwrap();
        let gru = format!("{}{encoder}{}", &TRANSLATOR[..start], &TRANSLATOR[end..]);
        let mut boss = boss(&gru, 2).await;
        let translator = Translator::new(boss.model(), &pairs()).unwrap();
        let search = Search { max_length: 6, ..Search::default() };
        let sources = ["one", "another text", "x"];
        let together = translator.translate(&mut boss, &sources, &search).await.unwrap();
        assert!(together.iter().all(|text| text.len() == 6), "{together:?}");
        boss.shutdown().await;
    });
}

/// Sets one number of the last layer's bias in the model's state to NaN.
async fn broken(boss: &mut BossMan, bias: &str) {
    let mut state = boss.state_dict().await.unwrap();
    let numbers = state.get(bias).unwrap().copy();
    let _ = numbers.get(7).fill_(f64::NAN);
    state.insert(bias, &numbers);
    boss.load_state_dict(&state).await.unwrap();
}

#[test]
fn a_model_that_gives_no_numbers_says_nothing_and_ends_with_an_error() {
    within_limit(async {
        let expected = "the model: gave logits that are no numbers";
        let mut writer = boss(WRITER, 2).await;
        broken(&mut writer, "4.bias").await;
        let text = Text {
            paths: Vec::new(),
            tokenizer: Tokenizer::Bytes,
            sequence_length: 12,
            eos: vec![],
        };
        let generator = Generator::new(writer.model(), &text).unwrap();
        for temperature in [0.0, 1.0] {
            let sampling = Sampling { temperature, ..Sampling::default() };
            let what = Generation { prompt: "Hello".into(), max_new_tokens: 9, sampling };
            let mut said = String::new();
            let made = generator.generate(&mut writer, &what, |piece| said.push_str(piece)).await;
            assert!(made.unwrap_err().to_string().starts_with(expected) && said.is_empty());
        }
        writer.shutdown().await;
        let mut translating = boss(TRANSLATOR, 2).await;
        broken(&mut translating, "6.bias").await;
        let translator = Translator::new(translating.model(), &pairs()).unwrap();
        for beams in [1, 3] {
            let search = Search { beams, max_length: 8, ..Search::default() };
            let made = translator.translate(&mut translating, &["one", "two"], &search).await;
            assert!(made.unwrap_err().to_string().starts_with(expected));
        }
        translating.shutdown().await;
    });
}
