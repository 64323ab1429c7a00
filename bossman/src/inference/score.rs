//! How well a model does on data it was not trained on.

use crate::data::batch_inputs::Inputs;
use crate::data::loss_weights::has_counted_targets;
use crate::inference::evaluate::MAX_EVALUATION_BYTES;
use crate::Batch;
use crate::{BossMan, BossManError};
use std::fmt;
use tch::{Kind, Tensor};
use tensor::TensorError;

/// Means over data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The loss that the model was trained with.
    pub loss: f64,
    /// Where targets are classes: the share, from 0 to 1, of those not ignored whose logit is the largest.
    pub accuracy: Option<f64>,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.accuracy {
            Some(share) => write!(f, "accuracy {:.2} %, loss {:.4}", share * 100.0, self.loss),
            None => write!(f, "loss {:.6}", self.loss),
        }
    }
}

impl Score {
    /// Over these batches.
    ///
    /// # Errors
    /// As [`BossMan::evaluate`], and those of the batches.
    pub async fn of(
        boss: &mut BossMan,
        batches: impl IntoIterator<Item = Result<Batch, BossManError>>,
    ) -> Result<Self, BossManError> {
        let ignored = boss.settings.loss.as_ref().and_then(|loss| loss.classes()).map(|classes| classes.ignore_index);
        let (mut loss, mut counted, mut right, mut targets) = (0.0, 0.0, 0.0, 0.0);
        let mut batches = batches.into_iter().fuse();
        loop {
            // One for each replica. They are added up in their order, so that how many there are makes no difference.
            let (mut group, mut bytes) = (Vec::new(), 0u64);
            while group.len() < boss.plan.batches_at_once() && bytes < MAX_EVALUATION_BYTES {
                let Some(batch) = batches.next().transpose()? else { break };
                if has_counted_targets(boss.settings.loss.as_ref(), batch.target())? {
                    bytes = bytes.saturating_add(boss.batch_bytes(&Inputs::of(boss.model().graph(), &batch)?));
                    group.push(batch);
                }
            }
            if group.is_empty() {
                break;
            }
            let found = boss.evaluate_batches(&group, ignored.is_some()).await?;
            for (batch, found) in group.iter().zip(found) {
                loss += f64::from(found.loss) * found.counted;
                counted += found.counted;
                if let (Some(ignored), Some(output), Some(target)) = (ignored, found.outputs.first(), batch.target()) {
                    let (of_batch, all) = correct(output, target, ignored)?;
                    right += of_batch;
                    targets += all;
                }
            }
        }
        let accuracy = ignored.is_some().then(|| right / f64::max(targets, 1.0));
        Ok(Score { loss: loss / f64::max(counted, f64::MIN_POSITIVE), accuracy })
    }
}

/// The number of targets with the largest logit, and the number of targets that are not ignored.
fn correct(output: &Tensor, target: &Tensor, ignored: i64) -> Result<(f64, f64), TensorError> {
    let counted = target.f_ne(ignored)?;
    let right = output.f_argmax(1, false)?.f_eq_tensor(target)?.f_logical_and(&counted)?;
    let sum = |tensor: &Tensor| -> Result<f64, TensorError> { Ok(tensor.f_sum(Kind::Double)?.f_double_value(&[])?) };
    Ok((sum(&right)?, sum(&counted)?))
}
