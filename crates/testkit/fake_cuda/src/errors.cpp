#include "errors.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>

#include "counters.h"
#include "faults.h"
#include "machine.h"

namespace fakecuda {
namespace {

struct State {
  std::mutex lock;
  uint64_t tasks = 0;
  std::vector<Fault> faults;
  // What broke the device.
  std::atomic<bool> broken{false};
  int code = 0;
  std::string message;
};

// The devices, with the faults that the environment asks for.
State* states() {
  static auto* all = [] {
    auto* states = new State[kMaxDevices];
    for (auto& [device, fault] : faults_of_environment())
      states[device].faults.push_back(std::move(fault));
    return states;
  }();
  return all;
}
State& state_of(int device) { return states()[device]; }

// A mistake in the environment ends the program when it loads the library.
State* const at_load = states();

// Takes the first fault for which `due` holds.
template <typename Due>
bool take(State& state, Fault& taken, Due due) {
  std::lock_guard<std::mutex> hold(state.lock);
  for (auto fault = state.faults.begin(); fault != state.faults.end(); ++fault) {
    if (!due(*fault)) continue;
    taken = std::move(*fault);
    state.faults.erase(fault);
    return true;
  }
  return false;
}

void inject(int d, uint64_t after, Fault fault) {
  State& state = state_of(d);
  std::lock_guard<std::mutex> hold(state.lock);
  fault.task = state.tasks + after;
  state.faults.push_back(std::move(fault));
}

}  // namespace

void check(int d) {
  State& state = state_of(d);
  if (!state.broken) return;
  std::lock_guard<std::mutex> hold(state.lock);
  throw c10::AcceleratorError(
      {__func__, __FILE__, uint32_t(__LINE__)}, state.code,
      "CUDA error: " + state.message +
          "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
          "stacktrace below might be incorrect.");
}

bool is_broken(int d) { return state_of(d).broken; }

void break_device(int d, int code, std::string message) {
  State& state = state_of(d);
  std::lock_guard<std::mutex> hold(state.lock);
  if (state.broken) return;
  state.code = code;
  state.message = std::move(message);
  state.broken = true;
}

void check_call(int d) {
  State& state = state_of(d);
  Fault fault;
  auto due = [&](Fault& f) { return f.effect == Effect::kFailCall && f.task <= state.tasks; };
  TORCH_CHECK(!take(state, fault, due), fault.message);
}

uint64_t number_task(int d) {
  State& state = state_of(d);
  std::lock_guard<std::mutex> hold(state.lock);
  return ++state.tasks;
}

void reach_task(int d, uint64_t number) {
  State& state = state_of(d);
  Fault fault;
  auto due = [&](Fault& f) { return f.effect == Effect::kBreakDevice && f.task <= number; };
  if (take(state, fault, due)) break_device(d, fault.code, fault.message);
}

void check_memory(int d, size_t bytes) {
  State& state = state_of(d);
  Fault fault;
  auto due = [&](Fault& f) { return f.effect == Effect::kFailMemory && f.task <= state.tasks; };
  if (!take(state, fault, due)) return;
  count(FC_OOM);
  TORCH_CHECK_WITH(OutOfMemoryError, false, fault.message, " Tried to allocate ", bytes,
                   " bytes. GPU ", d, " has no memory for this call.");
}

void inject_error(int d, uint64_t after, int code, std::string message) {
  inject(d, after, {Effect::kBreakDevice, 0, code, std::move(message)});
}

bool inject_kind(int d, uint64_t after, const std::string& kind) {
  auto fault = fault_of_kind(kind);
  if (fault) inject(d, after, *fault);
  return fault.has_value();
}

void clear_error(int d) {
  State& state = state_of(d);
  std::lock_guard<std::mutex> hold(state.lock);
  state.broken = false;
  state.faults.clear();
}

}  // namespace fakecuda
