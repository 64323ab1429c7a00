//! Errors of libtorch as plain sentences: what was attempted, and the first line of its message.

use tch::TchError;

/// Something that could not be done with a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// libtorch refused or failed.
    #[error("{attempted}: {message}")]
    Libtorch {
        /// The attempted operation, as a noun phrase: "backward".
        attempted: String,
        /// The first line of libtorch's message; the rest is a C++ backtrace.
        message: String,
    },
    /// The bytes of a tensor do not fit its dtype and shape.
    #[error(
        "a {dtype} tensor of shape {shape:?} takes {} bytes, but {got} were given",
        Bytes(*expected)
    )]
    WrongSize {
        /// The tensor's dtype.
        dtype: layerspec::DType,
        /// The tensor's shape.
        shape: Vec<i64>,
        /// The bytes that dtype and shape ask for; `None` if the shape is negative or overflows.
        expected: Option<u64>,
        /// The bytes that were there.
        got: u64,
    },
    /// A dtype that BossMan does not carry.
    #[error(
        "tensors of kind {0} are not supported; convert to float32, float64, float16, bfloat16, \
         int64, int32, uint8 or bool"
    )]
    UnsupportedKind(String),
    /// Lists or arguments that do not belong together.
    #[error("{attempted}: {problem}")]
    Invalid {
        /// The attempted operation.
        attempted: String,
        /// The problem and the expectation.
        problem: String,
    },
}

struct Bytes(Option<u64>);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes}"),
            None => f.write_str("an impossible number of"),
        }
    }
}

impl TensorError {
    pub(crate) fn libtorch(attempted: &str, message: &str) -> Self {
        TensorError::Libtorch { attempted: attempted.into(), message: first_line(message).into() }
    }

    /// Whether the device, or this machine, has too little memory. libtorch reports this only in
    /// its message.
    pub fn is_out_of_memory(&self) -> bool {
        let says = |words: &str| {
            matches!(
                self,
                TensorError::Libtorch { message, .. } if message.contains(words)
            )
        };
        const TEXTS: [&str; 8] = [
            // CUDA, MPS, and NCCL's last error.
            "out of memory",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "CUDNN_STATUS_ALLOC_FAILED",
            // cuDNN 9.
            "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
            "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
            "CUSOLVER_STATUS_ALLOC_FAILED",
            // CPUs, and CPUs under Windows.
            "can't allocate memory",
            "not enough memory",
        ];
        TEXTS.into_iter().any(says)
    }

    /// Whether a GPU fails every later call in this process, too.
    pub fn is_device_broken(&self) -> bool {
        matches!(self, TensorError::Libtorch { message, .. } if says_device_is_broken(message))
    }

    /// Whether an operation has no kernel that gives equal bits every time, and libtorch was told
    /// to take no other.
    pub fn lacks_deterministic_kernel(&self) -> bool {
        const TEXT: &str = " does not have a deterministic implementation";
        matches!(self, TensorError::Libtorch { message, .. } if message.contains(TEXT))
    }

    /// Arguments that do not belong together.
    pub fn invalid(attempted: impl Into<String>, problem: impl Into<String>) -> Self {
        TensorError::Invalid { attempted: attempted.into(), problem: problem.into() }
    }
}

/// Whether a message of CUDA, cuDNN or NCCL says that a GPU fails every later call in this process,
/// too. CUDA's documentation of `cudaError_t` says so of these errors: "the process must be
/// terminated and relaunched".
pub(crate) fn says_device_is_broken(message: &str) -> bool {
    const PREFIXES: [&str; 5] = [
        "CUDA error",
        "CUDA driver error",
        "cuDNN error",
        "cuDNN Frontend error",
        // NCCL's last error.
        "Cuda failure",
    ];
    const TEXTS: [&str; 15] = [
        "an illegal memory access was encountered",
        "an illegal instruction was encountered",
        "device-side assert triggered",
        "misaligned address",
        "hardware stack error",
        "operation not supported on global/shared address space",
        "invalid program counter",
        "unspecified launch failure",
        "the launch timed out and was terminated",
        "uncorrectable ECC error encountered",
        "uncorrectable NVLink error detected during the execution",
        "Invalid access of peer GPU memory over nvlink",
        "tensor memory not completely freed",
        "unknown error",
        "CUDNN_STATUS_EXECUTION_FAILED",
    ];
    let is_cuda = PREFIXES.iter().any(|prefix| message.contains(prefix));
    is_cuda && TEXTS.iter().any(|text| message.contains(text))
}

impl From<TchError> for TensorError {
    fn from(error: TchError) -> Self {
        match error {
            TchError::Torch(message) => Self::libtorch("libtorch", &message),
            other => Self::libtorch("libtorch", &other.to_string()),
        }
    }
}

/// Adds the attempted operation to the error of a tch call.
pub trait Attempt<T> {
    /// Names the attempted operation: `tensor.f_to_device(gpu).attempt("copy to the GPU")?`.
    fn attempt(self, what: &str) -> Result<T, TensorError>;
}

impl<T> Attempt<T> for Result<T, TchError> {
    fn attempt(self, what: &str) -> Result<T, TensorError> {
        self.map_err(|error| match TensorError::from(error) {
            TensorError::Libtorch { message, .. } => {
                TensorError::Libtorch { attempted: what.into(), message }
            }
            other => other,
        })
    }
}

fn first_line(message: &str) -> &str {
    message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn libtorch_says_where_memory_is_lacking() {
        let much = Tensor::f_zeros([1 << 30, 1 << 20], (Kind::Float, Device::Cpu))
            .attempt("a large one")
            .unwrap_err();
        assert!(much.is_out_of_memory(), "{much}");
        let wrong = Tensor::from(1).f_view([3]).attempt("a view").unwrap_err();
        assert!(!wrong.is_out_of_memory(), "{wrong}");
    }

    #[test]
    fn errors_after_which_a_gpu_fails_every_call_are_known() {
        let error = |text: &str| TensorError::libtorch("forward", text);
        let asynchronous = "\nCUDA kernel errors might be asynchronously reported.";
        for broken in [
            "CUDA error: an illegal memory access was encountered",
            "CUDA error: device-side assert triggered",
            "CUDA error: unspecified launch failure",
            "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
            "cuDNN Frontend error: CUDNN_STATUS_EXECUTION_FAILED",
            "CUDA driver error: unspecified launch failure",
            "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
            "Cuda failure 700 'an illegal memory access was encountered'",
        ] {
            assert!(error(&format!("{broken}{asynchronous}")).is_device_broken(), "{broken}");
        }
        for other in [
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "CUDA error: invalid device ordinal",
            "CUDA out of memory. Tried to allocate 2.00 GiB.",
            "Cuda failure 217 'peer access is not supported between these two devices'",
            "unknown error",
        ] {
            assert!(!error(other).is_device_broken(), "{other}");
        }
    }

    #[test]
    fn a_libtorch_error_is_one_line_without_a_backtrace() {
        let a = Tensor::zeros([2, 3], (Kind::Float, tch::Device::Cpu));
        let error = a.f_matmul(&a).attempt("multiply").unwrap_err();
        assert_eq!(
            error.to_string(),
            "multiply: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"
        );
    }

    #[test]
    fn an_impossible_size_reads_well() {
        let error = TensorError::WrongSize {
            dtype: layerspec::DType::Float32,
            shape: vec![-1],
            expected: None,
            got: 4,
        };
        assert!(error
            .to_string()
            .contains("takes an impossible number of bytes, but 4 were given"));
    }
}
