//! Lets the program find libtorch, and packs the layers that PyTorch has computed (tests/layers)
//! into one file: `worker --self-check` carries them, because a built program has no source tree.

#[path = "../tools/build/libtorch.rs"]
mod libtorch;

use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

const LAYERS: &str = "../tests/layers";

fn main() {
    libtorch::main();
    println!("cargo:rerun-if-changed={LAYERS}/cases.json");
    println!("cargo:rerun-if-changed={LAYERS}/recorded");
    if let Err(problem) = pack() {
        eprintln!("cannot pack {LAYERS}: {problem}");
        process::exit(1);
    }
}

/// Writes the file that `src/self_check/records.rs` reads.
fn pack() -> io::Result<()> {
    let mut packed = Vec::new();
    append(&mut packed, Path::new(&format!("{LAYERS}/cases.json")))?;
    let recorded = fs::read_dir(format!("{LAYERS}/recorded"))?;
    let mut recorded: Vec<PathBuf> =
        recorded.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    recorded.sort();
    for file in recorded {
        append(&mut packed, &file)?;
    }
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    fs::write(Path::new(&out).join("recorded_layers"), packed)
}

/// Appends a file: its name, then its bytes, each after their number.
fn append(packed: &mut Vec<u8>, file: &Path) -> io::Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    for part in [name.as_bytes(), &fs::read(file)?] {
        let length = u32::try_from(part.len()).map_err(io::Error::other)?;
        packed.extend(length.to_le_bytes());
        packed.extend(part);
    }
    Ok(())
}
