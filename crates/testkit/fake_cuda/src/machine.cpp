#include "machine.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "counters.h"

namespace fakecuda {
namespace {

// The number of GPUs that this process sees.
int visible_devices() {
  // A driver that is older than the runtime shows none.
  if (env("FAKECUDA_DRIVER", 13000) < 13000) return 0;
  // A UUID names one GPU or slice.
  std::string visible = getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "";
  if (visible.rfind("GPU-", 0) == 0 || visible.rfind("MIG-", 0) == 0) return 1;
  return std::min<int>(kMaxDevices, int(env("FAKECUDA_DEVICES", 2)));
}

struct Machine {
  int count = visible_devices();
  size_t bytes = space_of_device() * kMaxDevices;
  char *space, *backing;

  Machine() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    space = static_cast<char*>(mmap(nullptr, bytes, PROT_NONE, flags, -1, 0));
    backing = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0));
    TORCH_CHECK(space != MAP_FAILED && backing != MAP_FAILED,
                "no address space for the fake CUDA devices");
  }
};

Machine& machine() {
  static auto* m = new Machine;
  return *m;
}

thread_local int this_device = 0;

}  // namespace

uint64_t env(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text ? strtoull(text, nullptr, 10) : otherwise;
}

int device_count() { return machine().count; }
int current_device() { return this_device; }
void set_current_device(int d) {
  TORCH_CHECK_WITH(Error, d >= 0 && d < machine().count, "CUDA error: invalid device ordinal ", d);
  this_device = d;
}

void make_context(int d) {
  static std::atomic<uint32_t> made{0};
  uint32_t bit = 1u << d;
  if (!(made.fetch_or(bit) & bit)) count(FC_CONTEXT);
}

size_t space_of_device() {
  static size_t bytes = size_t(env("FAKECUDA_SPACE_GIB", 32)) << 30;
  return bytes;
}
char* space_of(int d) { return machine().space + d * space_of_device(); }

bool is_device_pointer(const void* p) {
  return p >= machine().space && p < machine().space + machine().bytes;
}
int device_of_pointer(const void* p) {
  return int((static_cast<const char*>(p) - machine().space) / space_of_device());
}
void* host_view(const void* p) {
  if (p == nullptr) return nullptr;
  TORCH_CHECK(is_device_pointer(p), "not an address of a fake CUDA device");
  return machine().backing + (static_cast<const char*>(p) - machine().space);
}
const void* device_view(const void* p) {
  if (p < machine().backing || p >= machine().backing + machine().bytes) return nullptr;
  return machine().space + (static_cast<const char*>(p) - machine().backing);
}

}  // namespace fakecuda
