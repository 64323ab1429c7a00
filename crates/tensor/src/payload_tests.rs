use super::*;

const CPU_FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

#[test]
fn every_dtype_comes_back_with_its_bits() {
    for dtype in DType::ALL {
        let tensor =
            Tensor::arange(6, CPU_FLOAT).remainder(2).to_kind(kind_of(dtype)).reshape([2, 3]);
        let bytes = to_bytes(&tensor).unwrap();
        assert_eq!(bytes.len(), 6 * dtype.size_bytes() as usize);
        let back = from_bytes(dtype, &[2, 3], bytes).unwrap();
        assert_eq!(back.kind(), tensor.kind());
        assert!(back.equal(&tensor), "{dtype}");
    }
}

#[test]
fn bytes_are_little_endian_rows() {
    let tensor = Tensor::from_slice(&[1i32, 2, 3, 4]).reshape([2, 2]).transpose(0, 1);
    assert_eq!(&to_bytes(&tensor).unwrap()[..], [1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0]);
}

#[test]
fn nothing_is_copied_both_ways() {
    let tensor = Tensor::ones([4, 4], CPU_FLOAT);
    let bytes = to_bytes(&tensor).unwrap();
    assert_eq!(bytes.as_ptr(), tensor.data_ptr().cast());
    let back = from_bytes(DType::Float32, &[4, 4], bytes).unwrap();
    assert_eq!(back.data_ptr(), tensor.data_ptr());
    drop(tensor);
    assert_eq!(back.sum(None).double_value(&[]), 16.0);
}

#[test]
fn bytes_out_of_line_are_copied() {
    let mut raw = vec![0u8];
    raw.extend_from_slice(&1.5f32.to_le_bytes());
    raw.extend_from_slice(&2.5f32.to_le_bytes());
    let whole = Bytes::from(raw);
    // Of two neighbours at least one is out of line.
    for start in [0, 1] {
        let tensor = from_bytes(DType::Float32, &[2], whole.slice(start..start + 8)).unwrap();
        if start == 1 {
            assert_eq!(Vec::<f32>::try_from(&tensor).unwrap(), [1.5, 2.5]);
        }
    }
}

#[test]
fn a_dropped_tensor_frees_the_bytes() {
    struct Owner {
        numbers: [u64; 2],
        _alive: std::sync::Arc<()>,
    }
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            // SAFETY: two u64 are sixteen bytes without padding.
            unsafe { std::slice::from_raw_parts(self.numbers.as_ptr().cast(), 16) }
        }
    }
    let alive = std::sync::Arc::new(());
    let bytes = Bytes::from_owner(Owner { numbers: [7, 9], _alive: alive.clone() });
    let tensor = from_bytes(DType::Int64, &[2], bytes).unwrap();
    let view = tensor.slice(0, 1, 2, 1);
    drop(tensor);
    assert_eq!(view.int64_value(&[0]), 9);
    assert_eq!(std::sync::Arc::strong_count(&alive), 2);
    drop(view);
    assert_eq!(std::sync::Arc::strong_count(&alive), 1);
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    let bytes = || Bytes::from_static(&[0; 8]);
    for shape in [&[3i64][..], &[1], &[-2], &[i64::MAX, i64::MAX], &[-1, -2], &[0]] {
        let error = from_bytes(DType::Float32, shape, bytes()).unwrap_err();
        assert!(matches!(error, TensorError::WrongSize { got: 8, .. }), "{shape:?}: {error}");
    }
    assert!(from_bytes(DType::Bool, &[8], Bytes::from_static(&[0, 1, 0, 1, 2, 0, 0, 0])).is_err());
}

#[test]
fn empty_and_scalar_tensors_travel() {
    let empty = Tensor::zeros([3, 0, 2], CPU_FLOAT);
    let bytes = to_bytes(&empty).unwrap();
    assert_eq!(from_bytes(DType::Float32, &[3, 0, 2], bytes).unwrap().size(), [3, 0, 2]);
    let scalar = Tensor::from(2.5f64);
    let back = from_bytes(DType::Float64, &[], to_bytes(&scalar).unwrap()).unwrap();
    assert_eq!(back.double_value(&[]), 2.5);
}

#[test]
fn a_kind_that_is_not_carried_is_an_error() {
    let complex = Tensor::zeros([2], (Kind::ComplexFloat, Device::Cpu));
    assert_eq!(
        to_bytes(&complex).unwrap_err(),
        TensorError::UnsupportedKind("ComplexFloat".into())
    );
    let sparse = Tensor::ones([2, 2], CPU_FLOAT).to_sparse(None, None::<i64>, None);
    assert!(to_bytes(&sparse).is_err());
}
