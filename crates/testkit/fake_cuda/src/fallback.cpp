// Every operator without a kernel of its own: the CPU's kernel on the bytes of the device.
//
// It runs later if the form of its results is known at the call: because all results are arguments
// and a meta kernel has checked them, or because a call of the same form has run or was rehearsed.
// Otherwise it runs at once, and its results arrive later.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include <cstdlib>
#include <iostream>
#include <unordered_set>

#include "call.h"
#include "forms.h"
#include "launch.h"
#include "operators.h"
#include "rehearsal.h"
#include "results.h"

namespace fakecuda {
using at::Tensor;
using torch::jit::Stack;

namespace {

// Operators that write to their arguments and whose shapes others check, or nobody needs to.
const std::unordered_set<std::string>& simple() {
  static auto* names = new std::unordered_set<std::string>{
      "aten::fill_",        "aten::zero_",         "aten::masked_fill_",
      "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_"};
  return *names;
}

// Operators that take indices on the host.
bool takes_host_indices(const std::string& name) {
  return name == "aten::index" || name == "aten::_index_put_impl_" || name == "aten::index_put_";
}

class Fallback {
 public:
  Fallback(const c10::OperatorHandle& op, Stack* stack)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        call_{op, op.schema(), {stack->end() - op.schema().arguments().size(), stack->end()}} {
    check_arguments();
    for (const auto& argument : schema_.arguments())
      if (is_write(argument.alias_info()) && !argument.kwarg_only()) out_only_ = false;
    for (const auto& result : schema_.returns())
      if (!is_write(result.alias_info())) returns_given_ = false;
  }

  int device() const { return call_.device; }

  void run() {
    bool can_be_late = returns_given_ && !call_.has_generator && !writes_to_host_;
    bool has_meta = op_.hasKernelForDispatchKey(c10::DispatchKey::Meta);
    if (can_be_late && (has_meta ? shapes_fit() : simple().count(schema_.name()) > 0)) {
      return run_later();
    }
    std::string form = writes_to_host_ ? "" : signature(call_);
    if (form.empty()) return run_at_once(form);
    if (auto forms = known_forms(form)) return run_later_with(*forms);
    auto forms = rehearse(call_);
    if (!forms) return run_at_once(form);
    learn_forms(form, *forms);
    run_later_with(*forms);
  }

 private:
  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack* stack_;
  Call call_;
  bool writes_to_host_ = false;
  // Whether arguments that are written to are nothing but outputs. Some kernels resize these, so
  // they get memory of their own.
  bool out_only_ = true;
  // Whether all results are arguments.
  bool returns_given_ = true;

  const char* name() const { return schema_.name().c_str(); }

  void check_arguments() {
    call_.each_tensor([&](const Tensor& t, bool write) {
      call_.see(t);
      if (!t.defined() || t.is_cuda()) return;
      if (write) writes_to_host_ = true;
      TORCH_CHECK(t.dim() == 0 || takes_host_indices(schema_.name()),
                  "Expected all tensors to be on the same device, but found at least two devices, "
                  "cpu and cuda! (when checking arguments of ",
                  schema_.operator_name(), ")");
    });
    for (size_t i = 0; i < call_.arguments.size(); ++i) {
      const auto& value = call_.arguments[i];
      if (value.isDevice() && call_.device < 0) call_.device = value.toDevice().index();
      if (Call::is_generator(schema_.arguments()[i])) call_.has_generator = true;
    }
    if (call_.device < 0) call_.device = current_device();
    TORCH_CHECK(op_.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                    op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
                "the fake CUDA device has no kernel for ", schema_.operator_name(),
                ", nor has the CPU");
  }

  // Runs the meta kernel, which throws if shapes are wrong. False if the shapes of results depend
  // on numbers, or results must be resized.
  bool shapes_fit() {
    Deliveries outs;
    Stack meta = call_.mapped([&](const Tensor& t, bool write) {
      if (!t.is_cuda()) return t;
      Tensor made =
          write && out_only_ ? at::empty({0}, t.options().device(at::kMeta)) : like(t, at::kMeta);
      if (write) outs.emplace_back(t, made);
      return made;
    });
    try {
      run_kernel(op_, kMeta, meta);
    } catch (const c10::NotImplementedError&) {
      return false;
    }
    for (auto& [tensor, made] : outs)
      if (tensor.sizes() != made.sizes()) return false;
    return true;
  }

