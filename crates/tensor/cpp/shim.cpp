// The few libtorch calls that tch does not offer. `src/ffi.rs` declares the same functions.
//
// No exception leaves this file: each function returns null, or a message that the caller frees
// with `free`. A tensor list is an array of pointers and its length; a tensor handed out is a
// new `at::Tensor` that the caller owns.

#include "guarded.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/celu.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/hardshrink.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/softshrink.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <optional>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;

Tensors list(const at::Tensor* const* items, size_t count) {
  Tensors tensors;
  tensors.reserve(count);
  for (size_t i = 0; i < count; ++i) tensors.push_back(*items[i]);
  return tensors;
}

std::optional<at::Tensor> maybe(const at::Tensor* tensor) {
  return tensor == nullptr ? std::nullopt : std::make_optional(*tensor);
}

at::Tensor* owned(at::Tensor&& tensor) { return tensor.defined() ? new at::Tensor(std::move(tensor)) : nullptr; }

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

// The version of libtorch. Never freed.
const char* bm_libtorch_version() noexcept { return TORCH_VERSION; }

char* bm_set_interop_threads(int32_t threads) {
  return guarded([&] { at::set_num_interop_threads(threads); });
}

// Whether GPUs use kernels that give equal bits every time, or the fastest ones; and whether those
// may round to TF32.
char* bm_choose_kernels(int32_t deterministic, int32_t tf32) {
  return guarded([&] {
    auto& context = at::globalContext();
    bool strict = deterministic != 0;
    context.setDeterministicAlgorithms(strict, /*warn_only=*/false);
    // Filling fresh memory with NaN costs time, and every kernel here writes all of its result.
    context.setDeterministicFillUninitializedMemory(false);
    context.setDeterministicCuDNN(strict);
    // The fastest kernel of cuDNN is measured, and two measurements can disagree.
    context.setBenchmarkCuDNN(!strict);
    context.setAllowTF32CuBLAS(tf32 != 0);
    context.setAllowTF32CuDNN(tf32 != 0);
  });
}

char* bm_kernels_are_deterministic(int32_t* they_are) {
  return guarded([&] { *they_are = at::globalContext().deterministicAlgorithms() ? 1 : 0; });
}

char* bm_device_memory(int32_t kind, int32_t index, uint64_t* free_bytes, uint64_t* total_bytes) {
  return guarded([&] {
    auto device = device_of(kind, index);
    auto [free_now, total] = at::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
    *free_bytes = free_now;
    *total_bytes = total;
  });
}

// The most bytes that tensors of this process had on the device at one time.
char* bm_peak_memory(int32_t kind, int32_t index, uint64_t* bytes) {
  return guarded([&] {
    auto device = device_of(kind, index);
    auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *bytes = static_cast<uint64_t>(stats.allocated_bytes[all].peak);
  });
}

// Gives memory that the allocator of such devices keeps for later back to them.
char* bm_empty_cache(int32_t kind, int32_t index) {
  return guarded([&] { at::getDeviceAllocator(device_of(kind, index).type())->emptyCache(); });
}

// From now on this thread's work that names no device goes to this one.
char* bm_use_device(int32_t kind, int32_t index) {
  return guarded([&] {
    auto device = device_of(kind, index);
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  });
}

// Waits until all is done that was given to the device.
char* bm_synchronize(int32_t kind, int32_t index) {
  return guarded([&] {
    auto device = device_of(kind, index);
    c10::impl::VirtualGuardImpl guard(device.type());
    // libtorch then selects the device before again, which for a thread without one is the first.
    guard.setDevice(device);
    guard.synchronizeDevice(device.index());
  });
}

// Whether the device has done all its work. An error if work was given to another stream than the
// default one.
char* bm_is_idle(int32_t kind, int32_t index, bool* idle) {
  return guarded([&] {
    auto device = device_of(kind, index);
    c10::impl::VirtualGuardImpl guard(device.type());
    auto stream = guard.getStream(device);
    TORCH_CHECK(stream.id() == 0, "work is on another stream than the default one");
    *idle = guard.queryStream(stream);
  });
}

