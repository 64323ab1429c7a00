#include "pinned_memory.h"

#include <ATen/core/CachingHostAllocator.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace fakecuda {
namespace {

struct PinnedMemory final : at::HostAllocator {
  std::mutex lock;
  std::map<const char*, size_t> ranges;
  static PinnedMemory& get() {
    static auto* p = new PinnedMemory;
    return *p;
  }
  at::DataPtr allocate(size_t bytes) override {
    void* p = nullptr;
    TORCH_CHECK(posix_memalign(&p, 64, std::max<size_t>(bytes, 1)) == 0, "no pinned memory");
    std::lock_guard<std::mutex> hold(lock);
    ranges[static_cast<char*>(p)] = std::max<size_t>(bytes, 1);
    return {p, p, &release, at::kCPU};
  }
  static void release(void* p) {
    if (!p) return;
    {
      std::lock_guard<std::mutex> hold(get().lock);
      get().ranges.erase(static_cast<char*>(p));
    }
    free(p);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    memcpy(to, from, bytes);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

struct Register {
  Register() { at::setHostAllocator(at::kCUDA, &PinnedMemory::get()); }
} registration;

}  // namespace

c10::Allocator* pinned_allocator() { return &PinnedMemory::get(); }
bool is_pinned(const void* p) {
  auto& m = PinnedMemory::get();
  std::lock_guard<std::mutex> hold(m.lock);
  auto it = m.ranges.upper_bound(static_cast<const char*>(p));
  if (it == m.ranges.begin()) return false;
  --it;
  return p < it->first + it->second;
}

}  // namespace fakecuda
