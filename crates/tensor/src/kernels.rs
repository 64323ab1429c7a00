//! Backward functions of single operations, as libtorch's autograd calls them, for those that go
//! back without autograd.

use crate::{ffi, TensorError};
use tch::Tensor;
use torch_sys::C_tensor;

/// The gradients that a backward function computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GradMask {
    /// The gradient of the input.
    pub input: bool,
    /// The gradient of the weight.
    pub weight: bool,
    /// The gradient of the bias.
    pub bias: bool,
}

/// The result of a backward function: the requested gradients.
#[derive(Debug, Default)]
pub struct KernelGrads {
    /// The gradient of the input.
    pub input: Option<Tensor>,
    /// The gradient of the weight.
    pub weight: Option<Tensor>,
    /// The gradient of the bias.
    pub bias: Option<Tensor>,
}

/// The arguments of a layer norm, and the results of its forward pass (`native_layer_norm`).
#[derive(Debug, Clone, Copy)]
pub struct LayerNorm<'a> {
    /// The tensor that was normalised.
    pub input: &'a Tensor,
    /// The last dimensions' sizes.
    pub shape: &'a [i64],
    /// The mean of each row.
    pub mean: &'a Tensor,
    /// One over the standard deviation of each row.
    pub rstd: &'a Tensor,
    /// The learned scale.
    pub weight: Option<&'a Tensor>,
    /// The learned shift.
    pub bias: Option<&'a Tensor>,
}

impl LayerNorm<'_> {
    /// The gradients, given that of the output.
    pub fn backward(&self, grad: &Tensor, wanted: GradMask) -> Result<KernelGrads, TensorError> {
        let mut out = [std::ptr::null_mut(); 3];
        // SAFETY: all tensors are borrowed for the call, `shape` is as long as said, `out` has
        // three places.
        let status = unsafe {
            ffi::bm_layer_norm_backward(
                grad.as_ptr(),
                self.input.as_ptr(),
                self.mean.as_ptr(),
                self.rstd.as_ptr(),
                pointer(self.weight),
                pointer(self.bias),
                self.shape.as_ptr(),
                self.shape.len(),
                wanted.bits(),
                out.as_mut_ptr(),
            )
        };
        ffi::check("backward of a layer norm", status)?;
        // SAFETY: the shim has filled the three places.
        Ok(unsafe { KernelGrads::from_raw(out) })
    }
}

/// The arguments of a convolution, without its bias. There is a size for each dimension of the
/// image, for example height and width.
#[derive(Debug, Clone, Copy)]
pub struct Conv<'a> {
    /// `[batch, channels, ..]`.
    pub input: &'a Tensor,
    /// `[out channels, channels of a group, ..]`; if transposed `[channels, out channels of a
    /// group, ..]`.
    pub weight: &'a Tensor,
    /// Step from one window to the next.
    pub stride: &'a [i64],
    /// Zeros at each side.
    pub padding: &'a [i64],
    /// Distance between the kernel's own places.
    pub dilation: &'a [i64],
    /// For a transposed convolution, the size to add to the output.
    pub transposed: Option<&'a [i64]>,
    /// Groups of channels.
    pub groups: i64,
}

impl Conv<'_> {
    /// The gradients, given that of the output.
    pub fn backward(&self, grad: &Tensor, wanted: GradMask) -> Result<KernelGrads, TensorError> {
        let dims = self.stride.len();
        let none = vec![0; dims];
        let sizes = [self.stride, self.padding, self.dilation, self.transposed.unwrap_or(&none)];
        let fits = |tensor: &Tensor| tensor.dim() == dims + 2;
        if sizes.iter().any(|sizes| sizes.len() != dims)
            || ![grad, self.input, self.weight].into_iter().all(fits)
        {
            let problem = format!("input, weight and gradient must have {} dimensions", dims + 2);
            return Err(TensorError::invalid("backward of a convolution", problem));
        }
        let mut out = [std::ptr::null_mut(); 3];
        // SAFETY: all tensors are borrowed for the call, the sizes are four for each dimension,
        // `out` has three places.
        let status = unsafe {
            ffi::bm_conv_backward(
                grad.as_ptr(),
                self.input.as_ptr(),
                self.weight.as_ptr(),
                sizes.concat().as_ptr(),
                dims,
                self.transposed.is_some(),
                self.groups,
                wanted.bits(),
                out.as_mut_ptr(),
            )
        };
        ffi::check("backward of a convolution", status)?;
        // SAFETY: the shim has filled the three places.
        Ok(unsafe { KernelGrads::from_raw(out) })
    }
}

