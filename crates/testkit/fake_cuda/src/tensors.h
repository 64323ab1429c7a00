// Tensors of the device, as the CPU's kernels and the meta kernels see them.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace fakecuda {

// Tensors that arrive on the device: the place of each, and the numbers on the host.
using Deliveries = std::vector<std::pair<at::Tensor, at::Tensor>>;

// The same bytes as a tensor of the CPU. A tensor of the host is returned unchanged.
at::Tensor cpu_view(const at::Tensor& tensor);

// An empty tensor of the same form on another device.
at::Tensor like(const at::Tensor& tensor, c10::Device device);

// A tensor of the host of the same form, for a kernel whose numbers nobody reads. It has ones, or
// zeros where numbers may be indices.
at::Tensor stand_in(const at::Tensor& tensor);

// An empty tensor of the device for a result on the host, which is noted as a delivery.
at::Tensor to_device(const at::Tensor& made, int device, Deliveries& deliveries);

}  // namespace fakecuda