  void run_later() {
    note(FC_DEFERRED, "late");
    Deliveries results;
    Stack cpu = call_.mapped([&](const Tensor& t, bool write) {
      if (!t.is_cuda()) return t.clone();
      if (!write || !out_only_) return cpu_view(t);
      Tensor fresh = at::empty({0}, t.options().device(at::kCPU));
      results.emplace_back(cpu_view(t), fresh);
      return fresh;
    });
    launch(
        device(),
        [op = op_, cpu = std::move(cpu), results = std::move(results)]() mutable {
          run_kernel(op, kCpu, cpu);
          for (auto& [to, from] : results) to.copy_(from);
        },
        name());
    std::vector<c10::IValue> given;
    for (const auto& result : schema_.returns())
      given.push_back(given_for(call_, *result.alias_info()));
    give_back(call_, *stack_, std::move(given));
  }

  // Makes results of these forms. The kernel fills them later.
  void run_later_with(const std::vector<ResultForm>& forms) {
    note(FC_DEFERRED, "late");
    std::vector<Tensor> views;
    auto make = [&](const Form& form) {
      if (!form.defined) {
        views.emplace_back();
        return Tensor();
      }
      c10::Device place(c10::kCUDA, static_cast<c10::DeviceIndex>(device()));
      auto options = at::TensorOptions(place).dtype(form.dtype);
      Tensor made = at::empty_strided(form.sizes, form.strides, options);
      views.push_back(cpu_view(made));
      return made;
    };
    Stack cpu =
        call_.mapped([](const Tensor& t, bool) { return t.is_cuda() ? cpu_view(t) : t.clone(); });
    std::vector<c10::IValue> results;
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      const auto* alias = schema_.returns()[i].alias_info();
      if (is_write(alias)) {
        results.push_back(given_for(call_, *alias));
      } else if (forms[i].is_list) {
        c10::List<Tensor> list;
        for (const Form& form : forms[i].tensors) list.push_back(make(form));
        results.emplace_back(std::move(list));
      } else {
        results.emplace_back(make(forms[i].tensors.at(0)));
      }
    }
    launch(
        device(),
        [op = op_, cpu = std::move(cpu), views = std::move(views)]() mutable {
          run_kernel(op, kCpu, cpu);
          fill_results(views, op.schema(), cpu);
        },
        name());
    give_back(call_, *stack_, std::move(results));
  }

  // Waits for what was called before, and runs the kernel. The form of its results is noted.
  void run_at_once(std::string form) {
    note(FC_IMMEDIATE, "now");
    drain(current_stream(device()));
    check(device());
    Deliveries written, deliveries;
    Stack cpu = call_.mapped([&](const Tensor& t, bool write) {
      if (!t.is_cuda()) return t;
      Tensor seen = cpu_view(t);
      if (!write) return seen;
      Tensor copy = out_only_ ? at::empty({0}, t.options().device(at::kCPU)) : like(t, at::kCPU);
      if (t.numel() && !out_only_) copy.copy_(seen);
      written.emplace_back(t, copy);
      return copy;
    });
    on_stream(device(), [&] { run_kernel(op_, kCpu, cpu); }, name());
    for (auto& [tensor, copy] : written) {
      if (tensor.sizes() != copy.sizes()) {
        form.clear();
        tensor.resize_(copy.sizes());
        if (tensor.strides() != copy.strides())
          tensor.unsafeGetTensorImpl()->set_sizes_and_strides(copy.sizes(), copy.strides());
      }
      if (tensor.numel()) deliveries.emplace_back(cpu_view(tensor), copy);
    }
    give_back(call_, *stack_, results_of(call_, cpu, deliveries));
    if (!form.empty()) learn_forms(form, forms_of(*stack_, schema_.returns().size()));
    deliver(device(), std::move(deliveries), name());
  }

  void note(int counter, const char* when) const {
    static const bool tracing = getenv("FAKECUDA_TRACE") != nullptr;
    fakecuda::count(counter);
    if (tracing) std::cerr << when << " " << schema_.operator_name() << "\n";
  }
};

}  // namespace

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  Fallback fallback(op, stack);
  check(fallback.device());
  c10::DeviceGuard guard(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(fallback.device())));
  fallback.run();
}

}  // namespace fakecuda
