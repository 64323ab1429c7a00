//! Decodes bytes from a stranger as a frame's head, on a connection of each direction. They are
//! refused, or they survive writing and reading.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pipeline::frame;
use pipeline::message::{NoMessage, ToBoss, ToWorker};

/// Bytes that are read as an envelope of these messages can be written and read again.
macro_rules! survives {
    ($bytes:expr, $messages:ty) => {
        if let Ok(envelope) = frame::decode::<$messages>($bytes) {
            let written = frame::encode(&envelope).expect("what was read can be written");
            let again =
                frame::decode::<$messages>(&written[4..]).expect("what was written can be read");
            assert_eq!(frame::encode(&again).ok(), Some(written));
        }
    };
}

fuzz_target!(|bytes: &[u8]| {
    survives!(bytes, ToWorker);
    survives!(bytes, ToBoss);
    survives!(bytes, NoMessage);
});
