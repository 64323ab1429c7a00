// The functions that tests call, and what programs look up by name.
#include <cstdio>

#include "blocks.h"
#include "holds.h"
#include "runtime.h"

using namespace fakecuda;

extern "C" {

uint64_t fakecuda_count(int what) { return counted(what); }
void fakecuda_reset_counts() { reset_counts(); }
void fakecuda_set_hold(uint64_t seed, uint32_t low, uint32_t high) {
  Holds::get().set(seed, {low, high});
}
void fakecuda_hold_stream(int d, int64_t stream, uint32_t low, uint32_t high) {
  hold_stream(stream_of(d, stream), low, high);
}
void fakecuda_this_stream_first(int d, int64_t stream) { let_go_first(d, stream); }
void fakecuda_set_memory(int d, uint64_t bytes) { blocks_of(d).set_limit(bytes); }
void fakecuda_inject_error(int d, uint64_t after, int code, const char* message) {
  inject_error(d, after, code, message);
}
int fakecuda_fail(int d, uint64_t after, const char* kind) { return inject_kind(d, after, kind); }
void fakecuda_clear_error(int d) { clear_error(d); }
int fakecuda_current_device() { return current_device(); }
void* fakecuda_host_view(const void* p) { return host_view(p); }
void fakecuda_enqueue(int d, int64_t stream, void (*work)(void*), void* argument) {
  enqueue(stream_of(d, stream), [=] { work(argument); }, "enqueued", number_task(d));
}

int cudaDeviceGetPCIBusId(char* out, int size, int d) {
  if (d < 0 || d >= device_count() || size < 13) return 101;
  snprintf(out, size, "0000:%02x:00.0", d + 1);
  return 0;
}

}  // extern "C"
