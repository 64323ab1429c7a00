use super::*;

fn payload(numbers: &[f32]) -> Payload {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let shape = vec![numbers.len() as u64];
    Payload { meta: TensorMeta { dtype: DType::Float32, shape }, bytes: bytes.into() }
}

fn numbers(payload: &Payload) -> Vec<f32> {
    floats(&payload.bytes).collect()
}

/// Numbers whose sum depends on the order.
fn term(microbatch: u32, len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| {
            ((i as f32 + 1.5) * (microbatch as f32 + 0.7)).sin() * 10f32.powi(microbatch as i32 % 5)
        })
        .collect()
}

fn plain(microbatches: u32, sums: &[(Node, Vec<f32>)]) -> Vec<f32> {
    let mut tree = Tree::new(microbatches);
    let add = |left: Vec<f32>, right: Vec<f32>| {
        Ok::<_, ()>(left.iter().zip(&right).map(|(l, r)| l + r).collect())
    };
    for (node, sum) in sums {
        tree.put(*node, sum.clone(), add).unwrap();
    }
    tree.into_root().unwrap()
}

fn summed(microbatches: u32, sums: &[(Node, Vec<Payload>)]) -> Result<Vec<Payload>, Failure> {
    tree_sum(microbatches, sums, &BufferPool::default())
}

#[test]
fn the_order_is_that_of_the_tree_however_long_the_slices_are() {
    for microbatches in 1..=9 {
        for len in [1, 3, BLOCK / FLOAT, 3 * BLOCK / FLOAT + 5] {
            let terms: Vec<(Node, Vec<f32>)> =
                (0..microbatches).map(|m| (Node::leaf(m), term(m, len))).collect();
            let given: Vec<_> =
                terms.iter().rev().map(|(node, term)| (*node, vec![payload(term)])).collect();
            let found = summed(microbatches, &given).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(numbers(&found[0]), plain(microbatches, &terms), "{microbatches} of {len}");
        }
    }
}

#[test]
fn branches_and_slices_without_a_gradient_are_taken_as_they_come() {
    let (left, right) = (Node { level: 1, index: 0 }, Node { level: 0, index: 2 });
    let none = || payload(&[]);
    let first = vec![payload(&[1.0, 2.0]), none(), none(), payload(&[5.0])];
    let second = vec![payload(&[10.0, 20.0]), payload(&[3.0]), none(), none()];
    let found = summed(3, &[(right, second), (left, first)]).unwrap();
    let found: Vec<Vec<f32>> = found.iter().map(numbers).collect();
    assert_eq!(found, [vec![11.0, 22.0], vec![3.0], vec![], vec![5.0]]);
    assert_eq!(summed(3, &[(left, vec![]), (right, vec![])]).unwrap().len(), 0);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (left, right) = (Node::leaf(0), Node::leaf(1));
    let fails = |microbatches, sums: Vec<(Node, Vec<Payload>)>, said: &str| {
        let error = summed(microbatches, &sums).unwrap_err().message;
        assert!(error.contains(said), "{error}");
    };
    let one = || vec![payload(&[1.0])];
    fails(2, vec![(left, one())], "are not 2 microbatches");
    fails(2, vec![(left, one()), (left, one()), (right, one())], "are not 2 microbatches");
    fails(2, vec![(left, one()), (right, one()), (Node::leaf(2), one())], "are not 2 microbatches");
    fails(0, vec![], "are not 0 microbatches");
    fails(2, vec![(Node { level: 64, index: 0 }, one())], "in no tree");
    fails(
        2,
        vec![(left, one()), (Node { level: 32, index: u32::MAX }, one())],
        "are not 2 microbatches",
    );
    fails(2, vec![(left, one()), (right, vec![])], "0 slices");
    fails(
        2,
        vec![(left, one()), (right, vec![payload(&[1.0, 2.0])])],
        "slices of float32 [1] and of float32 [2]",
    );
    let meta = |dtype, shape: &[u64]| TensorMeta { dtype, shape: shape.into() };
    let given =
        |meta, bytes: &'static [u8]| vec![Payload { meta, bytes: Bytes::from_static(bytes) }];
    fails(1, vec![(left, given(meta(DType::Int32, &[1]), &[0; 4]))], "int32");
    fails(1, vec![(left, given(meta(DType::Float32, &[2]), &[0; 4]))], "in 4 bytes");
    fails(1, vec![(left, given(meta(DType::Float32, &[1, 1]), &[0; 4]))], "[1, 1]");
}
