//! What is encoded is decoded.

use crate::heads::{envelope, head, kind, KINDS};
use pipeline::frame::{decode, encode, head_len};
use testkit::Random;

#[test]
fn every_kind_of_head_goes_there_and_back() {
    let mut random = Random::new(1);
    for number in 0..KINDS {
        for _ in 0..200 {
            let head = head(&mut random, number);
            assert_eq!(kind(&head), number);
            let sent = envelope(&mut random, head);
            let bytes = encode(&sent).expect("within bounds");
            let (prefix, head) = bytes.split_first_chunk().expect("a length");
            assert_eq!(head_len(*prefix).expect("within bounds"), head.len());
            assert_eq!(decode(head).expect("what was encoded"), sent);
        }
    }
}

#[test]
fn every_bit_of_a_number_goes_there_and_back() {
    use pipeline::message::Head;
    for bits in [0, 1, 0x7fc0_1234, 0xff80_0000, 0x8000_0000, 0x3eaa_aaab] {
        let losses = vec![(u32::MAX, f32::from_bits(bits))];
        let time = pipeline::effect::Micros(u64::MAX);
        let sent =
            Head::Done { id: u64::MAX, losses, sent: u32::MAX, received: time, answered: time, spans: Vec::new() };
        let bytes = encode(&pipeline::frame::Envelope { route: None, head: sent, tensors: vec![] });
        match decode(&bytes.expect("within bounds")[4..]).expect("what was encoded").head {
            Head::Done { id: u64::MAX, losses, sent: u32::MAX, .. } => assert_eq!(losses[0].1.to_bits(), bits),
            other => panic!("{other:?}"),
        }
    }
}
