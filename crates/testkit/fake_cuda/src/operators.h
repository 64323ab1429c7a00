// The device's own operators. `registrations.cpp` tells libtorch of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <tuple>

namespace fakecuda {

// fallback.cpp: all other operators.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// views.cpp
at::Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout>, std::optional<at::Device> device,
                               std::optional<bool> pin, std::optional<at::MemoryFormat> format);
at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool> pin);
const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size,
                          std::optional<at::MemoryFormat> format);
at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset,
                        c10::SymIntArrayRef size, c10::SymIntArrayRef stride);
at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage);
at::Tensor& set_nothing(at::Tensor& self);
at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset);
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size);
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride);
void record_stream(at::Tensor& self, at::Stream stream);

// copies.cpp
at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool non_blocking);
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to);
at::Scalar local_scalar(const at::Tensor& self);

// kernels.cpp
using OptionalTensor = std::optional<at::Tensor>;
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train);
at::Tensor depthwise_2d(const at::Tensor& x, const at::Tensor& w, c10::SymIntArrayRef kernel,
                        const OptionalTensor& bias, c10::SymIntArrayRef stride,
                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation);
at::Tensor depthwise_3d(const at::Tensor& x, const at::Tensor& w, c10::SymIntArrayRef kernel,
                        const OptionalTensor& bias, c10::SymIntArrayRef stride,
                        c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation);
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates,
                                                         const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx,
                                                         const OptionalTensor& b1,
                                                         const OptionalTensor& b2);
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const OptionalTensor& ghy, const OptionalTensor& gcy, const at::Tensor& cx,
    const at::Tensor& cy, const at::Tensor& workspace, bool bias);
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& gi, const at::Tensor& gh,
                                            const at::Tensor& hx, const OptionalTensor& b1,
                                            const OptionalTensor& b2);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& g, const at::Tensor& workspace, bool bias);

}  // namespace fakecuda
