//! The worker program for other machines. The boss prints the line that starts it there.
//!
//! Layers of your own in Rust are added here and in the `main` of the boss:
//! `Worker::new().layer("Name", ..)`.

fn main() {
    worker::Worker::new().main()
}
