// TorchScript modules whose parameters are given with each call. `src/script.rs` declares the same
// functions.
//
// No exception leaves this file, as in shim.cpp.

#include "guarded.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
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

struct Named {
  std::string name;
  Slot slot;
};

// What code can change in a value: numbers and texts by their value, tensors by their address and
// the number of writes to them. `held` keeps tensors, so that no other takes their address.
void look(const c10::IValue& value, int depth, std::vector<uint64_t>& seen, std::vector<c10::IValue>& held) {
  // Objects may hold each other in a circle.
  if (depth == 0) return;
  auto each = [&](const auto& values) {
    seen.push_back(values.size());
    for (const c10::IValue& one : values) look(one, depth - 1, seen, held);
  };
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    held.push_back(value);
    seen.push_back(reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl()));
    seen.push_back(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0);
  } else if (value.isInt()) {
    seen.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    seen.push_back(value.toBool() ? 1 : 0);
  } else if (value.isDouble()) {
    double number = value.toDouble();
    uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    seen.push_back(bits);
  } else if (value.isString()) {
    seen.push_back(std::hash<std::string>{}(value.toStringRef()));
  } else if (value.isList()) {
    each(value.toListRef());
  } else if (value.isTuple()) {
    each(value.toTupleRef().elements());
  } else if (value.isGenericDict()) {
    seen.push_back(value.toGenericDict().size());
    for (const auto& entry : value.toGenericDict()) {
      look(entry.key(), depth - 1, seen, held);
      look(entry.value(), depth - 1, seen, held);
    }
  } else if (value.isObject()) {
    each(value.toObjectRef().slots());
  } else {
    // None, and what cannot change.
    seen.push_back(value.isNone() ? 0 : 1);
  }
}

constexpr int kDeepest = 16;

// Of all modules: their random numbers come from the process's one generator.
std::mutex running;

}  // namespace

struct bm_script {
  torch::jit::Module module;
  std::vector<Param> params;
  std::vector<Named> buffers;
  // All else that modules have, but modules.
  std::vector<Named> attributes;
  bool training;
};

extern "C" {

char* bm_script_load(const void* data, size_t size, int32_t device_kind, int32_t device_index, bm_script** out) {
  return guarded([&] {
    c10::Device device = device_kind == 1 ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_index))
                                          : c10::Device(device_kind == 2 ? c10::kMPS : c10::kCPU);
    std::istringstream stream(std::string(static_cast<const char*>(data), size));
    auto script = std::make_unique<bm_script>(bm_script{torch::jit::load(stream, device), {}, {}, {}, true});
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
        script->buffers.push_back(Named{prefix + buffer.name, Slot{part.value, buffer.name}});
      }
      auto type = part.value.type();
      for (size_t i = 0; i < type->numAttributes(); ++i) {
        if (type->is_parameter(i) || type->is_buffer(i) || type->getAttribute(i)->is_module()) continue;
        const std::string& name = type->getAttributeName(i);
        script->attributes.push_back(Named{prefix + name, Slot{part.value, name}});
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

// There are as many `params` as the module has. `seed` may be null. Each output goes to `take` as a
// new at::Tensor.
char* bm_script_run(bm_script* script, const at::Tensor* const* params, const at::Tensor* const* inputs,
                    size_t input_count, bool training, const uint64_t* seed, void (*take)(void*, at::Tensor*),
                    void* taker) {
  return guarded([&] {
    std::lock_guard<std::mutex> alone(running);
    // The optimizing executor computes other bits after some calls.
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
    for (const Named& buffer : script->buffers) {
      at::Tensor tensor = buffer.slot.owner.attr(buffer.slot.attribute).toTensor();
      before.emplace_back(tensor, tensor.is_inference() ? 0 : tensor._version());
    }
    std::vector<std::vector<uint64_t>> had(script->attributes.size());
    std::vector<c10::IValue> held;
    for (size_t i = 0; i < had.size(); ++i) {
      const Slot& slot = script->attributes[i].slot;
      look(slot.owner.attr(slot.attribute), kDeepest, had[i], held);
    }
    std::vector<c10::IValue> arguments;
    for (size_t i = 0; i < input_count; ++i) arguments.emplace_back(*inputs[i]);
    c10::IValue result = script->module.forward(std::move(arguments));
    for (size_t i = 0; i < before.size(); ++i) {
      const Named& buffer = script->buffers[i];
      at::Tensor now = buffer.slot.owner.attr(buffer.slot.attribute).toTensor();
      bool same = now.is_same(before[i].first) && (now.is_inference() || now._version() == before[i].second);
      TORCH_CHECK(same, "its forward pass writes to the buffer `", buffer.name,
                  "`, which would not be kept with the weights; take a layer without running statistics, or BossMan's own");
    }
    for (size_t i = 0; i < had.size(); ++i) {
      const Named& attribute = script->attributes[i];
      std::vector<uint64_t> has;
      look(attribute.slot.owner.attr(attribute.slot.attribute), kDeepest, has, held);
      TORCH_CHECK(has == had[i], "its forward pass changes the attribute `", attribute.name,
                  "`, which would not be kept with the weights, and would differ from worker to worker; let what comes out "
                  "depend on inputs and parameters alone");
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
