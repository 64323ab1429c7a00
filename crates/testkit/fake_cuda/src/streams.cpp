#include "streams.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "counters.h"
#include "errors.h"
#include "holds.h"
#include "machine.h"

namespace fakecuda {

using Clock = std::chrono::steady_clock;

struct StreamState {
  struct Task {
    Work work;
    const char* name;
    uint64_t number_on_device;
    Clock::time_point ready;
  };
  int device;
  int64_t id;
  std::mutex lock;
  std::condition_variable to_worker, to_host;
  std::deque<Task> tasks;
  std::atomic<uint64_t> enqueued{0}, done{0};
  // The last task that somebody waits for.
  uint64_t urgent = 0;
  std::optional<HoldTimes> own_times;
  bool started = false, running = false;
};

namespace {

struct Device {
  StreamState streams[kStreams];
  std::atomic<uint32_t> next{0};
  // The stream that all others let go first, or -1.
  std::atomic<int64_t> first{-1};
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

thread_local int64_t this_stream[kMaxDevices] = {};

void run(int device, StreamState::Task& task) {
  if (task.number_on_device > 0) reach_task(device, task.number_on_device);
  if (is_broken(device)) return;  // nothing runs any more
  auto fail = [&](const char* what) {
    std::string message = std::string("device-side assert triggered in ") + task.name + ": " + what;
    break_device(device, 710, message);
  };
  try {
    task.work();
  } catch (const c10::Error& e) {
    fail(e.what_without_backtrace());
  } catch (const std::exception& e) {
    fail(e.what());
  }
}

// Set when the program ends: nothing runs from then on.
std::atomic<bool> ended{false};

// Stops all streams before libtorch's own data is destroyed. A kernel that runs at this moment is
// waited for; one that itself waits for others is left alone after a while.
void stop_streams() {
  ended = true;
  auto each = [](auto f) {
    for (int d = 0; d < kMaxDevices; ++d) {
      for (StreamState& s : device(d).streams) {
        std::unique_lock<std::mutex> hold(s.lock);
        f(s, hold);
      }
    }
  };
  each([](StreamState& s, auto&) { s.to_host.notify_all(); });
  auto latest = Clock::now() + std::chrono::seconds(2);
  each([&](StreamState& s, auto& hold) {
    s.to_host.wait_until(hold, latest, [&] { return !s.running; });
  });
}

// Whether tasks wait for another stream of their device.
bool lets_go_first(const StreamState* s) {
  int64_t first = device(s->device).first;
  if (first < 0 || first == s->id) return false;
  StreamState& other = device(s->device).streams[first];
  return other.done < other.enqueued;
}

// Waits until the first task of a stream may run. A stream that lets another one go first looks
// again after a short while.
void hold_back(StreamState* s, std::unique_lock<std::mutex>& hold) {
  auto is_urgent = [&] { return s->urgent > s->done; };
  while (!is_urgent()) {
    auto now = Clock::now(), ready = s->tasks.front().ready;
    if (lets_go_first(s)) ready = std::max(ready, now + std::chrono::microseconds(200));
    if (now >= ready) return;
    s->to_worker.wait_until(hold, ready);
  }
}

void worker(StreamState* s) {
  std::unique_lock<std::mutex> hold(s->lock);
  for (;;) {
    s->to_worker.wait(hold, [&] { return !s->tasks.empty() && !ended; });
    hold_back(s, hold);
    if (ended) continue;
    auto task = std::move(s->tasks.front());
    s->tasks.pop_front();
    s->running = true;
    hold.unlock();
    run(s->device, task);
    task.work = nullptr;
    hold.lock();
    s->running = false;
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

uint64_t enqueue(StreamState* s, Work work, const char* name, uint64_t number_on_device) {
  // Registered after libtorch's own handlers, so it comes before them.
  static bool once = (atexit(stop_streams), true);
  (void)once;
  std::lock_guard<std::mutex> hold(s->lock);
  auto ready = Clock::now() + Holds::get().next(s->own_times);
  if (!s->started) {
    s->started = true;
    std::thread(worker, s).detach();
  }
  bool is_only = s->tasks.empty();
  s->tasks.push_back({std::move(work), name, number_on_device, ready});
  // A worker that holds a task back, or runs one, looks again by itself.
  if (is_only) s->to_worker.notify_one();
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
  s->to_host.wait(hold, [&] { return s->done >= number || ended; });
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

void hold_stream(StreamState* s, uint32_t low, uint32_t high) {
  std::lock_guard<std::mutex> hold(s->lock);
  s->own_times = HoldTimes{low, high};
}
void let_go_first(int d, int64_t id) {
  if (id >= 0) stream_of(d, id);  // throws if there is no such stream
  device(d).first = id;
}

}  // namespace fakecuda
