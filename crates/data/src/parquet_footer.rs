//! Checks the footer of a Parquet file before the library reads it. The library takes memory for a
//! list before it reads it, and calls itself for each level of the schema. With a broken file
//! either ends the process, which nothing can catch.
//!
//! The footer is a structure in Thrift's compact protocol: FileMetaData of `parquet.thrift`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// The most levels of groups in a schema, and of structures in the footer.
const MAX_LEVELS: usize = 64;
/// The end of a file: the length of the footer, and `PAR1`.
const END_BYTES: u64 = 8;
const MAGIC: &[u8] = b"PAR1";
/// The fields of FileMetaData and of SchemaElement that are looked at.
const SCHEMA: i64 = 2;
const CHILDREN: i64 = 5;

/// The types of Thrift's compact protocol.
mod kind {
    pub(super) const TRUE: u8 = 1;
    pub(super) const FALSE: u8 = 2;
    pub(super) const BYTE: u8 = 3;
    pub(super) const I16: u8 = 4;
    pub(super) const I32: u8 = 5;
    pub(super) const I64: u8 = 6;
    pub(super) const DOUBLE: u8 = 7;
    pub(super) const BINARY: u8 = 8;
    pub(super) const LIST: u8 = 9;
    pub(super) const SET: u8 = 10;
    pub(super) const MAP: u8 = 11;
    pub(super) const STRUCT: u8 = 12;
    pub(super) const UUID: u8 = 13;
}

/// Checks the footer, as far as it can end the process. The library finds everything else.
///
/// # Errors
/// What is wrong.
pub(crate) fn check(file: &mut File) -> Result<(), String> {
    let Ok(Some(footer)) = read(file) else { return Ok(()) };
    match (Footer { left: &footer }).walk() {
        Err(Fault::Fatal(why)) => Err(why.into()),
        Ok(()) | Err(Fault::Other) => Ok(()),
    }
}

/// The footer. `None` if this is no Parquet file.
fn read(file: &mut File) -> std::io::Result<Option<Vec<u8>>> {
    let bytes = file.metadata()?.len();
    let Some(end) = bytes.checked_sub(END_BYTES) else { return Ok(None) };
    let mut last = [0; END_BYTES as usize];
    file.seek(SeekFrom::Start(end))?;
    file.read_exact(&mut last)?;
    let [a, b, c, d, magic @ ..] = last;
    let length = u32::from_le_bytes([a, b, c, d]);
    let start = end.checked_sub(length.into()).filter(|_| magic == MAGIC);
    let footer = match start {
        Some(start) => {
            let mut footer = vec![0; length as usize];
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(&mut footer)?;
            Some(footer)
        }
        None => None,
    };
    file.rewind()?;
    Ok(footer)
}

enum Fault {
    Fatal(&'static str),
    /// The library reports it.
    Other,
}

const TOO_LONG: Fault = Fault::Fatal("a list is longer than its footer");
const TOO_DEEP: Fault = Fault::Fatal("it has more than 64 levels");
const TOO_MANY: Fault = Fault::Fatal("a group has more fields than the schema");

/// What is left of a footer.
struct Footer<'a> {
    left: &'a [u8],
}

