//! Resized images as matrix products, for GPUs: libtorch's own kernels have no deterministic
//! backward pass.

use crate::engine::error::layer_error;
use tch::{Device, Kind, Tensor};
use tensor::determinism::must_be_deterministic;
use tensor::TensorError;

/// Whether an image on this device needs these products.
pub(super) fn are_needed(image: &Tensor) -> Result<bool, TensorError> {
    Ok(matches!(image.device(), Device::Cuda(_)) && must_be_deterministic()?)
}

/// The sizes of an image `[..., H, W]`.
pub(super) fn height_and_width(image: &Tensor) -> Result<[i64; 2], TensorError> {
    match image.size()[..] {
        [.., height, width] => Ok([height, width]),
        _ => Err(layer_error("expected an image of two dimensions or more")),
    }
}

/// The image `[..., H, W]` at another size, by a function that is linear and resizes height and
/// width independently of each other. It is called on identity matrices alone.
pub(super) fn resize(
    image: &Tensor,
    to: [i64; 2],
    resized: impl Fn(&Tensor, [i64; 2]) -> Result<Tensor, TensorError>,
) -> Result<Tensor, TensorError> {
    let kind = image.f_kind()?;
    // Matrices of 16-bit numbers would round the weights of the sum.
    let options = (Kind::Float, image.device());
    let [height, width] = height_and_width(image)?;
    let [rows, columns] = to;
    let (down, across) = tch::no_grad(|| {
        let down = Tensor::f_eye(height, options)?.f_reshape([1, height, height, 1])?;
        let across = Tensor::f_eye(width, options)?.f_reshape([1, width, 1, width])?;
        let down = resized(&down, [rows, 1])?.f_reshape([height, rows])?.f_tr()?;
        Ok::<_, TensorError>((down, resized(&across, [1, columns])?.f_reshape([width, columns])?))
    })?;
    let image = image.f_to_kind(Kind::Float)?.f_matmul(&across)?;
    Ok(down.f_matmul(&image)?.f_to_kind(kind)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Tensor {
        (Tensor::arange(2 * 3 * 7 * 5, (Kind::Float, Device::Cpu)) * 0.37).sin().view([2, 3, 7, 5])
    }

    #[track_caller]
    fn assert_same(found: &Tensor, expected: &Tensor) {
        assert_eq!(found.size(), expected.size());
        let error = (found - expected).abs().max().double_value(&[]);
        assert!(error < 1e-6, "{error:e}");
    }

    #[test]
    fn means_of_regions_of_unequal_sizes_are_libtorchs() {
        for to in [[1, 1], [3, 2], [7, 5], [9, 4]] {
            let mean = |image: &Tensor, to: [i64; 2]| Ok(image.f_adaptive_avg_pool2d(to)?);
            assert_same(&resize(&image(), to, mean).unwrap(), &image().adaptive_avg_pool2d(to));
        }
    }

    #[test]
    fn interpolated_images_are_libtorchs() {
        for (align, to) in [(false, [14, 10]), (true, [3, 11]), (false, [1, 5])] {
            let bilinear = |image: &Tensor, to: [i64; 2]| {
                Ok(image.f_upsample_bilinear2d(to, align, None, None)?)
            };
            let expected = image().upsample_bilinear2d(to, align, None, None);
            assert_same(&resize(&image(), to, bilinear).unwrap(), &expected);
            let bicubic = |image: &Tensor, to: [i64; 2]| {
                Ok(image.f_upsample_bicubic2d(to, align, None, None)?)
            };
            let expected = image().upsample_bicubic2d(to, align, None, None);
            assert_same(&resize(&image(), to, bicubic).unwrap(), &expected);
        }
    }

    #[test]
    fn a_cpu_needs_no_products() {
        assert!(!are_needed(&image()).unwrap());
    }
}
