//! The gradients of parameters: one for each layer that uses one, summed over microbatches.

use tch::{Kind, Tensor};
use tensor::{memory, products, TensorError};

/// The sum over the microbatches so far, in the order of the calls. Its memory stays from step to
/// step.
#[derive(Debug, Default)]
pub(crate) struct GradientBuffer {
    memory: Option<Tensor>,
    /// Whether the memory holds a sum. Otherwise it is only kept for later.
    filled: bool,
    /// Whether it is for one microbatch only. A term may then replace the memory instead of being
    /// copied to it.
    single_microbatch: bool,
    /// Whether a term has replaced the memory.
    adopted: bool,
}

impl GradientBuffer {
    /// A buffer for the gradient of one microbatch, in this memory if it needs some.
    pub(crate) fn single_microbatch(memory: Option<Tensor>) -> Self {
        GradientBuffer { memory, single_microbatch: true, ..GradientBuffer::default() }
    }

    /// The sum, if there is one, and memory that was not needed.
    pub(crate) fn into_parts(self) -> (Option<Tensor>, Option<Tensor>) {
        match self.filled {
            true => (self.memory, None),
            false => (None, self.memory),
        }
    }

    /// Whether it uses the memory of the gradient itself, so that it needs none.
    pub(crate) fn adopts_memory(&self) -> bool {
        self.adopted
    }

    pub(crate) fn get(&self) -> Option<&Tensor> {
        self.memory.as_ref().filter(|_| self.filled)
    }

    pub(crate) fn clear(&mut self) {
        self.filled = false;
    }

    /// The sum with its memory; the next one gets new memory.
    pub(crate) fn take(&mut self) -> Option<Tensor> {
        let filled = std::mem::take(&mut self.filled);
        self.memory.take().filter(|_| filled)
    }

    /// Adds a term. After an error the sum is void.
    pub(crate) fn add(&mut self, term: Tensor) -> Result<(), TensorError> {
        let can_stand_for_it =
            || memory::is_uniquely_owned(&term) && memory::has_canonical_strides(&term);
        match (&mut self.memory, self.filled) {
            (Some(sum), true) => drop(sum.f_add_(&term)?),
            (Some(memory), false) if !(self.single_microbatch && can_stand_for_it()) => {
                memory.f_copy_(&term)?
            }
            (memory, _) => {
                self.adopted = can_stand_for_it();
                *memory = Some(if self.adopted { term } else { copied(&term)? });
            }
        }
        self.filled = true;
        Ok(())
    }

    /// Adds a term of a 16-bit type in float32, without a copy of it in float32 if there is memory
    /// for the sum. After an error the sum is void.
    pub(crate) fn add_rounded(&mut self, term: Tensor) -> Result<(), TensorError> {
        match (&mut self.memory, self.filled) {
            (Some(sum), true) => drop(sum.f_add_(&term)?),
            (Some(memory), false) => memory.f_copy_(&term)?,
            (None, _) => return self.add(term.f_to_kind(Kind::Float)?),
        }
        self.filled = true;
        Ok(())
    }

    /// Adds a sum without other references, and returns the memory that becomes free.
    pub(crate) fn add_owned(&mut self, term: Tensor) -> Result<Option<Tensor>, TensorError> {
        if let (Some(sum), true) = (&mut self.memory, self.filled) {
            let _same = sum.f_add_(&term)?;
            return Ok(Some(term));
        }
        self.filled = true;
        Ok(self.memory.replace(term))
    }

    /// Adds a sum in slices, which together fill the range.
    pub(crate) fn add_slices(
        &mut self,
        range: &GradientRange<'_>,
        slices: &[GradientSlice],
    ) -> Result<(), TensorError> {
        let sum = match &mut self.memory {
            Some(memory) => memory,
            memory => {
                let options = (range.param.f_kind()?, range.param.device());
                memory.insert(Tensor::f_empty(&range.size[..], options)?)
            }
        };
        let flat = sum.f_view([-1])?;
        for GradientSlice { first, tensor } in slices {
            let mut place = flat.f_narrow(0, *first - range.first, tensor.numel() as i64)?;
            match self.filled {
                true => drop(place.f_add_(tensor)?),
                false => place.f_copy_(tensor)?,
            }
        }
        self.filled = true;
        Ok(())
    }

