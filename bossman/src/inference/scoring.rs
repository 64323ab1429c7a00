//! Computes the score of a model on data.

use super::score::Score;
use crate::data::batch_inputs::Inputs;
use crate::data::loss_weights::{expect_counted, has_counted_targets};
use crate::data::read_ahead::ReadAhead;
use crate::session::evaluation::Outputs;
use crate::Batch;
use crate::{BossMan, BossManError};
use pipeline::loss::Classes;
use tch::{Kind, Tensor};
use tensor::TensorError;

impl Score {
    /// Computes the score over these batches.
    ///
    /// # Errors
    /// As [`BossMan::evaluate`], and those of the batches.
    pub async fn of(
        boss: &mut BossMan,
        batches: impl IntoIterator<Item = Result<Batch, BossManError>>,
    ) -> Result<Self, BossManError> {
        Self::of_read(boss, ReadAhead::in_memory(batches.into_iter())).await
    }

    /// Computes the score over batches that may still be read.
    ///
    /// # Errors
    /// Those of [`Score::of`].
    pub(crate) async fn of_read<I: Iterator<Item = Result<Batch, BossManError>>>(
        boss: &mut BossMan,
        mut batches: ReadAhead<I>,
    ) -> Result<Self, BossManError> {
        let classes = boss.trainer.loss.as_ref().and_then(|loss| loss.classes()).cloned();
        let (mut loss, mut counted, mut right, mut targets) = (0.0, 0.0, 0.0, 0.0);
        let outputs = if classes.is_some() { Outputs::Likeliest } else { Outputs::Discard };
        loop {
            // Several for each stage and replica. Results are added in the order of batches, so
            // that the sum does not depend on the workers.
            let (mut group, mut room) = (Vec::new(), boss.trainer.evaluation_room());
            while room.is_left() {
                let Some(batch) = batches.next().await? else { break };
                if has_counted_targets(boss.trainer.loss.as_ref(), batch.target())? {
                    let inputs = Inputs::of(boss.model().graph(), &batch)?;
                    room.take(boss.trainer.batch_bytes(&inputs, outputs));
                    group.push(batch);
                }
            }
            if group.is_empty() {
                break;
            }
            let found = boss.trainer.evaluate_batches(&group, outputs).await?;
            for (batch, found) in group.iter().zip(found) {
                loss += f64::from(found.loss) * found.counted;
                counted += found.counted;
                if let (Some(classes), Some(output), Some(target)) =
                    (&classes, found.outputs.first(), batch.target())
                {
                    let (of_batch, all) = correct(output, target, classes)?;
                    right += of_batch;
                    targets += all;
                }
            }
        }
        expect_counted(counted)?;
        let accuracy = classes.is_some().then(|| right / f64::max(targets, 1.0));
        Ok(Score { loss: loss / counted, accuracy })
    }
}

/// The number of targets with the largest logit, and the number of targets that are not ignored.
/// `output` has the logits, or already the likeliest class of each target.
fn correct(output: &Tensor, target: &Tensor, classes: &Classes) -> Result<(f64, f64), TensorError> {
    let counted = target.f_ne(classes.ignore_index)?;
    let largest = match output.size() == target.size() {
        true => output.shallow_clone(),
        false => output.f_argmax(classes.class_dim.dim(), false)?,
    };
    let right = largest.f_eq_tensor(target)?.f_logical_and(&counted)?;
    let sum = |tensor: &Tensor| -> Result<f64, TensorError> {
        Ok(tensor.f_sum(Kind::Double)?.f_double_value(&[])?)
    };
    Ok((sum(&right)?, sum(&counted)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn logits_and_the_likeliest_classes_count_alike() {
        let logits = (Tensor::arange(24, (Kind::Float, Device::Cpu)) * 0.7).sin().view([2, 3, 4]);
        let target = Tensor::from_slice(&[0i64, 2, -100, 1, 2, 2, 0, 1]).view([2, 4]);
        let classes = Classes::default();
        let found = correct(&logits, &target, &classes).unwrap();
        let likeliest = logits.argmax(1, false);
        assert_eq!(correct(&likeliest, &target, &classes).unwrap(), found);
        assert!(found.0 > 0.0 && found.1 == 7.0, "{found:?}");
    }
}
