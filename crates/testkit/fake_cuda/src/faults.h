// The errors that tests ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fakecuda {

// What an error does.
enum class Effect {
  // It breaks the device when the task runs.
  kBreakDevice,
  // The next call after the task fails, and only that one.
  kFailCall,
  // The next allocation after the task fails, and only that one.
  kFailMemory,
};

struct Fault {
  Effect effect;
  // The kernel or copy of the device at which it happens, from 1.
  uint64_t task;
  // The number that CUDA gives it; 0 if it breaks no device.
  int code;
  std::string message;
};

std::optional<Fault> fault_of_kind(const std::string& kind);

// The devices and errors that `FAKECUDA_FAIL` has. Ends the program if it is mistyped.
std::vector<std::pair<int, Fault>> faults_of_environment();

}  // namespace fakecuda
