//! Models that take batches of one size only: an input begins with a number, not with a word as `batch`.

use crate::run_file::RunFile;
use crate::BossManError;
use layerspec::LayerGraph;

/// The one size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FixedBatch {
    pub(crate) samples: u64,
    /// The input that has it, with its type.
    input: String,
    /// Whether it is the first input's, so that a batch cannot be cut.
    first: bool,
}

impl FixedBatch {
    /// Nothing where the model takes batches of any size.
    pub(crate) fn of(graph: &LayerGraph) -> Option<Self> {
        let mut inputs = graph.inputs().iter().map(|id| graph.value(*id)).enumerate();
        inputs.find_map(|(place, value)| {
            let samples = value.ty.dims().first()?.as_fixed()?;
            Some(FixedBatch { samples, input: format!("`{}` is {}", value.name, value.ty), first: place == 0 })
        })
    }

    /// Whether so many steps of a run over so many samples have batches of this size, and no other.
    pub(crate) fn check_run(&self, file: &RunFile, samples: u64, steps: u64) -> Result<(), BossManError> {
        let FixedBatch { samples: size, input, first } = self;
        if file.batch_size != *size {
            return Err(BossManError::Usage(format!(
                "`batch_size: {}`, but the model's input {input}; give the batches {size} samples, {}",
                file.batch_size,
                self.alternative()
            )));
        }
        if *first && file.microbatches > 1 {
            return Err(BossManError::Usage(format!(
                "`microbatches: {}`, but the model's input {input}, which cannot be cut; leave `microbatches` out, {}",
                file.microbatches,
                self.alternative()
            )));
        }
        // The steps of an epoch but for a short one at its end.
        if steps > samples / size {
            self.check_divisible("the training data", samples)?;
        }
        Ok(())
    }

    /// Whether workers that come and go can share such a batch out among them.
    pub(crate) fn check_pool(&self) -> Result<(), BossManError> {
        match self.first {
            true => Err(BossManError::Usage(format!(
                "workers that come and go share out a batch's microbatches, but the model's input {}, which cannot be cut; train \
                 with a fixed number of workers, {}",
                self.input,
                self.alternative()
            ))),
            false => Ok(()),
        }
    }

    /// Whether all batches of these samples are whole.
    pub(crate) fn check_divisible(&self, what: &str, samples: u64) -> Result<(), BossManError> {
        let left = samples % self.samples;
        if left == 0 {
            return Ok(());
        }
        Err(BossManError::Usage(format!(
            "the model's input {}, but the last batch of {what}, {samples} samples, would have {left}; leave {left} out, {}",
            self.input,
            self.alternative()
        )))
    }

    fn alternative(&self) -> &'static str {
        "or write a word as `batch` for the size in the model file"
    }
}
