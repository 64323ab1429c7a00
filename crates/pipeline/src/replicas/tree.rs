//! The order in which the gradients of a batch's microbatches are summed.
//!
//! It is a binary tree over the microbatches, as in RFC 6962: neighbours are summed first, then
//! neighbouring sums. A node without a right neighbour moves up unchanged.
//!
//! ```text
//! 0   1   2   3   4
//!  \ /     \ /    |      level 1
//!   01      23    4
//!     \    /      |      level 2
//!      0123       4
//!          \     /       level 3
//!           01234
//! ```
//!
//! A sum of floating-point numbers depends on the order of its additions. Here that order depends
//! only on the number of microbatches. So the sum is equal to the bit for every assignment of
//! microbatches to replicas and every order of arrival. A replica adds its own neighbours and sends
//! the sums that remain: one tensor if it took a whole branch.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The sum of the existing microbatches from `index << level` to below `(index + 1) << level`.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Node {
    /// The height in the tree: 0 for a single microbatch.
    pub level: u32,
    /// The position in its level, from the left.
    pub index: u32,
}

impl Node {
    /// A single microbatch.
    pub fn leaf(microbatch: u32) -> Self {
        Node { level: 0, index: microbatch }
    }

    /// The node above.
    pub(crate) fn parent(self) -> Node {
        Node { level: self.level + 1, index: self.index / 2 }
    }

    /// The parent, and the sibling whose sum is added there. `None` if there is no sibling, because
    /// no microbatch is to the right.
    fn up(self, microbatches: u32) -> (Node, Option<Node>) {
        let parent = self.parent();
        let sibling = Node { level: self.level, index: self.index ^ 1 };
        let begins = u64::from(sibling.index) << sibling.level;
        (parent, (begins < u64::from(microbatches)).then_some(sibling))
    }

    /// Whether `other` is the right sibling of this node.
    pub(crate) fn is_left_of(self, other: Node, microbatches: u32) -> bool {
        self < other && self.up(microbatches).1 == Some(other)
    }

    /// The highest node with the same microbatches as this node and its sibling together.
    pub(crate) fn with(self, microbatches: u32) -> Node {
        let mut node = self.parent();
        while !node.is_root(microbatches) {
            match node.up(microbatches) {
                (parent, None) => node = parent,
                (_, Some(_)) => break,
            }
        }
        node
    }

    /// Whether it is the sum of all microbatches.
    pub(crate) fn is_root(self, microbatches: u32) -> bool {
        self.index == 0 && 1u64 << self.level >= u64::from(microbatches)
    }

    /// The leaves in it, of a tree over `of` leaves.
    pub fn leaves(self, of: u32) -> std::ops::Range<u32> {
        let end = |index: u64| (index << self.level).min(u64::from(of)) as u32;
        end(self.index.into())..end(u64::from(self.index) + 1)
    }
}

/// The sums of a tree that have arrived, each added as far up as possible.
#[derive(Clone, PartialEq, Debug)]
pub struct Tree<T> {
    microbatches: u32,
    sums: BTreeMap<Node, T>,
}

impl<T> Tree<T> {
    /// An empty tree over this number of microbatches.
    pub fn new(microbatches: u32) -> Self {
        Tree { microbatches, sums: BTreeMap::new() }
    }

    /// Inserts a sum. While the sibling is present, adds the two with `add(left, right)` and
    /// continues with the parent. The order of arrival does not change which sums are added.
    pub fn put<E>(
        &mut self,
        node: Node,
        sum: T,
        mut add: impl FnMut(T, T) -> Result<T, E>,
    ) -> Result<(), E> {
        let (mut node, mut sum) = (node, sum);
        while !node.is_root(self.microbatches) {
            let (parent, sibling) = node.up(self.microbatches);
            match sibling {
                None => {}
                Some(sibling) => match self.sums.remove(&sibling) {
                    None => break,
                    Some(other) if sibling < node => sum = add(other, sum)?,
                    Some(other) => sum = add(sum, other)?,
                },
            }
            node = parent;
        }
        self.sums.insert(node, sum);
        Ok(())
    }

