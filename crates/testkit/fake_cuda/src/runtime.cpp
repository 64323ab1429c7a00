#include "runtime.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

namespace fakecuda {
namespace {
using Clock = std::chrono::steady_clock;
constexpr int kMaxDevices = 8, kStreams = 33;  // stream 0 is the default one, the others the pool
std::atomic<uint64_t> counters[FC_COUNTERS];

uint64_t env(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text ? strtoull(text, nullptr, 10) : otherwise;
}

size_t space_of_device() {
  static size_t bytes = size_t(env("FAKECUDA_SPACE_GIB", 32)) << 30;
  return bytes;
}
#define kSpace space_of_device()

struct Hold {
  std::mutex lock;
  std::mt19937_64 random{env("FAKECUDA_SEED", 1)};
  uint32_t low = 0, high = uint32_t(env("FAKECUDA_HOLD_US", 2000));
  std::chrono::microseconds next() {
    std::lock_guard<std::mutex> hold(lock);
    return std::chrono::microseconds(high == 0 ? 0 : low + random() % (high - low + 1));
  }
};
Hold& holds() {
  static auto* h = new Hold;
  return *h;
}

struct Broken {
  std::mutex lock;
  std::atomic<bool> broken{false};
  int code = 0;
  std::string message;
  int64_t countdown = -1;  // tasks until the injected error
  int injected_code = 0;
  std::string injected;
};
}  // namespace

struct StreamState {
  struct Task {
    Work work;
    const char* name;
    Clock::time_point ready;
  };
  int device;
  int64_t id;
  std::mutex lock;
  std::condition_variable to_worker, to_host;
  std::deque<Task> tasks;
  uint64_t enqueued = 0, done = 0, urgent = 0;
  bool started = false;
};

namespace {
struct Block {
  size_t size;
  int64_t stream;
  std::vector<int64_t> users;
};
struct Device {
  StreamState streams[kStreams];
  std::atomic<uint32_t> next{0};
  Broken error;
  // memory
  std::mutex lock;
  size_t limit = env("FAKECUDA_MEMORY", size_t(1) << 30), reserved = 0, used = 0, peak = 0;
  std::map<char*, size_t> unused;  // address ranges
  std::map<std::pair<int64_t, size_t>, std::vector<char*>>
      cache;  // freed blocks, by stream and size
  std::unordered_map<char*, Block> blocks;
  struct Pending {
    char* block;
    std::vector<std::pair<StreamState*, uint64_t>> until;
  };
  std::vector<Pending> pending;  // freed, in use on other streams (record_stream)
};
struct Machine {
  // A driver that is older than the runtime shows no GPU.
  int count = env("FAKECUDA_DRIVER", 13000) < 13000
                  ? 0
                  : std::min<int>(kMaxDevices, int(env("FAKECUDA_DEVICES", 2)));
  char *space, *backing;
  Device devices[kMaxDevices];
  Machine() {
    size_t size = kSpace * kMaxDevices;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    space = static_cast<char*>(mmap(nullptr, size, PROT_NONE, flags, -1, 0));
    backing = static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0));
    TORCH_CHECK(space != MAP_FAILED && backing != MAP_FAILED,
                "no address space for the fake CUDA devices");
    for (int d = 0; d < kMaxDevices; ++d) {
      devices[d].unused[space + d * kSpace] = kSpace;
      for (int s = 0; s < kStreams; ++s) {
        devices[d].streams[s].device = d;
        devices[d].streams[s].id = s;
      }
    }
  }
};
Machine& machine() {
  static auto* m = new Machine;
  return *m;
}
Device& device(int d) { return machine().devices[d]; }
thread_local int this_device = 0;
thread_local int64_t this_stream[kMaxDevices] = {};
std::atomic<bool> poison{true};

void break_device(Broken& error, int code, std::string message) {
  std::lock_guard<std::mutex> hold(error.lock);
  if (error.broken) return;
  error.code = code;
  error.message = std::move(message);
  error.broken = true;
}

