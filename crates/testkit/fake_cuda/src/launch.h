// Kernels on streams.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "runtime.h"
#include "tensors.h"

namespace fakecuda {

inline constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);
inline constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
inline constexpr c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);

// Calls a kernel.
void run_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);

// Puts a kernel on the current stream of a device.
void launch(int device, Work work, const char* name);

// Puts a copy on the current stream of a device. The counter is that of its direction.
void launch_copy(int device, int counter, Work work, const char* name);

// Does work on the current stream of a device and waits for it. Throws the work's exception.
void on_stream(int device, const Work& work, const char* name);

// Does work of the host on a thread that has none of the caller's modes, as autocast, and waits for
// it. Throws the work's exception.
void aside(const Work& work);

// Puts the arrival of results on the current stream of a device.
void deliver(int device, Deliveries deliveries, const char* name);

}  // namespace fakecuda
