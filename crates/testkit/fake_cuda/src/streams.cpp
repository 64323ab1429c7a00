#include "streams.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "counters.h"
#include "errors.h"
#include "machine.h"

namespace fakecuda {

using Clock = std::chrono::steady_clock;

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
  uint64_t enqueued = 0, done = 0;
  // The last task that somebody waits for.
  uint64_t urgent = 0;
  bool started = false;
};

namespace {

struct Device {
  StreamState streams[kStreams];
  std::atomic<uint32_t> next{0};
};

Device& device(int d) {
  static auto* all = [] {
    auto* devices = new Device[kMaxDevices];
    for (int d = 0; d < kMaxDevices; ++d) {
      for (int id = 0; id < kStreams; ++id) {
        devices[d].streams[id].device = d;
        devices[d].streams[id].id = id;
      }
    }
    return devices;
  }();
  return all[d];
}

// How long tasks are held back.
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

thread_local int64_t this_stream[kMaxDevices] = {};

void run(int device, Work& work, const char* name) {
  if (!may_run(device)) return;
  auto fail = [&](const char* what) {
    break_device(device, 710, std::string("device-side assert triggered in ") + name + ": " + what);
  };
  try {
    work();
  } catch (const c10::Error& e) {
    fail(e.what_without_backtrace());
  } catch (const std::exception& e) {
    fail(e.what());
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
    run(s->device, task.work, task.name);
    task.work = nullptr;
    hold.lock();
    ++s->done;
    s->to_host.notify_all();
  }
}

}  // namespace

StreamState* stream_of(int d, int64_t id) {
  TORCH_CHECK(d >= 0 && d < device_count() && id >= 0 && id < kStreams, "no such stream");
  return &device(d).streams[id];
}
int64_t stream_id(StreamState* s) { return s->id; }
StreamState* current_stream(int d) { return stream_of(d, this_stream[d]); }
int64_t exchange_stream(int d, int64_t id) { return std::exchange(this_stream[d], id); }
int64_t next_pool_stream(int d) { return 1 + device(d).next++ % (kStreams - 1); }

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
bool is_done(StreamState* s, uint64_t number) {
  std::lock_guard<std::mutex> hold(s->lock);
  return s->done >= number;
}
bool all_done(const Places& places) {
  for (auto& [stream, number] : places)
    if (!is_done(stream, number)) return false;
  return true;
}

void wait(StreamState* s, uint64_t number) {
  std::unique_lock<std::mutex> hold(s->lock);
  if (s->done >= number) return;
  s->urgent = std::max(s->urgent, number);
  s->to_worker.notify_one();
  s->to_host.wait(hold, [&] { return s->done >= number; });
}
void drain(StreamState* s) {
  count(FC_DRAIN);
  wait(s, last_of(s));
}
void wait_for_device(int d) {
  for (auto& s : device(d).streams) wait(&s, last_of(&s));
}
void synchronize(StreamState* s) {
  wait(s, last_of(s));
  check(s->device);
}
void synchronize_device(int d) {
  wait_for_device(d);
  check(d);
}

void set_hold(uint64_t seed, uint32_t low, uint32_t high) {
  std::lock_guard<std::mutex> hold(holds().lock);
  holds().random.seed(seed);
  holds().low = low;
  holds().high = high;
}

}  // namespace fakecuda