impl Footer<'_> {
    fn walk(&mut self) -> Result<(), Fault> {
        let mut id = 0;
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (SCHEMA, kind::LIST) => self.schema()?,
                _ => self.skip(kind, 0)?,
            }
        }
        Ok(())
    }

    /// The schema is a tree in the order of its nodes.
    fn schema(&mut self) -> Result<(), Fault> {
        let (elements, kind) = self.list()?;
        // The fields that are still to come of each open group.
        let mut open: Vec<u64> = Vec::new();
        for _ in 0..elements {
            if kind != kind::STRUCT {
                return Err(Fault::Other);
            }
            let children = self.children()?;
            if children > elements {
                return Err(TOO_MANY);
            }
            while open.pop_if(|left| *left == 0).is_some() {}
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            if children > 0 {
                open.push(children);
            }
            if open.len() > MAX_LEVELS {
                return Err(TOO_DEEP);
            }
        }
        Ok(())
    }

    /// The number of fields of a group, from its element.
    fn children(&mut self) -> Result<u64, Fault> {
        let (mut id, mut children) = (0, 0);
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (CHILDREN, kind::I32) => {
                    children = u64::try_from(self.signed()?).map_err(|_| TOO_MANY)?;
                }
                _ => self.skip(kind, 1)?,
            }
        }
        Ok(children)
    }

    /// The type of a structure's next field, whose number replaces the last one's. `None` at its
    /// end.
    fn field(&mut self, id: &mut i64) -> Result<Option<u8>, Fault> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        *id = match head >> 4 {
            0 => self.signed()?,
            step => id.saturating_add(step.into()),
        };
        Ok(Some(head & 0xf))
    }

    /// The number of elements of a list, and their type.
    fn list(&mut self) -> Result<(u64, u8), Fault> {
        let head = self.byte()?;
        let elements = match head >> 4 {
            15 => self.number()?,
            few => few.into(),
        };
        // Each element takes a byte at least.
        match elements > self.left.len() as u64 {
            true => Err(TOO_LONG),
            false => Ok((elements, head & 0xf)),
        }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Result<(), Fault> {
        if depth > MAX_LEVELS {
            return Err(TOO_DEEP);
        }
        match kind {
            kind::TRUE | kind::FALSE => Ok(()),
            kind::BYTE => self.byte().map(drop),
            kind::I16 | kind::I32 | kind::I64 => self.number().map(drop),
            kind::DOUBLE => self.bytes(8),
            kind::UUID => self.bytes(16),
            kind::BINARY => {
                let bytes = self.number()?;
                self.bytes(bytes)
            }
            kind::LIST | kind::SET => {
                let (elements, kind) = self.list()?;
                (0..elements).try_for_each(|_| self.element(kind, depth))
            }
            kind::MAP => match self.number()? {
                0 => Ok(()),
                pairs if pairs > self.left.len() as u64 => Err(TOO_LONG),
                pairs => {
                    let kinds = self.byte()?;
                    (0..pairs).try_for_each(|_| {
                        self.element(kinds >> 4, depth)?;
                        self.element(kinds & 0xf, depth)
                    })
                }
            },
            kind::STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            _ => Err(Fault::Other),
        }
    }

    /// An element of a list. In contrast to a field, a truth value takes a byte.
    fn element(&mut self, kind: u8, depth: usize) -> Result<(), Fault> {
        match kind {
            kind::TRUE | kind::FALSE => self.byte().map(drop),
            kind => self.skip(kind, depth + 1),
        }
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        let (first, left) = self.left.split_first().ok_or(Fault::Other)?;
        self.left = left;
        Ok(*first)
    }

    fn bytes(&mut self, count: u64) -> Result<(), Fault> {
        let count = usize::try_from(count).map_err(|_| Fault::Other)?;
        self.left = self.left.get(count..).ok_or(Fault::Other)?;
        Ok(())
    }

    /// A number in groups of seven bits, the lowest first.
    fn number(&mut self) -> Result<u64, Fault> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Fault::Other)
    }

    /// A number whose lowest bit is the sign.
    fn signed(&mut self) -> Result<i64, Fault> {
        let number = self.number()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(footer: &[u8]) -> Option<&'static str> {
        match (Footer { left: footer }).walk() {
            Err(Fault::Fatal(why)) => Some(why),
            _ => None,
        }
    }

    /// A footer whose schema has a root and `levels` groups in each other, and a column.
    fn nested(levels: usize) -> Vec<u8> {
        let group = [0x55, 2, 0];
        let mut footer = vec![0x29, 0xfc];
        let mut elements = levels + 2;
        while elements >= 0x80 {
            footer.push((elements & 0x7f) as u8 | 0x80);
            elements >>= 7;
        }
        footer.push(elements as u8);
        (0..=levels).for_each(|_| footer.extend(group));
        footer.extend([0x15, 2, 0, 0]);
        footer
    }

    #[test]
    fn what_would_end_the_process_is_found() {
        assert_eq!(fault(&nested(20)), None);
        assert_eq!(fault(&nested(100_000)), Some("it has more than 64 levels"));
        // A list of 2^31 - 1 row groups.
        let rows = [0x49, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07, 0];
        assert_eq!(fault(&rows), Some("a list is longer than its footer"));
        // A root with 2^30 fields, and one with -1.
        for children in [&[0x80, 0x80, 0x80, 0x80, 0x08][..], &[1]] {
            let footer = [&[0x29, 0x1c, 0x55], children, &[0, 0]].concat();
            assert_eq!(fault(&footer), Some("a group has more fields than the schema"));
        }
        assert_eq!(fault(&[]), None);
        assert_eq!(fault(&[0x29]), None);
    }
}
