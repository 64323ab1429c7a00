//! LibreOffice's user interface: gettext's `.mo` files, tables of English texts and their translations.

use super::files;
use super::prose::{single_spaced, untagged, Pair};
use crate::BossManError;
use std::path::Path;

const MAGIC: u32 = 0x9504_12de;

pub(super) fn pairs(from: &Path) -> Result<Vec<Pair>, BossManError> {
    let folder = from.join("usr/lib/libreoffice/program/resource/de");
    let mut pairs = Vec::new();
    for path in files::ending(&folder, ".mo")? {
        let found = messages(&files::bytes(&path)?);
        pairs.extend(found.ok_or_else(|| BossManError::file(&path, "is no whole file of gettext's .mo format"))?);
    }
    Ok(pairs)
}

/// None where a number points outside the file.
fn messages(file: &[u8]) -> Option<Vec<Pair>> {
    let little = u32::from_le_bytes(file.first_chunk().copied()?) == MAGIC;
    if !little && u32::from_be_bytes(file.first_chunk().copied()?) != MAGIC {
        return None;
    }
    let number = |place: usize| {
        let bytes = *file.get(place..)?.first_chunk()?;
        usize::try_from(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }).ok()
    };
    let (count, originals, translations) = (number(8)?, number(12)?, number(16)?);
    let mut pairs = Vec::new();
    // Texts do not lie in each other, so that all of them together are not longer than the file.
    let mut left = file.len();
    for row in 0..count {
        let mut text = |table: usize| {
            let place = row.checked_mul(8)?.checked_add(table)?;
            let (length, start) = (number(place)?, number(place.checked_add(4)?)?);
            left = left.checked_sub(length)?;
            Some(String::from_utf8_lossy(file.get(start..start.checked_add(length)?)?))
        };
        let (english, german) = (text(originals)?, text(translations)?);
        // The context comes first, the plural last.
        let english = english.rsplit('\x04').next().and_then(|text| text.split('\0').next()).unwrap_or_default();
        let german = german.split('\0').next().unwrap_or_default();
        // The first text is the file's header.
        if !english.is_empty() && !german.is_empty() {
            pairs.push((plain(english), plain(german)));
        }
    }
    Some(pairs)
}

/// Without tags and without the marks of keys.
fn plain(text: &str) -> String {
    single_spaced(&untagged(&text.replace(['_', '~'], "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(texts: &[(&str, &str)], bytes: fn(u32) -> [u8; 4]) -> Vec<u8> {
        let count = texts.len() as u32;
        let (mut tables, mut content) = (Vec::new(), Vec::new());
        for text in texts.iter().map(|pair| pair.0).chain(texts.iter().map(|pair| pair.1)) {
            let start = 28 + 16 * count + content.len() as u32;
            tables.extend([bytes(text.len() as u32), bytes(start)].concat());
            content.extend(text.bytes().chain([0]));
        }
        let header = [MAGIC, 0, count, 28, 28 + 8 * count, 0, 0].map(bytes).concat();
        [header, tables, content].concat()
    }

    const TEXTS: [(&str, &str); 4] = [
        ("", "Content-Type: text/plain"),
        ("menu\x04_Save <b>all</b>", "Alles ~speichern"),
        ("%1 file\0%1 files", "%1 Datei\0%1 Dateien"),
        ("Not yet", ""),
    ];

    #[test]
    fn messages_are_read_in_both_orders_of_bytes() {
        let expected = [("Save all", "Alles speichern"), ("%1 file", "%1 Datei")];
        let expected = expected.map(|(en, de)| (en.to_string(), de.to_string()));
        assert_eq!(messages(&made(&TEXTS, u32::to_le_bytes)).unwrap(), expected);
        assert_eq!(messages(&made(&TEXTS, u32::to_be_bytes)).unwrap(), expected);
    }

    #[test]
    fn broken_files_are_refused() {
        let whole = made(&TEXTS, u32::to_le_bytes);
        // The last byte is the end of the last text, which is empty.
        for length in 0..whole.len() - 1 {
            assert_eq!(messages(&whole[..length]), None, "{length}");
        }
        for place in (0..28 + 16 * TEXTS.len() - 3).step_by(4).filter(|place| ![4, 20, 24].contains(place)) {
            let mut broken = whole.clone();
            broken[place..place + 4].copy_from_slice(&[255; 4]);
            assert_eq!(messages(&broken), None, "{place}");
        }
    }

    #[test]
    fn a_file_whose_texts_lie_in_each_other_is_refused() {
        let mut file = [MAGIC, 0, 1000, 28, 28, 0, 0].map(u32::to_le_bytes).concat();
        (0..1000).for_each(|_| file.extend([8000u32, 28].map(u32::to_le_bytes).concat()));
        assert_eq!(messages(&file), None);
    }

    #[test]
    fn the_error_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("usr/lib/libreoffice/program/resource/de/LC_MESSAGES");
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::write(inside.join("a.mo"), made(&TEXTS, u32::to_le_bytes)).unwrap();
        assert_eq!(pairs(folder.path()).unwrap().len(), 2);
        std::fs::write(inside.join("b.mo"), "nothing").unwrap();
        let error = pairs(folder.path()).unwrap_err().to_string();
        assert!(error.contains("b.mo") && error.ends_with("is no whole file of gettext's .mo format"), "{error}");
    }
}
