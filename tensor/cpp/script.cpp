// TorchScript modules whose parameters are given with each call. `src/script.rs` declares the same functions.
//
// No exception leaves this file, as in shim.cpp.

#include "guarded.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace {

// Where a parameter is set.
struct Slot {
  torch::jit::Module owner;
  std::string attribute;
};

struct Param {
  std::string name;
  at::Tensor initial;
  // More than one where modules share it.
  std::vector<Slot> slots;
};

struct Buffer {
  std::string name;
  Slot slot;
};

// Of all modules: their random numbers come from the process's one generator.
std::mutex running;

}  // namespace

struct bm_script {
  torch::jit::Module module;
  std::vector<Param> params;
  std::vector<Buffer> buffers;
  bool training;
};

extern "C" {

char* bm_script_load(const void* data, size_t size, int32_t device_kind, int32_t device_index, bm_script** out) {
  return guarded([&] {
    c10::Device device = device_kind == 1 ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_index))
                                          : c10::Device(device_kind == 2 ? c10::kMPS : c10::kCPU);
    std::istringstream stream(std::string(static_cast<const char*>(data), size));
    auto script = std::make_unique<bm_script>(bm_script{torch::jit::load(stream, device), {}, {}, true});
    for (const auto& part : script->module.named_modules()) {
      std::string prefix = part.name.empty() ? "" : part.name + ".";
      for (const auto& param : part.value.named_parameters(/*recurse=*/false)) {
        Slot slot{part.value, param.name};
        auto same = [&](const Param& known) { return known.initial.is_same(param.value); };
        auto known = std::find_if(script->params.begin(), script->params.end(), same);
        if (known != script->params.end()) {
          known->slots.push_back(slot);
        } else {
          script->params.push_back(Param{prefix + param.name, param.value, {slot}});
        }
      }
      for (const auto& buffer : part.value.named_buffers(/*recurse=*/false)) {
        script->buffers.push_back(Buffer{prefix + buffer.name, Slot{part.value, buffer.name}});
      }
    }
    script->module.train(true);
    *out = script.release();
  });
}

void bm_script_free(bm_script* script) noexcept { delete script; }

size_t bm_script_params(const bm_script* script) noexcept { return script->params.size(); }

const char* bm_script_param_name(const bm_script* script, size_t index) noexcept {
  return script->params[index].name.c_str();
}

// A new reference.
at::Tensor* bm_script_param(const bm_script* script, size_t index) noexcept {
  return new at::Tensor(script->params[index].initial.detach());
}

// `params` are as many as the module has; `seed` may be null. Each output is handed to `take` as a new at::Tensor.
char* bm_script_run(bm_script* script, const at::Tensor* const* params, const at::Tensor* const* inputs,
                    size_t input_count, bool training, const uint64_t* seed, void (*take)(void*, at::Tensor*),
                    void* taker) {
  return guarded([&] {
    std::lock_guard<std::mutex> alone(running);
    // What the optimizing executor does changes with the number of calls, and the bits of its results with it.
    torch::jit::GraphOptimizerEnabledGuard plain(false);
    if (script->training != training) {
      script->module.train(training);
      script->training = training;
    }
    for (size_t i = 0; i < script->params.size(); ++i) {
      for (Slot& slot : script->params[i].slots) slot.owner.setattr(slot.attribute, *params[i]);
    }
    if (seed != nullptr) at::manual_seed(*seed);
    std::vector<std::pair<at::Tensor, uint32_t>> before;
    for (const Buffer& buffer : script->buffers) {
      at::Tensor tensor = buffer.slot.owner.attr(buffer.slot.attribute).toTensor();
      before.emplace_back(tensor, tensor.is_inference() ? 0 : tensor._version());
    }
    std::vector<c10::IValue> arguments;
    for (size_t i = 0; i < input_count; ++i) arguments.emplace_back(*inputs[i]);
    c10::IValue result = script->module.forward(std::move(arguments));
    for (size_t i = 0; i < before.size(); ++i) {
      const Buffer& buffer = script->buffers[i];
      at::Tensor now = buffer.slot.owner.attr(buffer.slot.attribute).toTensor();
      bool same = now.is_same(before[i].first) && (now.is_inference() || now._version() == before[i].second);
      TORCH_CHECK(same, "its forward pass writes to the buffer `", buffer.name,
                  "`, which would not be kept with the weights; take a layer without running statistics, or BossMan's own");
    }
    auto hand_over = [&](const c10::IValue& value) {
      TORCH_CHECK(value.isTensor(), "expected tensors as outputs, got a ", value.tagKind());
      take(taker, new at::Tensor(value.toTensor()));
    };
    if (result.isTuple()) {
      for (const auto& value : result.toTupleRef().elements()) hand_over(value);
    } else if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) hand_over(tensor);
    } else {
      hand_over(result);
    }
  });
}

}  // extern "C"
