use super::{Call, Module};
use layerspec::layers::Dropout;
use tch::Tensor;
use tensor::TensorError;

impl Module for Dropout {
    fn forward(&self, call: &Call<'_>) -> Result<Vec<Tensor>, TensorError> {
        let input = call.input()?;
        if !call.training() || self.p == 0.0 {
            return Ok(vec![input.shallow_clone()]);
        }
        let keep = 1.0 - self.p;
        let mut mask = call.random("dropout")?.bernoulli_mask(&input.size(), input.f_kind()?, keep)?;
        // With everything dropped the mask is zero, and there is nothing to scale.
        if keep > 0.0 {
            let _same = mask.f_div_scalar_(keep)?;
        }
        Ok(vec![input.f_mul(&mask)?])
    }
}