void run(StreamState* s, Work& work, const char* name) {
  Broken& error = device(s->device).error;
  {
    std::lock_guard<std::mutex> hold(error.lock);
    if (error.countdown > 0 && --error.countdown == 0 && !error.broken) {
      error.code = error.injected_code;
      error.message = error.injected;
      error.broken = true;
    }
  }
  if (error.broken) return;  // nothing runs any more
  try {
    work();
  } catch (const c10::Error& e) {
    break_device(
        error, 710,
        std::string("device-side assert triggered in ") + name + ": " + e.what_without_backtrace());
  } catch (const std::exception& e) {
    break_device(error, 710,
                 std::string("device-side assert triggered in ") + name + ": " + e.what());
  }
}

void worker(StreamState* s) {
  std::unique_lock<std::mutex> hold(s->lock);
  for (;;) {
    s->to_worker.wait(hold, [&] { return !s->tasks.empty(); });
    while (s->urgent <= s->done && Clock::now() < s->tasks.front().ready)
      s->to_worker.wait_until(hold, s->tasks.front().ready);
    auto task = std::move(s->tasks.front());
    s->tasks.pop_front();
    hold.unlock();
    run(s, task.work, task.name);
    task.work = nullptr;
    hold.lock();
    ++s->done;
    s->to_host.notify_all();
  }
}
}  // namespace

int device_count() { return machine().count; }
int current_device() { return this_device; }
void set_current_device(int d) {
  TORCH_CHECK_WITH(Error, d >= 0 && d < machine().count, "CUDA error: invalid device ordinal ", d);
  this_device = d;
}
StreamState* stream_of(int d, int64_t id) {
  TORCH_CHECK(d >= 0 && d < machine().count && id >= 0 && id < kStreams, "no such stream");
  return &device(d).streams[id];
}
StreamState* current_stream(int d) { return stream_of(d, this_stream[d]); }
int64_t stream_id(StreamState* s) { return s->id; }
int64_t exchange_stream(int d, int64_t id) { return std::exchange(this_stream[d], id); }
int64_t next_pool_stream(int d) { return 1 + device(d).next++ % (kStreams - 1); }

void check(int d) {
  Broken& error = device(d).error;
  if (!error.broken) return;
  std::lock_guard<std::mutex> hold(error.lock);
  throw c10::AcceleratorError(
      {__func__, __FILE__, uint32_t(__LINE__)}, error.code,
      "CUDA error: " + error.message +
          "\nCUDA kernel errors might be asynchronously reported at some other API call.");
}
void count(int what) { ++counters[what]; }

uint64_t enqueue(StreamState* s, Work work, const char* name) {
  auto ready = Clock::now() + holds().next();
  std::lock_guard<std::mutex> hold(s->lock);
  if (!s->started) {
    s->started = true;
    std::thread(worker, s).detach();
  }
  s->tasks.push_back({std::move(work), name, ready});
  s->to_worker.notify_one();
  return ++s->enqueued;
}
uint64_t last_of(StreamState* s) {
  std::lock_guard<std::mutex> hold(s->lock);
  return s->enqueued;
}
bool is_done(StreamState* s, uint64_t sequence) {
  std::lock_guard<std::mutex> hold(s->lock);
  return s->done >= sequence;
}
void wait(StreamState* s, uint64_t sequence) {
  std::unique_lock<std::mutex> hold(s->lock);
  if (s->done >= sequence) return;
  s->urgent = std::max(s->urgent, sequence);
  s->to_worker.notify_one();
  s->to_host.wait(hold, [&] { return s->done >= sequence; });
}
void drain(StreamState* s) {
  count(FC_DRAIN);
  wait(s, last_of(s));
}
void synchronize(StreamState* s) {
  wait(s, last_of(s));
  check(s->device);
}
void synchronize_device(int d) {
  for (auto& s : device(d).streams) wait(&s, last_of(&s));
  check(d);
}

// ---- memory

