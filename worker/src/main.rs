//! The `worker` program. [`worker::Options`] lists its flags and environment variables.

fn main() {
    worker::Worker::new().main()
}
