//! Bytes from a stranger: a frame's head is refused or read, and what was read is written as it was meant.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pipeline::frame;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(envelope) = frame::decode(bytes) {
        let written = frame::encode(&envelope).expect("what was read can be written");
        let again = frame::decode(&written[4..]).expect("what was written can be read");
        assert_eq!(frame::encode(&again).ok(), Some(written));
    }
});
