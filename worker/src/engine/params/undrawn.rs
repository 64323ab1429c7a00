//! Initial values that are not drawn yet. A run that loads its state needs none of them, and
//! drawing takes longer than copying.

use layerspec::Init;
use std::ops::Range;
use tch::{Device, Tensor};
use tensor::random::Key;
use tensor::TensorError;

/// How to draw the values of a parameter whose memory has none.
#[derive(Debug)]
pub(crate) struct Undrawn {
    distribution: Distribution,
    key: Key,
    /// The first elements, which have values already. Drawing leaves them.
    set: i64,
}

#[derive(Debug, Clone, Copy)]
enum Distribution {
    Uniform { low: f64, high: f64 },
    Normal { mean: f64, std: f64, zero_row: Option<i64> },
}

/// What is left to draw after elements are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// All elements have values.
    Nothing,
    /// The elements behind those that are set.
    Rest,
    /// Also elements before them.
    Gap,
}

impl Undrawn {
    /// `None` if nothing is to be drawn for this initialisation.
    pub(crate) fn new(init: &Init, key: Key) -> Option<Self> {
        let normal = |mean, std, zero_row| Distribution::Normal { mean, std, zero_row };
        let distribution = match *init {
            Init::Uniform { low, high } => Distribution::Uniform { low, high },
            Init::Normal { mean, std } => normal(mean, std, None),
            Init::NormalZeroRow { mean, std, zero_row } => {
                normal(mean, std, Some(i64::try_from(zero_row).unwrap_or(i64::MAX)))
            }
            Init::Zeros | Init::Ones | Init::Constant { .. } | Init::File => return None,
        };
        Some(Undrawn { distribution, key, set: 0 })
    }

    /// Notes that these elements of `all` get values. Behind a gap it notes nothing: draw first.
    pub(crate) fn note_set(&mut self, elements: &Range<i64>, all: i64) -> Left {
        if elements.start > self.set {
            return Left::Gap;
        }
        self.set = self.set.max(elements.end);
        if self.set < all {
            Left::Rest
        } else {
            Left::Nothing
        }
    }

    /// Draws the elements that have no values. The result is the same as if all were drawn first.
    pub(crate) fn draw(&self, target: &Tensor) -> Result<(), TensorError> {
        tch::no_grad(|| {
            if self.set == 0 && target.device() == Device::Cpu {
                return self.fill(target);
            }
            // Always drawn on the CPU, so that the device does not show.
            let drawn = Tensor::f_empty(target.size(), (target.f_kind()?, Device::Cpu))?;
            self.fill(&drawn)?;
            let count = target.numel() as i64 - self.set;
            let rest = |of: &Tensor| of.f_view([-1])?.f_narrow(0, self.set, count);
            rest(target)?.f_copy_(&rest(&drawn)?)?;
            Ok(())
        })
    }

    fn fill(&self, target: &Tensor) -> Result<(), TensorError> {
        let mut stream = self.key.stream(Device::Cpu)?;
        match self.distribution {
            Distribution::Uniform { low, high } => stream.fill_uniform(target, low, high),
            Distribution::Normal { mean, std, zero_row } => {
                stream.fill_normal(target, mean, std)?;
                if let Some(row) = zero_row {
                    let _row = target.f_select(0, row)?.f_zero_()?;
                }
                Ok(())
            }
        }
    }
}