    /// The sums, from the lowest level up and from left to right. There is only one if the tree is
    /// complete.
    pub fn into_sums(self) -> impl Iterator<Item = (Node, T)> {
        self.sums.into_iter()
    }

    /// The sum of all microbatches, if all have arrived.
    pub fn into_root(self) -> Option<T> {
        let microbatches = self.microbatches;
        self.sums.into_iter().find(|(node, _)| node.is_root(microbatches)).map(|(_, sum)| sum)
    }
}

/// The nodes of the sums that a replica with these microbatches sends, in the order of
/// [`Tree::into_sums`].
pub fn nodes(microbatches: u32, taken: impl IntoIterator<Item = u32>) -> Vec<Node> {
    let mut tree = Tree::new(microbatches);
    for microbatch in taken {
        let Ok(()) =
            tree.put(Node::leaf(microbatch), (), |(), ()| Ok::<_, std::convert::Infallible>(()));
    }
    tree.into_sums().map(|(node, ())| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(left: String, right: String) -> Result<String, ()> {
        Ok(format!("({left}{right})"))
    }

    fn sum_of(microbatches: u32, order: impl IntoIterator<Item = u32>) -> String {
        let mut tree = Tree::new(microbatches);
        for m in order {
            tree.put(Node::leaf(m), m.to_string(), add).unwrap();
        }
        tree.into_root().unwrap()
    }

    #[test]
    fn the_tree_is_that_of_the_picture() {
        assert_eq!(sum_of(1, 0..1), "0");
        assert_eq!(sum_of(5, 0..5), "(((01)(23))4)");
        assert_eq!(sum_of(7, 0..7), "(((01)(23))((45)6))");
        assert_eq!(sum_of(8, 0..8), "(((01)(23))((45)(67)))");
    }

    #[test]
    fn the_order_of_arrival_and_the_deal_do_not_show() {
        for microbatches in 1..=13 {
            let wanted = sum_of(microbatches, 0..microbatches);
            assert_eq!(sum_of(microbatches, (0..microbatches).rev()), wanted);
            // Three replicas take turns, and each first adds its own neighbours.
            let mut all = Tree::new(microbatches);
            for replica in [2, 0, 1] {
                let taken: Vec<u32> = (0..microbatches).filter(|m| m / 2 % 3 == replica).collect();
                let mut own = Tree::new(microbatches);
                for m in &taken {
                    own.put(Node::leaf(*m), m.to_string(), add).unwrap();
                }
                let handed: Vec<Node> = own.clone().into_sums().map(|(node, _)| node).collect();
                assert_eq!(handed, nodes(microbatches, taken));
                for (node, sum) in own.into_sums() {
                    all.put(node, sum, add).unwrap();
                }
            }
            assert_eq!(all.into_root().unwrap(), wanted);
        }
    }

    #[test]
    fn two_neighbours_come_to_the_node_that_a_tree_has_them_come_to() {
        for microbatches in 1..=13 {
            let leaf = |m| nodes(microbatches, [m])[0];
            for (left, right) in
                (0..microbatches).flat_map(|l| (0..microbatches).map(move |r| (l, r)))
            {
                let both =
                    if left == right { Vec::new() } else { nodes(microbatches, [left, right]) };
                assert_eq!(
                    leaf(left).is_left_of(leaf(right), microbatches),
                    left < right && both.len() == 1
                );
                if both.len() == 1 {
                    assert_eq!([leaf(left).with(microbatches)], both[..]);
                }
            }
        }
    }

    #[test]
    fn whoever_took_a_whole_branch_hands_over_one_sum() {
        assert_eq!(nodes(8, 4..8), [Node { level: 2, index: 1 }]);
        assert_eq!(nodes(12, 8..12), [Node { level: 3, index: 1 }], "nothing is to its right");
        assert_eq!(nodes(8, 0..3).len(), 2);
        assert_eq!(nodes(8, []), []);
        assert_eq!(Node { level: 3, index: 1 }.leaves(12), 8..12);
    }
}
