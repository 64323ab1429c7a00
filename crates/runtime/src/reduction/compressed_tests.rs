use super::*;
use crate::reduction::compression::decompress;
use bytes::Bytes;

const NODE: Node = Node { level: 0, index: 0 };

fn payload(numbers: &[f32]) -> Payload {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Payload {
        meta: TensorMeta { dtype: DType::Float32, shape: vec![numbers.len() as u64] },
        bytes: bytes.into(),
    }
}

fn numbers(payload: &Payload) -> Vec<f32> {
    let bytes = decompress(payload).unwrap().bytes;
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn gradient(step: usize, len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| {
            ((i + 1) as f32 * (step as f32 + 0.3)).sin() * if i % 100 == 0 { 50.0 } else { 1.0 }
        })
        .collect()
}

fn sum(
    compress: Compress,
    residuals: &mut [Residual],
    terms: &[Payload],
) -> Result<Payload, Failure> {
    let sums: Vec<_> = terms.iter().map(|term| (NODE, vec![term.clone()])).collect();
    reduce_compressed(compress, &sums, residuals, &BufferPool::default())
        .map(|mut sums| sums.remove(0))
}

#[test]
fn terms_of_any_form_are_added() {
    let len = 700;
    let terms = [gradient(1, len), gradient(2, len), gradient(3, len)];
    let exact: Vec<f32> = (0..len).map(|i| terms.iter().map(|term| term[i]).sum()).collect();
    let compress = |form| sum(form, &mut [Residual::default()], &[payload(&terms[1])]).unwrap();
    for (_, form) in Compress::NAMES {
        let given = [payload(&terms[0]), compress(form), payload(&[]), payload(&terms[2])];
        let found = sum(Compress::Bf16, &mut [Residual::default()], &given).unwrap();
        for (found, exact) in numbers(&found).into_iter().zip(&exact) {
            assert!(
                (found - exact).abs() <= if form == Compress::Int4 { 4.5 } else { 0.6 },
                "{found} for {exact}"
            );
        }
    }
}

/// Error feedback: the sum of all that was ever sent is that of all gradients, but for what one
/// step loses.
#[test]
fn nothing_is_lost_for_good() {
    let (len, steps) = (300, 200);
    for (_, compress) in Compress::NAMES {
        let mut residuals = [Residual::default()];
        let (mut sent, mut meant) = (vec![0f64; len], vec![0f64; len]);
        for step in 0..steps {
            let gradient = gradient(step, len);
            let found = numbers(&sum(compress, &mut residuals, &[payload(&gradient)]).unwrap());
            for i in 0..len {
                sent[i] += f64::from(found[i]);
                meant[i] += f64::from(gradient[i]);
            }
        }
        let most =
            sent.iter().zip(&meant).map(|(sent, meant)| (sent - meant).abs()).fold(0.0, f64::max);
        // Half a step of the scale, which is 50 / 127, or 50 / 7.
        let bound = if compress == Compress::Int4 { 4.5 } else { 0.25 };
        assert!(most < bound, "{compress}: off by {most} after {steps} steps");
    }
}

#[test]
fn the_residual_waits_where_no_gradient_came() {
    let mut residuals = [Residual::default()];
    let first = [1.0, 0.001];
    sum(Compress::Int8, &mut residuals, &[payload(&first)]).unwrap();
    let nothing = sum(Compress::Int8, &mut residuals, &[payload(&[]), payload(&[])]).unwrap();
    assert_eq!((nothing.meta.dtype, &nothing.meta.shape[..]), (DType::Float32, &[0][..]));
    let then = numbers(&sum(Compress::Int8, &mut residuals, &[payload(&[0.0, 0.0])]).unwrap());
    assert!((then[1] - 0.001).abs() < 1e-5, "{then:?}");
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut residuals = [Residual::default()];
    let wrong = Payload { bytes: Bytes::from_static(&[0; 3]), ..payload(&[1.0]) };
    for terms in [vec![payload(&[1.0]), payload(&[1.0, 2.0])], vec![payload(&[1.0, 2.0]), wrong]] {
        let error = sum(Compress::Bf16, &mut residuals, &terms).unwrap_err();
        assert!(error.message.starts_with("sums of gradients: "), "{error}");
    }
    let short = [(NODE, vec![payload(&[1.0])]), (NODE, vec![])];
    assert!(
        reduce_compressed(Compress::Bf16, &short, &mut residuals, &BufferPool::default()).is_err()
    );
    assert!(residuals[0].begin_send(1).iter().all(|lost| *lost == 0.0));
}

/// The part that stays at the replica that sums it has no further error.
#[test]
fn what_stays_is_summed_in_float32() {
    let len = 700;
    let (here, sent) = (
        gradient(1, len),
        sum(Compress::Int8, &mut [Residual::default()], &[payload(&gradient(2, len))]),
    );
    let sent = sent.unwrap();
    let exact: Vec<f32> =
        here.iter().zip(numbers(&sent)).map(|(here, sent)| 0.0 + here + sent).collect();
    let sums = [(NODE, vec![payload(&here), payload(&[])]), (NODE, vec![sent, payload(&[])])];
    let found = reduce_in_order(&sums, &BufferPool::default()).unwrap();
    assert_eq!((numbers(&found[0]), found[0].meta.dtype), (exact, DType::Float32));
    assert_eq!(found[1].meta.shape, [0]);
    let unequal = [(NODE, vec![payload(&here)]), (NODE, vec![payload(&here[1..])])];
    assert!(reduce_in_order(&unequal, &BufferPool::default())
        .unwrap_err()
        .message
        .contains("700 and of 699"));
}
