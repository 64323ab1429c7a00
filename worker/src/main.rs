//! The `worker` program; see [`worker::Options`] for what it reads.

fn main() {
    worker::Worker::new().main()
}
