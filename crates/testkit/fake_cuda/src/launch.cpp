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

namespace {

void put(int d, Work work, const char* name, uint64_t number_on_device) {
  enqueue(
      current_stream(d),
      [work = std::move(work)] {
        at::AutoDispatchBelowADInplaceOrView below;
        static thread_local bool once = (at::set_num_threads(1), true);
        (void)once;
        work();
      },
      name, number_on_device);
}

}  // namespace

void launch(int d, Work work, const char* name) {
  check(d);
  check_call(d);
  put(d, std::move(work), name, number_task(d));
  count(FC_KERNEL);
}

void launch_copy(int d, int counter, Work work, const char* name) {
  check(d);
  check_call(d);
  put(d, std::move(work), name, number_task(d));
  count(counter);
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

// The arrival has no number on the device: it is a part of its kernel.
void deliver(int device, Deliveries deliveries, const char* name) {
  if (deliveries.empty()) return;
  check(device);
  put(
      device,
      [deliveries = std::move(deliveries)]() mutable {
        for (auto& [to, from] : deliveries) to.copy_(from);
      },
      name, 0);
}

}  // namespace fakecuda
