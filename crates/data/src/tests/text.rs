//! Tests text in windows and pairs in padded batches.

use super::*;
use crate::{LoadedTokenizer, Text, TextPairs, Tokenizer};

const WORDS: &str = r#"{"version": "1.0",
"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
"padding": null, "added_tokens": [], "normalizer": null,
"pre_tokenizer": {"type": "WhitespaceSplit"},
"post_processor": null, "decoder": null, "model": {"type": "WordLevel", "unk_token": "?",
"vocab": {"?": 0, "<s>": 1, "</s>": 2, "<pad>": 3, "a": 4, "b": 5, "c": 70000}}}"#;

fn tokens_model() -> LayerGraph {
    model_of_rows(70_001)
}

fn model_of_rows(rows: u64) -> LayerGraph {
    let layers = format!("[Embedding: {{num_embeddings: {rows}, embedding_dim: 4}}]");
    let text = format!(
        "{{model: m, inputs: {{x: {{shape: [batch, seq], dtype: int64}}}}, layers: {layers}}}"
    );
    LayerGraph::from_yaml(&text, "model").unwrap()
}

fn text(
    paths: Vec<PathBuf>,
    tokenizer: Tokenizer,
    sequence_length: u64,
    eos: Option<&str>,
) -> Source {
    Source::Text(Text {
        paths,
        tokenizer,
        sequence_length,
        eos: eos.map(String::from).into_iter().collect(),
    })
}

#[test]
fn text_is_cut_into_windows_whose_targets_are_one_later() {
    let folder = Folder::new();
    let paths = vec![folder.file("a.txt", "abcd"), folder.file("b.txt.gz", gzip(b"efg"))];
    let data = Dataset::open(
        &text(paths.clone(), Tokenizer::Bytes, 3, None),
        &tokens_model(),
        &CLASSES,
        None,
    )
    .unwrap();
    let batch = data.batch(&[1, 0]).unwrap();
    assert_eq!((data.samples(), batch.x().kind(), batch.y().kind()), (2, Kind::Int64, Kind::Int64));
    assert_eq!(numbers(batch.x()), [100.0, 101.0, 102.0, 97.0, 98.0, 99.0]);
    assert_eq!(numbers(batch.y()), [101.0, 102.0, 103.0, 98.0, 99.0, 100.0]);

    let ended = text(paths.clone(), Tokenizer::Bytes, 8, Some("<eos>"));
    let batch =
        Dataset::open(&ended, &tokens_model(), &CLASSES, None).unwrap().batch(&[0]).unwrap();
    assert_eq!(numbers(batch.y())[2..], [100.0, 257.0, 101.0, 102.0, 103.0, 257.0]);

    let long = text(paths, Tokenizer::Bytes, 7, None);
    let error = folder.error(Dataset::open(&long, &tokens_model(), &CLASSES, None));
    assert_eq!(error, "a.txt: 7 tokens; one sample of sequence_length 7 needs one more than that");
}

#[test]
fn bytes_with_other_tokens_among_them_need_not_be_letters() {
    let folder = Folder::new();
    let latin = text(vec![folder.file("a.txt", b"\xe9\xff")], Tokenizer::Bytes, 2, Some("<eos>"));
    let data = Dataset::open(&latin, &tokens_model(), &CLASSES, None).unwrap();
    assert_eq!(numbers(data.batch(&[0]).unwrap().y()), [255.0, 257.0]);
}

