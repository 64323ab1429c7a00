//! The result of an evaluation, and how much of it is held at once.

use tch::Tensor;

/// The most bytes at the boss of batches that are evaluated together, and the most that wait at a
/// worker if it has more than one of them.
const MAX_BYTES: u64 = 256 << 20;

/// The bytes of a batch that is evaluated.
#[derive(Copy, Clone)]
pub(crate) struct BatchBytes {
    pub(crate) at_boss: u64,
    /// Those that the worker with the most of them receives from others.
    pub(crate) at_worker: u64,
}

/// The room for batches that are evaluated together.
pub(crate) struct EvaluationRoom {
    /// The number of batches that do not wait at workers.
    replicas: usize,
    most: usize,
    batches: usize,
    at_boss: u64,
    at_worker: u64,
}

impl EvaluationRoom {
    pub(crate) fn new(replicas: usize, most: usize) -> Self {
        EvaluationRoom { replicas, most, batches: 0, at_boss: 0, at_worker: 0 }
    }

    /// Whether there is room for another batch.
    pub(crate) fn is_left(&self) -> bool {
        self.batches < self.most
            && self.at_boss < MAX_BYTES
            && (self.batches < self.replicas || self.at_worker < MAX_BYTES)
    }

    pub(crate) fn take(&mut self, batch: BatchBytes) {
        self.batches += 1;
        self.at_boss = self.at_boss.saturating_add(batch.at_boss);
        self.at_worker = self.at_worker.saturating_add(batch.at_worker);
    }
}

/// Whether the outputs of a model travel to the boss.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Outputs {
    Fetch,
    /// In place of the first one comes the likeliest class of each target, unless another stage
    /// needs the output.
    Likeliest,
    Discard,
}

/// The result of [`crate::BossMan::evaluate`].
#[derive(Debug)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f32,
    /// The weight of the mean: the number of samples, or the sum of the class weights of targets if
    /// some are ignored or weighted.
    pub counted: f64,
    /// The model's outputs in their order, on the CPU.
    pub outputs: Vec<Tensor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_replica_has_a_batch_and_more_follow_while_there_is_room() {
        let batches = |replicas, most, at_boss: u64, at_worker: u64| {
            let mut room = EvaluationRoom::new(replicas, most);
            while room.is_left() {
                room.take(BatchBytes { at_boss: at_boss << 20, at_worker: at_worker << 20 });
            }
            room.batches
        };
        assert_eq!(batches(1, 8, 1, 1), 8);
        assert_eq!(batches(1, 8, 100, 1), 3);
        assert_eq!(batches(1, 8, 1, 100), 3);
        assert_eq!(batches(4, 64, 1, 300), 4);
        assert_eq!(batches(4, 64, 300, 300), 1);
    }
}
