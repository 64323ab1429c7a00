use super::*;
use bytes::Bytes;

fn compressed(compress: Compress, numbers: &[f32]) -> (Payload, Vec<f32>) {
    let mut lost = numbers.to_vec();
    let (meta, len) = encoded_meta(compress, numbers.len());
    let mut bytes = vec![0xab; len];
    for (numbers, bytes) in lost.chunks_mut(BLOCK).zip(bytes.chunks_mut(block_bytes(compress))) {
        encode_block(compress, numbers, bytes);
    }
    (Payload { meta, bytes: bytes.into() }, lost)
}

fn read(payload: &Payload) -> Vec<f32> {
    let payload = decompress(payload).unwrap();
    assert_eq!(payload.meta.dtype, DType::Float32);
    assert_eq!(payload.meta.shape, [payload.bytes.len() as u64 / 4]);
    payload.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Numbers of many sizes.
fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 1.7).sin() * 10f32.powi(i as i32 / 300 % 9 - 4)).collect()
}

#[test]
fn what_is_read_is_near_and_the_rest_is_what_was_lost() {
    for len in (1..=66).chain([255, 256, 257, 300, 1000, 4096]) {
        let before = numbers(len);
        for (_, compress) in Compress::NAMES {
            let (payload, lost) = compressed(compress, &before);
            assert_eq!(payload.bytes.len() as u64, compress.bytes(len as u64));
            let after = read(&payload);
            assert_eq!(after.len(), len);
            for (block, place) in before.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
                let most = block.iter().fold(0.0, |most: f32, n| most.max(n.abs()));
                for (i, number) in (place..).zip(block) {
                    let bound = match compress {
                        Compress::Bf16 => number.abs() / 256.0,
                        Compress::Int8 => most / 127.0 * 0.5001,
                        // The scale is rounded by up to 1 / 128.
                        Compress::Int4 => most / 7.0 * 0.56,
                    };
                    assert!(
                        (after[i] - number).abs() <= bound,
                        "{compress}, {len}: {number} became {}",
                        after[i]
                    );
                    assert_eq!(lost[i], number - after[i], "{compress}, {len}: {i}");
                }
            }
        }
    }
}

#[test]
fn whole_multiples_and_zeros_lose_nothing() {
    for (_, compress) in Compress::NAMES {
        let most = if compress == Compress::Int4 { 7 } else { 127 };
        let multiples: Vec<f32> = (-most..=most).map(|n: i16| f32::from(n) * 0.25).collect();
        for exact in [&multiples[..], &[0.0; 300]] {
            let (payload, lost) = compressed(compress, exact);
            assert_eq!(read(&payload), exact, "{compress}");
            assert!(lost.iter().all(|lost| *lost == 0.0), "{compress}");
        }
    }
}

#[test]
fn bf16_rounds_to_nearest_and_ties_to_even() {
    let bits = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x3f80_7fff, 0xbf81_8000];
    let (payload, _) = compressed(Compress::Bf16, &bits.map(f32::from_bits));
    let found: Vec<u32> = read(&payload).into_iter().map(f32::to_bits).collect();
    assert_eq!(found, [0x3f80_0000, 0x3f82_0000, 0x3f81_0000, 0x3f80_0000, 0xbf82_0000]);
}

#[test]
fn what_is_not_finite_stays_so_and_is_not_remembered() {
    // The last is a NaN whose upper half alone would be an infinity.
    for bad in [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(0x7f80_0001),
        f32::from_bits(0xff80_0001),
    ] {
        let mut before = numbers(600);
        before[300] = bad;
        for (_, compress) in Compress::NAMES {
            let (payload, lost) = compressed(compress, &before);
            let after = read(&payload);
            assert!(!after[300].is_finite(), "{compress}: {bad} became {}", after[300]);
            assert!(lost.iter().all(|lost| lost.is_finite()), "{compress}");
            // Other blocks are as ever.
            assert!(after[..256].iter().chain(&after[512..]).all(|n| n.is_finite()), "{compress}");
        }
    }
}

#[test]
fn numbers_too_small_for_a_scale_come_later() {
    let before = [1e-38, -3e-39, 0.0];
    let (payload, lost) = compressed(Compress::Int8, &before);
    assert_eq!((read(&payload), lost), (vec![0.0; 3], before.to_vec()));
    let large = [f32::MAX, -f32::MAX, 1.0];
    let (payload, lost) = compressed(Compress::Int8, &large);
    assert!(read(&payload).iter().chain(&lost).all(|n| n.is_finite()));
}

#[test]
fn what_came_wrong_is_refused() {
    let payload = |dtype, shape: &[u64], bytes: usize| Payload {
        meta: TensorMeta { dtype, shape: shape.to_vec() },
        bytes: Bytes::from(vec![0; bytes]),
    };
    for wrong in [
        payload(DType::Int64, &[1], 8),
        payload(DType::Float32, &[2], 4),
        payload(DType::Float32, &[1, 1], 4),
        payload(DType::BFloat16, &[], 2),
        payload(DType::BFloat16, &[3], 5),
        payload(DType::UInt8, &[4], 4),
        payload(DType::UInt8, &[263], 263),
        payload(DType::UInt8, &[264], 264),
        payload(DType::UInt8, &[u64::MAX], 0),
        payload(DType::UInt8, &[2, 3], 6),
        payload(DType::UInt8, &[1, 2], 2),
        payload(DType::UInt8, &[20, 1], 20),
        payload(DType::UInt8, &[1, 1, 5], 5),
    ] {
        assert!(decompress(&wrong).unwrap_err().starts_with("a slice of "));
    }
    assert_eq!(read(&payload(DType::UInt8, &[265], 265)).len(), 257);
    assert_eq!(read(&payload(DType::UInt8, &[1, 147], 147)).len(), 258);
    assert_eq!(read(&payload(DType::UInt8, &[147, 1], 147)).len(), 257);
    for none in [
        payload(DType::Float32, &[0], 0),
        payload(DType::UInt8, &[0], 0),
        payload(DType::BFloat16, &[0], 0),
    ] {
        assert!(EncodedSlice::read(&none).unwrap().is_none());
    }
}

/// Scales that nobody here would write.
#[test]
fn any_bytes_are_read_without_a_panic() {
    for byte in [0x00, 0x7f, 0x80, 0xff] {
        let bytes = Bytes::from(vec![byte; 600]);
        let meta = TensorMeta { dtype: DType::UInt8, shape: vec![600] };
        assert_eq!(
            decompress(&Payload { meta, bytes: bytes.clone() }).unwrap().bytes.len(),
            (512 + 76) * 4
        );
        let meta = TensorMeta { dtype: DType::UInt8, shape: vec![1, 600] };
        assert_eq!(decompress(&Payload { meta, bytes }).unwrap().bytes.len(), (33 * 32 + 8) * 4);
    }
}
