// Errors of kernels. One error breaks its device: nothing runs on it any more.
#pragma once

#include <cstdint>
#include <string>

namespace fakecuda {

// Throws AcceleratorError if the device is broken.
void check(int device);

// Breaks a device. The first error stays.
void break_device(int device, int code, std::string message);

// Says that one more task is about to run. False if the device is broken.
bool may_run(int device);

// Breaks the device after this many more tasks.
void inject_error(int device, uint64_t after_tasks, int code, std::string message);
void clear_error(int device);

}  // namespace fakecuda
