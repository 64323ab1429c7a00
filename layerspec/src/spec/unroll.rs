//! Blocks and repeats, unrolled into one list of layers in the order they run.

use super::name::MAX_NAME;
use super::{Block, Item, LayerEntry};
use crate::{Diagnostic, Location, Recompute};

/// The most layers a model may have once repeats are unrolled.
const MAX_LAYERS: u64 = 10_000;

/// A layer of the unrolled list.
#[derive(Debug)]
pub(crate) struct UnrolledLayer {
    /// The full name: the names of the blocks around it, then its own, with dots.
    pub(crate) name: String,
    pub(crate) scope: ScopeId,
    /// `freeze` of the layer or of a block around it.
    pub(crate) frozen: bool,
    /// `recompute` of the layer, or of the innermost block around it that has one.
    pub(crate) recompute: Option<Recompute>,
    pub(crate) entry: LayerEntry,
}

/// A scope of variables: the file, or one repetition of a block.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ScopeId(usize);

/// Every scope with the one around it.
#[derive(Debug)]
pub(crate) struct Scopes {
    parents: Vec<Option<ScopeId>>,
}

impl Scopes {
    /// The scope of the file itself.
    pub(crate) const FILE: ScopeId = ScopeId(0);

    /// A scope and those around it, innermost first.
    pub(crate) fn outwards(&self, scope: ScopeId) -> impl Iterator<Item = ScopeId> + '_ {
        std::iter::successors(Some(scope), |scope| *self.parents.get(scope.0)?)
    }

    fn inside(&mut self, parent: ScopeId) -> ScopeId {
        self.parents.push(Some(parent));
        ScopeId(self.parents.len() - 1)
    }
}

/// All layers of a model in the order they run, with the scopes they stand in.
pub(crate) fn unroll(
    items: &[Item],
    location: Location,
) -> Result<(Vec<UnrolledLayer>, Scopes), Diagnostic> {
    count(items, location)?;
    let mut unroll = Unroll { layers: Vec::new(), scopes: Scopes { parents: vec![None] } };
    unroll.items(
        items,
        &Enclosing { prefix: String::new(), scope: Scopes::FILE, frozen: false, recompute: None },
    )?;
    Ok((unroll.layers, unroll.scopes))
}

/// The number of layers that `items` unroll to, counted before any is built. References to
/// variables count too, because every repetition copies them.
fn count(items: &[Item], location: Location) -> Result<u64, Diagnostic> {
    let mut total = 0u64;
    for item in items {
        let (more, location) = match item {
            Item::Layer(layer) => {
                let references = layer.in_variables.len() + layer.out_variables.len();
                (Some(1 + references as u64 / 16), layer.location)
            }
            Item::Block(block) => {
                let once = count(&block.items, block.location)?;
                (once.checked_mul(block.repeat.unwrap_or(1)), block.location)
            }
        };
        total = more.and_then(|more| total.checked_add(more)).unwrap_or(u64::MAX);
        if total > MAX_LAYERS {
            let message = format!("more than {MAX_LAYERS} layers once repeats are unrolled");
            return Err(Diagnostic::new(location, message));
        }
    }
    match total {
        0 => {
            Err(Diagnostic::new(location, "expected at least one layer once repeats are unrolled"))
        }
        total => Ok(total),
    }
}

/// The settings of the blocks around a list of items.
struct Enclosing {
    prefix: String,
    scope: ScopeId,
    frozen: bool,
    recompute: Option<Recompute>,
}

struct Unroll {
    layers: Vec<UnrolledLayer>,
    scopes: Scopes,
}

impl Unroll {
    fn items(&mut self, items: &[Item], enclosing: &Enclosing) -> Result<(), Diagnostic> {
        for (position, item) in items.iter().enumerate() {
            let (own, location) = match item {
                Item::Layer(layer) => (&layer.name, layer.location),
                Item::Block(block) => (&block.name, block.location),
            };
            let own = own.as_ref().map_or_else(|| position.to_string(), |name| name.text.clone());
            let name = format!("{}{own}", enclosing.prefix);
            if name.len() > MAX_NAME {
                let message = format!("the layer's full name is longer than {MAX_NAME} letters");
                return Err(Diagnostic::new(location, message));
            }
            match item {
                Item::Layer(layer) => self.layers.push(UnrolledLayer {
                    name,
                    scope: enclosing.scope,
                    frozen: enclosing.frozen || layer.freeze,
                    recompute: layer.recompute.or(enclosing.recompute),
                    entry: LayerEntry::clone(layer),
                }),
                Item::Block(block) => self.block(block, &name, enclosing)?,
            }
        }
        Ok(())
    }

    fn block(
        &mut self,
        block: &Block,
        name: &str,
        enclosing: &Enclosing,
    ) -> Result<(), Diagnostic> {
        let frozen = enclosing.frozen || block.freeze;
        let recompute = block.recompute.or(enclosing.recompute);
        let Some(repeat) = block.repeat else {
            let prefix = format!("{name}.");
            return self.items(
                &block.items,
                &Enclosing { prefix, scope: enclosing.scope, frozen, recompute },
            );
        };
        for repetition in 0..repeat {
            let prefix = format!("{name}.{repetition}.");
            let scope = self.scopes.inside(enclosing.scope);
            self.items(&block.items, &Enclosing { prefix, scope, frozen, recompute })?;
        }
        Ok(())
    }
}
