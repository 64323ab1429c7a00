// The forms of results. An operator without a meta kernel runs once; then the form of its results
// is known for arguments of the same form.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "call.h"

namespace fakecuda {

// The form of one tensor.
struct Form {
  bool defined;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype;
};

// The form of one result, which may be a list of tensors.
struct ResultForm {
  bool is_list;
  std::vector<Form> tensors;
};

// Describes the operator and the form of its arguments. Empty if the form of the results does not
// follow from that.
std::string signature(Call& call);

// The forms of the results, if a call of this signature has run.
std::optional<std::vector<ResultForm>> known_forms(const std::string& signature);

// Notes the forms of the last `count` values on a stack.
void learn_forms(const std::string& signature, const torch::jit::Stack& stack, size_t count);

}  // namespace fakecuda
