//! The `bossman` command.

mod cli;

fn main() {
    tensor::memory::return_freed_memory();
    cli::exit_now(cli::run())
}
