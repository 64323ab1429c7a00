//! The `bossman` command.

mod cli;

fn main() {
    tensor::memory::return_large_blocks();
    cli::exit_now(cli::run())
}
