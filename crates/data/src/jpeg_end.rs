//! Checks that a JPEG is whole.
//!
//! The decoder fills what is missing with grey, and reports nothing.

/// The first byte of each marker.
const MARKER: u8 = 0xff;
/// The marker at the end of a picture.
const END: u8 = 0xd9;

/// Checks that a JPEG has the marker at its end. Bytes after it are allowed.
pub(super) fn check(jpeg: &[u8]) -> Result<(), String> {
    // The decoder reports what is no JPEG.
    match jpeg.strip_prefix(&[MARKER, 0xd8]) {
        Some(segments) if !has_end(segments) => {
            Err("cut short: it ends within its picture; copy it again, or leave it out".into())
        }
        _ => Ok(()),
    }
}

/// Whether the marker of an end is in these last bytes. It may be that of a thumbnail.
pub(super) fn may_end(last: &[u8]) -> bool {
    last.windows(2).any(|pair| pair == [MARKER, END])
}

/// Walks over segments, each with its length after its marker, and over the coded pixels between
/// them. So the end of a thumbnail within a segment is not taken for the end of the picture.
fn has_end(mut rest: &[u8]) -> bool {
    while let Some(place) = rest.iter().position(|byte| *byte == MARKER) {
        rest = &rest[place + 1..];
        rest = match rest {
            [END, ..] => return true,
            // A fill byte. The next one begins the marker.
            [MARKER, ..] => rest,
            // A byte 255 of coded pixels, or a marker without a length, such as a restart.
            [0x00 | 0x01 | 0xd0..=0xd8, after @ ..] => after,
            [_, high, low, ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest.get(1 + length..).unwrap_or_default()
            }
            _ => return false,
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngCore, SeedableRng};

    const BEGIN: &[u8] = &[0xff, 0xd8];
    const THUMBNAIL: &[u8] = &[0xff, 0xe1, 0, 8, 0xff, 0xd8, 7, 7, 0xff, 0xd9];
    const SCAN: &[u8] = &[0xff, 0xda, 0, 4, 1, 2];
    /// Coded pixels, with a byte 255 and a restart.
    const PIXELS: &[u8] = &[1, 2, 0xff, 0x00, 0xd9, 0xff, 0xd3, 3];
    const LAST: &[u8] = &[0xff, 0xd9];

    /// Expects that a picture is whole at this length, and at none below.
    fn ends_at(parts: &[&[u8]]) {
        let jpeg = parts.concat();
        assert_eq!(check(&jpeg), Ok(()));
        assert_eq!(check(&[&jpeg, &b"and more"[..]].concat()), Ok(()));
        for length in BEGIN.len()..jpeg.len() {
            let error = check(&jpeg[..length]).unwrap_err();
            assert!(error.starts_with("cut short: it ends within its picture"), "{error}");
        }
    }

    #[test]
    fn a_jpeg_ends_at_the_end_of_its_picture() {
        ends_at(&[BEGIN, SCAN, PIXELS, LAST]);
        ends_at(&[BEGIN, THUMBNAIL, SCAN, PIXELS, LAST]);
        let table = [0xff, 0xc4, 0, 3, 0xff];
        let progressive = [BEGIN, &table, SCAN, PIXELS, &table, SCAN, PIXELS, SCAN, PIXELS, LAST];
        ends_at(&progressive);
        let fill = [0xff, 0xff, 0xff];
        ends_at(&[BEGIN, &fill, THUMBNAIL, &fill, SCAN, PIXELS, &fill, LAST]);
    }

    #[test]
    fn a_false_length_ends_the_walk() {
        for length in [[0, 0], [0, 1], [0xff, 0xff]] {
            assert!(check(&[0xff, 0xd8, 0xff, 0xe1, length[0], length[1]]).is_err());
        }
        assert_eq!(check(b"no JPEG"), Ok(()));
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let mut bytes = [0; 64];
        for _ in 0..10_000 {
            random.fill_bytes(&mut bytes);
            // Many markers.
            bytes.iter_mut().filter(|byte| **byte < 80).for_each(|byte| *byte = MARKER);
            drop(check(&[BEGIN, &bytes].concat()));
        }
    }
}
