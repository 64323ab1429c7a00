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
        1 if picture.color().has_color() => grey(&picture.into_rgb8()),
        1 => picture.into_luma8().into_raw(),
        3 => picture.into_rgb8().into_raw(),
        _ => picture.into_rgba8().into_raw(),
    };
    Ok((width, height, pixels))
}

/// The grey of each pixel by ITU-R BT.601, in the integers of PIL's `convert("L")`, which
/// torchvision uses.
fn grey(picture: &image::RgbImage) -> Vec<u8> {
    let of = |pixel: &image::Rgb<u8>| {
        let [red, green, blue] = pixel.0.map(u32::from);
        ((red * 19_595 + green * 38_470 + blue * 7_471 + 0x8000) >> 16) as u8
    };
    picture.pixels().map(of).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of Pillow.
    #[test]
    fn colours_become_the_grey_of_pillow() {
        let colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 20, 30], [255; 3]];
        let picture = image::RgbImage::from_vec(5, 1, colours.concat()).unwrap();
        assert_eq!(grey(&picture), [76, 150, 29, 18, 255]);
    }
}