// Where a tensor of float32 in one piece lies on this device, and how many numbers it has.
char* bm_floats(const at::Tensor* tensor, int32_t kind, int32_t index, void** data, size_t* count) {
  return guarded([&] {
    auto device = device_of(kind, index);
    TORCH_CHECK(tensor->defined() && tensor->scalar_type() == at::kFloat && tensor->is_contiguous() &&
                    tensor->device() == device,
                "expected a float32 tensor in one piece on ", device);
    *data = tensor->mutable_data_ptr();
    *count = static_cast<size_t>(tensor->numel());
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

// out: the gradients of input, weight and bias, null where `wanted` has no such bit (1, 2 and 4).
char* bm_layer_norm_backward(const at::Tensor* grad, const at::Tensor* input, const at::Tensor* mean,
                             const at::Tensor* rstd, const at::Tensor* weight, const at::Tensor* bias,
                             const int64_t* shape, size_t rank, uint8_t wanted, at::Tensor** out) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto [of_input, of_weight, of_bias] = at::native_layer_norm_backward(
        *grad, *input, at::IntArrayRef(shape, rank), *mean, *rstd, maybe(weight), maybe(bias),
        {(wanted & 1) != 0, (wanted & 2) != 0, (wanted & 4) != 0});
    out[0] = owned(std::move(of_input));
    out[1] = owned(std::move(of_weight));
    out[2] = owned(std::move(of_bias));
  });
}

// `sizes` are stride, padding, dilation and output padding, each by dimension of the image. out as
// above.
char* bm_conv_backward(const at::Tensor* grad, const at::Tensor* input, const at::Tensor* weight, const int64_t* sizes,
                       size_t dims, bool transposed, int64_t groups, uint8_t wanted, at::Tensor** out) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    int64_t bias_size = grad->size(1);
    auto by_dim = [&](size_t place) { return at::IntArrayRef(sizes + place * dims, dims); };
    auto [of_input, of_weight, of_bias] = at::convolution_backward(
        *grad, *input, *weight, at::IntArrayRef(&bias_size, 1), by_dim(0), by_dim(1), by_dim(2), transposed, by_dim(3),
        groups, {(wanted & 1) != 0, (wanted & 2) != 0, (wanted & 4) != 0});
    out[0] = owned(std::move(of_input));
    out[1] = owned(std::move(of_weight));
    out[2] = owned(std::move(of_bias));
  });
}

// Differentiable; `which` as in `src/activation.rs`.
char* bm_activation(uint8_t which, const at::Tensor* x, double a, double b, at::Tensor** out) {
  return guarded([&] {
    switch (which) {
      case 0: *out = new at::Tensor(at::leaky_relu(*x, a)); return;
      case 1: *out = new at::Tensor(at::elu(*x, a)); return;
      case 2: *out = new at::Tensor(at::celu(*x, a)); return;
      case 3: *out = new at::Tensor(at::softplus(*x, a, b)); return;
      case 4: *out = new at::Tensor(at::hardtanh(*x, a, b)); return;
      case 5: *out = new at::Tensor(at::hardshrink(*x, a)); return;
      case 6: *out = new at::Tensor(at::softshrink(*x, a)); return;
      default: TORCH_CHECK(false, "there is no activation function ", int(which));
    }
  });
}

// Whether nothing else refers to the tensor or its memory, and the memory is libtorch's own.
bool bm_is_alone(const at::Tensor* tensor) noexcept {
  return tensor->defined() && tensor->use_count() == 1 && tensor->has_storage() && !tensor->requires_grad() &&
         tensor->storage().use_count() == 1 && tensor->storage().allocator() != nullptr;
}

