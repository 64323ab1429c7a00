#include "blocks.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "counters.h"
#include "machine.h"
#include "shared_limit.h"

namespace fakecuda {
namespace {

size_t rounded(size_t bytes) {
  size_t unit = bytes <= (1 << 20) ? 512 : 2 << 20;
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

Blocks& blocks_of(int device) {
  static auto* all = [] {
    auto* list = new std::vector<Blocks*>;
    for (int d = 0; d < kMaxDevices; ++d) list->push_back(new Blocks(d));
    return list;
  }();
  return *all->at(device);
}

Blocks::Blocks(int device) : device_(device), limit_(env("FAKECUDA_MEMORY", size_t(1) << 30)) {
  unused_[space_of(device)] = space_of_device();
}

char* Blocks::take(size_t bytes, int64_t stream) {
  size_t size = rounded(bytes);
  std::lock_guard<std::mutex> hold(lock_);
  settle();
  auto& ready = cache_[{stream, size}];
  char* block;
  if (!ready.empty()) {
    block = ready.back();
    ready.pop_back();
  } else {
    block = reserve(bytes, size);
    blocks_[block] = Block{size, stream, {}};
  }
  used_ += size;
  peak_ = std::max(peak_, used_);
  return block;
}

// What is free for this process: other processes may share the device.
size_t Blocks::free_bytes() const {
  size_t taken = reserved_ + reserved_by_others(device_);
  return limit_ > taken ? limit_ - taken : 0;
}

char* Blocks::reserve(size_t bytes, size_t size) {
  if (!say_reserved(device_, reserved_ + size, limit_)) {
    release();
    if (!say_reserved(device_, reserved_ + size, limit_)) {
      count(FC_OOM);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes,
                       " bytes. GPU ", device_, " has a total capacity of ", limit_,
                       " bytes of which ", free_bytes(), " bytes is free.");
    }
  }
  auto fits = [&](auto& range) { return range.second >= size; };
  auto range = std::find_if(unused_.begin(), unused_.end(), fits);
  TORCH_CHECK(range != unused_.end(), "the fake device's address space is used up");
  auto [block, length] = *range;
  unused_.erase(range);
  if (length > size) unused_[block + size] = length - size;
  reserved_ += size;
  memset(host_view(block), 0xff, size);
  return block;
}

void Blocks::free(char* pointer) {
  std::lock_guard<std::mutex> hold(lock_);
  Block& block = blocks_.at(pointer);
  used_ -= block.size;
  if (block.users.empty()) return put_in_cache(pointer);
  Pending pending{pointer, {}};
  for (int64_t id : block.users) {
    StreamState* stream = stream_of(device_, id);
    pending.until[stream] = last_of(stream);
  }
  block.users.clear();
  pending_.push_back(std::move(pending));
}

// What was freed reads as NaN from then on, to all that use it later than the stream it belongs to
// allows.
void Blocks::put_in_cache(char* pointer) {
  const Block& block = blocks_.at(pointer);
  StreamState* stream = stream_of(device_, block.stream);
  auto spoil = [at = host_view(pointer), size = block.size] { memset(at, 0xff, size); };
  if (is_done(stream, last_of(stream))) {
    spoil();
  } else {
    enqueue(stream, spoil, "free");
  }
  cache_[{block.stream, block.size}].push_back(pointer);
}

void Blocks::settle() {
  auto settled = [&](const Pending& pending) {
    if (!all_done(pending.until)) return false;
    put_in_cache(pending.block);
    return true;
  };
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(), settled), pending_.end());
}

void Blocks::use_on(char* pointer, int64_t stream) {
  std::lock_guard<std::mutex> hold(lock_);
  auto block = blocks_.find(pointer);
  if (block != blocks_.end() && block->second.stream != stream) block->second.users.insert(stream);
}

void Blocks::release_cache() {
  std::lock_guard<std::mutex> hold(lock_);
  release();
}

void Blocks::release() {
  settle();
  wait_for_device(device_);  // as cudaFree does
  for (auto& [key, list] : cache_)
    for (char* block : list) unmap(block, key.second);
  cache_.clear();
  say_reserved(device_, reserved_, limit_);
}

void Blocks::unmap(char* block, size_t size) {
  madvise(host_view(block), size, MADV_DONTNEED);
  reserved_ -= size;
  blocks_.erase(block);
  auto at = unused_.emplace(block, size).first;
  auto after = std::next(at);
  if (after != unused_.end() && block + size == after->first) {
    at->second += after->second;
    unused_.erase(after);
  }
  if (at == unused_.begin()) return;
  auto before = std::prev(at);
  if (before->first + before->second != at->first) return;
  before->second += at->second;
  unused_.erase(at);
}

Blocks::Numbers Blocks::numbers() {
  std::lock_guard<std::mutex> hold(lock_);
  return {limit_, free_bytes(), reserved_, used_, peak_};
}
void Blocks::reset_peak() {
  std::lock_guard<std::mutex> hold(lock_);
  peak_ = used_;
}
void Blocks::set_limit(size_t bytes) {
  std::lock_guard<std::mutex> hold(lock_);
  limit_ = bytes;
}

}  // namespace fakecuda
