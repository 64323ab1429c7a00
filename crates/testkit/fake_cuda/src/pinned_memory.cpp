#include "pinned_memory.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/llvmMathExtras.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace fakecuda {
namespace {

class PinnedMemory final : public at::HostAllocator {
 public:
  static PinnedMemory& get() {
    static auto* p = new PinnedMemory;
    return *p;
  }

  at::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, at::kCPU};
    size_t size = c10::llvm::PowerOf2Ceil(bytes);
    std::lock_guard<std::mutex> hold(lock_);
    settle();
    auto& ready = cache_[size];
    char* p;
    if (!ready.empty()) {
      p = ready.back();
      ready.pop_back();
    } else {
      void* made = nullptr;
      TORCH_CHECK(posix_memalign(&made, 64, size) == 0, "no pinned memory");
      p = static_cast<char*>(made);
    }
    blocks_[p] = Block{size, true, {}};
    return {p, p, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    memcpy(to, from, bytes);
  }
  bool record_event(void* p, void*, c10::Stream s) override {
    return use(p, stream_of(s.device_index(), s.id()));
  }
  void empty_cache() override {
    std::lock_guard<std::mutex> hold(lock_);
    settle();
    for (auto& [size, list] : cache_) {
      for (char* p : list) {
        blocks_.erase(p);
        std::free(p);
      }
    }
    cache_.clear();
  }
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  bool use(const void* p, StreamState* stream) {
    std::lock_guard<std::mutex> hold(lock_);
    Block* block = find(p);
    if (block) block->users.insert(stream);
    return block != nullptr;
  }
  bool has(const void* p) {
    std::lock_guard<std::mutex> hold(lock_);
    return find(p) != nullptr;
  }

 private:
  struct Block {
    size_t size;
    bool in_use;
    std::set<StreamState*> users;
  };
  // A freed block that streams use.
  struct Pending {
    char* block;
    Places until;
  };
  std::mutex lock_;
  std::map<const char*, Block> blocks_;
  std::map<size_t, std::vector<char*>> cache_;  // by size
  std::vector<Pending> pending_;

  static void release(void* p) {
    if (p) get().free(static_cast<char*>(p));
  }

  void free(char* p) {
    std::lock_guard<std::mutex> hold(lock_);
    Block& block = blocks_.at(p);
    block.in_use = false;
    Pending pending{p, {}};
    for (StreamState* stream : block.users) pending.until[stream] = last_of(stream);
    block.users.clear();
    pending_.push_back(std::move(pending));
  }

  // Moves freed blocks that no stream uses any more to the cache.
  void settle() {
    auto settled = [&](const Pending& pending) {
      if (!all_done(pending.until)) return false;
      cache_[blocks_.at(pending.block).size].push_back(pending.block);
      return true;
    };
    pending_.erase(std::remove_if(pending_.begin(), pending_.end(), settled), pending_.end());
  }

  // The block in use that has this address in it, or null.
  Block* find(const void* address) {
    auto p = static_cast<const char*>(address);
    auto after = blocks_.upper_bound(p);
    if (after == blocks_.begin()) return nullptr;
    auto& [start, block] = *std::prev(after);
    return block.in_use && p < start + block.size ? &block : nullptr;
  }
};

struct Register {
  Register() { at::setHostAllocator(at::kCUDA, &PinnedMemory::get()); }
} registration;

}  // namespace

c10::Allocator* pinned_allocator() { return &PinnedMemory::get(); }
bool is_pinned(const void* p) { return PinnedMemory::get().has(p); }
bool use_pinned(const void* p, StreamState* stream) { return PinnedMemory::get().use(p, stream); }

}  // namespace fakecuda
