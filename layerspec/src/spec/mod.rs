//! The model file as written, read into types: names are not looked up yet, shapes not inferred.

mod entry;
mod input;
mod name;
mod unroll;

pub(crate) use entry::{Block, Item, LayerEntry};
pub(crate) use input::{Input, DTYPE, MAX_RANK};
pub(crate) use name::{is_name, Name};
pub(crate) use unroll::{unroll, ScopeId, Scopes, UnrolledLayer};

use crate::vars::Vars;
use crate::yaml::{Kind, Node, TEXT};
use crate::{Diagnostic, Location};

/// A whole model file.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: Option<String>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) layers: Vec<Item>,
    /// The location of `layers`.
    pub(crate) layers_location: Location,
    /// None: the last layer's output.
    pub(crate) outputs: Option<Vec<Name>>,
}

impl Spec {
    pub(crate) fn read(root: &Node) -> Result<Spec, Diagnostic> {
        if root.kind == Kind::Null {
            return Err(Diagnostic::new(
                root.location,
                "the file is empty: expected `inputs` and `layers`",
            ));
        }
        let known = ["model", "vars", "inputs", "layers", "outputs"];
        let file = root.mapping("the model file", "key", &known)?;
        let vars = file.get("vars").map(Vars::read).transpose()?.unwrap_or_default();
        let name = file.optional("model", &TEXT)?;
        let inputs = input::read_inputs(&vars.substitute(file.need("inputs")?)?)?;
        let layers = file.need("layers")?;
        Ok(Spec {
            name,
            inputs,
            layers: entry::read_list(layers, "", &vars)?,
            layers_location: layers.location,
            outputs: file.get("outputs").map(read_outputs).transpose()?,
        })
    }
}

fn read_outputs(node: &Node) -> Result<Vec<Name>, Diagnostic> {
    let names = name::names(node, "`outputs`")?;
    if names.is_empty() {
        return Err(Diagnostic::new(node.location, "`outputs`: expected at least one variable"));
    }
    Ok(names)
}
