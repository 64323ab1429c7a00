//! The decoder under changed frames: it refuses them or decodes them. A decoded frame can be
//! encoded again.

use super::heads::{encoded, head, KINDS};
use pipeline::frame::{decode, encode, FrameMessage, MAX_BODY_BYTES};
use pipeline::message::{ToBoss, ToWorker};
use testkit::inputs;
use testkit::Random;

/// FRAME-2, FRAME-5.
#[test]
fn fuzz_frame_decoder() {
    let kept = inputs::kept("frame");
    let (mut understood, mut refused) = (0u64, 0u64);
    let made = |seed| {
        let mut random = Random::new(seed);
        let mut bytes = if random.chance(50) {
            let kind = random.below(KINDS);
            let head = head(&mut random, kind);
            encoded(&mut random, head).split_off(4)
        } else {
            random.pick(&kept).1.clone()
        };
        for _ in 0..random.below(4) {
            change(&mut random, &mut bytes);
        }
        bytes
    };
    inputs::fuzz(3, &kept, made, |bytes| {
        let known = [survives::<ToWorker>(bytes), survives::<ToBoss>(bytes)];
        match known.contains(&true) {
            true => understood += 1,
            false => refused += 1,
        }
    });
    assert!(understood > 0 && refused > 0, "{understood} understood, {refused} refused");
}

/// Whether the bytes can be decoded on a connection of this direction. If so, they can be encoded
/// again.
fn survives<M: FrameMessage + std::fmt::Debug>(bytes: &[u8]) -> bool {
    let Ok(envelope) = decode::<M>(bytes) else { return false };
    let sizes = envelope.tensors().iter().map(|t| t.byte_len().expect("a real size"));
    assert!(sizes.sum::<u64>() <= MAX_BODY_BYTES);
    let again = encode(&envelope).expect("what was understood can be said");
    let again = decode::<M>(&again[4..]).expect("what was said");
    // NaN differs from itself, but its text does not.
    assert_eq!(format!("{again:?}"), format!("{envelope:?}"));
    true
}

fn change(random: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len() as u64) as usize;
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => bytes.insert(at, random.next() as u8),
        4 => {
            let end = (at + random.below(9) as usize).min(bytes.len());
            let part = bytes[at..end].to_vec();
            let to = random.below(bytes.len() as u64) as usize;
            bytes.splice(to..to, part);
        }
        _ => {
            // The beginning of something long.
            let marker = *random.pick(&[0xc6, 0xcf, 0xd9, 0xdb, 0xdc, 0xdd, 0xdf]);
            bytes.splice(at..=at, [marker, random.next() as u8, 0xff, random.next() as u8, 0xff]);
        }
    }
}
