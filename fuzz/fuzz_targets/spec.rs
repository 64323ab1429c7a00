//! Reads any text as a model file: it yields a sound graph, or an error with its place.
#![no_main]

#[path = "../../layerspec/tests/models/support/sound.rs"]
mod sound;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    sound::check(text);
});
