// The results of a kernel of the CPU, as those of the device's operator.
#pragma once

#include <vector>

#include "call.h"
#include "tensors.h"

namespace fakecuda {

// The argument that a result is.
c10::IValue given_for(const Call& call, const c10::AliasInfo& result);

// Copies the results of a kernel to their places.
void fill_results(std::vector<at::Tensor>& places, const c10::FunctionSchema& schema,
                  const torch::jit::Stack& results);

// The results on a kernel's stack as tensors of the device. Their numbers are noted as deliveries.
std::vector<c10::IValue> results_of(const Call& call, const torch::jit::Stack& stack,
                                    Deliveries& deliveries);

// Replaces the arguments on the stack by results.
void give_back(const Call& call, torch::jit::Stack& stack, std::vector<c10::IValue> results);

}  // namespace fakecuda
