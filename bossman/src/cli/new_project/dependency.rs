//! The BossMan that a new project depends on: a checkout on this machine, or a git repository.

use anyhow::{bail, Context, Result};
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(super) struct Flags {
    /// Depend on this checkout of BossMan [default: the repository of BossMan, or without one the
    /// checkout that this program was built from]
    #[arg(long, value_name = "CHECKOUT", conflicts_with_all = ["git", "rev"])]
    path: Option<PathBuf>,
    /// Depend on this git repository of BossMan.
    #[arg(long, value_name = "URL")]
    git: Option<String>,
    /// The revision in the git repository [default: its newest]
    #[arg(long, value_name = "REVISION", requires = "git")]
    rev: Option<String>,
}

/// Where cargo finds BossMan's crates.
pub(super) enum Source {
    /// The absolute path of a checkout.
    Checkout(PathBuf),
    Git {
        url: String,
        rev: Option<String>,
    },
}

impl Flags {
    /// The source that the flags name, or the default.
    pub(super) fn source(self) -> Result<Source> {
        if let Some(path) = self.path {
            let checkout =
                path.canonicalize().with_context(|| format!("--path {}", path.display()))?;
            if !is_checkout(&checkout) {
                bail!("--path {}: no checkout of BossMan is there", path.display());
            }
            return Ok(Source::Checkout(checkout));
        }
        if let Some(url) = self.git {
            return Ok(Source::Git { url, rev: self.rev });
        }
        default(env!("CARGO_PKG_REPOSITORY"), Path::new(env!("CARGO_MANIFEST_DIR")).parent())
    }
}

/// The `repository` of the manifest, or the checkout that this program was built from if it is
/// still there.
fn default(repository: &str, built_from: Option<&Path>) -> Result<Source> {
    if !repository.is_empty() {
        return Ok(Source::Git { url: repository.into(), rev: None });
    }
    match built_from.filter(|folder| is_checkout(folder)) {
        Some(checkout) => Ok(Source::Checkout(checkout.into())),
        None => bail!(
            "where is BossMan's source? The checkout that this program was built from is not on \
             this machine: give --path with a checkout, or --git with a URL"
        ),
    }
}

fn is_checkout(folder: &Path) -> bool {
    ["bossman", "worker"].iter().all(|name| folder.join(name).join("Cargo.toml").is_file())
}

impl Source {
    /// The checkout, if it is one on this machine.
    pub(super) fn checkout(&self) -> Option<&Path> {
        match self {
            Source::Checkout(path) => Some(path),
            Source::Git { .. } => None,
        }
    }

    /// The keys of a manifest that tell cargo where the crate `name` is.
    pub(super) fn keys(&self, name: &str) -> Result<String> {
        Ok(match self {
            Source::Checkout(path) => format!("path = {}", toml_path(&path.join(name))?),
            Source::Git { url, rev: None } => format!("git = {}", toml_string(url)?),
            Source::Git { url, rev: Some(rev) } => {
                format!("git = {}, rev = {}", toml_string(url)?, toml_string(rev)?)
            }
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Checkout(path) => write!(f, "{}", path.display()),
            Source::Git { url, rev: None } => write!(f, "{url}"),
            Source::Git { url, rev: Some(rev) } => write!(f, "{url} at {rev}"),
        }
    }
}

/// A path as a string of TOML.
pub(super) fn toml_path(path: &Path) -> Result<String> {
    let text = path.to_str();
    toml_string(text.with_context(|| format!("{} is not UTF-8", path.display()))?)
}

/// A string of TOML. Its escapes are those of JSON.
fn toml_string(text: &str) -> Result<String> {
    Ok(serde_json::to_string(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_repository_and_else_the_checkout_of_this_program() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
        let source = |repository, built_from| default(repository, built_from).unwrap().to_string();
        assert_eq!(source("https://git.test/b", here), "https://git.test/b");
        assert_eq!(source("", here), here.unwrap().display().to_string());
        let nowhere = default("", Some(Path::new("/no/such"))).err().unwrap().to_string();
        assert!(nowhere.contains("--path") && nowhere.contains("--git"), "{nowhere}");
    }

    #[test]
    fn any_text_is_quoted() {
        assert_eq!(toml_path(Path::new("/a \"b\"\\c")).unwrap(), r#""/a \"b\"\\c""#);
    }
}
