//! The gradients of parameters: one for each layer that uses one, summed over microbatches.

use super::layer::OpNode;
use tch::Tensor;
use tensor::{memory, products, TensorError};

/// The sum over the microbatches so far, in the order of the calls. Its memory stays from step to step.
#[derive(Debug, Default)]
pub(super) struct GradientBuffer {
    memory: Option<Tensor>,
    /// Whether the memory holds a sum; else it is only kept.
    filled: bool,
    /// Whether it is of one microbatch only: a term that can stand for the sum need not be copied to the memory.
    single_microbatch: bool,
    /// Whether a term has come to stand for the sum.
    adopted: bool,
}

impl GradientBuffer {
    /// The gradient of one microbatch, in this memory if it needs some.
    pub(super) fn single_microbatch(memory: Option<Tensor>) -> Self {
        GradientBuffer { memory, single_microbatch: true, ..GradientBuffer::default() }
    }

    /// The sum, if there is one, and memory that was not needed.
    pub(super) fn into_parts(self) -> (Option<Tensor>, Option<Tensor>) {
        match self.filled {
            true => (self.memory, None),
            false => (None, self.memory),
        }
    }

    /// Whether its memory was made by what made the gradient, so that it needs none.
    pub(super) fn adopts_memory(&self) -> bool {
        self.adopted
    }

    pub(super) fn get(&self) -> Option<&Tensor> {
        self.memory.as_ref().filter(|_| self.filled)
    }

    pub(super) fn clear(&mut self) {
        self.filled = false;
    }

    /// The sum with its memory; the next one gets new memory.
    pub(super) fn take(&mut self) -> Option<Tensor> {
        let filled = std::mem::take(&mut self.filled);
        self.memory.take().filter(|_| filled)
    }

    /// Adds a term. After an error the sum is void.
    pub(super) fn add(&mut self, term: Tensor) -> Result<(), TensorError> {
        let can_stand_for_it = || memory::is_uniquely_owned(&term) && memory::has_canonical_strides(&term);
        match (&mut self.memory, self.filled) {
            (Some(sum), true) => drop(sum.f_add_(&term)?),
            (Some(memory), false) if !(self.single_microbatch && can_stand_for_it()) => memory.f_copy_(&term)?,
            (memory, _) => {
                self.adopted = can_stand_for_it();
                *memory = Some(if self.adopted { term } else { copied(&term)? });
            }
        }
        self.filled = true;
        Ok(())
    }

    /// Adds a sum that nobody else refers to, and gives back memory that is free then.
    pub(super) fn add_owned(&mut self, term: Tensor) -> Result<Option<Tensor>, TensorError> {
        if let (Some(sum), true) = (&mut self.memory, self.filled) {
            let _same = sum.f_add_(&term)?;
            return Ok(Some(term));
        }
        self.filled = true;
        Ok(self.memory.replace(term))
    }

    /// Adds a sum that came in parts which together are all of it. It has this size and is of this parameter; each part
    /// begins at an element of the parameter, and the sum at the element `first`.
    pub(super) fn add_parts(
        &mut self,
        (size, param): (&[i64], &Tensor),
        first: i64,
        parts: &[(i64, Tensor)],
    ) -> Result<(), TensorError> {
        let sum = match &mut self.memory {
            Some(memory) => memory,
            memory => memory.insert(Tensor::f_empty(size, (param.f_kind()?, param.device()))?),
        };
        let flat = sum.f_view([-1])?;
        for (begin, part) in parts {
            let mut place = flat.f_narrow(0, *begin - first, part.numel() as i64)?;
            match self.filled {
                true => drop(place.f_add_(part)?),
                false => place.f_copy_(part)?,
            }
        }
        self.filled = true;
        Ok(())
    }

    /// Adds `leftᵀ · right`, without a temporary of its size where this processor's product
    /// [adds last](tensor::products::addmm_adds_last).
    ///
    /// That is to the bit the product and then the sum, as autograd does it, for inner dimensions up to 256; where they are
    /// longer libtorch's product adds in several rounds. Vectors and single rows have kernels of their own, which round
    /// in other places: their product is taken apart.
    pub(super) fn add_product(&mut self, left: &Tensor, right: &Tensor) -> Result<(), TensorError> {
        let is_narrow = |tensor: &Tensor| tensor.size().contains(&1);
        let left_is_narrow = is_narrow(left);
        let left = left.f_tr()?;
        if self.filled && (left_is_narrow || is_narrow(right) || !products::addmm_adds_last(left.device())) {
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

    /// The sum to be added to in place; zeros like `param` where there is none yet.
    pub(super) fn or_zeros(&mut self, param: &Tensor) -> Result<Tensor, TensorError> {
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

fn copied(term: &Tensor) -> Result<Tensor, TensorError> {
    let mut copy = Tensor::f_empty(term.size(), (term.f_kind()?, term.device()))?;
    copy.f_copy_(term)?;
    Ok(copy)
}

/// The gradients of one op's parameters.
pub(super) struct OpGradients<'a> {
    node: &'a OpNode,
    /// By the layer's own order of parameters.
    layer: &'a mut [GradientBuffer],
}

impl<'a> OpGradients<'a> {
    pub(super) fn new(node: &'a OpNode, layer: &'a mut [GradientBuffer]) -> Self {
        OpGradients { node, layer }
    }

    /// Has sums made apart, and adds what they come to, as another type, to these.
    pub(super) fn add_converted(
        &mut self,
        work: impl FnOnce(&mut OpGradients<'_>) -> Result<(), TensorError>,
        convert: impl Fn(Tensor) -> Result<Tensor, TensorError>,
    ) -> Result<(), TensorError> {
        let mut apart: Vec<GradientBuffer> = self.layer.iter().map(|_| GradientBuffer::default()).collect();
        work(&mut OpGradients::new(self.node, &mut apart))?;
        for (sum, mut apart) in self.layer.iter_mut().zip(apart) {
            if let Some(term) = apart.take() {
                sum.add(convert(term)?)?;
            }
        }
        Ok(())
    }

    /// The gradient of the parameter that the op calls so; none where it is not trained.
    pub(super) fn buffer(&mut self, role: &str) -> Option<&mut GradientBuffer> {
        let param = self.node.params.iter().find(|param| param.role == role && param.trained)?;
        self.layer.get_mut(param.place)
    }
}
