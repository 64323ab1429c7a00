#include "launch.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace fakecuda {

// A boxed kernel returns a reference into the stack for an output that was given, and reads it
// after the stack was cleared. So this holds the tensors.
void run_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  torch::jit::Stack held = stack;
  op.redispatchBoxed(keys, &stack);
}

void launch(int d, Work work, const char* name) {
  check(d);
  enqueue(
      current_stream(d),
      [work = std::move(work)] {
        at::AutoDispatchBelowADInplaceOrView below;
        static thread_local bool once = (at::set_num_threads(1), true);
        (void)once;
        work();
      },
      name);
}

// Kernels run on the stream's own thread here, too. With another number of threads they would give
// other bits.
void on_stream(int d, const Work& work, const char* name) {
  std::exception_ptr problem;
  launch(
      d,
      [&] {
        try {
          work();
        } catch (...) {
          problem = std::current_exception();
        }
      },
      name);
  drain(current_stream(d));
  check(d);
  if (problem) std::rethrow_exception(problem);
}

void deliver(int device, Deliveries deliveries, const char* name) {
  if (deliveries.empty()) return;
  launch(
      device,
      [deliveries = std::move(deliveries)]() mutable {
        for (auto& [to, from] : deliveries) to.copy_(from);
      },
      name);
}

}  // namespace fakecuda
