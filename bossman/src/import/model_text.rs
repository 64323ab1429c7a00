//! A model file as text that a person likes to read.

use crate::run_file::yaml_text::{flow_text, scalar, Yaml};
use crate::weights::source::Source;
use std::fmt::Write as _;

/// The longest line. Arguments that do not fit it stand below their layer.
const WIDTH: usize = 100;

/// What a model file says.
pub(super) struct ModelFile {
    /// The lines at the top.
    pub(super) comments: Vec<String>,
    pub(super) name: String,
    pub(super) vars: Vec<(&'static str, Yaml)>,
    pub(super) inputs: Vec<ModelInput>,
    pub(super) entries: Vec<Entry>,
}

/// The shape of an input of sequences.
pub(super) const SEQUENCES: &str = "[batch, seq]";

/// An input of the model.
#[derive(Clone, Debug)]
pub(super) struct ModelInput {
    pub(super) name: &'static str,
    /// As the model file writes it.
    pub(super) shape: &'static str,
    pub(super) dtype: &'static str,
}

/// An entry of `layers`.
pub(super) enum Entry {
    Block(Block),
    Layer(Box<LayerText>),
}

/// Entries below a name.
pub(super) struct Block {
    pub(super) name: String,
    pub(super) repeat: Option<Yaml>,
    pub(super) entries: Vec<Entry>,
}

/// A layer, with its arguments in order.
pub(super) struct LayerText {
    kind: &'static str,
    arguments: Vec<(&'static str, Yaml)>,
    /// The keys beside the kind.
    keys: Vec<(&'static str, Yaml)>,
    /// The parameters that files have under other names. The model file does not tell of them.
    sources: Vec<(&'static str, Vec<Source>)>,
}

impl LayerText {
    /// A layer of this kind.
    pub(super) fn new(kind: &'static str) -> Self {
        LayerText { kind, arguments: Vec::new(), keys: Vec::new(), sources: Vec::new() }
    }

    /// Its next argument.
    #[must_use]
    pub(super) fn argument(mut self, name: &'static str, value: impl Into<Yaml>) -> Self {
        self.arguments.push((name, value.into()));
        self
    }

    /// Its name.
    #[must_use]
    pub(super) fn named(mut self, name: &str) -> Self {
        self.keys.push(("name", name.into()));
        self
    }

    /// Its input, if it is not the output of the layer before.
    #[must_use]
    pub(super) fn reads(mut self, variable: &str) -> Self {
        self.keys.push(("input", variable.into()));
        self
    }

    /// Its further inputs.
    #[must_use]
    pub(super) fn takes(mut self, variables: &[String]) -> Self {
        self.keys.push(("in_variables", names(variables)));
        self
    }

    /// The names of its outputs.
    #[must_use]
    pub(super) fn gives(mut self, variables: &[String]) -> Self {
        self.keys.push(("out_variables", names(variables)));
        self
    }

    /// The layer whose parameters it uses.
    #[must_use]
    pub(super) fn shares(mut self, layer: &str) -> Self {
        self.keys.push(("share", layer.into()));
        self
    }

    /// The tensors of files that a parameter is made of, by their names in the layer's block.
    #[must_use]
    pub(super) fn made_of(mut self, parameter: &'static str, sources: &[Source]) -> Self {
        self.sources.push((parameter, sources.to_vec()));
        self
    }

    /// Its parameters that files have under other names: the name in its block, and the sources.
    pub(super) fn sources(&self) -> impl Iterator<Item = (String, &[Source])> {
        let name = self.keys.iter().find_map(|(key, value)| match value {
            Yaml::Text(name) if *key == "name" => Some(name.as_str()),
            _ => None,
        });
        let name = name.unwrap_or_default();
        self.sources
            .iter()
            .map(move |(parameter, sources)| (format!("{name}.{parameter}"), &sources[..]))
    }
}

impl From<LayerText> for Entry {
    fn from(layer: LayerText) -> Self {
        Entry::Layer(Box::new(layer))
    }
}

impl From<Block> for Entry {
    fn from(block: Block) -> Self {
        Entry::Block(block)
    }
}

fn names(variables: &[String]) -> Yaml {
    Yaml::List(variables.iter().map(|name| name.as_str().into()).collect())
}

/// The number that a name of `vars` stands for.
pub(super) fn var(name: &str) -> Yaml {
    Yaml::Plain(format!("${{{name}}}"))
}

/// No value.
pub(super) fn null() -> Yaml {
    Yaml::Plain("null".into())
}

/// Writes the model file.
pub(super) fn model_text(file: &ModelFile) -> String {
    let mut text = String::new();
    for line in &file.comments {
        writeln!(text, "# {line}").ok();
    }
    writeln!(text, "model: {}", scalar(&file.name)).ok();
    text.push_str("vars:\n");
    for (name, value) in &file.vars {
        writeln!(text, "  {name}: {}", flow_text(value)).ok();
    }
    text.push_str("inputs:\n");
    for ModelInput { name, shape, dtype } in &file.inputs {
        writeln!(text, "  {name}: {{shape: {shape}, dtype: {dtype}}}").ok();
    }
    text.push_str("layers:\n");
    write_entries(&mut text, &file.entries, 2);
    text
}

fn write_entries(text: &mut String, entries: &[Entry], indent: usize) {
    let pad = " ".repeat(indent);
    for entry in entries {
        match entry {
            Entry::Block(block) => {
                writeln!(text, "{pad}- name: {}", scalar(&block.name)).ok();
                if let Some(repeat) = &block.repeat {
                    writeln!(text, "{pad}  repeat: {}", flow_text(repeat)).ok();
                }
                writeln!(text, "{pad}  layers:").ok();
                write_entries(text, &block.entries, indent + 4);
            }
            Entry::Layer(layer) => write_layer(text, layer, &pad),
        }
    }
}

fn write_layer(text: &mut String, layer: &LayerText, pad: &str) {
    let arguments: Vec<String> = layer
        .arguments
        .iter()
        .map(|(name, value)| format!("{name}: {}", flow_text(value)))
        .collect();
    let line = format!("{pad}- {}: {{{}}}", layer.kind, arguments.join(", "));
    match (arguments.is_empty(), layer.keys.is_empty()) {
        (true, true) => writeln!(text, "{pad}- {}", layer.kind).ok(),
        (true, false) => writeln!(text, "{pad}- {}:", layer.kind).ok(),
        _ if line.chars().count() <= WIDTH => writeln!(text, "{line}").ok(),
        _ => {
            writeln!(text, "{pad}- {}:", layer.kind).ok();
            arguments.iter().try_for_each(|argument| writeln!(text, "{pad}    {argument}")).ok()
        }
    };
    for (key, value) in &layer.keys {
        writeln!(text, "{pad}  {key}: {}", flow_text(value)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_layers_are_written_as_a_person_would() {
        let long = LayerText::new("Linear")
            .argument("in_features", var("a_name_that_is_as_long_as_it_needs_to_be"))
            .argument("out_features", var("another_name_that_is_as_long_as_the_first"))
            .argument("bias", false)
            .named("long");
        let file = ModelFile {
            comments: vec!["One line.".into()],
            name: "m 1".into(),
            vars: vec![("d", 4u64.into())],
            inputs: vec![ModelInput { name: "x", shape: SEQUENCES, dtype: "int64" }],
            entries: vec![
                Block {
                    name: "layers.0".into(),
                    repeat: Some(var("d")),
                    entries: vec![
                        LayerText::new("Identity").gives(&["r".into()]).into(),
                        LayerText::new("ReLU").into(),
                        long.into(),
                    ],
                }
                .into(),
                LayerText::new("Add").takes(&["x".into()]).shares("long").into(),
            ],
        };
        let expected = "\
# One line.
model: \"m 1\"
vars:
  d: 4
inputs:
  x: {shape: [batch, seq], dtype: int64}
layers:
  - name: layers.0
    repeat: ${d}
    layers:
      - Identity:
        out_variables: [r]
      - ReLU
      - Linear:
          in_features: ${a_name_that_is_as_long_as_it_needs_to_be}
          out_features: ${another_name_that_is_as_long_as_the_first}
          bias: false
        name: long
  - Add:
    in_variables: [x]
    share: long
";
        assert_eq!(model_text(&file), expected);
    }
}
