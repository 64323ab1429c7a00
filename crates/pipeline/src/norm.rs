//! The norm of gradients, summed so that it does not depend on the owners of their parts.
//!
//! The squares of a gradient's elements are summed [block](BLOCK) by block, and blocks along the
//! [tree](Tree) over them. A replica with a part of a gradient sends the sums of its blocks, added
//! as far up the tree as possible. The boss adds the rest.

use crate::replicas::{Node, Tree};
use layerspec::LayerId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The number of elements summed one after the other.
pub const BLOCK: u64 = 256;

/// The sum of squares over some blocks of a parameter's gradient.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Square {
    /// The layer that owns the parameter.
    pub layer: LayerId,
    /// The parameter's place among those and the buffers of the layer.
    pub number: u32,
    /// The number of blocks of the whole gradient.
    pub blocks: u32,
    /// The blocks, as a node of the tree. All blocks are the root.
    pub node: Node,
    /// The sum.
    pub sum: f64,
}

/// The number of blocks of `elements` elements.
pub fn blocks(elements: u64) -> u32 {
    u32::try_from(elements.div_ceil(BLOCK)).unwrap_or(u32::MAX)
}

/// The sums of consecutive blocks of a gradient of `blocks` blocks, added as far up the tree as
/// possible. `first` is the place of the first block.
pub fn summed(blocks: u32, first: u32, sums: &[f64]) -> Vec<(Node, f64)> {
    let (mut nodes, mut begin, mut rest) = (Vec::new(), first, sums);
    while begin < blocks && !rest.is_empty() {
        let node = widest(blocks, begin, rest.len());
        let (here, others) = rest.split_at(node.leaves(blocks).len().min(rest.len()));
        nodes.push((node, tree_sum(here)));
        begin = node.leaves(blocks).end;
        rest = others;
    }
    nodes
}

/// The highest node that begins with this block and has at most `most` blocks.
fn widest(blocks: u32, begin: u32, most: usize) -> Node {
    let mut node = Node::leaf(begin);
    while !node.is_root(blocks) {
        let parent = node.parent();
        let leaves = parent.leaves(blocks);
        if leaves.start != begin || leaves.len() > most {
            break;
        }
        node = parent;
    }
    node
}

/// Along the tree: neighbours first, then neighbouring sums.
fn tree_sum(sums: &[f64]) -> f64 {
    match sums {
        [] => 0.0,
        [only] => *only,
        several => {
            let (left, right) = several.split_at(several.len().next_power_of_two() / 2);
            tree_sum(left) + tree_sum(right)
        }
    }
}

/// The arrived parts of the norm over all stages, by layer and place among its parameters.
#[derive(Default)]
pub(crate) struct Squares(BTreeMap<(LayerId, u32), OfParameter>);

struct OfParameter {
    blocks: u32,
    sums: BTreeMap<Node, f64>,
}

impl Squares {
    /// Adds the sums of a worker.
    ///
    /// # Errors
    /// Another worker sent a different sum of the same blocks. Replicas must have the same
    /// gradients, to the bit.
    pub(crate) fn take(&mut self, squares: Vec<Square>) -> Result<(), String> {
        for Square { layer, number, blocks, node, sum } in squares {
            let parameter = self
                .0
                .entry((layer, number))
                .or_insert(OfParameter { blocks, sums: BTreeMap::new() });
            let before = parameter.sums.insert(node, sum);
            let differs = |before: f64| {
                before.to_bits() != sum.to_bits() && !(before.is_nan() && sum.is_nan())
            };
            if parameter.blocks != blocks || before.is_some_and(differs) {
                return Err(format!(
                    "found another norm for layer {} than another worker: one computes wrongly",
                    layer.0
                ));
            }
        }
        Ok(())
    }

    /// The norm over all parameters, in the order of layers, so that it does not depend on the cut.
    ///
    /// # Errors
    /// Some blocks of a gradient have not arrived, or a sum names blocks that do not exist.
    pub(crate) fn norm(&self) -> Result<f64, String> {
        let of_parameter =
            |((layer, _), OfParameter { blocks, sums }): (&(LayerId, u32), &OfParameter)| {
                root(*blocks, sums).ok_or_else(|| {
                    format!(
                        "sent norms that, with those of the others, are not all of layer {}",
                        layer.0
                    )
                })
            };
        Ok(self.0.iter().map(of_parameter).sum::<Result<f64, String>>()?.sqrt())
    }
}

/// The sum of all blocks, if each has arrived once.
fn root(blocks: u32, sums: &BTreeMap<Node, f64>) -> Option<f64> {
    let is_possible = |node: &Node| node.level <= u32::BITS && !node.leaves(blocks).is_empty();
    if blocks == 0 {
        return sums.values().all(|sum| *sum == 0.0).then_some(0.0);
    }
    let mut tree = Tree::new(blocks);
    let mut leaves = 0;
    for (node, sum) in sums {
        if !is_possible(node) {
            return None;
        }
        leaves += u64::try_from(node.leaves(blocks).len()).ok()?;
        let Ok(()) =
            tree.put(*node, *sum, |left, right| Ok::<_, std::convert::Infallible>(left + right));
    }
    tree.into_root().filter(|_| leaves == u64::from(blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums in which the order of adding shows.
    fn sums(blocks: u32) -> Vec<f64> {
        (0..blocks).map(|block| 1.0 / (1.0 + f64::from(block * 7 % 13))).collect()
    }

    fn in_parts(all: &[f64], parts: usize) -> BTreeMap<Node, f64> {
        let blocks = all.len() as u32;
        let cut = |part: usize| all.len() * part / parts;
        let part = |part: usize| summed(blocks, cut(part) as u32, &all[cut(part)..cut(part + 1)]);
        (0..parts).rev().flat_map(part).collect()
    }

    #[test]
    fn the_sum_is_the_same_in_any_parts() {
        for blocks in 1..70 {
            let all = sums(blocks);
            let whole = summed(blocks, 0, &all);
            assert_eq!(whole.len(), 1, "{blocks}");
            for parts in 1..7 {
                let found = root(blocks, &in_parts(&all, parts)).unwrap();
                assert_eq!(
                    found.to_bits(),
                    whole[0].1.to_bits(),
                    "{blocks} blocks in {parts} parts"
                );
            }
        }
    }

    #[test]
    fn what_is_missing_or_cannot_be_is_no_sum() {
        let mut parts = in_parts(&sums(9), 3);
        let (node, sum) = parts.pop_first().unwrap();
        assert_eq!(root(9, &parts), None);
        for stray in [
            Node { level: 40, index: 0 },
            Node { level: 0, index: 9 },
            Node { level: 3, index: u32::MAX },
        ] {
            let parts = parts.clone().into_iter().chain([(stray, sum)]).collect();
            assert_eq!(root(9, &parts), None, "{stray:?}");
        }
        parts.insert(node, sum);
        assert!(root(9, &parts).is_some());
        parts.insert(node.parent(), sum);
        assert_eq!(root(9, &parts), None, "some twice");
        assert_eq!(root(0, &BTreeMap::new()), Some(0.0));
    }

    #[test]
    fn more_sums_than_blocks_are_left_out() {
        assert_eq!(summed(2, 0, &[1.0, 2.0, 4.0]).iter().map(|(_, sum)| sum).sum::<f64>(), 3.0);
        assert_eq!(summed(2, 5, &[1.0]), []);
        assert_eq!((blocks(0), blocks(1), blocks(257), blocks(u64::MAX)), (0, 1, 2, u32::MAX));
    }
}
