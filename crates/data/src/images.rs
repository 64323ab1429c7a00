//! Reads pictures and their classes from PNG and JPEG files.

use super::array_column::{ArrayColumn, ColumnWriter};
use super::element::Element;
use super::expected_tensor::ExpectedTensor;
use super::{in_parallel, picture, picture_files};
use crate::DataError;
use layerspec::DType;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::Tensor;

/// The headers of pictures that are read at once, and the fewest of them for a thread.
const HEADERS: usize = 1024;
const HEADERS_OF_THREAD: usize = 16;
/// The fewest bytes of decoded pictures that are worth a thread.
const BYTES_OF_THREAD: usize = 1 << 14;

/// Pictures of one size, decoded on demand.
#[derive(Clone, Debug)]
pub(super) struct Images {
    files: Arc<[PathBuf]>,
    /// Channels, height, width.
    shape: [u64; 3],
}

/// Opens the pictures and their labels. A label is the place of the name of a picture's folder in
/// `classes`, or among all folders.
pub(super) fn open(
    folder: &Path,
    classes: Option<&[String]>,
    wanted: &ExpectedTensor,
) -> Result<(Images, ArrayColumn), DataError> {
    let (mut files, mut labels) = (Vec::new(), ColumnWriter::new(Element::I64));
    for (file, class) in picture_files::by_class(folder, classes)? {
        files.push(file);
        labels.push(&[class as f64], &[])?;
    }
    let images = Images::of(files, folder, wanted)?;
    Ok((images, labels.finish(folder)?))
}

/// Opens pictures without their labels: one picture, a folder of pictures, or a folder of folders
/// of pictures.
pub(super) fn open_unlabelled(path: &Path, wanted: &ExpectedTensor) -> Result<Images, DataError> {
    Images::of(picture_files::unlabelled(path)?, path, wanted)
}

impl Images {
    /// Checks that all pictures have one size, and as many channels as the model takes.
    fn of(files: Vec<PathBuf>, folder: &Path, wanted: &ExpectedTensor) -> Result<Self, DataError> {
        let (width, height) = size(&files[0])?;
        // Check all sizes before training, so that no batch fails because of them.
        let check = |file: &PathBuf| {
            let (found_width, found_height) = size(file)?;
            if (found_width, found_height) != (width, height) {
                let first = files[0].display();
                let problem = format!(
                    "is {found_width} x {found_height}, but {first} is {width} x {height}; bring \
                     all pictures to one size"
                );
                return Err(DataError::file(file, problem));
            }
            Ok(())
        };
        // After an error few others are read.
        for part in files.chunks(HEADERS) {
            in_parallel::map(part.iter().collect(), HEADERS_OF_THREAD, check)?;
        }
        let pixels = u64::from(width) * u64::from(height);
        let channels =
            channels(wanted, pixels).map_err(|problem| DataError::file(folder, problem))?;
        Ok(Images { files: files.into(), shape: [channels, height.into(), width.into()] })
    }

    pub(super) fn samples(&self) -> u64 {
        self.files.len() as u64
    }

    pub(super) fn shape(&self) -> &[u64] {
        &self.shape
    }

    pub(super) fn file(&self, number: i64) -> Option<&Path> {
        usize::try_from(number).ok().and_then(|number| self.files.get(number)).map(PathBuf::as_path)
    }

    pub(super) fn rows(&self, numbers: &[i64]) -> Result<Tensor, DataError> {
        let [channels, height, width] = self.shape.map(u64::cast_signed);
        let shape = [numbers.len() as i64, channels, height, width];
        let size = self.shape.iter().try_fold(1, |size: u64, side| size.checked_mul(*side));
        let size = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        let whole = numbers.len().checked_mul(size);
        let room = whole.filter(|whole| bytes.try_reserve_exact(*whole).is_ok());
        let no_room = || DataError::Usage(format!("no memory for {} pictures", numbers.len()));
        bytes.resize(room.ok_or_else(no_room)?, 0);
        // Each is decoded into its place in the batch.
        let pictures: Vec<_> = numbers.iter().zip(bytes.chunks_exact_mut(size.max(1))).collect();
        let least = (BYTES_OF_THREAD / size.max(1)).clamp(1, 16);
        in_parallel::map(pictures, least, |(number, into)| {
            let file = self
                .file(*number)
                .ok_or_else(|| DataError::Usage(format!("there is no picture {number}")))?;
            self.decode(file, into).map_err(|problem| DataError::file(file, problem))
        })?;
        Ok(tensor::payload::from_bytes(DType::UInt8, &shape, bytes.into())?)
    }

    /// Decodes a picture into its place, channel by channel.
    fn decode(&self, file: &Path, into: &mut [u8]) -> Result<(), String> {
        let [channels, height, width] = self.shape;
        let (found_width, found_height, pixels) = picture::decode(file, channels)?;
        if (u64::from(found_width), u64::from(found_height)) != (width, height) {
            return Err(format!("is no longer {width} x {height}; has the file changed?"));
        }
        let channels = channels as usize;
        let values =
            (0..channels).flat_map(|channel| pixels.iter().skip(channel).step_by(channels));
        into.iter_mut().zip(values).for_each(|(into, value)| *into = *value);
        Ok(())
    }
}

/// Returns the number of channels that the model takes of pictures with `pixels` pixels.
fn channels(wanted: &ExpectedTensor, pixels: u64) -> Result<u64, String> {
    let elements = wanted
        .sizes()
        .and_then(|sizes| sizes.iter().try_fold(1u64, |product, size| product.checked_mul(*size)));
    let first = wanted.shape.as_ref().and_then(|shape| *shape.first()?);
    match elements
        .filter(|elements| elements % pixels == 0)
        .map(|elements| elements / pixels)
        .or(first)
    {
        Some(channels @ (1 | 3 | 4)) => Ok(channels),
        None => Ok(3),
        Some(_) => {
            let shape = wanted.shape_in_words();
            Err(format!(
                "the model takes `{}` as {shape}, which is no picture of 1, 3 or 4 channels with \
                 {pixels} pixels",
                wanted.name
            ))
        }
    }
}

fn size(file: &Path) -> Result<(u32, u32), DataError> {
    picture::size(file).map_err(|problem| DataError::file(file, problem))
}
