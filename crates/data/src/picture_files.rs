//! Finds the picture files of a folder. No picture is left out in silence.

use super::endings::ends;
use super::shown::shown;
use crate::DataError;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

const ENDINGS: [&str; 5] = [".png", ".jpg", ".jpeg", ".jpe", ".jfif"];
/// Endings of pictures that cannot be read.
const OTHERS: [&str; 19] = [
    ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".ppm", ".pgm",
    ".pbm", ".pnm", ".pam", ".tga", ".jp2", ".j2k", ".qoi", ".exr",
];

/// Folders in which a Synology server keeps thumbnails and what was deleted.
const OF_SERVERS: [&str; 2] = ["@eaDir", "#recycle"];

const NO_PICTURES: &str = "holds no .png, .jpg or .jpeg";

/// A folder's entries without hidden files and those of file servers, sorted by name.
struct Entries {
    folders: Vec<PathBuf>,
    pictures: Vec<PathBuf>,
}

impl Entries {
    /// # Errors
    /// The folder cannot be read, or holds a picture of a format that cannot be read.
    fn of(folder: &Path) -> Result<Self, DataError> {
        let (folders, files): (Vec<_>, Vec<_>) =
            listed(folder)?.into_iter().partition(|path| path.is_dir());
        if let Some(other) = files.iter().find(|path| ends(path, &OTHERS)) {
            let problem = "is no PNG or JPEG; convert it, or move it away";
            return Err(DataError::file(other, problem));
        }
        let pictures = files.into_iter().filter(|path| ends(path, &ENDINGS)).collect();
        Ok(Entries { folders, pictures })
    }
}

/// Lists pictures with the numbers of their classes. A class is the place of the folder's name in
/// `classes`, or among all folders.
///
/// # Errors
/// A picture would be left out, or a folder has a name that is not in `classes`. Without `classes`
/// a folder holds no picture.
pub(super) fn by_class(
    folder: &Path,
    classes: Option<&[String]>,
) -> Result<Vec<(PathBuf, usize)>, DataError> {
    let Entries { folders, pictures: loose } = Entries::of(folder)?;
    if folders.is_empty() {
        return Err(DataError::file(
            folder,
            "holds no folders; expected one for each class, with pictures in it",
        ));
    }
    if let Some(loose) = loose.first() {
        let problem = "lies beside the folders of classes; move it into one of them, or away";
        return Err(DataError::file(loose, problem));
    }
    let own = names(&folders)?;
    let known = classes.unwrap_or(&own);
    let numbers: BTreeMap<&str, usize> =
        known.iter().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
    let mut files = Vec::new();
    for (class, name) in folders.iter().zip(&own) {
        let number = numbers.get(name.as_str()).ok_or_else(|| unknown(class, name, known))?;
        let pictures = of_class(class)?;
        if pictures.is_empty() && classes.is_none() {
            return Err(DataError::file(class, NO_PICTURES));
        }
        files.extend(pictures.into_iter().map(|picture| (picture, *number)));
    }
    match files.is_empty() {
        true => Err(DataError::file(folder, NO_PICTURES)),
        false => Ok(files),
    }
}

/// Lists one picture, the pictures of a folder, or those of its folders.
///
/// # Errors
/// A picture would be left out.
pub(super) fn unlabelled(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if path.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let Entries { folders, pictures: loose } = Entries::of(path)?;
    let mut files = Vec::new();
    for folder in &folders {
        files.extend(of_class(folder)?);
    }
    match (loose.first(), files.first()) {
        (None, None) => Err(DataError::file(path, NO_PICTURES)),
        (Some(loose), Some(inner)) => {
            let problem = format!(
                "lies beside folders with pictures, as {}; put all pictures into folders, or none",
                inner.display()
            );
            Err(DataError::file(loose, problem))
        }
        (Some(_), None) => Ok(loose),
        (None, Some(_)) => Ok(files),
    }
}

/// The names of the classes: those of the folders, in the order of the classes.
pub(super) fn class_names(folder: &Path) -> Result<Vec<String>, DataError> {
    let folders: Vec<_> = listed(folder)?.into_iter().filter(|path| path.is_dir()).collect();
    names(&folders)
}

/// Whether a file is a picture by its name.
pub(super) fn is_picture_file(path: &Path) -> bool {
    ends(path, &ENDINGS) && path.is_file()
}

/// The pictures of a class, which lie side by side.
fn of_class(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let Entries { folders, pictures } = Entries::of(folder)?;
    for inner in folders {
        if has_pictures(&inner)? {
            let name = inner.file_name().unwrap_or_default().to_string_lossy();
            let problem = format!(
                "holds a folder with pictures, `{name}`, which are not read; move them up if they \
                 are of this class, or else away"
            );
            return Err(DataError::file(folder, problem));
        }
    }
    Ok(pictures)
}

/// Whether there are pictures of any format at any depth.
fn has_pictures(folder: &Path) -> Result<bool, DataError> {
    for path in listed(folder)? {
        let found = match path.is_dir() {
            // A link may lead back up.
            true => !path.is_symlink() && has_pictures(&path)?,
            false => ends(&path, &ENDINGS) || ends(&path, &OTHERS),
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

fn unknown(folder: &Path, name: &str, known: &[String]) -> DataError {
    let near = layerspec::nearest(name, known.iter().map(String::as_str));
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    let problem = format!(
        "`{name}` is no class of the data to train on, which has {}{near}",
        shown(known.join(", "))
    );
    DataError::file(folder, problem)
}

fn names(folders: &[PathBuf]) -> Result<Vec<String>, DataError> {
    let name = |folder: &PathBuf| {
        let name = folder.file_name().and_then(OsStr::to_str);
        let problem = "its name is not UTF-8, so it cannot name a class; rename it";
        name.map(String::from).ok_or_else(|| DataError::file(folder, problem))
    };
    folders.iter().map(name).collect()
}

/// Lists a folder sorted by name, without hidden files.
fn listed(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let error = |e: std::io::Error| DataError::io(folder, &e);
    let entries =
        std::fs::read_dir(folder).map_err(error)?.collect::<Result<Vec<_>, _>>().map_err(error)?;
    let hidden = |path: &PathBuf| {
        path.file_name().is_some_and(|name| {
            let name = name.to_string_lossy();
            name.starts_with('.') || OF_SERVERS.contains(&&*name)
        })
    };
    let mut paths: Vec<PathBuf> =
        entries.iter().map(std::fs::DirEntry::path).filter(|path| !hidden(path)).collect();
    paths.sort();
    Ok(paths)
}
