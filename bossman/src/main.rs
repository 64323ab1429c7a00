//! The `bossman` command.

mod cli;

fn main() {
    cli::exit_now(cli::run())
}
