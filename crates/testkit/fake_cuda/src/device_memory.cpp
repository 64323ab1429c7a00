#include "device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>

#include "blocks.h"
#include "counters.h"
#include "errors.h"
#include "machine.h"

namespace fakecuda {
namespace {

void free_block(void* p) {
  if (p) blocks_of(device_of_pointer(p)).free(static_cast<char*>(p));
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    int index = current_device();
    c10::Device place(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    if (bytes == 0) return {nullptr, nullptr, &free_block, place};
    check(index);
    check_memory(index, bytes);
    count(FC_ALLOC);
    char* block = blocks_of(index).take(bytes, stream_id(current_stream(index)));
    return {block, block, &free_block, place};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    enqueue(
        current_stream(current_device()), [=] { memcpy(host_view(to), host_view(from), bytes); },
        "copy_data");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < device_count(); ++i) {
      synchronize_device(i);
      blocks_of(i).release_cache();
    }
  }
  void recordStream(const c10::DataPtr& p, c10::Stream s) override {
    if (!p.get()) return;
    blocks_of(device_of_pointer(p.get())).use_on(static_cast<char*>(p.get()), s.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex i) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto numbers = blocks_of(i).numbers();
    stats.allocated_bytes[0].current = int64_t(numbers.used);
    stats.allocated_bytes[0].peak = int64_t(numbers.peak);
    stats.reserved_bytes[0].current = int64_t(numbers.reserved);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex i) override { blocks_of(i).reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex i) override {
    check(i);
    auto numbers = blocks_of(i).numbers();
    return {numbers.free, numbers.limit};
  }
};

struct Register {
  Register() { c10::SetAllocator(c10::kCUDA, device_allocator()); }
} registration;

}  // namespace

c10::Allocator* device_allocator() {
  static auto* a = new DeviceMemory;
  return a;
}

}  // namespace fakecuda