#[test]
fn a_token_without_a_row_is_an_error_where_a_text_has_it() {
    let folder = Folder::new();
    let added = r#""added_tokens": [{"id": 7, "content": "<picture>", "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false, "special": true}]"#;
    let words = WORDS.replace(r#""added_tokens": []"#, added).replace("70000", "6");
    let tokenizer = Tokenizer::File(folder.file("pictures.json", words));
    let open = |name: &str, content: &str, eos| {
        let source = text(vec![folder.file(name, content)], tokenizer.clone(), 2, eos);
        Dataset::open(&source, &model_of_rows(7), &CLASSES, None)
    };
    assert_eq!(open("a.txt", "a b c", None).unwrap().samples(), 1);
    let expected = "pictures.json: the text has token 7 (`<picture>`), but the Embedding of the \
                    model's input `x` has 7 rows";
    assert_eq!(folder.error(open("b.txt", "a b <picture>", None)), expected);
    assert_eq!(folder.error(open("c.txt", "a b c", Some("<picture>"))), expected);
}

#[test]
fn texts_that_the_tokenizer_hardly_knows_are_an_error() {
    let folder = Folder::new();
    let open = |model: &str, contents: [&str; 2]| {
        let words = Tokenizer::File(folder.file("tokenizer.json", model));
        let paths = vec![folder.file("a.txt", contents[0]), folder.file("b.txt", contents[1])];
        Dataset::open(&text(paths, words, 2, None), &tokens_model(), &CLASSES, None)
    };
    // One of three, and two of five.
    assert_eq!(open(WORDS, ["x a", "b"]).unwrap().samples(), 1);
    let error = folder.error(open(WORDS, ["x a", "b y a"]));
    let expected = "tokenizer.json: makes token 0 (`?`) of 2 of 5 tokens of the texts (a.txt ..), \
                    which stands for what it does not know; take a tokenizer for their language, \
                    or `tokenizer: bytes`";
    assert_eq!(error, expected);
    // A Unigram model names it by its number. A space before each word is known.
    let mut unigram: serde_json::Value = serde_json::from_str(WORDS).unwrap();
    let vocabulary = serde_json::json!([["<unk>", 0.0], ["\u{2581}", -1.0], ["a", -1.0]]);
    unigram["model"] = serde_json::json!({"type": "Unigram", "unk_id": 0, "vocab": vocabulary});
    unigram["pre_tokenizer"] = serde_json::json!({"type": "Metaspace", "replacement": "\u{2581}",
        "prepend_scheme": "always", "split": true});
    let unigram = unigram.to_string();
    assert!(open(&unigram, ["a a", "a a"]).is_ok());
    let error = folder.error(open(&unigram, ["xyz zyx", "xx y"]));
    assert!(error.contains("makes token 0 (`<unk>`) of 4 of 8 tokens"), "{error}");
}

/// Both columns are counted by themselves.
#[test]
fn pairs_of_which_one_language_is_unknown_are_an_error() {
    let folder = Folder::new();
    let words = Tokenizer::File(folder.file("tokenizer.json", WORDS));
    let open = |content: &str| {
        let path = folder.file("pairs.tsv", content);
        let special_tokens = ["<s>", "</s>", "<pad>"].map(String::from);
        let texts = TextPairs { tokenizer: words.clone(), special_tokens, ..pairs(path) };
        Dataset::open(&Source::Pairs(texts), &pairs_model(), &CLASSES, None)
    };
    assert!(open("a b\tb a\n").is_ok());
    let error = folder.error(open("a b a b\tx y\n"));
    assert!(error.contains("of 2 of 2 tokens of the texts (pairs.tsv ..)"), "{error}");
}

/// [`WORDS`] with `<s>` before each text and, if `ends`, `</s>` after it.
fn words_with_special_tokens(ends: bool) -> String {
    let end = if ends { r#", {"SpecialToken": {"id": "</s>", "type_id": 0}}"# } else { "" };
    let processor = format!(
        r#""post_processor": {{"type": "TemplateProcessing",
        "single": [{{"SpecialToken": {{"id": "<s>", "type_id": 0}}}},
            {{"Sequence": {{"id": "A", "type_id": 0}}}}{end}], "pair": [],
        "special_tokens": {{"<s>": {{"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
            "</s>": {{"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}}}}"#
    );
    WORDS.replace(r#""post_processor": null"#, &processor)
}

#[test]
fn each_file_begins_as_a_prompt_does_and_ends_with_eos_alone() {
    let folder = Folder::new();
    let paths = vec![folder.file("a.txt", "a b c"), folder.file("b.txt", "b a")];
    for ends in [false, true] {
        let words = words_with_special_tokens(ends);
        let words = Tokenizer::File(folder.file("tokenizer.json", &words));
        let source = text(paths.clone(), words, 4, Some("</s>"));
        let data = Dataset::open(&source, &tokens_model(), &CLASSES, None).unwrap();
        let batch = data.batch(&[0, 1]).unwrap();
        assert_eq!(numbers(batch.x()), [1.0, 4.0, 5.0, 70000.0, 2.0, 1.0, 5.0, 4.0]);
        assert_eq!(numbers(batch.y()), [4.0, 5.0, 70000.0, 2.0, 1.0, 5.0, 4.0, 2.0]);
    }
}

#[test]
fn a_vocabulary_need_not_have_a_certain_word_or_an_unknown_token() {
    let folder = Folder::new();
    let paths = vec![folder.file("a.txt", "b c b b")];
    let golden: [(String, &[f64]); 2] = [
        (WORDS.to_string(), &[5.0, 70000.0, 5.0, 5.0]),
        (words_with_special_tokens(true), &[1.0, 5.0, 70000.0, 5.0, 5.0]),
    ];
    for (words, expected) in golden {
        let words = words.replace(r#""?": 0, "#, "").replace(r#""a": 4, "#, "");
        let words = Tokenizer::File(folder.file("tokenizer.json", &words));
        let loaded = LoadedTokenizer::load(&words).unwrap();
        assert!(loaded.encode("a", &mut Vec::new()).is_err());
        let source = text(paths.clone(), words, expected.len() as u64, Some("</s>"));
        let data = Dataset::open(&source, &tokens_model(), &CLASSES, None).unwrap();
        assert_eq!(numbers(data.batch(&[0]).unwrap().x()), expected);
    }
}

/// Enough text for several threads, in files that are encoded at once.
#[test]
fn many_texts_become_the_tokens_of_one_after_the_other() {
    let folder = Folder::new();
    let words = Tokenizer::File(folder.file("tokenizer.json", words_with_special_tokens(false)));
    let loaded = LoadedTokenizer::load(&words).unwrap();
    let (mut paths, mut expected) = (Vec::new(), Vec::new());
    for number in 0..60 {
        let content = ["a ", "b a ", "c\n", "never b "][number % 4].repeat(500 + number);
        loaded.encode_with_special_tokens(&content, &mut expected).unwrap();
        expected.push(2);
        paths.push(folder.file(&format!("{number}.txt"), content));
    }
    let read = |paths: &[PathBuf]| {
        let source = text(paths.to_vec(), words.clone(), 100, Some("</s>"));
        Dataset::open(&source, &tokens_model(), &CLASSES, None)
    };
    let data = read(&paths).unwrap();
    assert_eq!(data.samples() as usize, (expected.len() - 1) / 100);
    let all: Vec<i64> = (0..data.samples() as i64).collect();
    let found = numbers(data.batch(&all).unwrap().x());
    assert!(found.iter().zip(&expected).all(|(found, token)| *found == f64::from(*token)));
    // The first wrong file is named.
    folder.file("55.txt", b"\xff");
    std::fs::remove_file(folder.path("57.txt")).unwrap();
    assert_eq!(folder.error(read(&paths)), "55.txt: is not text (UTF-8)");
}

#[test]
fn special_tokens_are_put_around_a_prompt() {
    let folder = Folder::new();
    let words = words_with_special_tokens(false);
    let file = Tokenizer::File(folder.file("begins.json", &words));
    for (tokenizer, text, plain, special) in [
        (file.clone(), "a b", vec![4, 5], vec![1, 4, 5]),
        (file, "", vec![], vec![1]),
        (Tokenizer::File(folder.file("plain.json", WORDS)), "a b", vec![4, 5], vec![4, 5]),
        (Tokenizer::Bytes, "a", vec![97], vec![97]),
    ] {
        let loaded = LoadedTokenizer::load(&tokenizer).unwrap();
        let mut found = [Vec::new(), Vec::new()];
        loaded.encode(text, &mut found[0]).unwrap();
        loaded.encode_with_special_tokens(text, &mut found[1]).unwrap();
        assert_eq!(found, [plain, special], "{tokenizer:?} {text}");
    }
}

#[test]
fn a_tokenizer_file_makes_the_tokens() {
    let folder = Folder::new();
    let words = Tokenizer::File(folder.file("tokenizer.json", WORDS));
    let paths = vec![folder.file("a.txt", "a b c\nnever  b\n")];
    let source = text(paths.clone(), words, 2, Some("</s>"));
    let batch =
        Dataset::open(&source, &tokens_model(), &CLASSES, None).unwrap().batch(&[0, 1]).unwrap();
    assert_eq!(numbers(batch.x()), [4.0, 5.0, 70000.0, 0.0]);
    assert_eq!(numbers(batch.y()), [5.0, 70000.0, 0.0, 5.0]);

    let open = |tokenizer, eos| {
        folder.error(Dataset::open(
            &text(paths.clone(), tokenizer, 2, eos),
            &tokens_model(),
            &CLASSES,
            None,
        ))
    };
    let broken = Tokenizer::File(folder.file("broken.json", &WORDS[..99]));
    assert!(open(broken, None).starts_with("broken.json: is no tokenizer.json: EOF while parsing"));
    let words = Tokenizer::File(folder.path("tokenizer.json"));
    assert_eq!(
        open(words, Some("<eos>")),
        "tokenizer.json: has no token `<eos>`; name one that it has with `eos:`"
    );
    folder.file("a.txt", b"a \xff b");
    let words = Tokenizer::File(folder.path("tokenizer.json"));
    assert_eq!(open(words, None), "a.txt: is not text (UTF-8)");
}

/// Makes a model of two sequences and the padding mask of the first.
pub(super) fn pairs_model() -> LayerGraph {
    let text = "
model: pairs
inputs:
  source: {shape: [batch, s], dtype: int64}
  given: {shape: [batch, t], dtype: int64}
  source_padding: {shape: [batch, s], dtype: bool}
layers:
  - Embedding: {num_embeddings: 300, embedding_dim: 4}
";
    LayerGraph::from_yaml(text, "model").unwrap()
}

pub(super) fn pairs(path: PathBuf) -> TextPairs {
    TextPairs {
        path,
        keys: None,
        tokenizer: Tokenizer::Bytes,
        target_tokenizer: None,
        special_tokens: ["<bos>", "<eos>", "<pad>"].map(String::from),
        max_length: None,
        fixed: false,
        inputs: [("target".to_string(), "given".to_string())].into(),
    }
}

#[test]
fn pairs_are_padded_and_their_targets_come_one_later() {
    let folder = Folder::new();
    let tsv = pairs(folder.file("a.tsv", "ab\tA\tfrom somewhere\r\n\nc\tDEF\n"));
    let json = "{\"en\": \"ab\", \"de\": \"A\"}\n{\"de\": \"DEF\", \"en\": \"c\"}\n";
    let json = TextPairs {
        keys: Some(["en", "de"].map(String::from)),
        ..pairs(folder.file("a.jsonl", json))
    };
    let (bos, eos, pad, no) = (256.0, 257.0, 258.0, -100.0);
    for texts in [tsv.clone(), json] {
        let data = Dataset::open(&Source::Pairs(texts), &pairs_model(), &CLASSES, None).unwrap();
        let batch = data.batch(&[0, 1]).unwrap();
        let given = batch.tensors().2.get("given").unwrap();
        let padding = batch.tensors().2.get("source_padding").unwrap();
        assert_eq!(
            (batch.x().size(), given.size(), batch.y().size()),
            (vec![2, 3], vec![2, 4], vec![2, 4])
        );
        assert_eq!(numbers(batch.x()), [97.0, 98.0, eos, 99.0, eos, pad]);
        assert_eq!(numbers(given), [bos, 65.0, pad, pad, bos, 68.0, 69.0, 70.0]);
        assert_eq!(numbers(batch.y()), [65.0, eos, no, no, 68.0, 69.0, 70.0, eos]);
        assert_eq!(
            (padding.kind(), numbers(padding)),
            (Kind::Bool, vec![0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
        );
    }
    let cut = TextPairs { max_length: Some(3), fixed: true, ..tsv };
    let batch = Dataset::open(&Source::Pairs(cut), &pairs_model(), &CLASSES, None)
        .unwrap()
        .batch(&[1, 0])
        .unwrap();
    assert_eq!(numbers(batch.x()), [99.0, eos, pad, 97.0, 98.0, eos]);
    assert_eq!(numbers(batch.y()), [68.0, 69.0, eos, 65.0, eos, no]);
}

/// Enough lines for several threads.
#[test]
fn many_pairs_stay_in_order_and_the_first_mistake_is_named() {
    let folder = Folder::new();
    let both = |number: usize| [format!("{number}"), "b".repeat(number % 50)];
    let mut lines: Vec<String> = (0..2000).map(|number| both(number).join("\t")).collect();
    let read = |lines: &[String]| {
        let source = Source::Pairs(pairs(folder.file("a.tsv", lines.join("\n"))));
        Dataset::open(&source, &pairs_model(), &CLASSES, None)
    };
    let data = read(&lines).unwrap();
    assert_eq!(data.samples(), 2000);
    for number in [0, 1, 999, 1000, 1700, 1999] {
        let batch = data.batch(&[number as i64]).unwrap();
        let [source, target] = both(number).map(|text| text.bytes().map(f64::from).collect());
        let (x, y) = (numbers(batch.x()), numbers(batch.y()));
        let expected: [Vec<f64>; 2] = [source, target];
        assert_eq!([&x[..x.len() - 1], &y[..y.len() - 1]], expected, "{number}");
    }
    lines[1200] = "no tab".into();
    lines[1900] = "no tab".into();
    let expected = "a.tsv: line 1201: expected two columns with a tab between them";
    assert_eq!(folder.error(read(&lines)), expected);
}

#[test]
fn mistakes_in_pairs_are_named() {
    let folder = Folder::new();
    let open =
        |texts| folder.error(Dataset::open(&Source::Pairs(texts), &pairs_model(), &CLASSES, None));
    let classes = pipeline::loss::Classes { ignore_index: 0, ..Default::default() };
    let other = LossSpec::NLLLoss { classes };
    let source = Source::Pairs(pairs(folder.file("d.tsv", "a\tb\n")));
    let error = folder.error(Dataset::open(&source, &pairs_model(), &other, None));
    assert!(error.contains("the loss has `ignore_index: 0`; leave it out"), "{error}");
    let whole = pairs(folder.file("a.tsv", "a\tb\n"));
    let keys = Some(["en", "de"].map(String::from));
    let golden = [
        (
            pairs(folder.file("b.tsv", "a\tb\nc\n")),
            "b.tsv: line 2: expected two columns with a tab between them",
        ),
        (
            TextPairs { inputs: [].into(), ..whole.clone() },
            "a.tsv: what is the model's input `given`? `inputs:` says it for each of source, \
             target, source_padding, target_padding",
        ),
        (
            TextPairs {
                special_tokens: ["<s>", "</s>", "<pad>"].map(String::from),
                ..whole.clone()
            },
            "tokenizer: bytes: has no token `<s>`; name one that it has with `bos:`",
        ),
        (
            TextPairs { keys: keys.clone(), ..pairs(folder.file("c.jsonl", "{\"en\": 1}")) },
            "c.jsonl: line 1: `en`: expected text, found 1",
        ),
        (
            TextPairs { keys, ..pairs(folder.file("d.jsonl", "{\"en\": \"a\", \"fr\": \"b\"}")) },
            "d.jsonl: line 1: no key `de`; it has en, fr",
        ),
        (pairs(folder.file("e.tsv", "\n")), "e.tsv: it holds no samples"),
    ];
    for (texts, expected) in golden {
        assert_eq!(open(texts), expected);
    }
}

/// A tokenizer file with a few changed bytes is refused or makes tokens.
#[test]
fn no_tokenizer_file_makes_a_panic() {
    use rand::SeedableRng;
    let folder = Folder::new();
    let paths = vec![folder.file("a.txt", "a b c\nnever  b\n")];
    let source = text(paths, Tokenizer::File(folder.path("tokenizer.json")), 2, None);
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
    for _ in 0..400 {
        folder.file("tokenizer.json", super::broken::mutated(WORDS.as_bytes(), &mut random));
        drop(Dataset::open(&source, &tokens_model(), &CLASSES, None));
    }
}

#[test]
fn a_table_with_too_few_rows_is_known_before_training() {
    let folder = Folder::new();
    let text = "inputs: {x: {shape: [batch, 3], dtype: int64}}\nlayers: [Embedding: \
                {num_embeddings: 200, embedding_dim: 2}]\n";
    let model = LayerGraph::from_yaml(text, "model").unwrap();
    let source = Source::Text(Text {
        paths: vec![folder.file("a.txt", "some text")],
        tokenizer: Tokenizer::Bytes,
        sequence_length: 3,
        eos: Vec::new(),
    });
    let error = folder.error(Dataset::open(&source, &model, &CLASSES, None));
    let expected = "tokenizer: bytes: makes 256 tokens, but the Embedding of the model's input \
                    `x` has 200 rows";
    assert_eq!(error, expected);
}

#[test]
fn texts_of_about_one_length_go_together() {
    let folder = Folder::new();
    let lines: String = (0..1000).map(|n| format!("{}\tb\n", "a".repeat(1 + n * 7 % 40))).collect();
    let data = Dataset::open(
        &Source::Pairs(pairs(folder.file("a.tsv", lines))),
        &pairs_model(),
        &CLASSES,
        None,
    )
    .unwrap();
    let take = |grouped, steps| {
        let mut batches =
            Batches::after(data.clone(), 8, Some(3), steps).grouped_by_length(grouped);
        (0..125 - steps)
            .map(|_| batches.next_batch().unwrap().x().shallow_clone())
            .collect::<Vec<_>>()
    };
    let padding = |batches: &[Tensor]| {
        batches.iter().map(|x| x.eq(258).sum(Kind::Int64).int64_value(&[])).sum::<i64>()
    };
    let (together, apart) = (take(true, 0), take(false, 0));
    assert_eq!(together.iter().map(|x| x.size()[0]).collect::<Vec<_>>(), [8; 125]);
    assert!(
        padding(&together) * 5 < padding(&apart),
        "{} and {}",
        padding(&together),
        padding(&apart)
    );
    // Every sample is in one batch. Batches have no order of length. A resumed run has the same
    // batches.
    let letters = |batches: &[Tensor]| {
        batches.iter().map(|x| x.eq(97).sum(Kind::Int64).int64_value(&[])).sum::<i64>()
    };
    assert_eq!(letters(&together), letters(&apart));
    assert!(!together.is_sorted_by_key(|x| x.size()[1]));
    for steps in [1, 49, 50, 51, 124] {
        assert!(take(true, steps)
            .iter()
            .zip(&together[steps as usize..])
            .all(|(one, other)| one.equal(other)));
    }
}
