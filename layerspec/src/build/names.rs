//! Variables: where each is defined, and which definition a use means.

use super::cycle;
use crate::error::quoted;
use crate::nearest;
use crate::spec::{Flat, Input, Name, ScopeId, Scopes};
use crate::{Fault, Place};
use std::collections::{HashMap, HashSet};

/// The maker of a value.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Maker {
    /// The model's input of this position.
    Input(usize),
    /// The output `port` of the layer at `index` of the unrolled list.
    Layer { index: usize, port: usize },
}

#[derive(Copy, Clone, Debug)]
struct Definition {
    maker: Maker,
    place: Place,
}

/// Every definition of a variable, by the scope it stands in. A use means the innermost
/// definition above it.
#[derive(Debug)]
pub(super) struct Names<'a> {
    pub(super) flats: &'a [Flat],
    scopes: &'a Scopes,
    definitions: HashMap<(ScopeId, &'a str), Definition>,
    /// Where the definitions stand that are used in any repetition.
    used: HashSet<Place>,
}

impl<'a> Names<'a> {
    pub(super) fn collect(inputs: &'a [Input], flats: &'a [Flat], scopes: &'a Scopes) -> Result<Self, Fault> {
        let (definitions, used) = (HashMap::new(), HashSet::new());
        let mut names = Names { flats, scopes, definitions, used };
        for (position, input) in inputs.iter().enumerate() {
            names.define(Scopes::FILE, &input.name, Maker::Input(position))?;
        }
        for (index, flat) in flats.iter().enumerate() {
            for (port, name) in flat.written.out_variables.iter().enumerate() {
                names
                    .define(flat.scope, name, Maker::Layer { index, port })
                    .map_err(|fault| fault.in_layer(&flat.name, Some(flat.written.kind.name())))?;
            }
        }
        Ok(names)
    }

    fn define(&mut self, scope: ScopeId, name: &'a Name, maker: Maker) -> Result<(), Fault> {
        let definition = Definition { maker, place: name.place };
        match self.definitions.insert((scope, &name.text), definition) {
            None => Ok(()),
            Some(first) => {
                let message = format!(
                    "variable `{}` is defined twice, first in line {}; give one another name",
                    name.text, first.place.line
                );
                Err(Fault::new(name.place, message))
            }
        }
    }

    /// The maker of the variable that the layer at `index` calls `name`.
    pub(super) fn find(&mut self, name: &Name, index: usize) -> Result<Maker, Fault> {
        let scope = self.flats[index].scope;
        let found = self.visible(scope, &name.text).find(|found| is_above(found.maker, index));
        match found {
            Some(definition) => {
                self.used.insert(definition.place);
                Ok(definition.maker)
            }
            None => Err(self.explain(name, index)),
        }
    }

    /// The maker of the variable that the file's `outputs` call `name`.
    pub(super) fn find_output(&mut self, name: &Name) -> Result<Maker, Fault> {
        let found = self.visible(Scopes::FILE, &name.text).next();
        match found {
            Some(definition) => {
                self.used.insert(definition.place);
                Ok(definition.maker)
            }
            None => Err(self.unknown(name, Scopes::FILE)),
        }
    }

    /// Every definition of `name` that can be seen from `scope`, innermost first.
    fn visible<'s>(&'s self, scope: ScopeId, name: &'s str) -> impl Iterator<Item = Definition> + 's {
        let scopes = self.scopes.outwards(scope);
        scopes.filter_map(move |scope| self.definitions.get(&(scope, name)).copied())
    }

    /// The maker of the variable, even if it comes too late.
    pub(super) fn find_anywhere(&self, name: &str, index: usize) -> Option<Maker> {
        let all = || self.visible(self.flats[index].scope, name).map(|found| found.maker);
        all().find(|maker| is_above(*maker, index)).or_else(|| all().next())
    }

    fn explain(&self, name: &Name, index: usize) -> Fault {
        let scope = self.flats[index].scope;
        let Some(later) = self.visible(scope, &name.text).next() else {
            return self.unknown(name, scope);
        };
        let text = &name.text;
        let line = later.place.line;
        let message = match later.maker {
            Maker::Layer { index: maker, .. } if maker == index => {
                format!("`{text}` is this layer's own output: a layer can't use what it makes")
            }
            Maker::Layer { index: maker, .. } => match cycle::find(self, index, maker) {
                Some(names) => format!(
                    "`{text}` (line {line}) closes a cycle: {names}; a layer can use only what is made above it"
                ),
                None => {
                    format!("`{text}` is used before it is defined in line {line}; move this layer below that line")
                }
            },
            Maker::Input(_) => format!("`{text}` is not visible here"),
        };
        Fault::new(name.place, message)
    }

    fn unknown(&self, name: &Name, scope: ScopeId) -> Fault {
        let text = &name.text;
        if self.flats.iter().any(|flat| flat.name == *text) {
            let message = format!(
                "`{text}` is a layer, and a variable is expected; name that layer's output with `out_variables: [..]`"
            );
            return Fault::new(name.place, message);
        }
        if self.definitions.keys().any(|(_, defined)| defined == text) {
            let message = format!("variable `{text}` is defined within a repeated block and not visible here");
            return Fault::new(name.place, message);
        }
        let scopes: HashSet<ScopeId> = self.scopes.outwards(scope).collect();
        let visible = self.definitions.keys().filter(|(scope, _)| scopes.contains(scope));
        let mut known: Vec<&str> = visible.map(|(_, name)| *name).collect();
        known.sort_unstable();
        Fault::new(name.place, format!("unknown variable {}", quoted(text))).suggesting(nearest(text, known))
    }

    /// Names that nothing uses, with where they are defined, in file order.
    pub(super) fn unused(&self) -> Vec<(Place, &'a str)> {
        let all = self.definitions.iter();
        let unused = all.filter(|(_, definition)| !self.used.contains(&definition.place));
        let mut unused: Vec<_> = unused.map(|((_, name), definition)| (definition.place, *name)).collect();
        unused.sort_unstable();
        unused.dedup(); // one for all repetitions
        unused
    }

    /// Says that the model's input of this position is used, though nothing calls it by name.
    pub(super) fn use_input(&mut self, position: usize) {
        let input = |definition: &&Definition| definition.maker == Maker::Input(position);
        let place = self.definitions.values().find(input).map(|definition| definition.place);
        self.used.extend(place);
    }

    /// Says that the layer below takes a layer's first output without its name. Where there are several, the first has to
    /// have a name so that the others can.
    pub(super) fn use_first_of(&mut self, index: usize) {
        if let Some([first, _, ..]) = self.flats.get(index).map(|flat| &flat.written.out_variables[..]) {
            self.used.insert(first.place);
        }
    }
}

fn is_above(maker: Maker, index: usize) -> bool {
    match maker {
        Maker::Input(_) => true,
        Maker::Layer { index: maker, .. } => maker < index,
    }
}
