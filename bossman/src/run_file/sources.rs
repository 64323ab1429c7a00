//! The sources of a rule of `rename`: the tensors of a file that make a parameter.

use super::yaml_text::{map, Yaml};
use crate::weights::source::Source;
use layerspec::yaml::{Kind, Node, TEXT};
use layerspec::Diagnostic;

const EXPECTED: &str = "a name in the file, `{transpose: NAME}`, or a list of them";

/// Reads one source, or a list of them.
pub(super) fn read(node: &Node) -> Result<Vec<Source>, Diagnostic> {
    match &node.kind {
        Kind::Text(_) | Kind::Map(_) => Ok(vec![one(node)?]),
        _ => node.list("a source", EXPECTED)?.iter().map(one).collect(),
    }
}

fn one(node: &Node) -> Result<Source, Diagnostic> {
    if matches!(node.kind, Kind::Map(_)) {
        let source = node.mapping("a source", "key", &["transpose"])?;
        return Ok(Source::transposed(&source.required("transpose", &TEXT)?));
    }
    Ok(node.read("a name in the file", &TEXT)?.into())
}

/// Writes what [`read`] reads.
pub(crate) fn write(sources: &[Source]) -> Yaml {
    let one = |source: &Source| {
        let name = Yaml::from(source.name.as_str());
        match source.is_transposed {
            true => map([("transpose", name)]),
            false => name,
        }
    };
    match sources {
        [source] => one(source),
        sources => Yaml::List(sources.iter().map(one).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_file::yaml_text::flow_text;
    use layerspec::yaml::parse;

    fn sources(text: &str) -> Result<Vec<Source>, String> {
        let node = parse(text).unwrap();
        read(&node).map_err(|fault| fault.in_file("run.yaml").to_string())
    }

    #[test]
    fn sources_are_read_and_written_back() {
        let [a, b] = [Source::from("a.{i}.w"), Source::transposed("b.{i}.w")];
        for (text, expected) in [
            ("a.{i}.w", vec![a.clone()]),
            ("['a.{i}.w']", vec![a.clone()]),
            ("{transpose: 'b.{i}.w'}", vec![b.clone()]),
            ("['a.{i}.w', {transpose: 'b.{i}.w'}]", vec![a, b]),
            ("[]", Vec::new()),
        ] {
            let found = sources(text).unwrap();
            assert_eq!(found, expected, "{text}");
            assert_eq!(sources(&flow_text(&write(&found))), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_wrong_source_is_named_with_its_place() {
        for (text, expected) in [
            ("{turn: a}", "run.yaml:1:2: unknown key `turn`"),
            ("{}", "run.yaml:1:1: missing key `transpose`"),
            ("[{transpose: [a]}]", "run.yaml:1:14: "),
            ("[[a]]", "run.yaml:1:2: "),
            ("1.5", "a source"),
        ] {
            let error = sources(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
