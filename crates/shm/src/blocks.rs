//! The parts of a memory file that are in use. Only the writer knows them.

/// The most blocks, and so the most contents that the reader can hold at a time.
pub(crate) const BLOCKS: usize = 512;
/// Blocks are whole pages, so that no two blocks share a page.
const PAGE: usize = 4096;

/// A part of the file.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Block {
    pub(crate) offset: usize,
    pub(crate) capacity: usize,
    /// The number of its latest content; 0 before the first.
    pub(crate) generation: u64,
    free: bool,
}

/// A block for a content.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Allocation {
    /// The block with this number.
    Reused(usize),
    /// The same; its pages were never written.
    Fresh(usize),
}

/// The blocks of one file.
#[derive(Debug)]
pub(crate) struct BlockAllocator {
    blocks: Vec<Block>,
    /// The last content numbers of removed blocks. New numbers continue from there.
    retired: Vec<u64>,
    start: usize,
    end: usize,
    limit: usize,
    /// The end of the pages that were ever written.
    touched: usize,
}

impl BlockAllocator {
    /// No blocks yet, in the part of the file from `start` to `limit`.
    pub(crate) fn new(start: usize, limit: usize) -> Self {
        BlockAllocator {
            blocks: Vec::new(),
            retired: vec![0; BLOCKS],
            start,
            end: start,
            limit,
            touched: start,
        }
    }

    pub(crate) fn get(&self, number: usize) -> Option<&Block> {
        self.blocks.get(number)
    }

    /// A block for `len` bytes, or `None` while the reader holds too much. `returned` tells the
    /// latest content of a block that the reader has returned.
    ///
    /// Takes the first block that fits well. Blocks of equal size are in the order of their
    /// creation, so a block that is still in the processor's cache is used again soon.
    pub(crate) fn allocate(
        &mut self,
        len: usize,
        returned: impl Fn(usize) -> u64,
    ) -> Option<Allocation> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let mut best: Option<(usize, usize)> = None;
        let mut all_free = true;
        for (number, block) in self.blocks.iter_mut().enumerate() {
            block.free = block.free || returned(number) == block.generation;
            all_free &= block.free;
            if block.free
                && block.capacity >= len
                && best.is_none_or(|(_, capacity)| block.capacity < capacity)
            {
                best = Some((number, block.capacity));
                if block.capacity == len {
                    break;
                }
            }
        }
        let room = len <= self.limit - self.end && self.blocks.len() < BLOCKS;
        match best {
            // A block that is much too large is kept for larger contents while there is room for a
            // fitting one.
            Some((number, capacity)) if capacity / 2 <= len || !room => {
                Some(Allocation::Reused(number))
            }
            _ if room => Some(self.add(len)),
            // Blocks of sizes that are no longer needed make room once all have been returned.
            _ if all_free && len <= self.limit - self.start => {
                for (retired, block) in self.retired.iter_mut().zip(&self.blocks) {
                    *retired = block.generation;
                }
                self.blocks.clear();
                self.end = self.start;
                Some(self.add(len))
            }
            _ => None,
        }
    }

    fn add(&mut self, capacity: usize) -> Allocation {
        let number = self.blocks.len();
        let generation = self.retired.get(number).copied().unwrap_or(0);
        self.blocks.push(Block { offset: self.end, capacity, generation, free: true });
        self.end += capacity;
        let new = self.end > self.touched;
        self.touched = self.touched.max(self.end);
        if new {
            Allocation::Fresh(number)
        } else {
            Allocation::Reused(number)
        }
    }

    /// Removes the latest block, because there was no memory for it.
    pub(crate) fn undo_allocate(&mut self) {
        if let Some(block) = self.blocks.pop() {
            self.end = block.offset;
            // It may begin on pages that were written before. Reserving them again costs nothing.
            self.touched = self.touched.min(block.offset);
        }
    }

    /// Numbers the block's next content. The reader then holds the block.
    pub(crate) fn fill(&mut self, number: usize) -> Option<Block> {
        let block = self.blocks.get_mut(number)?;
        block.generation += 1;
        block.free = false;
        Some(*block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: usize = 8192;

    fn fill(
        blocks: &mut BlockAllocator,
        len: usize,
        returned: &[u64],
    ) -> Option<(Allocation, Block)> {
        let room = blocks.allocate(len, |i| returned.get(i).copied().unwrap_or(0))?;
        let (Allocation::Reused(number) | Allocation::Fresh(number)) = room;
        Some((room, blocks.fill(number).unwrap()))
    }

    #[test]
    fn a_block_is_used_again_once_it_came_back() {
        let mut blocks = BlockAllocator::new(START, START + 4 * PAGE);
        let (room, first) = fill(&mut blocks, 5000, &[]).unwrap();
        assert_eq!(
            (room, first.offset, first.capacity, first.generation),
            (Allocation::Fresh(0), START, 8192, 1)
        );
        let (room, second) = fill(&mut blocks, 8192, &[0, 0]).unwrap();
        assert_eq!(
            (room, second.offset, second.generation),
            (Allocation::Fresh(1), START + 8192, 1)
        );
        assert!(fill(&mut blocks, 1, &[0, 0]).is_none(), "both are with the reader");
        assert!(fill(&mut blocks, 1, &[7, 9]).is_none(), "contents that never were say nothing");
        let (room, again) = fill(&mut blocks, 8000, &[0, 1]).unwrap();
        assert_eq!(
            (room, again.offset, again.generation),
            (Allocation::Reused(1), START + 8192, 2)
        );
        assert!(
            fill(&mut blocks, 8000, &[0, 1]).is_none(),
            "its first generation came back, not its second"
        );
    }

    #[test]
    fn other_sizes_find_room_when_all_came_back() {
        let mut blocks = BlockAllocator::new(START, START + 4 * PAGE);
        for _ in 0..4 {
            fill(&mut blocks, PAGE, &[0; 4]).unwrap();
        }
        assert!(fill(&mut blocks, 4 * PAGE, &[1, 1, 1, 0]).is_none());
        let (room, whole) = fill(&mut blocks, 4 * PAGE, &[1; 4]).unwrap();
        assert_eq!(
            (room, whole.offset, whole.generation),
            (Allocation::Reused(0), START, 2),
            "numbers go on"
        );
        assert!(fill(&mut blocks, 4 * PAGE + 1, &[2; 4]).is_none(), "more than there is");
        assert!(fill(&mut blocks, usize::MAX, &[2; 4]).is_none());
    }

    #[test]
    fn a_large_block_is_kept_for_large_contents() {
        let mut blocks = BlockAllocator::new(START, START + 64 * PAGE);
        fill(&mut blocks, 16 * PAGE, &[]).unwrap();
        let (room, _) = fill(&mut blocks, PAGE, &[1]).unwrap();
        assert_eq!(room, Allocation::Fresh(1));
        let (room, _) = fill(&mut blocks, 10 * PAGE, &[1, 0]).unwrap();
        assert_eq!(room, Allocation::Reused(0));
    }

    #[test]
    fn never_more_blocks_than_the_file_has_numbers_for() {
        let mut blocks = BlockAllocator::new(START, usize::MAX);
        for _ in 0..BLOCKS {
            fill(&mut blocks, 1, &[]).unwrap();
        }
        assert!(fill(&mut blocks, 1, &[]).is_none());
    }
}
