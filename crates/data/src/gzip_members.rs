//! Reads a gzipped file: one member after the other, as Python's `gzip` does, and zeros between.

use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, Read};

/// The content of all members.
pub(super) struct GzipMembers<R> {
    /// `None` at the end of the file.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> GzipMembers<R> {
    pub(super) fn new(file: R) -> Self {
        GzipMembers { member: Some(GzDecoder::new(file)) }
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    /// # Errors
    /// The file cannot be read, or is damaged. The checksum of a member is compared at its end.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            let file = self.member.take().map(GzDecoder::into_inner);
            self.member = file.map_or(Ok(None), next_member)?;
        }
        Ok(0)
    }
}

/// Skips zeros, which tapes and disks pad files with.
fn next_member<R: BufRead>(mut file: R) -> io::Result<Option<GzDecoder<R>>> {
    loop {
        let bytes = file.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        match bytes.len() {
            0 => return Ok(None),
            length if zeros == length => file.consume(zeros),
            _ => {
                file.consume(zeros);
                return Ok(Some(GzDecoder::new(file)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{write::GzEncoder, Compression};
    use std::io::{BufReader, Write};

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn content(file: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        // A small buffer ends within the zeros.
        let file = BufReader::with_capacity(16, file);
        GzipMembers::new(file).read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn members_follow_each_other_and_zeros_are_no_member() {
        let (a, b, zeros) = (gzip(b"one, "), gzip(b"two"), vec![0; 512]);
        assert_eq!(content(&a).unwrap(), b"one, ");
        assert_eq!(content(&[&a[..], &b].concat()).unwrap(), b"one, two");
        assert_eq!(content(&[&a[..], &zeros, &b, &zeros].concat()).unwrap(), b"one, two");
        assert_eq!(content(&gzip(b"")).unwrap(), b"");
    }

    #[test]
    fn other_bytes_and_a_wrong_checksum_are_errors() {
        let good = gzip(b"one");
        assert!(content(&[&good[..], b"and more"].concat()).is_err());
        assert!(content(&good[..good.len() - 1]).is_err());
        let mut wrong = good;
        let checksum = wrong.len() - 8;
        wrong[checksum] ^= 1;
        assert!(content(&wrong).is_err());
    }
}
