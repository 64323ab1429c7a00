//! Frames that are refused, each with its own error, without taking the memory that they claim.

use super::heads::{encoded, head, KINDS};
use layerspec::{DType, ValueId};
use pipeline::frame::{
    self, encode, head_len, FrameError, TensorEnvelope, MAX_BODY_BYTES, MAX_HEAD_BYTES,
};
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::message::{TensorHead, ToBoss, ToWorker, MAX_TENSORS};
use pipeline::TensorMeta;
use testkit::Random;

const KEY: MicrobatchKey = MicrobatchKey { batch: 1, index: 0 };

/// The envelope on a connection to the boss.
type Envelope = frame::Envelope<ToBoss>;

fn decode(head: &[u8]) -> Result<Envelope, FrameError> {
    frame::decode(head)
}

fn frame_of(head: TensorHead, tensors: Vec<TensorMeta>) -> Envelope {
    Envelope::Tensors(TensorEnvelope { route: None, head, tensors })
}

fn gradients(tensors: Vec<TensorMeta>) -> Envelope {
    let head = TensorHead::Gradient { key: KEY, value: ValueId(3), from: None, to: StageId(0) };
    frame_of(head, tensors)
}

fn floats(shape: &[u64]) -> TensorMeta {
    TensorMeta { dtype: DType::Float32, shape: shape.to_vec() }
}

/// The head's bytes, without a check.
fn unchecked(envelope: &Envelope) -> Vec<u8> {
    rmp_serde::to_vec(envelope).expect("it can be written")
}

/// Both ends refuse it with the same error.
fn refused(envelope: &Envelope) -> FrameError {
    let error = encode(envelope).expect_err("not to be sent");
    let received = decode(&unchecked(envelope)).expect_err("not to be taken in");
    assert_eq!(error.to_string(), received.to_string());
    error
}

/// FRAME-3.
#[test]
fn a_truncated_head() {
    let mut random = Random::new(2);
    for number in 0..KINDS {
        let head = head(&mut random, number);
        let bytes = encoded(&mut random, head);
        for end in 4..bytes.len() {
            let errors = [
                frame::decode::<ToBoss>(&bytes[4..end]).err(),
                frame::decode::<ToWorker>(&bytes[4..end]).err(),
            ];
            for error in errors {
                assert!(matches!(error, Some(FrameError::Head(_))), "{error:?}");
            }
        }
    }
}

/// FRAME-1.
#[test]
fn a_head_that_claims_to_be_too_long() {
    assert_eq!(
        head_len((MAX_HEAD_BYTES as u32).to_le_bytes()).expect("the most there may be"),
        MAX_HEAD_BYTES
    );
    let error = head_len((MAX_HEAD_BYTES as u32 + 1).to_le_bytes()).expect_err("one more");
    assert_eq!(error.to_string(), "a frame head of 16777217 bytes; at most 16777216 are allowed");
    assert!(head_len([0xff; 4]).is_err());
    // A peer with another protocol.
    assert!(head_len(*b"GET ").is_err());
}

/// FRAME-1, FRAME-2.
#[test]
fn a_head_too_long_to_be_sent() {
    let name = "x".repeat(MAX_HEAD_BYTES);
    let head = TensorHead::State { id: 1, name };
    let error = encode(&frame_of(head, vec![floats(&[])])).expect_err("too long");
    assert!(matches!(error, FrameError::HeadTooLong(_)), "{error}");
}

/// FRAME-1, FRAME-2.
#[test]
fn the_wrong_number_of_tensors() {
    let value = |count: usize| {
        let head = TensorHead::Value { key: KEY, value: ValueId(0), to: StageId(0) };
        frame_of(head, vec![floats(&[1]); count])
    };
    assert_eq!(refused(&value(0)).to_string(), "a frame with 0 tensors where 1 to 1 belong");
    assert!(encode(&value(1)).is_ok());
    assert_eq!(refused(&value(2)).to_string(), "a frame with 2 tensors where 1 to 1 belong");
    assert!(encode(&gradients(vec![floats(&[1]); MAX_TENSORS])).is_ok());
    assert!(matches!(
        refused(&gradients(vec![floats(&[1]); MAX_TENSORS + 1])),
        FrameError::TensorCount { .. }
    ));
}

