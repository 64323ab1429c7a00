// Memory and views: tensors are made, resized and looked at in another form, without a kernel.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

#include "launch.h"
#include "operators.h"

namespace fakecuda {
using at::Tensor;

namespace {

void grow(c10::TensorImpl* t, size_t bytes) {
  auto* storage = t->unsafe_storage().unsafeGetStorageImpl();
  if (storage->nbytes() >= bytes) return;
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  c10::DeviceGuard guard(t->device());
  auto fresh = device_allocator()->allocate(bytes);
  if (size_t kept = storage->nbytes()) {
    launch(
        t->device().index(),
        [to = host_view(fresh.get()), from = host_view(storage->data()), kept] {
          memcpy(to, from, kept);
        },
        "resize");
  }
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(bytes);
}

}  // namespace

Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout>, std::optional<at::Device> device,
                           std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(device.value_or(c10::Device(c10::kCUDA)));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), device_allocator(), kCuda,
                                   c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(device.value_or(c10::Device(c10::kCUDA)));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), device_allocator(),
                                           kCuda, c10::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size,
                      std::optional<at::MemoryFormat> format) {
  auto* t = self.unsafeGetTensorImpl();
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (self.sizes() != sizes) {
    int64_t count = c10::multiply_integers(sizes);
    if (count) grow(t, (t->storage_offset() + count) * t->itemsize());
    t->set_sizes_contiguous(sizes);
  }
  if (format.has_value()) t->empty_tensor_restride(*format);
  return self;
}
Tensor& set_storage(Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  auto* t = self.unsafeGetTensorImpl();
  t->set_storage_keep_dtype(std::move(storage));
  t->set_storage_offset(offset.expect_int());
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (stride.empty() && !sizes.empty())
    t->set_sizes_contiguous(sizes);
  else
    t->set_sizes_and_strides(sizes, C10_AS_INTARRAYREF_SLOW(stride));
  return self;
}
Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  int64_t count = storage.nbytes() / self.itemsize();
  return set_storage(self, std::move(storage), 0, {c10::SymInt(count)}, {});
}
Tensor& set_nothing(Tensor& self) {
  return set_storage(self, at::Storage(at::Storage::use_byte_size_t(), 0, device_allocator(), true),
                     0, {c10::SymInt(0)}, {});
}
Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::make_optional(offset->expect_int()) : std::nullopt);
}
Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}
void record_stream(Tensor& self, at::Stream s) {
  static_cast<c10::DeviceAllocator*>(device_allocator())
      ->recordStream(self.storage().data_ptr(), s);
}

}  // namespace fakecuda