impl GradMask {
    fn bits(self) -> u8 {
        u8::from(self.input) | u8::from(self.weight) << 1 | u8::from(self.bias) << 2
    }
}

impl KernelGrads {
    /// # Safety
    /// Each pointer is null or a new C++ tensor that nobody else owns.
    unsafe fn from_raw(pointers: [*mut C_tensor; 3]) -> Self {
        // SAFETY: the caller's promise.
        let wrap = |pointer: *mut C_tensor| unsafe { Tensor::from_ptr(pointer) };
        let [input, weight, bias] =
            pointers.map(|pointer| (!pointer.is_null()).then(|| wrap(pointer)));
        KernelGrads { input, weight, bias }
    }
}

fn pointer(tensor: Option<&Tensor>) -> *const C_tensor {
    tensor.map_or(std::ptr::null(), Tensor::as_ptr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grad;
    use tch::{Device, Kind};

    const ALL: GradMask = GradMask { input: true, weight: true, bias: true };

    fn leaf(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true)
    }

    fn same(ours: &KernelGrads, theirs: &[Option<Tensor>]) {
        for (ours, theirs) in [&ours.input, &ours.weight, &ours.bias].into_iter().zip(theirs) {
            assert!(ours.as_ref().unwrap().equal(theirs.as_ref().unwrap()));
        }
    }

    #[test]
    fn a_layer_norm_goes_back_as_under_autograd() {
        let (x, weight, bias, g) =
            (leaf(&[3, 4, 5]), leaf(&[5]), leaf(&[5]), Tensor::ones_like(&leaf(&[3, 4, 5])));
        let y = x.layer_norm([5], Some(&weight), Some(&bias), 1e-5, true);
        let theirs = grad::backward(&[&y], &[&g], &[&x, &weight, &bias]).unwrap();
        let x = x.detach();
        let (_, mean, rstd) =
            tch::no_grad(|| x.native_layer_norm([5], Some(&weight), Some(&bias), 1e-5));
        let (weight, bias) = (Some(&weight), Some(&bias));
        let norm = LayerNorm { input: &x, shape: &[5], mean: &mean, rstd: &rstd, weight, bias };
        same(&norm.backward(&g, ALL).unwrap(), &theirs);
        let input_only =
            norm.backward(&g, GradMask { input: true, ..GradMask::default() }).unwrap();
        assert!(
            input_only.input.unwrap().equal(theirs[0].as_ref().unwrap())
                && input_only.weight.is_none()
        );
    }

    #[test]
    fn a_convolution_goes_back_in_halves_as_under_autograd_at_once() {
        let (x, weight, bias) = (leaf(&[2, 4, 6, 6]), leaf(&[6, 2, 3, 3]), leaf(&[6]));
        let y = x.conv2d(&weight, Some(&bias), [2, 1], [1, 0], [1, 2], 2);
        let g = Tensor::randn(y.size(), (Kind::Float, Device::Cpu));
        let theirs = grad::backward(&[&y], &[&g], &[&x, &weight, &bias]).unwrap();
        let (input, weight) = (&x.detach(), &weight.detach());
        let (stride, padding, dilation) = (&[2, 1][..], &[1, 0][..], &[1, 2][..]);
        let conv = Conv { input, weight, stride, padding, dilation, transposed: None, groups: 2 };
        let half = conv.backward(&g, GradMask { input: true, ..GradMask::default() }).unwrap();
        let other = conv.backward(&g, GradMask { input: false, ..ALL }).unwrap();
        assert!(half.weight.is_none() && other.input.is_none());
        same(&KernelGrads { input: half.input, ..other }, &theirs);
    }

    #[test]
    fn mistakes_are_errors() {
        let x = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
        let norm =
            LayerNorm { input: &x, shape: &[7], mean: &x, rstd: &x, weight: None, bias: None };
        assert!(norm.backward(&x, ALL).is_err());
        let (one, none) = (&[1, 1][..], &[0, 0][..]);
        let flat = Conv {
            input: &x,
            weight: &x,
            stride: one,
            padding: none,
            dilation: one,
            transposed: None,
            groups: 1,
        };
        assert!(flat.backward(&x, ALL).unwrap_err().to_string().contains("4 dimensions"));
    }
}
