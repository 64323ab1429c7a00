//! Operators of PyTorch by their names. `cpp/aten.cpp` has the rule that says which are allowed.
//!
//! Names and arguments may come from a model file or from the network. Every argument is checked
//! against the operator's schema before libtorch sees it.

use crate::ffi::{self, Status};
use crate::{dtype_of, TensorError};
use layerspec::DType;
use std::ffi::{c_char, c_void, CStr, CString};
use tch::Tensor;
use torch_sys::C_tensor;

/// The longest text of an argument, in bytes.
pub const MAX_TEXT: usize = 256;

/// The most elements of an argument.
pub const MAX_ELEMENTS: usize = 1024;

/// The most memory that the outputs of one call may take.
const MAX_BYTES: u64 = 64 << 30;

/// A C++ `bm_operator`.
#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

/// A C++ `bm_value`.
#[repr(C)]
struct RawValue {
    argument: usize,
    tag: i32,
    count: usize,
    data: *const c_void,
}

type Take = extern "C" fn(*mut c_void, *mut C_tensor);

extern "C" {
    fn bm_operator_find(
        name: *const c_char,
        overload: *const c_char,
        out: *mut *mut Handle,
    ) -> Status;
    fn bm_operator_free(operator: *mut Handle);
    fn bm_operator_arguments(operator: *const Handle) -> usize;
    fn bm_operator_argument(
        operator: *const Handle,
        index: usize,
        kind: *mut i32,
        required: *mut bool,
    ) -> *const c_char;
    fn bm_operator_call(
        operator: *const Handle,
        values: *const RawValue,
        count: usize,
        take: Take,
        taker: *mut c_void,
    ) -> Status;
    fn bm_operator_outline(
        operator: *const Handle,
        values: *const RawValue,
        count: usize,
        take: Take,
        taker: *mut c_void,
        unknown: *mut bool,
    ) -> Status;
}

/// The type of an operator's argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    /// Something that cannot be given, as a device.
    Other,
    /// A tensor.
    Tensor,
    /// Tensors.
    Tensors,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// `true` or `false`.
    Bool,
    /// A number, whole or not, or a truth value.
    Number,
    /// Text.
    Text,
    /// Whole numbers.
    Ints,
    /// Numbers.
    Floats,
    /// Truth values.
    Bools,
    /// A dtype.
    Dtype,
}

impl ArgumentKind {
    fn of(code: i32) -> Self {
        match code {
            1 => Self::Tensor,
            2 => Self::Tensors,
            3 => Self::Int,
            4 => Self::Float,
            5 => Self::Bool,
            6 => Self::Number,
            7 => Self::Text,
            8 => Self::Ints,
            9 => Self::Floats,
            10 => Self::Bools,
            11 => Self::Dtype,
            _ => Self::Other,
        }
    }

    /// What the argument takes, as a noun phrase.
    pub fn expected(self) -> &'static str {
        match self {
            Self::Other => "nothing",
            Self::Tensor => "a tensor",
            Self::Tensors => "tensors",
            Self::Int => "a whole number",
            Self::Float | Self::Number => "a number",
            Self::Bool => "`true` or `false`",
            Self::Text => "text",
            Self::Ints => "whole numbers",
            Self::Floats => "numbers",
            Self::Bools => "a list of `true` and `false`",
            Self::Dtype => "a dtype as float32",
        }
    }
}

/// An argument of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name in the schema.
    pub name: String,
    /// Its type, with or without `?`.
    pub kind: ArgumentKind,
    /// Whether it must be given.
    pub required: bool,
}

