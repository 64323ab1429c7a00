//! `bossman new`: a Rust program of one's own that uses BossMan.
//!
//! ```text
//! New -> name, dependency (on this BossMan), libtorch -> files (the project)
//! ```
//!
//! The sources of the project are those of `examples/hello/src/main.rs` and the files beside it.
//! The workspace compiles and tests them. The templates here are only what differs outside it.

mod dependency;
mod files;
mod libtorch;
mod name;

use super::shell_word::shell_word;
use anyhow::{bail, Context, Result};
use bossman::output;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Example: bossman new hello && cd hello && cargo run")]
pub(crate) struct New {
    /// The folder to make. It must be empty, or absent.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The name of the program [default: that of the folder]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    source: dependency::Flags,
}

impl New {
    pub(crate) fn run(self) -> Result<()> {
        let folder = std::path::absolute(&self.folder)
            .with_context(|| format!("cannot make the folder {}", self.folder.display()))?;
        let name = match &self.name {
            Some(name) => name.as_str(),
            None => folder.file_name().and_then(|name| name.to_str()).unwrap_or_default(),
        };
        name::check(name)?;
        // Everything is checked before anything is written.
        refuse_contents(&folder)?;
        let source = self.source.source()?;
        let libtorch = libtorch::find(source.checkout())?;
        for file in files::project(name, &source, &libtorch)? {
            write(&folder.join(file.path), &file.text)?;
        }
        output::print(&format!(
            "{name}: a program that trains a model across two workers\n  bossman   {source}\n  \
             libtorch  {}\n\nThe first build takes some minutes:\n\n  cd {}\n  cargo run\n",
            libtorch.display(),
            shell_word(&self.folder.to_string_lossy()),
        ))?;
        Ok(())
    }
}

fn refuse_contents(folder: &Path) -> Result<()> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => bail!("{} is not empty; name a new folder", folder.display()),
        },
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => bail!("{}: {e}", folder.display()),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    let problem = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(problem)?;
    }
    std::fs::write(path, text).with_context(problem)
}
