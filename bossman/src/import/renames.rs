//! The rules by which parameters of a model are made of tensors that have other names or shapes.

use super::model_text::Entry;
use crate::weights::rename_rules::RenameRules;
use crate::BossManError;

/// Collects the rules of all layers.
pub(super) fn renames(entries: &[Entry]) -> Result<RenameRules, BossManError> {
    let mut rules = RenameRules::default();
    collect(entries, "", 0, &mut rules).map_err(BossManError::Usage)?;
    Ok(rules)
}

/// Adds the rules of entries whose names in the model begin with `prefix`, in so many repeated
/// blocks.
fn collect(
    entries: &[Entry],
    prefix: &str,
    repeats: usize,
    rules: &mut RenameRules,
) -> Result<(), String> {
    for entry in entries {
        match entry {
            Entry::Block(block) => {
                let (number, inner) = match &block.repeat {
                    Some(_) if repeats == 0 => ("{i}.".to_string(), 1),
                    Some(_) => (format!("{{i{repeats}}}."), repeats + 1),
                    None => (String::new(), repeats),
                };
                let prefix = format!("{prefix}{}.{number}", block.name);
                collect(&block.entries, &prefix, inner, rules)?;
            }
            Entry::Layer(layer) => {
                for (parameter, sources) in layer.sources() {
                    let mut sources = sources.to_vec();
                    for source in &mut sources {
                        source.name.insert_str(0, prefix);
                    }
                    rules.rule(&format!("{prefix}{parameter}"), &sources)?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::model_text::{var, Block, LayerText};
    use super::*;
    use crate::rename::Source;

    #[test]
    fn rules_have_the_names_of_blocks_around_them() {
        let layer = LayerText::new("Linear")
            .named("a.b")
            .made_of("weight", &[Source::transposed("c"), "d".into()]);
        let block = |name: &str, repeat, entries| Block { name: name.into(), repeat, entries };
        let inner = block("inner", Some(var("n")), vec![layer.into()]);
        let outer = block("outer", None, vec![inner.into()]);
        let rules = renames(&[outer.into(), LayerText::new("ReLU").into()]).unwrap();
        let sources =
            vec![Source::transposed("outer.inner.{i}.c"), Source::from("outer.inner.{i}.d")];
        let expected = vec![("outer.inner.{i}.a.b.weight".to_string(), sources)];
        assert_eq!(rules.texts().renamed, expected);
    }
}
