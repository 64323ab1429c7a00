//! The tensors of the new folder. Each is read from the weights or the source when it is written.

use super::part::Part;
use super::plan::Plan;
use crate::weights::export::written;
use crate::weights::tensor_headers::TensorHeaders;
use crate::weights::tensor_source::{as_type, missing, TensorSource};
use crate::BossManError;
use layerspec::DType;
use pipeline::TensorMeta;
use std::collections::BTreeMap;
use std::ops::Range;
use tch::Tensor;

/// The tensors of the source, with the values of these weights.
pub(super) struct Assembled<'a> {
    weights: &'a dyn TensorSource,
    source: &'a TensorHeaders,
    /// The type of floating-point parameters. `None` is that of the source.
    dtype: Option<DType>,
    tensors: BTreeMap<String, Planned<'a>>,
}

struct Planned<'a> {
    made_of: MadeOf<'a>,
    /// Its type and shape when it is written.
    meta: TensorMeta,
}

/// Where the elements of a tensor come from.
enum MadeOf<'a> {
    /// A parameter, or rows of one.
    Part(&'a Part),
    /// The parameter of the same name.
    Parameter,
    /// The tensor of the source, as it is.
    Copy,
}

impl<'a> Assembled<'a> {
    /// Finds what each tensor is made of. Reads tensors of the source only if it compares them.
    ///
    /// # Errors
    /// A tensor is missing, or the source cannot be read.
    pub(super) fn new(
        plan: &'a Plan,
        weights: &'a dyn TensorSource,
        source: &'a TensorHeaders,
        dtype: Option<DType>,
    ) -> Result<Self, BossManError> {
        let mut tensors = BTreeMap::new();
        let of_part = |part: &'a Part, meta| Planned { made_of: MadeOf::Part(part), meta };
        for (name, part) in &plan.parts {
            tensors.insert(name.clone(), of_part(part, part.meta(dtype)));
        }
        for name in &plan.copied {
            let meta = source.get(name).ok_or_else(|| missing(name))?.clone();
            let planned = match plan.twin(name, source)? {
                Some(twin) => of_part(twin, twin.meta(dtype)),
                None => Planned { made_of: MadeOf::Copy, meta },
            };
            tensors.insert(name.clone(), planned);
        }
        let metas = weights.metas()?;
        for name in &plan.fresh {
            let TensorMeta { dtype: own, shape } =
                metas.get(name).ok_or_else(|| missing(name))?.clone();
            let meta = TensorMeta { dtype: written(own, dtype), shape };
            tensors.insert(name.clone(), Planned { made_of: MadeOf::Parameter, meta });
        }
        Ok(Assembled { weights, source, dtype, tensors })
    }
}

impl TensorSource for Assembled<'_> {
    fn metas(&self) -> Result<BTreeMap<String, TensorMeta>, BossManError> {
        let meta = |(name, planned): (&String, &Planned<'_>)| (name.clone(), planned.meta.clone());
        Ok(self.tensors.iter().map(meta).collect())
    }

    fn has_slices(&self, name: &str) -> bool {
        self.tensors.get(name).is_some_and(|planned| match planned.made_of {
            MadeOf::Part(part) => part.has_slices(self.weights),
            MadeOf::Parameter => self.weights.has_slices(name),
            MadeOf::Copy => self.source.has_slices(name),
        })
    }

    fn elements(&self, name: &str, elements: Range<u64>) -> Result<Tensor, BossManError> {
        let planned = self.tensors.get(name).ok_or_else(|| missing(name))?;
        match planned.made_of {
            MadeOf::Part(part) => part.elements(self.weights, elements, self.dtype),
            MadeOf::Parameter => {
                as_type(name, &self.weights.elements(name, elements)?, planned.meta.dtype)
            }
            MadeOf::Copy => self.source.elements(name, elements),
        }
    }
}
