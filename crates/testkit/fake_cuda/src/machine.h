// The machine: how many devices it has, which one a thread uses, and where their memory lies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fakecuda {

constexpr int kMaxDevices = 8;

// The number that an environment variable has.
uint64_t env(const char* name, uint64_t otherwise);

int device_count();
int current_device();

// Makes a device the current one of this thread. Throws if there is no such device.
void set_current_device(int device);
// A call that makes a context on the device if this process has none there.
void make_context(int device);

// The addresses of a device. The host cannot use them.
char* space_of(int device);
size_t space_of_device();

bool is_device_pointer(const void*);
int device_of_pointer(const void*);

// Where the bytes of device memory really lie. Kernels use it.
void* host_view(const void* device_address);

// The address on the device of bytes that kernels use, or null.
const void* device_view(const void* host_address);

}  // namespace fakecuda
