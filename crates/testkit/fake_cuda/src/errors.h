// Errors of kernels, libraries and memory, real and injected.
//
// An error of a kernel breaks its device: nothing runs on it any more. An error of a call fails one
// call.
#pragma once

#include <cstdint>
#include <string>

namespace fakecuda {

// Throws AcceleratorError if the device is broken.
void check(int device);

// Breaks a device. The first error stays.
void break_device(int device, int code, std::string message);
bool is_broken(int device);

// Throws the injected error of a library, if one is due at this call.
void check_call(int device);

// Numbers a kernel or copy at its call, from 1.
uint64_t number_task(int device);

// Breaks the device if an error is due at this task, which is about to run.
void reach_task(int device, uint64_t number);

// Throws OutOfMemoryError if an injected one is due.
void check_memory(int device, size_t bytes);

// Breaks the device at the kernel or copy after so many.
void inject_error(int device, uint64_t after_tasks, int code, std::string message);

// Lets an error of this kind happen at the kernel or copy after so many. False if there is no such
// kind.
bool inject_kind(int device, uint64_t after_tasks, const std::string& kind);

// Mends the device, and forgets injected errors.
void clear_error(int device);

}  // namespace fakecuda
