//! Decodes bytes from a stranger as a frame's head. It is refused, or it survives writing and
//! reading.
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
