//! Data sets of pictures, converted to idx files.

use crate::BossManError;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

/// Pictures and their classes, to be written.
#[derive(Default)]
struct Pictures {
    pixels: Vec<u8>,
    classes: Vec<u8>,
}

impl Pictures {
    fn write(&self, to: &Path, part: &str, sizes: &[u32]) -> Result<(), BossManError> {
        let count = [self.classes.len() as u32];
        idx(&to.join(format!("{part}-images.idx")), &[&count[..], sizes].concat(), &self.pixels)?;
        idx(&to.join(format!("{part}-labels.idx")), &count, &self.classes)
    }
}

fn idx(path: &Path, sizes: &[u32], bytes: &[u8]) -> Result<(), BossManError> {
    let write = || {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&[0, 0, 8, sizes.len() as u8])?;
        sizes.iter().try_for_each(|size| file.write_all(&size.to_be_bytes()))?;
        file.write_all(bytes)?;
        file.flush()
    };
    write().map_err(|e: std::io::Error| BossManError::file(path, e))
}

fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, BossManError> {
    let file = File::open(path).map_err(|e| BossManError::file(path, e))?;
    serde_json::from_reader(BufReader::new(file)).map_err(|e| BossManError::file(path, e))
}

/// A class is a file with 7,000 pictures. The last 1,000 are for tests. The classes take turns.
pub(super) fn fashion_mnist(from: &Path, to: &Path) -> Result<(), BossManError> {
    #[derive(Deserialize)]
    struct Class {
        data: Vec<Vec<u8>>,
    }
    let mut classes = Vec::new();
    for class in 0..10 {
        let mut file: Class = json(&from.join(format!("package/src/clothes/{class}.json")))?;
        // Two rows of the first class are empty.
        file.data.retain(|picture| picture.len() == 28 * 28);
        classes.push(file.data);
    }
    for (part, rows) in [("train", 0..6000), ("test", 6000..7000)] {
        let mut pictures = Pictures::default();
        for row in rows {
            for (class, data) in (0..).zip(&classes) {
                if let Some(picture) = data.get(row) {
                    pictures.pixels.extend(picture);
                    pictures.classes.push(class);
                }
            }
        }
        pictures.write(to, part, &[28, 28])?;
    }
    Ok(())
}

/// A picture is a row of a large PNG: 1,024 pixels of red, green and blue.
pub(super) fn cifar_10(from: &Path, to: &Path) -> Result<(), BossManError> {
    const PIXELS: usize = 32 * 32;
    let package = from.join("package");
    let train = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"];
    for (part, files) in [("train", &train[..]), ("test", &["test_batch"])] {
        let mut pictures = Pictures {
            classes: json(&package.join(format!("{part}_lables.json")))?,
            pixels: Vec::new(),
        };
        for file in files {
            let path = package.join(format!("{file}.png"));
            let picture = data::read_rgb(&path)?;
            for row in picture.chunks_exact(3 * PIXELS) {
                (0..3).for_each(|channel| {
                    pictures.pixels.extend(row.iter().skip(channel).step_by(3))
                });
            }
        }
        pictures.write(to, part, &[3, 32, 32])?;
    }
    Ok(())
}
