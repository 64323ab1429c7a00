//! Mutated model files and layers. Each gives an error or a sound graph, never a panic. The same
//! seeds run every time. A failure names its seed and shows the input.

use crate::support::sound::check;
use crate::support::{example, root, EXAMPLES};
use layerspec::{LayerGraph, LayerKind};
use serde_json::Value;
use std::panic::catch_unwind;
use testkit::inputs;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }
}

/// Every example, and every model of the error cases.
fn corpus() -> Vec<String> {
    let examples = EXAMPLES.map(|name| {
        std::fs::read_to_string(root(&format!("examples/models/{name}.yaml"))).unwrap()
    });
    let errors = std::fs::read_to_string(root("layerspec/tests/golden/errors.txt")).unwrap();
    let cases = errors.split("=== ").skip(1).filter_map(|case| {
        let (_, rest) = case.split_once('\n')?;
        Some(rest.split_once("--->")?.0.to_owned())
    });
    examples.into_iter().chain(cases).collect()
}

const PIECES: [&str; 44] = [
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "1e308",
    "0.5",
    ".nan",
    "null",
    "true",
    "[]",
    "{}",
    "[1, 2]",
    "[batch, 1]",
    "x",
    "batch",
    "${d}",
    "${d // 0}",
    "${",
    "}",
    "\n",
    "\n  ",
    "  ",
    ": ",
    "- ",
    ",",
    "\"",
    "'",
    "&a ",
    "*a",
    "!t ",
    "#",
    "|",
    "é",
    "\u{0}",
    "\u{E000}",
    "repeat: 3",
    "layers:",
    "input: x",
    "merge: add",
    "share: 0",
    "in_variables: [x]",
    "out_variables: [x]",
    "Flatten",
];

fn mutate(text: &str, corpus: &[String], random: &mut Random) -> String {
    let mut text = text.to_owned();
    for _ in 0..=random.below(2) {
        text = if random.below(2) == 0 {
            mutate_lines(&text, corpus, random)
        } else {
            mutate_letters(&text, random)
        };
    }
    text
}

/// Removes, doubles, moves or inserts a line.
fn mutate_lines(text: &str, corpus: &[String], random: &mut Random) -> String {
    let mut lines: Vec<&str> = text.split('\n').collect();
    let (one, other) = (random.below(lines.len()), random.below(lines.len()));
    let borrowed: Vec<&str> = corpus[random.below(corpus.len())].split('\n').collect();
    match random.below(4) {
        0 => drop(lines.remove(one)),
        1 => lines.insert(one, lines[other]),
        2 => lines.swap(one, other),
        _ => lines.insert(one, random.pick(&borrowed)),
    }
    lines.join("\n")
}

/// Inserts a piece into the text, replaces text by it, or only removes text.
fn mutate_letters(text: &str, random: &mut Random) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    let at = random.below(letters.len() + 1);
    let end = (at + random.below(12)).min(letters.len());
    let digit = letters[at..end].iter().position(char::is_ascii_digit);
    let (range, piece) = match (digit, random.below(4)) {
        (Some(digit), 0 | 1) => (at + digit..at + digit + 1, random.pick(&PIECES)),
        (_, 2) => (at..end, ""),
        (_, 3) => (at..end, random.pick(LayerKind::NAMES)),
        _ => (at..at, random.pick(&PIECES)),
    };
    letters.splice(range, piece.chars());
    letters.into_iter().collect()
}

#[test]
fn mutated_files() {
    let kept = inputs::kept("spec");
    let corpus = corpus();
    let all: Vec<String> = corpus
        .iter()
        .cloned()
        .chain(kept.iter().map(|(_, bytes)| String::from_utf8_lossy(bytes).into()))
        .collect();
    let mut accepted = 0;
    inputs::fuzz(
        0,
        &kept,
        |seed| {
            let mut random = Random(seed);
            // Half of the files begin as sound ones: the examples, which come first.
            let range = if random.below(2) == 0 { EXAMPLES.len() } else { all.len() };
            let text = &all[random.below(range)];
            mutate(text, &all, &mut random).into_bytes()
        },
        |bytes| accepted += u64::from(check(&String::from_utf8_lossy(bytes))),
    );
    assert!(accepted > 300, "only {accepted} mutants are models: the test has become blunt");
}

