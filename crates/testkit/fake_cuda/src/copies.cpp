// Copies on devices, between them, and between a device and the host.
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/from_blob.h>

#include "launch.h"
#include "operators.h"

namespace fakecuda {
using at::Tensor;

namespace {

void wait_for(StreamState* waiting, StreamState* other) {
  enqueue(
      waiting, [other, sequence = last_of(other)] { wait(other, sequence); }, "wait for a device");
}

// A tensor of pinned memory that a late copy uses. It does not keep the memory, as a GPU does not:
// the allocator knows the stream that uses it.
Tensor pinned_view(const Tensor& t, StreamState* stream) {
  use_pinned(t.const_data_ptr(), stream);
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options());
}

}  // namespace

Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  if (self.is_same(from)) return self;
  Tensor source = from.sizes() == self.sizes() ? from : from.expand(self.sizes());
  if (self.numel() == 0) return self;
  if (self.is_cuda() && source.is_cuda()) {
    int to = self.device().index(), at = source.device().index();
    if (to != at) wait_for(current_stream(at), current_stream(to));
    launch_copy(
        at, FC_ON_DEVICES,
        [to = cpu_view(self), source = cpu_view(source)]() mutable { to.copy_(source); },
        "copy on devices");
    if (to != at) wait_for(current_stream(to), current_stream(at));
    return self;
  }
  bool marked = self.is_conj() || self.is_neg() || source.is_conj() || source.is_neg();
  bool plain =
      self.dtype() == source.dtype() && self.is_contiguous() && source.is_contiguous() && !marked;
  if (self.is_cuda()) {
    int d = self.device().index();
    // From memory that is not pinned, and where it has to be converted first, the host has read it
    // when the call is over.
    bool late = plain && non_blocking && is_pinned(source.const_data_ptr());
    Tensor held =
        late ? pinned_view(source, current_stream(d)) : source.to(self.scalar_type()).clone();
    int counter = non_blocking ? FC_TO_DEVICE_ASYNC : FC_TO_DEVICE_BLOCKING;
    launch_copy(
        d, counter, [to = cpu_view(self), held]() mutable { to.copy_(held); },
        "copy to the device");
    if (!non_blocking) {
      count(FC_BLOCKING_COPY);
      synchronize(current_stream(d));
    }
    return self;
  }
  TORCH_CHECK(self.is_cpu(), "the fake CUDA device copies to CPUs and itself only");
  int d = source.device().index();
  bool late = plain && non_blocking && is_pinned(self.const_data_ptr());
  Tensor to = late ? pinned_view(self, current_stream(d)) : self.detach();
  launch_copy(
      d, late ? FC_TO_HOST_ASYNC : FC_TO_HOST_BLOCKING,
      [to, source = cpu_view(source)]() mutable { to.copy_(source); }, "copy to the host");
  if (!late) {
    count(FC_BLOCKING_COPY);
    synchronize(current_stream(d));
  }
  return self;
}
Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  Tensor t = to;
  copy_(t, self, non_blocking);
  return to;
}
Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  Tensor t = to;
  t.resize_(self.sizes());
  copy_(t, self, false);
  return to;
}
at::Scalar local_scalar(const Tensor& self) {
  count(FC_ITEM);
  synchronize(current_stream(self.device().index()));
  return at::native::_local_scalar_dense_cpu(cpu_view(self));
}

}  // namespace fakecuda
