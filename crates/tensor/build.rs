//! Lets the tests of this crate find libtorch when they run.

#[path = "../../tools/build/libtorch.rs"]
mod libtorch;

fn main() {
    libtorch::main();
}
