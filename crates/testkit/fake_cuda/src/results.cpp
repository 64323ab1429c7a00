#include "results.h"

#include "runtime.h"

namespace fakecuda {
using at::Tensor;
using torch::jit::Stack;

c10::IValue given_for(const Call& call, const c10::AliasInfo& result) {
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const auto* alias = call.schema.arguments()[i].alias_info();
    if (is_write(alias) && *alias == result) return call.arguments[i];
  }
  TORCH_CHECK(false, call.schema.operator_name(), " returns an argument that it does not have");
}

void fill_results(std::vector<Tensor>& places, const c10::FunctionSchema& schema,
                  const Stack& results) {
  size_t count = schema.returns().size(), next = 0;
  auto put = [&](const Tensor& made) {
    Tensor& to = places.at(next++);
    if (!to.defined()) return;
    TORCH_CHECK(to.sizes() == made.sizes(), "the form of the results of ", schema.name(),
                " does not follow from the form of its arguments");
    if (to.numel()) to.copy_(made);
  };
  for (size_t i = 0; i < count; ++i) {
    if (is_write(schema.returns()[i].alias_info())) continue;
    const auto& value = results[results.size() - count + i];
    if (value.isTensor())
      put(value.toTensor());
    else
      for (const Tensor& t : value.toTensorVector()) put(t);
  }
}

std::vector<c10::IValue> results_of(const Call& call, const Stack& stack, Deliveries& deliveries) {
  auto convert = [&](const Tensor& made) {
    // A result may be an argument, or lie in the memory of one.
    const void* place =
        made.defined() && made.has_storage() ? device_view(made.storage().data()) : nullptr;
    return to_device(place ? made.clone() : made, call.device, deliveries);
  };
  std::vector<c10::IValue> results;
  size_t size = call.schema.returns().size();
  for (size_t i = 0; i < size; ++i) {
    const auto* alias = call.schema.returns()[i].alias_info();
    if (is_write(alias)) {
      results.push_back(given_for(call, *alias));
      continue;
    }
    TORCH_CHECK(alias == nullptr, "the fake CUDA device has no kernel for the view ",
                call.schema.operator_name());
    const auto& value = stack[stack.size() - size + i];
    if (value.isTensor()) {
      results.emplace_back(convert(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorVector()) list.push_back(convert(t));
      results.emplace_back(std::move(list));
    } else {
      // A number on the host, for which the caller has waited.
      if (i == 0) count(FC_ITEM);
      results.push_back(value);
    }
  }
  return results;
}

void give_back(const Call& call, Stack& stack, std::vector<c10::IValue> results) {
  torch::jit::drop(stack, call.arguments.size());
  for (auto& result : results) stack.push_back(std::move(result));
}

}  // namespace fakecuda
