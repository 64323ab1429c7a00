// The functions that tests call, found by `dlsym`, and the counters. README.md has the environment.
#pragma once
#include <cstdint>
extern "C" {
// The counters, in the order in which the file of `FAKECUDA_COUNTS` has them.
enum {
  FC_DEVICE_SYNC,
  FC_STREAM_SYNC,
  FC_EVENT_SYNC,
  FC_ITEM,
  // Copies from or to the host for which the host waited.
  FC_BLOCKING_COPY,
  FC_DRAIN,
  FC_DEFERRED,
  FC_IMMEDIATE,
  FC_OOM,
  FC_ALLOC,
  // Kernels that were launched.
  FC_KERNEL,
  // Copies by direction. The host waits for a blocking one.
  FC_TO_DEVICE_BLOCKING,
  FC_TO_DEVICE_ASYNC,
  FC_TO_HOST_BLOCKING,
  FC_TO_HOST_ASYNC,
  FC_ON_DEVICES,
  // Devices on which a process made a context. On a GPU each takes half a gigabyte.
  FC_CONTEXT,
  FC_COUNTERS
};
uint64_t fakecuda_count(int what);
void fakecuda_reset_counts();

// The times for which tasks are held back: of all streams, and of one.
void fakecuda_set_hold(uint64_t seed, uint32_t min_us, uint32_t max_us);
void fakecuda_hold_stream(int device, int64_t stream, uint32_t min_us, uint32_t max_us);
// All other streams of the device wait until this one is empty, unless somebody waits for them.
// Stream -1 ends this.
void fakecuda_this_stream_first(int device, int64_t stream);

void fakecuda_set_memory(int device, uint64_t bytes);

// After so many more kernels and copies on the device its context is broken: every later call on
// it fails.
void fakecuda_inject_error(int device, uint64_t after_tasks, int code, const char* message);
// The same with an error of this kind, as in `FAKECUDA_FAIL`. 0 if there is no such kind.
int fakecuda_fail(int device, uint64_t after_tasks, const char* kind);
void fakecuda_clear_error(int device);

// Where the bytes of device memory really lie; for a fake NCCL's kernels only, inside a task.
void* fakecuda_host_view(const void* device_pointer);
int fakecuda_current_device();
void fakecuda_enqueue(int device, int64_t stream, void (*work)(void*), void* argument);
}
