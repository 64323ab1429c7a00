#include "forms.h"

#include <mutex>
#include <ostream>
#include <sstream>
#include <unordered_map>

namespace fakecuda {
using at::Tensor;

namespace {

struct Learned {
  std::mutex lock;
  std::unordered_map<std::string, std::vector<ResultForm>> forms;
};

Learned& learned() {
  static auto* all = new Learned;
  return *all;
}

Form form_of(const Tensor& t) {
  return t.defined() ? Form{true, t.sizes().vec(), t.strides().vec(), t.scalar_type()}
                     : Form{false, {}, {}, at::kFloat};
}

void describe(std::ostream& out, const Tensor& t) {
  if (!t.defined()) {
    out << "- ";
    return;
  }
  out << t.scalar_type() << t.sizes() << t.strides() << (t.is_cuda() ? "d" : "h")
      << (t.unsafeGetTensorImpl()->is_wrapped_number() ? "w " : " ");
}

}  // namespace

std::string signature(Call& call) {
  std::ostringstream out;
  if (call.op.hasTag(at::Tag::dynamic_output_shape) ||
      call.op.hasTag(at::Tag::data_dependent_output))
    return "";
  for (const auto& r : call.schema.returns()) {
    auto kind = r.type()->kind();
    bool list = kind == c10::TypeKind::ListType &&
                r.type()->containedType(0)->kind() == c10::TypeKind::TensorType;
    if (kind != c10::TypeKind::TensorType && !list) return "";
  }
  out << call.schema.operator_name() << " ";
  for (auto& v : call.arguments) {
    if (v.isTensor())
      describe(out, v.toTensor());
    else if (v.isTensorList()) {
      for (const Tensor& t : v.toTensorVector()) describe(out, t);
      out << "| ";
    } else if (v.isOptionalTensorList()) {
      for (const auto& t : v.toOptionalTensorVector()) {
        if (t && t->defined() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte))
          return "";
        describe(out, t ? *t : Tensor());
      }
      out << "| ";
    } else if (v.isGenerator())
      out << "g ";
    else
      out << v << " ";
  }
  return out.str();
}

std::optional<std::vector<ResultForm>> known_forms(const std::string& signature) {
  std::lock_guard<std::mutex> hold(learned().lock);
  auto found = learned().forms.find(signature);
  if (signature.empty() || found == learned().forms.end()) return std::nullopt;
  return found->second;
}

void learn_forms(const std::string& signature, std::vector<ResultForm> forms) {
  std::lock_guard<std::mutex> hold(learned().lock);
  learned().forms[signature] = std::move(forms);
}

std::vector<ResultForm> forms_of(const torch::jit::Stack& stack, size_t count) {
  std::vector<ResultForm> forms;
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    const auto& value = stack[i];
    ResultForm form{!value.isTensor(), {}};
    if (value.isTensor())
      form.tensors.push_back(form_of(value.toTensor()));
    else
      for (const Tensor& t : value.toTensorVector()) form.tensors.push_back(form_of(t));
    forms.push_back(std::move(form));
  }
  return forms;
}

}  // namespace fakecuda
