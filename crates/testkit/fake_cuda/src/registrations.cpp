// Tells libtorch of the device's operators.
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <torch/library.h>

#include "operators.h"

namespace fakecuda {
namespace {

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_", set_nothing);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("is_set_to", at::native::is_set_to);
  m.impl("record_stream", record_stream);
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  // A composite that looks for a kernel of the device. The fallback takes the CPU's whole.
  m.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  // Their composites round in another way if a gradient may be reused. CUDA has kernels of its own.
  m.impl("mish_backward", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("silu_backward", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("native_dropout", native_dropout);
  m.impl("_conv_depthwise2d", depthwise_2d);
  m.impl("conv_depthwise3d", depthwise_3d);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace
}  // namespace fakecuda
