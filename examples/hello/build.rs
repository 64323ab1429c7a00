//! Lets programs and tests find libtorch when they start, without `LD_LIBRARY_PATH`.

fn main() -> Result<(), String> {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let libtorch = std::env::var("LIBTORCH")
        .map_err(|_| "LIBTORCH is not set; .cargo/config.toml sets it for builds in this folder")?;
    println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    Ok(())
}
