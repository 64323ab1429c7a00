#include "launch.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <exception>
#include <thread>

namespace fakecuda {

// A boxed kernel returns a reference into the stack for an output that was given, and reads it
// after the stack was cleared. So this holds the tensors.
void run_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  torch::jit::Stack held = stack;
  op.redispatchBoxed(keys, &stack);
}

namespace {

// Work that keeps its exception.
Work kept(const Work& work, std::exception_ptr& problem) {
  return [&] {
    try {
      work();
    } catch (...) {
      problem = std::current_exception();
    }
  };
}

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
  launch(d, kept(work, problem), name);
  drain(current_stream(d));
  check(d);
  if (problem) std::rethrow_exception(problem);
}

// It leaves the number of libtorch's threads alone, which is one number for the process: nobody
// reads the bits.
void aside(const Work& work) {
  std::exception_ptr problem;
  Work guarded = kept(work, problem);
  std::thread([&] {
    at::AutoDispatchBelowADInplaceOrView below;
    guarded();
  }).join();
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