/// The value of an argument.
#[derive(Debug)]
pub enum Value<'a> {
    /// A whole number. For lists of a fixed length it stands for all elements.
    Int(i64),
    /// A number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    Text(String),
    /// Whole numbers. An empty one may stand for any empty list.
    Ints(Vec<i64>),
    /// Numbers.
    Floats(Vec<f64>),
    /// Truth values.
    Bools(Vec<bool>),
    /// A tensor.
    Tensor(&'a Tensor),
    /// Tensors.
    Tensors(Vec<&'a Tensor>),
    /// A dtype.
    Dtype(DType),
}

/// The elements of a value as C++ reads them.
enum Elements {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Text(String),
    Tensors(Vec<*const C_tensor>),
}

impl Elements {
    fn place(&self) -> (usize, *const c_void) {
        match self {
            Elements::Ints(list) => (list.len(), list.as_ptr().cast()),
            Elements::Floats(list) => (list.len(), list.as_ptr().cast()),
            Elements::Text(text) => (text.len(), text.as_ptr().cast()),
            Elements::Tensors(list) => (list.len(), list.as_ptr().cast()),
        }
    }
}

/// libtorch's number for a dtype (`c10::ScalarType`).
fn scalar_type(dtype: DType) -> i64 {
    match dtype {
        DType::UInt8 => 0,
        DType::Int32 => 3,
        DType::Int64 => 4,
        DType::Float16 => 5,
        DType::Float32 => 6,
        DType::Float64 => 7,
        DType::Bool => 11,
        DType::BFloat16 => 15,
    }
}

impl Value<'_> {
    /// Its tag in `cpp/aten.cpp`, and its elements.
    fn lay_out(&self) -> (i32, Elements) {
        match self {
            Value::Int(number) => (0, Elements::Ints(vec![*number])),
            Value::Float(number) => (1, Elements::Floats(vec![*number])),
            Value::Bool(flag) => (2, Elements::Ints(vec![i64::from(*flag)])),
            Value::Text(text) => (3, Elements::Text(text.clone())),
            Value::Ints(list) => (4, Elements::Ints(list.clone())),
            Value::Floats(list) => (5, Elements::Floats(list.clone())),
            Value::Bools(list) => {
                (6, Elements::Ints(list.iter().map(|flag| i64::from(*flag)).collect()))
            }
            Value::Tensor(tensor) => (7, Elements::Tensors(ffi::pointers(&[*tensor]))),
            Value::Tensors(list) => (8, Elements::Tensors(ffi::pointers(list))),
            Value::Dtype(dtype) => (9, Elements::Ints(vec![scalar_type(*dtype)])),
        }
    }

    /// Checks that it is not too long.
    fn check(&self) -> Result<(), String> {
        let most = |count: usize| match count <= MAX_ELEMENTS {
            true => Ok(()),
            false => Err(format!("expected at most {MAX_ELEMENTS} elements, found {count}")),
        };
        match self {
            Value::Ints(list) => most(list.len()),
            Value::Floats(list) => most(list.len()),
            Value::Bools(list) => most(list.len()),
            Value::Tensors(list) => most(list.len()),
            Value::Text(text) if text.len() > MAX_TEXT => {
                Err(format!("expected at most {MAX_TEXT} bytes of text, found {}", text.len()))
            }
            Value::Text(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Bool(_)
            | Value::Tensor(_)
            | Value::Dtype(_) => Ok(()),
        }
    }
}

/// Dtype and shape of a tensor.
pub type Outline = (DType, Vec<i64>);

/// An operator that the rule allows.
#[derive(Debug)]
pub struct Operator {
    handle: *mut Handle,
    attempted: String,
    arguments: Vec<Argument>,
}

// SAFETY: the C++ value belongs to this one alone. It is an entry of libtorch's table, which any
// thread may use, and facts that never change.
unsafe impl Send for Operator {}

impl Drop for Operator {
    fn drop(&mut self) {
        // SAFETY: made by `bm_operator_find`, freed once.
        unsafe { bm_operator_free(self.handle) }
    }
}

impl Operator {
    /// Finds an operator of the namespace `aten`, as `roll` or `where.self`.
    ///
    /// # Errors
    /// There is none of this name, or the rule refuses it; the message says why.
    pub fn find(name: &str) -> Result<Self, TensorError> {
        let attempted = format!("the operator `{name}`");
        let (base, overload) = name.split_once('.').unwrap_or((name, ""));
        let invalid = |_| TensorError::invalid(attempted.clone(), "expected a name without NUL");
        let base = CString::new(base).map_err(invalid)?;
        let overload = CString::new(overload).map_err(invalid)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: both strings are borrowed for the call; on success the pointer is set to an
        // operator that is ours.
        let status = unsafe { bm_operator_find(base.as_ptr(), overload.as_ptr(), &mut handle) };
        ffi::check(&attempted, status)?;
        let mut operator = Operator { handle, attempted, arguments: Vec::new() };
        // SAFETY: the handle is live.
        let count = unsafe { bm_operator_arguments(operator.handle) };
        operator.arguments = (0..count)
            .map(|i| {
                let (mut kind, mut required) = (0, false);
                // SAFETY: the index is below the count, and the name a string that lives as long
                // as the operator.
                let name = unsafe {
                    let name = bm_operator_argument(operator.handle, i, &mut kind, &mut required);
                    CStr::from_ptr(name).to_string_lossy().into_owned()
                };
                Argument { name, kind: ArgumentKind::of(kind), required }
            })
            .collect();
        Ok(operator)
    }

    /// Its arguments in the order of the schema.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// An error that names the operator.
    pub fn invalid(&self, problem: impl Into<String>) -> TensorError {
        TensorError::invalid(self.attempted.clone(), problem)
    }

    /// Dtypes and shapes of the outputs for these arguments, without computing them. `None` if they
    /// cannot be known before, and are no larger than the inputs allow.
    ///
    /// # Errors
    /// The arguments do not fit, or the outputs would be too large.
    pub fn outline(
        &self,
        values: &[(usize, Value<'_>)],
    ) -> Result<Option<Vec<Outline>>, TensorError> {
        let mut unknown = false;
        let made = self.with_values(values, |raw, made| {
            // SAFETY: the values are as many as said, and all that they point to lives for the
            // call; `push_output` gets its list, which nothing else uses during the call.
            unsafe {
                bm_operator_outline(
                    self.handle,
                    raw.as_ptr(),
                    raw.len(),
                    ffi::push_output,
                    std::ptr::from_mut(made).cast(),
                    &mut unknown,
                )
            }
        })?;
        if unknown {
            return Ok(None);
        }
        let outlines: Vec<Outline> = made
            .iter()
            .map(|tensor| Ok((dtype_of(tensor)?, tensor.size())))
            .collect::<Result<_, TensorError>>()?;
        let bytes = outlines
            .iter()
            .try_fold(0u64, |sum, (dtype, shape)| sum.checked_add(size_bytes(*dtype, shape)?));
        match bytes {
            Some(bytes) if bytes <= MAX_BYTES => Ok(Some(outlines)),
            _ => {
                let most = MAX_BYTES >> 30;
                Err(self.invalid(format!("its outputs would take more than {most} GiB")))
            }
        }
    }

    /// Computes the outputs. Autograd knows them, where it is on. Whoever calls has seen the
    /// [`Operator::outline`] of these arguments.
    ///
    /// # Errors
    /// The arguments do not fit, or libtorch fails.
    pub fn call(&self, values: &[(usize, Value<'_>)]) -> Result<Vec<Tensor>, TensorError> {
        self.with_values(values, |raw, made| {
            // SAFETY: as in `outline`.
            unsafe {
                bm_operator_call(
                    self.handle,
                    raw.as_ptr(),
                    raw.len(),
                    ffi::push_output,
                    std::ptr::from_mut(made).cast(),
                )
            }
        })
    }

    /// Lays out values for C++.
    fn with_values(
        &self,
        values: &[(usize, Value<'_>)],
        work: impl FnOnce(&[RawValue], &mut Vec<Tensor>) -> Status,
    ) -> Result<Vec<Tensor>, TensorError> {
        for (place, value) in values {
            let Some(argument) = self.arguments.get(*place) else {
                return Err(self.invalid(format!("has no argument {place}")));
            };
            let wrong =
                |problem: String| self.invalid(format!("argument `{}`: {problem}", argument.name));
            value.check().map_err(wrong)?;
        }
        let laid_out: Vec<(usize, i32, Elements)> = values
            .iter()
            .map(|(argument, value)| {
                let (tag, elements) = value.lay_out();
                (*argument, tag, elements)
            })
            .collect();
        let raw: Vec<RawValue> = laid_out
            .iter()
            .map(|(argument, tag, elements)| {
                let (count, data) = elements.place();
                RawValue { argument: *argument, tag: *tag, count, data }
            })
            .collect();
        let mut made = Vec::new();
        let status = work(&raw, &mut made);
        ffi::check(&self.attempted, status)?;
        Ok(made)
    }
}

/// The bytes of a tensor. A size of 0 counts as 1, because some kernels go through all places of
/// the other dimensions.
fn size_bytes(dtype: DType, shape: &[i64]) -> Option<u64> {
    let size = |size: &i64| u64::try_from(*size).ok().map(|size| size.max(1));
    shape.iter().try_fold(dtype.size_bytes(), |bytes, it| bytes.checked_mul(size(it)?))
}

#[cfg(test)]
#[path = "aten_tests.rs"]
mod tests;
