//! The `bossman` command.

mod cli;

use std::io::Write;

fn main() {
    let code = cli::run();
    // Without libtorch's clean-up, which frees only what the system frees anyway, and takes a third
    // of the time of a short command.
    std::io::stdout().flush().ok();
    signal_hook::low_level::exit(code.into())
}