// Whether the strides are those of fresh memory, also where sizes are 1.
bool bm_is_plain(const at::Tensor* tensor) noexcept {
  if (!tensor->defined() || tensor->layout() != at::kStrided) return false;
  int64_t expected = 1;
  for (int64_t dim = tensor->dim() - 1; dim >= 0; --dim) {
    if (tensor->unsafeGetTensorImpl()->stride(dim) != expected) return false;
    expected *= std::max<int64_t>(tensor->unsafeGetTensorImpl()->size(dim), 1);
  }
  return true;
}

// Where the memory behind a tensor begins, and how long it is.
void bm_storage(const at::Tensor* tensor, const void** data, uint64_t* bytes) noexcept {
  bool has = tensor->defined() && tensor->has_storage();
  *data = has ? tensor->storage().data() : nullptr;
  *bytes = has ? tensor->storage().nbytes() : 0;
}

// The sum of squares of each block of elements. Written by hand, because libtorch's own sums depend
// on the number of threads and on the shape, and would first make a copy in double precision.
char* bm_squares_of_blocks(const at::Tensor* tensor, size_t block, double* sums, size_t blocks) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    TORCH_CHECK(at::isFloatingType(tensor->scalar_type()), "expected a floating-point tensor");
    at::Tensor plain = tensor->detach().to(at::kCPU).to(at::kFloat).contiguous();
    const float* all = plain.const_data_ptr<float>();
    size_t count = plain.numel();
    TORCH_CHECK(block > 0 && blocks == (count + block - 1) / block, "expected one sum for each block");
    constexpr size_t lanes = 16;
    for (size_t b = 0; b < blocks; ++b) {
      const float* data = all + b * block;
      double lane[lanes] = {};
      size_t here = std::min(block, count - b * block);
      size_t whole = here / lanes * lanes;
      for (size_t i = 0; i < whole; i += lanes) {
        for (size_t j = 0; j < lanes; ++j) lane[j] += static_cast<double>(data[i + j]) * data[i + j];
      }
      for (size_t i = whole; i < here; ++i) lane[i - whole] += static_cast<double>(data[i]) * data[i];
      sums[b] = 0;
      for (double part : lane) sums[b] += part;
    }
  });
}

// Lets the process keep freed memory: up to `keep` bytes at the end of the heap (SIZE_MAX: all),
// and blocks below `largest_block`. Other free memory goes back now. False if the C library
// cannot do this.
bool bm_keep_freed_memory(size_t largest_block, size_t keep) noexcept {
#ifdef __GLIBC__
  // glibc before 2.35 takes no larger threshold.
  constexpr int kMostBefore = 32 << 20;
  return (mallopt(M_MMAP_THRESHOLD, static_cast<int>(largest_block)) == 1 ||
          mallopt(M_MMAP_THRESHOLD, kMostBefore) == 1) &&
         // -1 is the most.
         mallopt(M_TRIM_THRESHOLD, static_cast<int>(keep)) == 1 &&
         // One heap for all threads: what one frees, another finds.
         mallopt(M_ARENA_MAX, 1) == 1 &&
         malloc_trim(keep) >= 0;
#else
  (void)largest_block;
  (void)keep;
  return false;
#endif
}

// Lets the C library return freed blocks of this size and larger to the kernel at once, and `keep`
// bytes at the end of a heap. By itself glibc keeps blocks of up to 32 MiB, in a heap for each
// thread. False if it cannot do this.
bool bm_return_large_blocks(size_t block, size_t keep) noexcept {
#ifdef __GLIBC__
  return mallopt(M_MMAP_THRESHOLD, static_cast<int>(block)) == 1 &&
         mallopt(M_TRIM_THRESHOLD, static_cast<int>(keep)) == 1;
#else
  (void)block;
  (void)keep;
  return false;
#endif
}

char* bm_multiply_each(const at::Tensor* const* tensors, size_t count, double factor) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    at::_foreach_mul_(list(tensors, count), factor);
  });
}

char* bm_add_to_each(const at::Tensor* const* tensors, size_t count, double number) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    at::_foreach_add_(list(tensors, count), number);
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
