#include "rehearsal.h"

#include <ATen/CPUGeneratorImpl.h>

#include <unordered_set>

#include "launch.h"

namespace fakecuda {
using at::Tensor;
using torch::jit::Stack;

namespace {

bool can_be_rehearsed(Call& call) {
  // It would draw from the generator of the host.
  if (call.op.hasTag(at::Tag::nondeterministic_seeded) && !call.has_generator) return false;
  // The fake has no kernel for it, and says so when it runs at once.
  for (const auto& result : call.schema.returns())
    if (result.alias_info() != nullptr && !is_write(result.alias_info())) return false;
  // An output without elements is there to be resized.
  bool resizes = false;
  call.each_tensor([&](const Tensor& t, bool write) {
    resizes = resizes || (write && t.defined() && t.numel() == 0);
  });
  return !resizes;
}

// The arguments of a rehearsal.
class StandIns {
 public:
  explicit StandIns(Call& call) {
    stack = call.mapped(
        [&](const Tensor& t, bool write) {
          Tensor made = t.is_cuda() ? stand_in(t) : t.clone();
          storages_.insert(made.storage().unsafeGetStorageImpl());
          if (write) written_.emplace_back(t, made);
          return made;
        },
        [](const c10::IValue&) { return at::detail::createCPUGenerator(); });
  }
  Stack stack;

  // Whether a kernel has left the forms of arguments as they were.
  bool keep_forms() const {
    for (const auto& [t, made] : written_)
      if (t.sizes() != made.sizes() || t.strides() != made.strides()) return false;
    return true;
  }
  // A result that lies in the memory of an argument gets memory of its own, as a real one does.
  Tensor apart(const Tensor& made) const {
    bool given = made.defined() && made.has_storage() &&
                 storages_.count(made.storage().unsafeGetStorageImpl()) > 0;
    return given ? made.clone() : made;
  }

 private:
  std::vector<std::pair<Tensor, Tensor>> written_;
  std::unordered_set<const c10::StorageImpl*> storages_;
};

std::optional<std::vector<ResultForm>> run(Call& call) {
  StandIns arguments(call);
  Stack results = arguments.stack;
  run_kernel(call.op, kCpu, results);
  if (results.size() != call.schema.returns().size() || !arguments.keep_forms())
    return std::nullopt;
  for (auto& value : results) {
    if (value.isTensor()) {
      value = arguments.apart(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorVector()) list.push_back(arguments.apart(t));
      value = std::move(list);
    } else {
      return std::nullopt;
    }
  }
  return forms_of(results, results.size());
}

}  // namespace

std::optional<std::vector<ResultForm>> rehearse(Call& call) {
  std::optional<std::vector<ResultForm>> forms;
  if (!can_be_rehearsed(call)) return forms;
  try {
    aside([&] { forms = run(call); });
  } catch (...) {
    // The kernel runs at once, and throws what is wrong, if anything is.
    return std::nullopt;
  }
  return forms;
}

}  // namespace fakecuda
