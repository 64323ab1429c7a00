//! The keys `columns` and `normalize: auto` of a run's data: tables by the names of columns.

use super::yaml_text::{list, map, Yaml};
use crate::data::{
    ColumnsSource, ColumnsSpec, InputColumns, Missing, Source, TargetColumn, Transform,
};
use layerspec::yaml::{Kind, Mapping, Node, Reader, TEXT};
use layerspec::Diagnostic;

const MISSING: Reader<Missing> =
    Reader::new("`error`, `mean` or `most_common`", |node| match (TEXT.read)(node)?.as_str() {
        "error" => Some(Missing::Error),
        "mean" => Some(Missing::Mean),
        "most_common" => Some(Missing::MostCommon),
        _ => None,
    });

const TRANSFORM: Reader<Transform> =
    Reader::new("`none` or `log`", |node| match (TEXT.read)(node)?.as_str() {
        "none" => Some(Transform::None),
        "log" => Some(Transform::Log),
        _ => None,
    });

/// Reads `columns`, if the data has it.
pub(super) fn columns(data: &Mapping<'_>) -> Result<Option<ColumnsSpec>, Diagnostic> {
    let normalize = is_automatic(data.get("normalize"));
    let Some(node) = data.get("columns") else {
        return match data.get("normalize").filter(|_| normalize) {
            Some(node) => Err(Diagnostic::new(
                node.location,
                "`normalize: auto` is for tables by the names of columns: add `columns`",
            )),
            None => Ok(None),
        };
    };
    if let Some(node) = data.get("normalize").filter(|_| !normalize) {
        return Err(node.unexpected("`normalize` beside `columns`", "`auto`"));
    }
    let keys = node.mapping("`columns`", "key", &["inputs", "target", "id", "missing"])?;
    let (inputs_node, target) = (keys.need("inputs")?, target(keys.need("target")?)?);
    let inputs = inputs(inputs_node)?;
    let lists: Vec<&[String]> = match &inputs {
        InputColumns::Only(names) => vec![names],
        InputColumns::Named(inputs) => inputs.iter().map(|(_, names)| names.as_slice()).collect(),
    };
    for names in lists {
        check_once(names, &target.column)
            .map_err(|problem| Diagnostic::new(inputs_node.location, problem))?;
    }
    Ok(Some(ColumnsSpec {
        inputs,
        target,
        id: keys.optional("id", &TEXT)?,
        missing: keys.optional("missing", &MISSING)?.unwrap_or_default(),
        normalize,
    }))
}

/// Whether numbers are normalized by what is learned from them.
pub(super) fn is_automatic(normalize: Option<&Node>) -> bool {
    normalize.is_some_and(|node| node.as_text() == Some("auto"))
}

/// A list of columns for the only input, or for each input a column or a list.
fn inputs(node: &Node) -> Result<InputColumns, Diagnostic> {
    let Kind::Map(entries) = &node.kind else {
        return Ok(InputColumns::Only(names(node)?));
    };
    let keys: Vec<&str> = entries.iter().map(|entry| entry.key.text.as_str()).collect();
    // Finds names that are given twice.
    node.mapping("`inputs`", "input", &keys)?;
    let of = entries.iter().map(|entry| Ok((entry.key.text.clone(), names(&entry.value)?)));
    Ok(InputColumns::Named(of.collect::<Result<_, Diagnostic>>()?))
}

/// Checks the columns of an input.
fn check_once(names: &[String], target: &str) -> Result<(), String> {
    for (number, name) in names.iter().enumerate() {
        if name == target {
            return Err(format!("`inputs` has `{name}`, which is the target: leave it out"));
        }
        if names[..number].contains(name) {
            return Err(format!("`inputs` has `{name}` twice"));
        }
    }
    Ok(())
}

fn names(node: &Node) -> Result<Vec<String>, Diagnostic> {
    if let Some(one) = (TEXT.read)(node) {
        return Ok(vec![one]);
    }
    let names = node.list("`inputs`", "a column, or a list of columns")?;
    if names.is_empty() {
        return Err(Diagnostic::new(node.location, "`inputs`: give at least one column"));
    }
    names.iter().map(|name| name.read("a column", &TEXT)).collect()
}

fn target(node: &Node) -> Result<TargetColumn, Diagnostic> {
    if let Some(column) = (TEXT.read)(node) {
        return Ok(TargetColumn { column, transform: Transform::None });
    }
    let keys = node.mapping("`target`", "key", &["column", "transform"])?;
    Ok(TargetColumn {
        column: keys.required("column", &TEXT)?,
        transform: keys.optional("transform", &TRANSFORM)?.unwrap_or_default(),
    })
}

/// Reads a source by the names of its columns, if it is a table.
pub(super) fn by_columns(
    source: Source,
    spec: Option<&ColumnsSpec>,
    node: Option<&Node>,
) -> Result<Source, Diagnostic> {
    let Some(spec) = spec else { return Ok(source) };
    match (source, node) {
        (Source::File(path), _) if ColumnsSource::is_table(&path) => {
            let spec = spec.clone();
            Ok(Source::Columns(Box::new(ColumnsSource { path, spec, learned: None })))
        }
        (_, Some(node)) => Err(Diagnostic::new(
            node.location,
            "`columns` is for the path of a .csv, .csv.gz, .tsv or .parquet file",
        )),
        (source, None) => Ok(source),
    }
}

/// Writes `columns`.
pub(super) fn to_yaml(spec: &ColumnsSpec) -> Yaml {
    let names = |columns: &[String]| list(columns.iter().map(String::as_str));
    let inputs = match &spec.inputs {
        InputColumns::Only(columns) => names(columns),
        InputColumns::Named(inputs) => {
            Yaml::Map(inputs.iter().map(|(name, columns)| (name.clone(), names(columns))).collect())
        }
    };
    let transform = match spec.target.transform {
        Transform::None => "none",
        Transform::Log => "log",
    };
    let target =
        map([("column", spec.target.column.as_str().into()), ("transform", transform.into())]);
    let missing = match spec.missing {
        Missing::Error => "error",
        Missing::Mean => "mean",
        Missing::MostCommon => "most_common",
    };
    let mut entries = vec![("inputs".to_string(), inputs), ("target".into(), target)];
    entries.extend(spec.id.as_ref().map(|id| ("id".into(), id.as_str().into())));
    entries.push(("missing".into(), missing.into()));
    Yaml::Map(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_no_input_and_no_column_comes_twice() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(check_once(&names(&["a", "b"]), "y"), Ok(()));
        let leak = check_once(&names(&["a", "y"]), "y").unwrap_err();
        assert_eq!(leak, "`inputs` has `y`, which is the target: leave it out");
        assert_eq!(
            check_once(&names(&["a", "b", "a"]), "y").unwrap_err(),
            "`inputs` has `a` twice"
        );
    }
}
