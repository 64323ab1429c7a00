// The forms of results. For an operator without a meta kernel they are learned at the first call
// with arguments of one form, and known at later ones.
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

// The forms of the results, if they were learned for this signature.
std::optional<std::vector<ResultForm>> known_forms(const std::string& signature);
void learn_forms(const std::string& signature, std::vector<ResultForm> forms);

// The forms of the last `count` values on a stack, which are tensors or lists of them.
std::vector<ResultForm> forms_of(const torch::jit::Stack& stack, size_t count);

}  // namespace fakecuda
