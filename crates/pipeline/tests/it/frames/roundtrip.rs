//! An encoded frame is decoded on a connection of its direction, and on no other.

use super::heads::{envelope, head, kind, Head, KINDS};
use pipeline::frame::{decode, encode, head_len, Envelope, FrameMessage};
use pipeline::message::{NoMessage, ToBoss, ToWorker};
use std::fmt::Debug;
use testkit::Random;

fn there_and_back<M: FrameMessage + PartialEq + Debug>(sent: &Envelope<M>) -> Vec<u8> {
    let bytes = encode(sent).expect("within bounds");
    let (prefix, head) = bytes.split_first_chunk().expect("a length");
    assert_eq!(head_len(*prefix).expect("within bounds"), head.len());
    assert_eq!(&decode::<M>(head).expect("what was encoded"), sent);
    head.to_vec()
}

/// FRAME-2, FRAME-4.
#[test]
fn every_kind_of_head_goes_there_and_back() {
    let mut random = Random::new(1);
    for number in 0..KINDS {
        for _ in 0..200 {
            let head = head(&mut random, number);
            assert_eq!(kind(&head), number);
            match head {
                Head::ToWorker(message) => {
                    let bytes = there_and_back(&Envelope::Message(message));
                    assert!(
                        decode::<ToBoss>(&bytes).is_err(),
                        "the boss takes no message to workers"
                    );
                    assert!(decode::<NoMessage>(&bytes).is_err(), "workers take no messages");
                }
                Head::ToBoss(message) => {
                    let bytes = there_and_back(&Envelope::Message(message));
                    assert!(
                        decode::<ToWorker>(&bytes).is_err(),
                        "no worker takes a message to the boss"
                    );
                    assert!(decode::<NoMessage>(&bytes).is_err(), "workers take no messages");
                }
                Head::Tensors(head) => {
                    let sent = envelope(&mut random, head);
                    let bytes = there_and_back(&Envelope::<ToWorker>::Tensors(sent.clone()));
                    assert_eq!(bytes, there_and_back(&Envelope::<ToBoss>::Tensors(sent.clone())));
                    assert_eq!(bytes, there_and_back(&Envelope::<NoMessage>::Tensors(sent)));
                }
            }
        }
    }
}

/// FRAME-3.
#[test]
fn every_bit_of_a_number_goes_there_and_back() {
    for bits in [0, 1, 0x7fc0_1234, 0xff80_0000, 0x8000_0000, 0x3eaa_aaab] {
        let losses = vec![(u32::MAX, f32::from_bits(bits))];
        let time = pipeline::effect::Micros(u64::MAX);
        let sent = ToBoss::Done {
            id: u64::MAX,
            losses,
            sent: u32::MAX,
            received: time,
            answered: time,
            spans: Vec::new(),
        };
        let bytes = encode(&Envelope::Message(sent)).expect("within bounds");
        match decode(&bytes[4..]).expect("what was encoded") {
            Envelope::Message(ToBoss::Done { id: u64::MAX, losses, sent: u32::MAX, .. }) => {
                assert_eq!(losses[0].1.to_bits(), bits)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The page of frames shows these bytes. FRAME-3.
#[test]
fn a_message_has_the_bytes_of_its_page() {
    let bytes = encode(&Envelope::Message(ToWorker::Stop)).expect("within bounds");
    assert_eq!(bytes, b"\x0e\0\0\0\x81\xa7Message\xa4Stop");
}
