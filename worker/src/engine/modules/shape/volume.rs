//! Pools of volumes as two pools of images, for GPUs: libtorch's own kernels have no deterministic
//! backward pass.
//!
//! A window of a volume is one of height and width, and then one of depth. The largest element, the
//! number of elements and their sum follow from those of the parts.

use crate::engine::error::layer_error;
use tch::Tensor;
use tensor::TensorError;

/// Pools `[batch, channels, depth, height, width]`. `image_pool` gets all images `[.., H, W]`, and
/// `depth_pool` `[batch, channels, depth, places]`, of which it pools the depth.
pub(super) fn by_images(
    volume: &Tensor,
    image_pool: impl FnOnce(&Tensor) -> Result<Tensor, TensorError>,
    depth_pool: impl FnOnce(&Tensor) -> Result<Tensor, TensorError>,
) -> Result<Tensor, TensorError> {
    let [batch, channels, depth, _, _] = five(volume)?;
    let images = image_pool(&volume.f_flatten(1, 2)?)?;
    let size = images.size();
    let [.., height, width] = size[..] else {
        return Err(layer_error("expected a pool of images to give images"));
    };
    let columns = images.f_reshape([batch, channels, depth, height * width])?;
    let pooled = depth_pool(&columns)?;
    let depth = pooled.size().get(2).copied().unwrap_or(0);
    Ok(pooled.f_reshape([batch, channels, depth, height, width])?)
}

/// Calls `pool` with `[.., depth, 1]` for each place of `[batch, channels, depth, places]`.
pub(super) fn place_by_place(
    columns: &Tensor,
    pool: impl FnOnce(&Tensor) -> Result<Tensor, TensorError>,
) -> Result<Tensor, TensorError> {
    let size = columns.size();
    let [batch, channels, depth, places] = size[..] else {
        return Err(layer_error("expected four dimensions"));
    };
    let columns = columns.f_transpose(2, 3)?.f_reshape([batch, channels * places, depth, 1])?;
    let pooled = pool(&columns)?;
    let depth = pooled.size().get(2).copied().unwrap_or(0);
    Ok(pooled.f_reshape([batch, channels, places, depth])?.f_transpose(2, 3)?)
}

/// The sizes of `[batch, channels, depth, height, width]`.
fn five(volume: &Tensor) -> Result<[i64; 5], TensorError> {
    let size = volume.size();
    <[i64; 5]>::try_from(&size[..])
        .map_err(|_| layer_error(format!("expected a volume of five dimensions, got {size:?}")))
}
