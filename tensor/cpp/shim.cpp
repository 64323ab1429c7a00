// The few libtorch calls that tch does not offer. `src/ffi.rs` declares the same functions.
//
// No exception leaves this file: each function returns null, or a message that the caller frees
// with `free`. A tensor list is an array of pointers and its length; a tensor handed out is a
// new `at::Tensor` that the caller owns.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;

template <typename Work>
char* guarded(Work work) noexcept {
  try {
    work();
    return nullptr;
  } catch (const c10::Error& e) {
    return strdup(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return strdup(e.what());
  } catch (...) {
    return strdup("an exception of unknown type");
  }
}

Tensors list(const at::Tensor* const* items, size_t count) {
  Tensors tensors;
  tensors.reserve(count);
  for (size_t i = 0; i < count; ++i) tensors.push_back(*items[i]);
  return tensors;
}

// The fused optimizers write to the parameters without telling autograd; this tells it, so that a
// backward pass through weights that have changed since its forward pass is an error.
void mark_changed(const at::Tensor* const* tensors, size_t count) {
  for (size_t i = 0; i < count; ++i) tensors[i]->unsafeGetTensorImpl()->bump_version();
}

c10::Device device_of(int32_t kind, int32_t index) {
  switch (kind) {
    case 0: return c10::Device(c10::kCPU);
    case 1: return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    case 2: return c10::Device(c10::kMPS);
    default: TORCH_CHECK(false, "no such device kind: ", kind);
  }
}

}  // namespace

extern "C" {

// Where the libtorch_cpu of this process was loaded from, or null. Never freed.
const char* bm_libtorch_cpu_path() noexcept {
  Dl_info info;
  int (*symbol)() = &at::get_num_threads;
  return dladdr(reinterpret_cast<void*>(symbol), &info) != 0 ? info.dli_fname : nullptr;
}

char* bm_set_interop_threads(int32_t threads) {
  return guarded([&] { at::set_num_interop_threads(threads); });
}

char* bm_device_memory(int32_t kind, int32_t index, uint64_t* free_bytes, uint64_t* total_bytes) {
  return guarded([&] {
    auto device = device_of(kind, index);
    auto [free_now, total] = at::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
    *free_bytes = free_now;
    *total_bytes = total;
  });
}

char* bm_from_blob(void* data, const int64_t* sizes, size_t rank, int8_t scalar_type,
                   void (*drop)(void*), void* owner, at::Tensor** out) {
  return guarded([&] {
    *out = new at::Tensor(at::from_blob(
        data, at::IntArrayRef(sizes, rank), [drop, owner](void*) { drop(owner); },
        at::TensorOptions().dtype(static_cast<at::ScalarType>(scalar_type))));
  });
}

// grads[i] is null where inputs[i] has no part in any output.
char* bm_grad(const at::Tensor* const* outputs, const at::Tensor* const* output_grads, size_t output_count,
              const at::Tensor* const* inputs, size_t input_count, at::Tensor** grads) {
  return guarded([&] {
    Tensors result = torch::autograd::grad(
        list(outputs, output_count), list(inputs, input_count), list(output_grads, output_count),
        /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < input_count; ++i) {
      grads[i] = result[i].defined() ? new at::Tensor(std::move(result[i])) : nullptr;
    }
  });
}

char* bm_fused_sgd(const at::Tensor* const* params, const at::Tensor* const* grads,
                   const at::Tensor* const* momentum_buffers, size_t count, size_t buffer_count, double lr,
                   double momentum, double dampening, double weight_decay, bool nesterov, bool first_step) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    at::_fused_sgd_(list(params, count), list(grads, count), list(momentum_buffers, buffer_count), weight_decay,
                    momentum, lr, dampening, nesterov, /*maximize=*/false, first_step);
    mark_changed(params, count);
  });
}

char* bm_fused_adam(const at::Tensor* const* params, const at::Tensor* const* grads,
                    const at::Tensor* const* exp_avgs, const at::Tensor* const* exp_avg_sqs,
                    const at::Tensor* const* steps, size_t count, double lr, double beta1, double beta2, double eps,
                    double weight_decay, bool decoupled) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto update = [&](auto op) {
      op(list(params, count), list(grads, count), list(exp_avgs, count), list(exp_avg_sqs, count),
         /*max_exp_avg_sqs=*/at::TensorList(), list(steps, count), lr, beta1, beta2, weight_decay, eps,
         /*amsgrad=*/false, /*maximize=*/false);
    };
    if (decoupled) {
      update([](auto&&... args) { at::_fused_adamw_(args...); });
    } else {
      update([](auto&&... args) { at::_fused_adam_(args...); });
    }
    mark_changed(params, count);
  });
}

char* bm_generator_new(int32_t kind, int32_t index, uint64_t seed, at::Generator** out) {
  return guarded([&] {
    auto device = device_of(kind, index);
    at::Generator generator = device.is_cpu() ? at::detail::createCPUGenerator(seed)
                                              : at::globalContext().defaultGenerator(device).clone();
    generator.set_current_seed(seed);
    *out = new at::Generator(std::move(generator));
  });
}

void bm_generator_free(at::Generator* generator) noexcept { delete generator; }

char* bm_uniform_(at::Tensor* tensor, at::Generator* generator, double low, double high) {
  return guarded([&] { tensor->uniform_(low, high, *generator); });
}

char* bm_normal_(at::Tensor* tensor, at::Generator* generator, double mean, double std) {
  return guarded([&] { tensor->normal_(mean, std, *generator); });
}

char* bm_bernoulli_(at::Tensor* tensor, at::Generator* generator, double p) {
  return guarded([&] { tensor->bernoulli_(p, *generator); });
}

}  // extern "C"
