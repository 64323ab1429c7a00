// One call of an operator, with its arguments by the schema.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <utility>
#include <vector>

#include "generator.h"

namespace fakecuda {

inline bool is_write(const c10::AliasInfo* a) { return a != nullptr && a->isWrite(); }

struct Call {
  const c10::OperatorHandle& op;
  const c10::FunctionSchema& schema;
  std::vector<c10::IValue> arguments;
  int device = -1;
  bool has_generator = false;

  // Notes the device of a tensor. Throws if it is another one than that of the others.
  void see(const at::Tensor& t) {
    if (!t.defined() || !t.is_cuda()) return;
    if (device < 0) device = t.device().index();
    TORCH_CHECK(
        t.device().index() == device,
        "Expected all tensors to be on the same device, but found at least two devices, cuda:",
        device, " and ", t.device(), "! (when checking arguments of ", schema.operator_name(), ")");
  }
  template <typename F>
  void each_tensor(F f) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      bool write = is_write(schema.arguments()[i].alias_info());
      auto& v = arguments[i];
      if (v.isTensor())
        f(v.toTensor(), write);
      else if (v.isTensorList())
        for (const at::Tensor& t : v.toTensorVector()) f(t, write);
      else if (v.isOptionalTensorList())
        for (const auto& t : v.toOptionalTensorVector())
          if (t) f(*t, write);
    }
  }
  // The arguments with each tensor exchanged for another. The kernel draws from the device.
  template <typename F>
  torch::jit::Stack mapped(F f) {
    return mapped(f, [&](const c10::IValue& v) {
      return inner_of(v.isNone() ? std::nullopt : std::make_optional(v.toGenerator()), device);
    });
  }
  // The arguments with each tensor and each generator exchanged for another.
  template <typename F, typename G>
  torch::jit::Stack mapped(F f, G generator_for) {
    torch::jit::Stack stack;
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto& v = arguments[i];
      const auto& a = schema.arguments()[i];
      bool write = is_write(a.alias_info());
      if (v.isTensor())
        stack.emplace_back(v.toTensor().defined() ? f(v.toTensor(), write) : v.toTensor());
      else if (v.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& t : v.toTensorVector())
          list.push_back(t.defined() ? f(t, write) : t);
        stack.emplace_back(std::move(list));
      } else if (v.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& t : v.toOptionalTensorVector())
          list.push_back(t && t->defined() ? std::make_optional(f(*t, write)) : t);
        stack.emplace_back(std::move(list));
      } else if (v.isDevice())
        stack.emplace_back(c10::Device(c10::kCPU));
      else if (v.isGenerator() || (v.isNone() && is_generator(a)))
        stack.emplace_back(generator_for(v));
      else
        stack.push_back(v);
    }
    return stack;
  }
  static bool is_generator(const c10::Argument& a) {
    auto t = a.type();
    if (auto o = t->cast<c10::OptionalType>()) t = o->getElementType();
    return t->kind() == c10::TypeKind::GeneratorType;
  }
};

}  // namespace fakecuda