bool is_device_pointer(const void* p) {
  return p >= machine().space && p < machine().space + kSpace * kMaxDevices;
}
int device_of_pointer(const void* p) {
  return int((static_cast<const char*>(p) - machine().space) / kSpace);
}
void* host_view(const void* p) {
  if (p == nullptr) return nullptr;
  TORCH_CHECK(is_device_pointer(p), "not an address of a fake CUDA device");
  return machine().backing + (static_cast<const char*>(p) - machine().space);
}
const void* device_view(const void* p) {
  if (p < machine().backing || p >= machine().backing + kSpace * kMaxDevices) return nullptr;
  return machine().space + (static_cast<const char*>(p) - machine().backing);
}
void set_poison(bool on) { poison = on; }

namespace {
// What was freed reads as NaN from then on, to all that use it later than the stream it belongs to
// allows.
void spoil(Device& d, int64_t stream, char* block, size_t size) {
  if (poison)
    enqueue(&d.streams[stream], [at = host_view(block), size] { memset(at, 0xff, size); }, "free");
}
void settle(Device& d) {  // under d.lock
  for (size_t i = 0; i < d.pending.size();) {
    auto& p = d.pending[i];
    bool all = true;
    for (auto& [s, sequence] : p.until) all = all && is_done(s, sequence);
    if (!all) {
      ++i;
      continue;
    }
    Block& b = d.blocks[p.block];
    spoil(d, b.stream, p.block, b.size);
    d.cache[{b.stream, b.size}].push_back(p.block);
    d.pending.erase(d.pending.begin() + i);
  }
}
void release_cache(Device& d) {  // under d.lock
  settle(d);
  for (auto& s : d.streams) wait(&s, last_of(&s));  // as cudaFree does
  for (auto& [key, list] : d.cache) {
    for (char* block : list) {
      size_t size = key.second;
      madvise(host_view(block), size, MADV_DONTNEED);
      d.reserved -= size;
      d.blocks.erase(block);
      auto at = d.unused.emplace(block, size).first;
      if (auto after = std::next(at);
          after != d.unused.end() && block + at->second == after->first) {
        at->second += after->second;
        d.unused.erase(after);
      }
      if (at != d.unused.begin()) {
        if (auto before = std::prev(at); before->first + before->second == at->first) {
          before->second += at->second;
          d.unused.erase(at);
        }
      }
    }
  }
  d.cache.clear();
}
void free_block(void* pointer) {
  char* block = static_cast<char*>(pointer);
  Device& d = device(device_of_pointer(pointer));
  std::lock_guard<std::mutex> hold(d.lock);
  Block& b = d.blocks.at(block);
  d.used -= b.size;
  if (b.users.empty()) {
    spoil(d, b.stream, block, b.size);
    d.cache[{b.stream, b.size}].push_back(block);
    return;
  }
  Device::Pending p{block, {}};
  for (int64_t id : b.users) p.until.emplace_back(&d.streams[id], last_of(&d.streams[id]));
  b.users.clear();
  d.pending.push_back(std::move(p));
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    int index = this_device;
    c10::Device place(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    if (bytes == 0) return {nullptr, nullptr, &free_block_or_none, place};
    check(index);
    count(FC_ALLOC);
    Device& d = device(index);
    int64_t stream = this_stream[index];
    size_t size = bytes <= (1 << 20) ? (bytes + 511) / 512 * 512
                                     : (bytes + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    char* block = nullptr;
    {
      std::lock_guard<std::mutex> hold(d.lock);
      settle(d);
      auto& ready = d.cache[{stream, size}];
      if (!ready.empty()) {
        block = ready.back();
        ready.pop_back();
      } else {
        if (d.reserved + size > d.limit) release_cache(d);
        if (d.reserved + size > d.limit) {
          count(FC_OOM);
          TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes,
                           " bytes. GPU ", index, " has a total capacity of ", d.limit,
                           " bytes of which ", d.limit - d.reserved, " bytes is free.");
        }
        for (auto it = d.unused.begin(); it != d.unused.end(); ++it) {
          if (it->second < size) continue;
          block = it->first;
          size_t rest = it->second - size;
          d.unused.erase(it);
          if (rest) d.unused[block + size] = rest;
          break;
        }
        TORCH_CHECK(block, "the fake device's address space is used up");
        d.reserved += size;
        d.blocks[block] = Block{size, stream, {}};
        if (poison) memset(host_view(block), 0xff, size);
      }
      d.used += size;
      d.peak = std::max(d.peak, d.used);
    }
    return {block, block, &free_block, place};
  }
  static void free_block_or_none(void* p) {
    if (p) free_block(p);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block_or_none; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    enqueue(
        current_stream(this_device), [=] { memcpy(host_view(to), host_view(from), bytes); },
        "copy_data");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < device_count(); ++i) {
      synchronize_device(i);
      std::lock_guard<std::mutex> h(device(i).lock);
      release_cache(device(i));
    }
  }
  void recordStream(const c10::DataPtr& p, c10::Stream s) override {
    if (!p.get()) return;
    Device& d = device(device_of_pointer(p.get()));
    std::lock_guard<std::mutex> hold(d.lock);
    auto b = d.blocks.find(static_cast<char*>(p.get()));
    if (b != d.blocks.end() && b->second.stream != s.id()) b->second.users.push_back(s.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex i) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    std::lock_guard<std::mutex> hold(device(i).lock);
    stats.allocated_bytes[0].current = int64_t(device(i).used);
    stats.allocated_bytes[0].peak = int64_t(device(i).peak);
    stats.reserved_bytes[0].current = int64_t(device(i).reserved);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex i) override { device(i).peak = device(i).used; }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex i) override {
    check(i);
    std::lock_guard<std::mutex> hold(device(i).lock);
    return {device(i).limit - device(i).reserved, device(i).limit};
  }
};

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
}  // namespace

