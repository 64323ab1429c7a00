#include "tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include "runtime.h"

namespace fakecuda {
using at::Tensor;

namespace {

void same_marks(const Tensor& from, Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number())
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (from.is_conj()) to._set_conj(true);
  if (from.is_neg()) to._set_neg(true);
}

}  // namespace

Tensor cpu_view(const Tensor& t) {
  if (!t.defined() || !t.is_cuda()) return t;
  TORCH_CHECK(t.layout() == at::kStrided, "the fake CUDA device has dense tensors only");
  char* base = static_cast<char*>(host_view(t.storage().mutable_data()));
  void* at = base ? base + t.storage_offset() * t.itemsize() : nullptr;
  Tensor view = at::from_blob(at, t.sizes(), t.strides(), t.options().device(at::kCPU));
  same_marks(t, view);
  return view;
}
Tensor like(const Tensor& t, c10::Device device) {
  Tensor made = at::empty_strided(t.sizes(), t.strides(), t.options().device(device));
  same_marks(t, made);
  return made;
}

Tensor stand_in(const Tensor& t) {
  bool ones = t.is_floating_point() || t.is_complex();
  auto count = static_cast<int64_t>(at::detail::computeStorageNbytes(t.sizes(), t.strides(), 1));
  // A tensor whose elements share memory cannot be filled itself.
  Tensor memory = at::full({count}, ones ? 1 : 0, at::TensorOptions(t.scalar_type()));
  Tensor made = memory.as_strided(t.sizes(), t.strides());
  same_marks(t, made);
  return made;
}

Tensor to_device(const Tensor& made, int d, Deliveries& deliveries) {
  if (!made.defined()) return made;
  c10::Device place(c10::kCUDA, static_cast<c10::DeviceIndex>(d));
  Tensor out = at::empty_strided(made.sizes(), made.strides(), made.options().device(place));
  same_marks(made, out);
  if (made.numel()) deliveries.emplace_back(cpu_view(out), made);
  return out;
}

}  // namespace fakecuda
