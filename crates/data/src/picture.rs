//! Decodes one PNG or JPEG file.

use image::{ImageReader, Limits};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// The longest side of a picture, in pixels. It keeps a header from requesting all memory.
const MAX_SIDE: u32 = 1 << 14;

/// Reads the width and height of a picture, in pixels, from its header.
pub(super) fn size(file: &Path) -> Result<(u32, u32), String> {
    reader(file).and_then(|reader| reader.into_dimensions().map_err(|e| e.to_string()))
}

/// Decodes a picture. Returns its width, its height, and its bytes with 1, 3 or 4 channels, row by
/// row. The channels of a pixel lie side by side.
pub(super) fn decode(file: &Path, channels: u64) -> Result<(u32, u32, Vec<u8>), String> {
    let picture = reader(file)?.decode().map_err(|e| e.to_string())?;
    let (width, height) = (picture.width(), picture.height());
    let pixels = match channels {
        1 => picture.into_luma8().into_raw(),
        3 => picture.into_rgb8().into_raw(),
        _ => picture.into_rgba8().into_raw(),
    };
    Ok((width, height, pixels))
}

fn reader(file: &Path) -> Result<ImageReader<BufReader<File>>, String> {
    let reader = ImageReader::open(file).and_then(ImageReader::with_guessed_format);
    let mut reader = reader.map_err(|e| e.to_string())?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    reader.limits(limits);
    Ok(reader)
}