c10::Allocator* device_allocator() {
  static auto* a = new DeviceMemory;
  return a;
}
c10::Allocator* pinned_allocator() { return &PinnedMemory::get(); }
bool is_pinned(const void* p) {
  auto& m = PinnedMemory::get();
  std::lock_guard<std::mutex> hold(m.lock);
  auto it = m.ranges.upper_bound(static_cast<const char*>(p));
  if (it == m.ranges.begin()) return false;
  --it;
  return p < it->first + it->second;
}

// ---- the guard: devices, streams and events as libtorch sees them

namespace {
struct Event {
  int device;
  StreamState* stream = nullptr;
  uint64_t sequence = 0;
  struct Times {
    std::atomic<int64_t> at{0};
  };
  std::shared_ptr<Times> times;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kType = c10::kCUDA;
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto old = getDevice();
    if (d.index() >= 0) set_current_device(d.index());
    return old;
  }
  c10::Device getDevice() const override {
    return {kType, static_cast<c10::DeviceIndex>(this_device)};
  }
  void setDevice(c10::Device d) const override {
    if (d.index() >= 0) set_current_device(d.index());
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0 && d.index() < machine().count) this_device = d.index();
  }
  static int index(c10::Device d) { return d.index() < 0 ? this_device : d.index(); }
  static c10::Stream make(int d, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, static_cast<c10::DeviceIndex>(d)),
                       id);
  }
  c10::Stream getStream(c10::Device d) const override {
    return make(index(d), this_stream[index(d)]);
  }
  c10::Stream getDefaultStream(c10::Device d) const override { return make(index(d), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override {
    return make(index(d), next_pool_stream(index(d)));
  }
  c10::Stream getNewStream(c10::Device d, int) const override {
    return make(index(d), next_pool_stream(index(d)));
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return make(s.device_index(), exchange_stream(s.device_index(), s.id()));
  }
  void* getStreamNativeHandle(const c10::Stream s) const override {
    return s.id() == 0 ? nullptr : stream_of(s.device_index(), s.id());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(machine().count);
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }
  static StreamState* state(const c10::Stream& s) { return stream_of(s.device_index(), s.id()); }
  bool queryStream(const c10::Stream& s) const override {
    check(s.device_index());
    return is_done(state(s), last_of(state(s)));
  }
  void synchronizeStream(const c10::Stream& s) const override {
    count(FC_STREAM_SYNC);
    synchronize(state(s));
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override {
    count(FC_DEVICE_SYNC);
    synchronize_device(d);
  }
  void record(void** event, const c10::Stream& s, const c10::DeviceIndex d,
              const c10::EventFlag) const override {
    check(s.device_index());
    TORCH_CHECK(d == -1 || d == s.device_index(), "event and stream are on different devices");
    if (!*event) *event = new Event{s.device_index(), nullptr, 0, nullptr};
    auto* e = static_cast<Event*>(*event);
    e->stream = state(s);
    e->times = std::make_shared<Event::Times>();
    e->sequence = enqueue(
        e->stream, [t = e->times] { t->at = Clock::now().time_since_epoch().count(); }, "event");
  }
  void block(void* event, const c10::Stream& s) const override {
    auto* e = static_cast<Event*>(event);
    if (!e || !e->stream) return;
    enqueue(
        state(s), [on = e->stream, sequence = e->sequence] { wait(on, sequence); },
        "wait for an event");
  }
  bool queryEvent(void* event) const override {
    auto* e = static_cast<Event*>(event);
    if (!e || !e->stream) return true;
    check(e->device);
    return is_done(e->stream, e->sequence);
  }
  void synchronizeEvent(void* event) const override {
    auto* e = static_cast<Event*>(event);
    if (!e || !e->stream) return;
    count(FC_EVENT_SYNC);
    wait(e->stream, e->sequence);
    check(e->device);
  }
  double elapsedTime(void* a, void* b, const c10::DeviceIndex) const override {
    auto *from = static_cast<Event*>(a), *to = static_cast<Event*>(b);
    TORCH_CHECK(from && to && from->times && to->times && from->times->at && to->times->at,
                "CUDA error: device not ready");
    return double(to->times->at - from->times->at) / 1e6;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& s) const override {
    static_cast<c10::DeviceAllocator*>(device_allocator())->recordStream(p, s);
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
struct Register {
  Register() {
    c10::SetAllocator(c10::kCUDA, device_allocator());
    at::setHostAllocator(at::kCUDA, &PinnedMemory::get());
  }
} registration;
}  // namespace
}  // namespace fakecuda

extern "C" {
uint64_t fakecuda_count(int what) { return fakecuda::counters[what]; }
void fakecuda_reset_counts() {
  for (auto& c : fakecuda::counters) c = 0;
}
void fakecuda_set_hold(uint64_t seed, uint32_t low, uint32_t high) {
  auto& h = fakecuda::holds();
  std::lock_guard<std::mutex> hold(h.lock);
  h.random.seed(seed);
  h.low = low;
  h.high = high;
}
void fakecuda_set_memory(int d, uint64_t bytes) { fakecuda::device(d).limit = bytes; }
void fakecuda_inject_error(int d, uint64_t after, int code, const char* message) {
  auto& e = fakecuda::device(d).error;
  std::lock_guard<std::mutex> hold(e.lock);
  e.countdown = int64_t(after);
  e.injected_code = code;
  e.injected = message;
}
void fakecuda_clear_error(int d) {
  auto& e = fakecuda::device(d).error;
  std::lock_guard<std::mutex> hold(e.lock);
  e.broken = false;
  e.countdown = -1;
}
int fakecuda_current_device() { return fakecuda::current_device(); }
void* fakecuda_host_view(const void* p) { return fakecuda::host_view(p); }
void fakecuda_enqueue(int d, int64_t stream, void (*work)(void*), void* argument) {
  fakecuda::enqueue(fakecuda::stream_of(d, stream), [=] { work(argument); }, "enqueued");
}
// What the program looks up by name.
int cudaDeviceGetPCIBusId(char* out, int size, int d) {
  if (d < 0 || d >= fakecuda::device_count() || size < 13) return 101;
  snprintf(out, size, "0000:%02x:00.0", d + 1);
  return 0;
}
}
