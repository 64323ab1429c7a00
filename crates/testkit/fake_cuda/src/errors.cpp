#include "errors.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>

#include "machine.h"

namespace fakecuda {
namespace {

struct State {
  std::mutex lock;
  std::atomic<bool> broken{false};
  int code = 0;
  std::string message;
  int64_t countdown = -1;  // tasks until the injected error
  int injected_code = 0;
  std::string injected;
};

State& state_of(int device) {
  static auto* all = new State[kMaxDevices];
  return all[device];
}

}  // namespace

void check(int d) {
  State& error = state_of(d);
  if (!error.broken) return;
  std::lock_guard<std::mutex> hold(error.lock);
  throw c10::AcceleratorError(
      {__func__, __FILE__, uint32_t(__LINE__)}, error.code,
      "CUDA error: " + error.message +
          "\nCUDA kernel errors might be asynchronously reported at some other API call.");
}

void break_device(int d, int code, std::string message) {
  State& error = state_of(d);
  std::lock_guard<std::mutex> hold(error.lock);
  if (error.broken) return;
  error.code = code;
  error.message = std::move(message);
  error.broken = true;
}

bool may_run(int d) {
  State& error = state_of(d);
  std::unique_lock<std::mutex> hold(error.lock);
  if (error.countdown > 0 && --error.countdown == 0) {
    hold.unlock();
    break_device(d, error.injected_code, error.injected);
  }
  return !error.broken;
}

void inject_error(int d, uint64_t after, int code, std::string message) {
  State& error = state_of(d);
  std::lock_guard<std::mutex> hold(error.lock);
  error.countdown = int64_t(after);
  error.injected_code = code;
  error.injected = std::move(message);
}

void clear_error(int d) {
  State& error = state_of(d);
  std::lock_guard<std::mutex> hold(error.lock);
  error.broken = false;
  error.countdown = -1;
}

}  // namespace fakecuda
