//! Backward from given output gradients.

use crate::{ffi, TensorError};
use tch::Tensor;

/// The gradients of `inputs`, given the gradients of `outputs`: one for each input, `None` if no
/// output depends on it.
///
/// Nothing is added to any tensor's `.grad`, and the graph behind `outputs` is freed. Each output
/// must require a gradient, and `output_grads` must match `outputs` in number and shapes. A
/// gradient may share memory with one of `output_grads`: do not change it in place.
pub fn backward(
    outputs: &[&Tensor],
    output_grads: &[&Tensor],
    inputs: &[&Tensor],
) -> Result<Vec<Option<Tensor>>, TensorError> {
    if outputs.len() != output_grads.len() {
        let problem =
            format!("{} outputs but {} gradients for them", outputs.len(), output_grads.len());
        return Err(TensorError::invalid("backward", problem));
    }
    if inputs.is_empty() {
        return Ok(Vec::new());
    }
    let mut grads = vec![std::ptr::null_mut(); inputs.len()];
    // SAFETY: each list is as long as said and its tensors are borrowed for the call; `grads` has
    // room for one pointer per input.
    let status = unsafe {
        ffi::bm_grad(
            ffi::pointers(outputs).as_ptr(),
            ffi::pointers(output_grads).as_ptr(),
            outputs.len(),
            ffi::pointers(inputs).as_ptr(),
            inputs.len(),
            grads.as_mut_ptr(),
        )
    };
    ffi::check("backward", status)?;
    // SAFETY: each pointer that is not null is a new C++ tensor that is ours.
    Ok(grads
        .into_iter()
        .map(|grad| (!grad.is_null()).then(|| unsafe { Tensor::from_ptr(grad) }))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(values: &[f32]) -> Tensor {
        Tensor::from_slice(values).set_requires_grad(true)
    }

    #[test]
    fn gradients_follow_the_chain_rule_and_skip_the_unused() {
        let (x, y, unused) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]), leaf(&[5.0]));
        let product = &x * &y;
        let seed = Tensor::from_slice(&[1.0f32, 10.0]);
        let grads = backward(&[&product], &[&seed], &[&x, &unused, &y]).unwrap();
        assert_eq!(Vec::<f32>::try_from(grads[0].as_ref().unwrap()).unwrap(), [3.0, 40.0]);
        assert!(grads[1].is_none());
        assert_eq!(Vec::<f32>::try_from(grads[2].as_ref().unwrap()).unwrap(), [1.0, 20.0]);
        assert!(!x.grad().defined());
    }

    #[test]
    fn several_outputs_add_up() {
        let x = leaf(&[2.0]);
        let (a, b) = (&x * 3.0, &x * 5.0);
        let one = Tensor::from_slice(&[1.0f32]);
        let grads = backward(&[&a, &b], &[&one, &one], &[&x]).unwrap();
        assert_eq!(grads[0].as_ref().unwrap().double_value(&[0]), 8.0);
    }

    #[test]
    fn mistakes_are_errors() {
        let x = leaf(&[1.0, 2.0]);
        let y = &x * 2.0;
        let wrong_shape = Tensor::from_slice(&[1.0f32, 1.0, 1.0]);
        let error = backward(&[&y], &[&wrong_shape], &[&x]).unwrap_err().to_string();
        assert!(error.starts_with("backward: invalid gradient at index 0 - got [3]"), "{error}");
        assert!(!error.contains('\n'));
        assert!(backward(&[&y], &[], &[&x]).is_err());
        let no_graph = Tensor::from_slice(&[1.0f32]);
        assert!(backward(&[&no_graph], &[&no_graph], &[&x]).is_err());
        assert!(backward(&[&y], &[&y], &[]).unwrap().is_empty());
    }

    #[test]
    fn the_graph_is_freed() {
        let x = leaf(&[1.0, 2.0]);
        let y = x.exp();
        let one = Tensor::ones_like(&y);
        backward(&[&y], &[&one], &[&x]).unwrap();
        let error = backward(&[&y], &[&one], &[&x]).unwrap_err().to_string();
        assert!(error.contains("a second time"), "{error}");
    }
}
