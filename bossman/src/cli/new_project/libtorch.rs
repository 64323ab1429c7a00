//! The libtorch that a new project is built with.

use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};

/// The libtorch that this program was built with; tools/build/libtorch.rs sets it.
const BUILT_WITH: &str = env!("BOSSMAN_BUILT_WITH_LIBTORCH");

/// The folder of `LIBTORCH`; without it the link in the checkout, the libtorch beside this program,
/// and the one that this program was built with, whichever is there first.
pub(super) fn find(checkout: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("LIBTORCH").filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        if !is_whole(&named) {
            bail!(
                "LIBTORCH={}: no libtorch to build with; it holds no include/ or no \
                 lib/libtorch_cpu; name another, or unset it",
                named.display()
            );
        }
        return std::path::absolute(&named).context("LIBTORCH");
    }
    let linked = checkout.map(|checkout| checkout.join(".libtorch"));
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.ancestors().skip(1).take(2).map(|folder| folder.join("libtorch"));
    let places = linked.into_iter().chain(beside).chain([PathBuf::from(BUILT_WITH)]);
    let found = places.into_iter().find(|place| is_whole(place));
    found.context(
        "no libtorch to build with: run `make setup` in a checkout of BossMan and give it as \
         --path, or set LIBTORCH to the folder of a libtorch 2.11.0",
    )
}

/// Whether a build finds headers and libraries there.
fn is_whole(libtorch: &Path) -> bool {
    let library =
        |name| libtorch.join("lib").join(format!("{name}{}", std::env::consts::DLL_SUFFIX));
    libtorch.join("include").is_dir() && library("libtorch_cpu").is_file()
}