/// Models of one layer, together of every kind with every argument.
fn of_every_kind() -> Vec<LayerGraph> {
    let cases = std::fs::read_to_string(root("tests/layers/cases.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&cases).unwrap();
    let graph = |case: &Value| {
        let given = case["inputs"].as_array().unwrap().iter().enumerate();
        // Some shapes use `batch` for the first input's first size.
        let named = case["inputs"].to_string().contains("batch");
        let inputs = given.map(|(port, input)| {
            let mut shape = input.get("shape").unwrap_or(input).clone();
            if named && port == 0 {
                shape[0] = "batch".into();
            }
            let whole = if input.get("below").is_some() { "int64" } else { "float32" };
            let dtype = input.get("dtype").and_then(Value::as_str).unwrap_or(whole);
            (format!("x{port}"), serde_json::json!({"shape": shape, "dtype": dtype}))
        });
        let inputs: serde_json::Map<String, Value> = inputs.collect();
        let mut layer = case["layer"].as_object().unwrap().clone();
        layer.insert("in_variables".into(), inputs.keys().skip(1).cloned().collect());
        let model = serde_json::json!({"inputs": inputs, "layers": [layer]});
        LayerGraph::from_yaml(&model.to_string(), "cases.json").unwrap()
    };
    cases.iter().map(graph).collect()
}

/// A layer from the wire may hold anything that its type allows, and must not panic either.
#[test]
fn mutated_layers() {
    let graphs: Vec<LayerGraph> =
        EXAMPLES.map(example).into_iter().chain(of_every_kind()).collect();
    let layers =
        || graphs.iter().flat_map(|graph| graph.layers().iter().map(move |layer| (graph, layer)));
    let count = layers().count();
    let mut decoded = 0;
    for seed in 0..60_000 {
        let mut random = Random(seed);
        let Some((graph, layer)) = layers().nth(random.below(count)) else { continue };
        let mut json = serde_json::to_value(&layer.kind).unwrap();
        mutate_numbers(&mut json, &mut random);
        let Ok(kind) = serde_json::from_value::<LayerKind>(json.clone()) else { continue };
        decoded += 1;
        let inputs: Vec<_> =
            layer.inputs.iter().map(|input| graph.value(*input).ty.clone()).collect();
        let run = || {
            let _ = kind.params().iter().map(|param| param.bytes()).collect::<Vec<_>>();
            if let Ok(outputs) = kind.infer(&inputs) {
                let _ = kind.flops(&inputs, &outputs);
            }
        };
        assert!(catch_unwind(run).is_ok(), "seed {seed} fails: {json}");
    }
    assert!(decoded > 15_000, "only {decoded} mutants are layers: the test has become blunt");
}

fn mutate_numbers(json: &mut Value, random: &mut Random) {
    match json {
        Value::Number(_) if random.below(2) == 0 => {
            let numbers: [Value; 8] =
                [0, 1, 2, -1, i64::MAX, i64::MIN, 1 << 32, 3].map(Value::from);
            *json = numbers[random.below(numbers.len())].clone();
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mutate_numbers(item, random)),
        Value::Object(entries) => {
            entries.values_mut().for_each(|value| mutate_numbers(value, random))
        }
        _ => {}
    }
}

/// A layer survives the wire unchanged.
#[test]
fn layers_survive_serialisation() {
    for graph in EXAMPLES.map(example).into_iter().chain(of_every_kind()) {
        for layer in graph.layers() {
            let json = serde_json::to_string(layer).unwrap();
            assert_eq!(&serde_json::from_str::<layerspec::Layer>(&json).unwrap(), layer);
            let bytes = rmp_serde::to_vec(layer).unwrap();
            assert_eq!(&rmp_serde::from_slice::<layerspec::Layer>(&bytes).unwrap(), layer);
        }
    }
}

#[test]
fn a_layer_that_is_none_is_refused() {
    let read = |json: Value| {
        let bytes = rmp_serde::to_vec(&json).unwrap();
        rmp_serde::from_slice::<LayerKind>(&bytes).map_err(|error| error.to_string())
    };
    let refused = |json: Value, reason: &str| {
        let error = read(json).unwrap_err();
        assert!(error.contains(reason), "{error}");
    };
    let softmax = serde_json::json!(["Softmax", -1]);
    assert_eq!(read(softmax).unwrap().name(), "Softmax");
    refused(serde_json::json!([]), "too few arguments");
    refused(serde_json::json!(["Softmax"]), "too few arguments");
    refused(serde_json::json!(["Softmax", -1, -1]), "array had incorrect length");
    refused(serde_json::json!(["Softmax", "last"]), "wrong msgpack marker");
    refused(serde_json::json!(["Hardmax", -1]), "a layer of an unknown kind");
    refused(serde_json::json!([7, -1]), "invalid type");
    refused(serde_json::json!({"Softmax": [-1]}), "invalid type");
}
