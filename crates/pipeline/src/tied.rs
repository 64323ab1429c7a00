//! Parameters that layers of several stages share: the owners, the copies, and the tensors that
//! travel between them.

use crate::ids::StageId;
use crate::stage_spec::{stage_of, StageSpec, TiedCopy, TiedOwner};
use layerspec::{Layer, LayerGraph, LayerId, Role};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// The copies of parameters of earlier stages that a stage holds.
pub(crate) fn tied_copies(
    graph: &LayerGraph,
    ranges: &[Range<usize>],
    mine: &Range<usize>,
) -> Vec<TiedCopy> {
    let mut users: BTreeMap<LayerId, Vec<LayerId>> = BTreeMap::new();
    for layer in graph.layers()[mine.clone()].iter().rev() {
        if let Some(owner) = layer.share.filter(|owner| !mine.contains(&(owner.0 as usize))) {
            users.entry(owner).or_default().push(layer.id);
        }
    }
    let tied_copies = users.into_iter().map(|(owner, users)| TiedCopy {
        owner: graph.layer(owner).clone(),
        from: StageId(stage_of(ranges, owner) as u16),
        users,
    });
    tied_copies.collect()
}

/// The parameters of a stage that later stages copy.
pub(crate) fn tied_owners(
    graph: &LayerGraph,
    ranges: &[Range<usize>],
    mine: &Range<usize>,
) -> Vec<TiedOwner> {
    let mut tied_owners: BTreeMap<LayerId, BTreeMap<Reverse<StageId>, Vec<Layer>>> =
        BTreeMap::new();
    for layer in graph.layers()[mine.end..].iter().rev() {
        if let Some(owner) = layer.share.filter(|owner| mine.contains(&(owner.0 as usize))) {
            let stage = Reverse(StageId(stage_of(ranges, layer.id) as u16));
            tied_owners.entry(owner).or_default().entry(stage).or_default().push(layer.clone());
        }
    }
    let to = |to: BTreeMap<Reverse<StageId>, Vec<Layer>>| {
        to.into_iter().map(|(stage, users)| (stage.0, users)).collect()
    };
    tied_owners.into_iter().map(|(owner, users)| TiedOwner { owner, to: to(users) }).collect()
}

impl StageSpec {
    /// Whether something in it is trained, copied parameters too, so that its backward pass has a
    /// half for them.
    pub fn is_trained(&self) -> bool {
        self.layers.iter().any(|layer| {
            let owner = layer.share.and_then(|owner| self.owner(owner));
            let tied = owner.map_or(Vec::new(), |owner| layer.kind.tied_params(&owner.kind));
            let parameters = layer.kind.params().into_iter().filter(|p| p.role == Role::Parameter);
            parameters
                .map(|p| if tied.contains(&p.name) { owner } else { Some(layer) })
                .any(|home| home.is_some_and(|home| !home.frozen))
        })
    }

    /// A layer of this stage, or one whose parameters it copies.
    pub(crate) fn owner(&self, id: LayerId) -> Option<&Layer> {
        let tied_copies = self.tied_copies.iter().map(|b| &b.owner);
        self.layers.iter().chain(tied_copies).find(|layer| layer.id == id)
    }

    /// The names of a layer's parameters that other layers use too, or that are another layer's.
    pub(crate) fn tied_params(&self, layer: &Layer) -> Vec<&'static str> {
        let of_owner = layer.share.and_then(|owner| self.owner(owner));
        let own = of_owner.map_or(Vec::new(), |owner| layer.kind.tied_params(&owner.kind));
        let here = self.layers.iter().filter(|user| user.share == Some(layer.id));
        let tied_owners =
            self.tied_owners.iter().filter(|tied_owners| tied_owners.owner == layer.id);
        let elsewhere =
            tied_owners.flat_map(|tied_owners| tied_owners.to.iter().flat_map(|(_, users)| users));
        own.into_iter()
            .chain(here.chain(elsewhere).flat_map(|user| user.kind.tied_params(&layer.kind)))
            .collect()
    }

    /// The names of the parameters that layers here use of a copied layer, in its order.
    pub(crate) fn shared(&self, tied_copies: &TiedCopy) -> Vec<&'static str> {
        let users = tied_copies.users.iter().filter_map(|id| self.owner(*id));
        shared(&tied_copies.owner, users)
    }

    /// The number of gradient tensors from the stage `user` for this one.
    pub(crate) fn tied_grads_from(&self, user: StageId) -> usize {
        self.owned_for(user)
            .map(|(owner, users)| {
                users.iter().map(|layer| layer.kind.tied_params(&owner.kind).len()).sum::<usize>()
            })
            .sum()
    }

    /// The number of new values from the stage `owner` for this one.
    pub(crate) fn tied_values_from(&self, owner: StageId) -> usize {
        self.tied_copies.iter().filter(|b| b.from == owner).map(|b| self.shared(b).len()).sum()
    }

    /// The stages with copies of this stage's parameters, descending.
    pub(crate) fn holders_of_copies(&self) -> Vec<StageId> {
        let mut stages: Vec<StageId> =
            self.tied_owners.iter().flat_map(|l| l.to.iter().map(|(stage, _)| *stage)).collect();
        stages.sort_unstable_by_key(|stage| Reverse(*stage));
        stages.dedup();
        stages
    }

    /// The stages whose parameters this one copies, ascending.
    pub(crate) fn lenders(&self) -> Vec<StageId> {
        let mut stages: Vec<StageId> = self.tied_copies.iter().map(|b| b.from).collect();
        stages.sort_unstable();
        stages.dedup();
        stages
    }

    fn owned_for(&self, user: StageId) -> impl Iterator<Item = (&Layer, &Vec<Layer>)> {
        self.tied_owners.iter().filter_map(move |tied_owners| {
            let (_, users) = tied_owners.to.iter().find(|(stage, _)| *stage == user)?;
            Some((self.owner(tied_owners.owner)?, users))
        })
    }
}

/// The parameters of a layer that any of these use, in its order.
fn shared<'a>(owner: &Layer, users: impl Iterator<Item = &'a Layer>) -> Vec<&'static str> {
    let used: Vec<_> = users.flat_map(|user| user.kind.tied_params(&owner.kind)).collect();
    owner.kind.params().into_iter().map(|p| p.name).filter(|name| used.contains(name)).collect()
}