/// FRAME-1, FRAME-2.
#[test]
fn tensors_that_cannot_be_real() {
    let unreal: [&[u64]; 6] = [
        &[u64::MAX],
        &[1 << 32, 1 << 32],
        &[1 << 62], // its bytes overflow, its elements do not
        &[0, u64::MAX],
        &[1 << 40, 0, 1 << 40], // no element, but strides that overflow
        &[1; 17],
    ];
    for shape in unreal {
        let error = refused(&gradients(vec![floats(shape)]));
        assert!(matches!(error, FrameError::BodyTooLong(_)), "{shape:?}: {error}");
    }
    // Valid tensors whose sum is too large.
    let quarter = floats(&[MAX_BODY_BYTES / 16]);
    assert!(encode(&gradients(vec![quarter.clone(); 4])).is_ok());
    let error = refused(&gradients(vec![quarter; 5]));
    assert!(error.to_string().contains("at most 17179869184 bytes"), "{error}");
    assert!(matches!(
        refused(&gradients(vec![floats(&[1 << 61]); 4096])),
        FrameError::BodyTooLong(_)
    ));
}

/// FRAME-1.
#[test]
fn lists_that_claim_more_than_they_have() {
    let good = unchecked(&gradients(vec![floats(&[7])]));
    let before = peak_memory();
    // Every byte replaced by the beginning of a list, map, text or binary of 4 billion elements.
    for at in 0..good.len() {
        for marker in [0xdd, 0xdf, 0xdb, 0xc6, 0xc9] {
            let mut bytes = good.clone();
            bytes.splice(at..=at, [marker, 0xff, 0xff, 0xff, 0xff]);
            assert!(decode(&bytes).is_err(), "byte {at} replaced by {marker:#x}");
        }
    }
    // The longest head, with the most tensors that fit.
    let mut bytes = good;
    let one = rmp_serde::to_vec(&floats(&[])).expect("it can be written");
    bytes.truncate(
        bytes.len() - rmp_serde::to_vec(&vec![floats(&[7])]).expect("it can be written").len(),
    );
    let count = (MAX_HEAD_BYTES - bytes.len() - 5) / one.len();
    bytes.push(0xdd);
    bytes.extend((count as u32).to_be_bytes());
    bytes.extend(one.repeat(count));
    assert!(matches!(decode(&bytes), Err(FrameError::TensorCount { got, .. }) if got == count));
    if let (Some(before), Some(after)) = (before, peak_memory()) {
        assert!(after - before < 256 << 10, "{} MiB were taken", (after - before) >> 10);
    }
}

/// FRAME-5.
#[test]
fn deep_nesting() {
    for marker in [0x91, 0x81, 0xc7] {
        let bytes = vec![marker; MAX_HEAD_BYTES];
        assert!(decode(&bytes).is_err());
        // As the head of a good envelope, where any list may begin.
        let mut bytes = b"\x81\xa7Tensors\x93\xc0".to_vec();
        bytes.extend(vec![marker; 1 << 20]);
        assert!(decode(&bytes).is_err());
    }
}

/// FRAME-3, FRAME-5.
#[test]
fn what_is_no_frame_at_all() {
    for bytes in [&b""[..], b"\xc0", b"\x93", b"\x93\xc0\xc0\x90", b"hello", &[0xff; 100]] {
        assert!(matches!(decode(bytes), Err(FrameError::Head(_))), "{bytes:?}");
    }
    // Something after the end.
    let mut bytes = unchecked(&gradients(vec![]));
    bytes.push(0);
    assert!(decode(&bytes).is_err(), "bytes after the end of a head");
}

/// The peak memory of this process in KiB, if the system reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
