//! Variables: where each is defined, and which definition a use means.

use super::cycle;
use crate::error::quoted;
use crate::nearest;
use crate::spec::{Input, Name, ScopeId, Scopes, UnrolledLayer};
use crate::{Diagnostic, Location};
use std::collections::{HashMap, HashSet};

/// The origin of a value, before layers have ids.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The model's input of this position.
    Input(usize),
    /// The output `port` of the layer at `index` of the unrolled list.
    Layer { index: usize, port: usize },
}

#[derive(Copy, Clone, Debug)]
struct Definition {
    origin: Origin,
    location: Location,
}

/// Every definition of a variable, by scope. A use refers to the innermost definition above it.
#[derive(Debug)]
pub(super) struct Names<'a> {
    pub(super) layers: &'a [UnrolledLayer],
    scopes: &'a Scopes,
    definitions: HashMap<(ScopeId, &'a str), Definition>,
    /// The locations of definitions that are used in any repetition.
    used: HashSet<Location>,
}

impl<'a> Names<'a> {
    pub(super) fn collect(
        inputs: &'a [Input],
        layers: &'a [UnrolledLayer],
        scopes: &'a Scopes,
    ) -> Result<Self, Diagnostic> {
        let (definitions, used) = (HashMap::new(), HashSet::new());
        let mut names = Names { layers, scopes, definitions, used };
        for (position, input) in inputs.iter().enumerate() {
            names.define(Scopes::FILE, &input.name, Origin::Input(position))?;
        }
        for (index, layer) in layers.iter().enumerate() {
            for (port, name) in layer.entry.out_variables.iter().enumerate() {
                names
                    .define(layer.scope, name, Origin::Layer { index, port })
                    .map_err(|error| error.in_layer(&layer.name, Some(layer.entry.kind.name())))?;
            }
        }
        Ok(names)
    }

    fn define(&mut self, scope: ScopeId, name: &'a Name, origin: Origin) -> Result<(), Diagnostic> {
        let definition = Definition { origin, location: name.location };
        match self.definitions.insert((scope, &name.text), definition) {
            None => Ok(()),
            Some(first) => {
                let message = format!(
                    "variable `{}` is defined twice, first in line {}; give one another name",
                    name.text, first.location.line
                );
                Err(Diagnostic::new(name.location, message))
            }
        }
    }

    /// The origin of the variable that the layer at `index` calls `name`.
    pub(super) fn find(&mut self, name: &Name, index: usize) -> Result<Origin, Diagnostic> {
        let scope = self.layers[index].scope;
        let found = self.visible(scope, &name.text).find(|found| is_above(found.origin, index));
        match found {
            Some(definition) => {
                self.used.insert(definition.location);
                Ok(definition.origin)
            }
            None => Err(self.explain(name, index)),
        }
    }

    /// The origin of the variable that the file's `outputs` call `name`.
    pub(super) fn find_output(&mut self, name: &Name) -> Result<Origin, Diagnostic> {
        let found = self.visible(Scopes::FILE, &name.text).next();
        match found {
            Some(definition) => {
                self.used.insert(definition.location);
                Ok(definition.origin)
            }
            None => Err(self.unknown(name, Scopes::FILE)),
        }
    }

    /// Every definition of `name` that can be seen from `scope`, innermost first.
    fn visible<'s>(
        &'s self,
        scope: ScopeId,
        name: &'s str,
    ) -> impl Iterator<Item = Definition> + 's {
        let scopes = self.scopes.outwards(scope);
        scopes.filter_map(move |scope| self.definitions.get(&(scope, name)).copied())
    }

    /// The layers of the cycle that the layer at `user` closes when it uses the one at `origin`.
    fn cycle(&self, user: usize, origin: usize) -> Option<String> {
        let source = |name: &str, index| match self.find_anywhere(name, index)? {
            Origin::Layer { index, .. } => Some(index),
            Origin::Input(_) => None,
        };
        cycle::find(self.layers, user, origin, source)
    }

    /// The origin of the variable, even if it is defined below the layer.
    fn find_anywhere(&self, name: &str, index: usize) -> Option<Origin> {
        let all = || self.visible(self.layers[index].scope, name).map(|found| found.origin);
        all().find(|origin| is_above(*origin, index)).or_else(|| all().next())
    }

    fn explain(&self, name: &Name, index: usize) -> Diagnostic {
        let scope = self.layers[index].scope;
        let Some(later) = self.visible(scope, &name.text).next() else {
            return self.unknown(name, scope);
        };
        let text = &name.text;
        let line = later.location.line;
        let message = match later.origin {
            Origin::Layer { index: origin, .. } if origin == index => {
                format!("`{text}` is this layer's own output: a layer can't use what it makes")
            }
            Origin::Layer { index: origin, .. } => match self.cycle(index, origin) {
                Some(names) => format!(
                    "`{text}` (line {line}) closes a cycle: {names}; a layer can use only what is \
                     made above it"
                ),
                None => {
                    format!(
                        "`{text}` is used before it is defined in line {line}; move this layer \
                         below that line"
                    )
                }
            },
            Origin::Input(_) => format!("`{text}` is not visible here"),
        };
        Diagnostic::new(name.location, message)
    }

    fn unknown(&self, name: &Name, scope: ScopeId) -> Diagnostic {
        let text = &name.text;
        if self.layers.iter().any(|layer| layer.name == *text) {
            let message = format!(
                "`{text}` is a layer, and a variable is expected; name that layer's output with \
                 `out_variables: [..]`"
            );
            return Diagnostic::new(name.location, message);
        }
        if self.definitions.keys().any(|(_, defined)| defined == text) {
            let message = format!(
                "variable `{text}` is defined within a repeated block and not visible here"
            );
            return Diagnostic::new(name.location, message);
        }
        let scopes: HashSet<ScopeId> = self.scopes.outwards(scope).collect();
        let visible = self.definitions.keys().filter(|(scope, _)| scopes.contains(scope));
        let mut known: Vec<&str> = visible.map(|(_, name)| *name).collect();
        known.sort_unstable();
        Diagnostic::new(name.location, format!("unknown variable {}", quoted(text)))
            .suggesting(nearest(text, known))
    }

    /// Unused names with the locations of their definitions, in file order.
    pub(super) fn unused(&self) -> Vec<(Location, &'a str)> {
        let all = self.definitions.iter();
        let unused = all.filter(|(_, definition)| !self.used.contains(&definition.location));
        let mut unused: Vec<_> =
            unused.map(|((_, name), definition)| (definition.location, *name)).collect();
        unused.sort_unstable();
        unused.dedup(); // one for all repetitions
        unused
    }

    /// Marks the model's input of this position as used, although nothing names it.
    pub(super) fn mark_input_used(&mut self, position: usize) {
        let input = |definition: &&Definition| definition.origin == Origin::Input(position);
        let location = self.definitions.values().find(input).map(|definition| definition.location);
        self.used.extend(location);
    }

    /// Marks a layer's first output as used by the layer below, which does not name it. If a layer
    /// has several outputs, the first needs a name so that the others can have one.
    pub(super) fn mark_first_output_used(&mut self, index: usize) {
        if let Some([first, _, ..]) =
            self.layers.get(index).map(|layer| &layer.entry.out_variables[..])
        {
            self.used.insert(first.location);
        }
    }
}

fn is_above(origin: Origin, index: usize) -> bool {
    match origin {
        Origin::Input(_) => true,
        Origin::Layer { index: origin, .. } => origin < index,
    }
}
