//! Contents arrive unchanged, and invalid locations are refused. Both ends are in this process,
//! which makes no difference to the code.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "everything here is part of a test")]

use shm::{BlockLocation, FileAddress, LocalFile, PeerFile, ALIGNMENT};
use std::os::fd::AsRawFd;
use std::sync::Arc;

const LIMIT: usize = 1 << 20;

fn pair() -> ((LocalFile, Arc<PeerFile>), (LocalFile, Arc<PeerFile>)) {
    let (a, b) =
        (LocalFile::create(LIMIT, [1; 32]).unwrap(), LocalFile::create(LIMIT, [2; 32]).unwrap());
    let (a_seen, b_seen) =
        (PeerFile::open(a.address()).unwrap(), PeerFile::open(b.address()).unwrap());
    ((a, Arc::new(b_seen)), (b, Arc::new(a_seen)))
}

#[test]
fn who_opens_a_file_can_say_its_nonce() {
    let nonce: [u8; 32] = std::array::from_fn(|i| i as u8 ^ 0xa5);
    let own = LocalFile::create(LIMIT, nonce).unwrap();
    assert_eq!(PeerFile::open(own.address()).unwrap().nonce(), nonce);
}

#[test]
fn parts_arrive_aligned_and_equal() {
    let ((mut a, b_seen), (b, a_seen)) = pair();
    let parts: Vec<Vec<u8>> = [3usize, 64, 0, 1000, 65_537]
        .iter()
        .map(|n| (0..*n).map(|i| (i * 7) as u8).collect())
        .collect();
    let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let place = a.write(&b_seen, &slices).unwrap();
    let len = 3 + 61 + 64 + 1000 + 24 + 65_537;
    let borrowed = a_seen.read(&b.ledger(), place, len).unwrap();
    let mut at = 0usize;
    for part in &parts {
        at = at.next_multiple_of(ALIGNMENT);
        assert_eq!(&borrowed.as_ref()[at..at + part.len()], part.as_slice());
        assert!((borrowed.as_ref().as_ptr() as usize + at).is_multiple_of(ALIGNMENT));
        at += part.len();
    }
    assert_eq!(at, len);
}

#[test]
fn a_block_is_written_again_only_after_the_last_borrow() {
    let ((mut a, b_seen), (b, a_seen)) = pair();
    let first = a.write(&b_seen, &[&[1; 5000]]).unwrap();
    let borrowed = a_seen.read(&b.ledger(), first, 5000).unwrap();
    let second = a.write(&b_seen, &[&[2; 5000]]).unwrap();
    assert_ne!(first.block, second.block);
    assert_eq!(borrowed.as_ref(), &[1; 5000]);
    drop(borrowed);
    let third = a.write(&b_seen, &[&[3; 5000]]).unwrap();
    assert_eq!((third.block, third.generation), (first.block, first.generation + 1));
    assert!(
        a_seen.read(&b.ledger(), first, 5000).is_err(),
        "its block has another generation by now"
    );
}

#[test]
fn a_full_file_says_so_and_recovers() {
    let ((mut a, b_seen), (b, a_seen)) = pair();
    let half = vec![9; LIMIT / 2];
    let lent: Vec<_> = (0..2).map(|_| a.write(&b_seen, &[&half]).unwrap()).collect();
    assert_eq!(a.write(&b_seen, &[&half]), None);
    assert_eq!(a.write(&b_seen, &[&vec![0; LIMIT + 1]]), None);
    drop(a_seen.read(&b.ledger(), lent[1], half.len()).unwrap());
    assert_eq!(a.write(&b_seen, &[&half]).unwrap().block, lent[1].block);
}

#[test]
fn places_that_are_none_are_refused() {
    let ((mut a, b_seen), (b, a_seen)) = pair();
    let place = a.write(&b_seen, &[&[1; 100]]).unwrap();
    let refused = |place: BlockLocation, len: usize| a_seen.read(&b.ledger(), place, len).is_err();
    assert!(refused(BlockLocation { block: 512, ..place }, 100));
    assert!(refused(BlockLocation { block: u32::MAX, ..place }, 100));
    assert!(refused(BlockLocation { block: place.block + 1, ..place }, 100));
    assert!(refused(BlockLocation { generation: 2, ..place }, 100));
    assert!(refused(BlockLocation { offset: 0, ..place }, 100));
    assert!(refused(BlockLocation { offset: place.offset + 1, ..place }, 10));
    assert!(refused(BlockLocation { offset: u64::MAX, ..place }, 100));
    assert!(refused(place, LIMIT + 1));
    assert!(refused(place, usize::MAX));
    let borrowed = a_seen.read(&b.ledger(), place, 100).unwrap();
    assert!(
        refused(place, 100),
        "nothing is lent twice: it would be given back while still borrowed"
    );
    assert_eq!(borrowed.as_ref(), &[1; 100]);
}

#[test]
fn a_borrow_outlives_both_files() {
    let ((mut a, b_seen), (b, a_seen)) = pair();
    let place = a.write(&b_seen, &[&[7; 4096]]).unwrap();
    let borrowed = a_seen.read(&b.ledger(), place, 4096).unwrap();
    drop((a, b, a_seen, b_seen));
    assert_eq!(borrowed.as_ref(), &[7; 4096]);
}

#[test]
fn other_files_are_refused() {
    let here = |file: &dyn AsRawFd| FileAddress {
        process: std::process::id(),
        file: file.as_raw_fd() as u32,
    };
    let plain = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(PeerFile::open(here(&plain)).is_err());
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(PeerFile::open(here(&null)).is_err());
    let (reader, writer) = std::io::pipe().unwrap();
    assert!(PeerFile::open(here(&reader)).is_err());
    assert!(PeerFile::open(here(&writer)).is_err());
    assert!(PeerFile::open(FileAddress { process: std::process::id(), file: u32::MAX }).is_err());
    assert!(PeerFile::open(FileAddress { process: u32::MAX, file: 0 }).is_err());
    // One of the right size that could still shrink under its reader.
    let open = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, 1 << 20).unwrap();
    assert!(PeerFile::open(here(&open)).is_err());
}
