// Devices, their memory, streams and events: all that needs no operator.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <string>

#include "fakecuda.h"

namespace fakecuda {
struct StreamState;
using Work = std::function<void()>;

int device_count();
int current_device();
void set_current_device(int device);  // throws where there is no such device
StreamState* stream_of(int device, int64_t id);
StreamState* current_stream(int device);
int64_t stream_id(StreamState*);
int64_t exchange_stream(int device, int64_t id);
int64_t next_pool_stream(int device);

uint64_t enqueue(StreamState*, Work, const char* name);
uint64_t last_of(StreamState*);
bool is_done(StreamState*, uint64_t sequence);
void wait(StreamState*, uint64_t sequence);  // the host waits; nothing is held back any more
void drain(StreamState*);
void synchronize(StreamState*);
void synchronize_device(int device);
void check(int device);  // throws AcceleratorError where the device is broken
void count(int what);

bool is_device_pointer(const void*);
int device_of_pointer(const void*);
void* host_view(const void*);          // device address -> backing
const void* device_view(const void*);  // backing -> device address, or null
c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void*);
void set_poison(bool);
}  // namespace fakecuda
