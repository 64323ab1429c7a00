//! Decodes one PNG or JPEG file.

use super::jpeg_end;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::Path;

/// The longest side of a picture, in pixels. It keeps a header from requesting all memory.
const MAX_SIDE: u32 = 1 << 14;
/// The most bytes of a JPEG, which is in memory as a whole. No picture of this side needs more.
const MAX_JPEG: u64 = 1 << 30;

/// Where the end of a JPEG is looked for first.
const TAIL: u64 = 64 << 10;

/// Reads the width and height of a picture, in pixels, from its header. A JPEG that is cut short is
/// an error here, unless the end of a thumbnail hides it. [`decode`] finds each.
pub(super) fn size(file: &Path) -> Result<(u32, u32), String> {
    let reader = reader(file)?;
    if reader.format() == Some(ImageFormat::Jpeg) {
        check_end(file)?;
    }
    reader.into_dimensions().map_err(|e| e.to_string())
}

fn check_end(file: &Path) -> Result<(), String> {
    let mut file = File::open(file).map_err(|e| e.to_string())?;
    let bytes = file.metadata().map_err(|e| e.to_string())?.len();
    let mut last = |most: u64| {
        file.seek(SeekFrom::Start(bytes.saturating_sub(most)))?;
        let mut last = Vec::new();
        (&file).take(most).read_to_end(&mut last)?;
        std::io::Result::Ok(last)
    };
    // Most end with it.
    if jpeg_end::may_end(&last(2).map_err(|e| e.to_string())?) {
        return Ok(());
    }
    let tail = last(TAIL).map_err(|e| e.to_string())?;
    match bytes > TAIL && jpeg_end::may_end(&tail) {
        true => Ok(()),
        // Much may follow the end.
        false => {
            file.rewind().map_err(|e| e.to_string())?;
            jpeg_end::check(&read_jpeg(file)?)
        }
    }
}

/// Decodes a picture. Returns its width, its height, and its bytes with 1, 3 or 4 channels, row by
/// row. The channels of a pixel lie side by side.
pub(super) fn decode(file: &Path, channels: u64) -> Result<(u32, u32, Vec<u8>), String> {
    let reader = reader(file)?;
    let picture = match reader.format() {
        Some(ImageFormat::Jpeg) => decode_jpeg(reader.into_inner())?,
        _ => reader.decode().map_err(|e| e.to_string())?,
    };
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
    Ok(limited(reader.map_err(|e| e.to_string())?))
}

fn read_jpeg(file: impl Read) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = file.take(MAX_JPEG + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    match read as u64 > MAX_JPEG {
        true => Err("is larger than 1 GiB; make it smaller, or leave it out".into()),
        false => Ok(bytes),
    }
}

/// Decodes a JPEG if it is whole.
fn decode_jpeg(file: BufReader<File>) -> Result<DynamicImage, String> {
    let bytes = read_jpeg(file)?;
    jpeg_end::check(&bytes)?;
    let reader = limited(ImageReader::with_format(Cursor::new(bytes), ImageFormat::Jpeg));
    reader.decode().map_err(|e| e.to_string())
}

/// Limits the sides of the picture.
fn limited<R: BufRead + Seek>(mut reader: ImageReader<R>) -> ImageReader<R> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    reader.limits(limits);
    reader
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

    /// The decoder alone returns each of them, with grey in place of what is missing.
    #[test]
    fn a_jpeg_that_is_cut_short_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.jpg");
        let spots = |x: u32, y: u32| image::Rgb([(x * y) as u8, (x * 7) as u8, (y * 9) as u8]);
        image::RgbImage::from_fn(64, 64, spots).save(&file).unwrap();
        assert_eq!(decode(&file, 3).unwrap().2.len(), 64 * 64 * 3);
        let whole = std::fs::read(&file).unwrap();
        let scan = whole.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap() + 14;
        for length in [scan, scan + (whole.len() - scan) / 2, whole.len() - 2, whole.len() - 1] {
            std::fs::write(&file, &whole[..length]).unwrap();
            // Found before training begins.
            for error in [decode(&file, 3).unwrap_err(), size(&file).unwrap_err()] {
                assert!(error.starts_with("cut short: it ends within its picture"), "{error}");
            }
        }
        for more in [&b"and more"[..], &[7; 2 * TAIL as usize]] {
            std::fs::write(&file, [&whole, more].concat()).unwrap();
            assert!(decode(&file, 3).is_ok() && size(&file) == Ok((64, 64)));
        }
    }
}