    /// Adds `leftᵀ · right`. Needs no temporary of its size if this processor's product [adds
    /// last](tensor::products::addmm_adds_last).
    ///
    /// That is to the bit the product and then the sum, as autograd does it, for inner dimensions
    /// up to 256; for longer ones libtorch's product adds in several rounds. Vectors and
    /// single rows have kernels of their own, which round in other places: their product is taken
    /// apart.
    pub(crate) fn add_product(&mut self, left: &Tensor, right: &Tensor) -> Result<(), TensorError> {
        let is_narrow = |tensor: &Tensor| tensor.size().contains(&1);
        let left_is_narrow = is_narrow(left);
        let left = left.f_tr()?;
        if self.filled
            && (left_is_narrow || is_narrow(right) || !products::addmm_adds_last(left.device()))
        {
            return self.add(left.f_mm(right)?);
        }
        match (&mut self.memory, self.filled) {
            (Some(sum), true) => drop(sum.f_addmm_(&left, right)?),
            (Some(memory), false) => drop(left.f_mm_out(memory, right)?),
            (memory, _) => *memory = Some(left.f_mm(right)?),
        }
        self.filled = true;
        Ok(())
    }

    /// The sum, to add to in place. Zeros like `param` if it is empty.
    pub(crate) fn or_zeros(&mut self, param: &Tensor) -> Result<Tensor, TensorError> {
        let sum = match &mut self.memory {
            Some(memory) => memory,
            memory => memory.insert(param.f_detach()?.f_zeros_like()?),
        };
        if !self.filled {
            let _same = sum.f_zero_()?;
        }
        self.filled = true;
        Ok(sum.shallow_clone())
    }
}

/// The elements of a parameter whose gradient a buffer holds.
pub(crate) struct GradientRange<'a> {
    pub(crate) param: &'a Tensor,
    /// The shape of the gradient.
    pub(crate) size: Vec<i64>,
    /// The element of the parameter at which it begins.
    pub(crate) first: i64,
}

/// Some elements of a parameter's gradient, flat.
pub(crate) struct GradientSlice {
    /// The element of the parameter at which the slice begins.
    pub(crate) first: i64,
    pub(crate) tensor: Tensor,
}

fn copied(term: &Tensor) -> Result<Tensor, TensorError> {
    let mut copy = Tensor::f_empty(term.size(), (term.f_kind()?, term.device()))?;
    copy.f_copy_(term)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn a_rounded_term_adds_what_its_copy_in_float32_does() {
        let term = |factor: f64| {
            let numbers = (Tensor::arange(60, (Kind::Float, Device::Cpu)) * factor).sin();
            numbers.view([6, 10]).to_kind(Kind::BFloat16)
        };
        let kept = || Some(Tensor::zeros([6, 10], (Kind::Float, Device::Cpu)));
        let buffers = [
            GradientBuffer::default(),
            GradientBuffer { memory: kept(), ..GradientBuffer::default() },
            GradientBuffer::single_microbatch(kept()),
        ];
        for mut rounded in buffers {
            let mut whole = GradientBuffer::default();
            for factor in [0.3, 0.7, 1.1] {
                rounded.add_rounded(term(factor)).unwrap();
                whole.add(term(factor).to_kind(Kind::Float)).unwrap();
            }
            let (rounded, whole) = (rounded.get().unwrap(), whole.get().unwrap());
            assert_eq!(rounded.kind(), Kind::Float);
            assert!(rounded.equal(whole));
        }
    }
}
