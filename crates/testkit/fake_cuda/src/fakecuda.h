// Control interface of the fake CUDA device; found by tests through dlsym. Also read from the
// environment at load: FAKECUDA_DEVICES, FAKECUDA_MEMORY (bytes per device), FAKECUDA_SEED,
// FAKECUDA_HOLD_US (longest delay of a task).
#pragma once
#include <cstdint>
extern "C" {
enum {
  FC_DEVICE_SYNC,
  FC_STREAM_SYNC,
  FC_EVENT_SYNC,
  FC_ITEM,
  FC_BLOCKING_COPY,
  FC_DRAIN,
  FC_DEFERRED,
  FC_IMMEDIATE,
  FC_OOM,
  FC_ALLOC,
  FC_COUNTERS
};
uint64_t fakecuda_count(int what);
void fakecuda_reset_counts();
void fakecuda_set_hold(uint64_t seed, uint32_t min_us, uint32_t max_us);
void fakecuda_set_memory(int device, uint64_t bytes);
// After so many more tasks on the device its context is broken: every later call on it fails.
void fakecuda_inject_error(int device, uint64_t after_tasks, int code, const char* message);
void fakecuda_clear_error(int device);
// Where the bytes of device memory really lie; for a fake NCCL's kernels only, inside a task.
void* fakecuda_host_view(const void* device_pointer);
int fakecuda_current_device();
void fakecuda_enqueue(int device, int64_t stream, void (*work)(void*), void* argument);
}
