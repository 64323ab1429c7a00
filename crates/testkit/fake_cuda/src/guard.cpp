// The guard: devices, streams and events as libtorch sees them.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "runtime.h"

namespace fakecuda {
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
    setDevice(d);
    return old;
  }
  c10::Device getDevice() const override {
    return {kType, static_cast<c10::DeviceIndex>(current_device())};
  }
  void setDevice(c10::Device d) const override {
    if (d.index() < 0) return;
    set_current_device(d.index());
    make_context(d.index());
  }
  // As libtorch selects a device for a call, and then the one before.
  static void visit(int d) {
    make_context(d);
    make_context(current_device());
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0 && d.index() < device_count()) set_current_device(d.index());
  }
  static int index(c10::Device d) { return d.index() < 0 ? current_device() : d.index(); }
  static c10::Stream make(int d, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, static_cast<c10::DeviceIndex>(d)),
                       id);
  }
  c10::Stream getStream(c10::Device d) const override {
    return make(index(d), stream_id(current_stream(index(d))));
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
    return static_cast<c10::DeviceIndex>(device_count());
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
    visit(d);
    synchronize_device(d);
  }
  void record(void** event, const c10::Stream& s, const c10::DeviceIndex d,
              const c10::EventFlag) const override {
    check(s.device_index());
    visit(s.device_index());
    TORCH_CHECK(d == -1 || d == s.device_index(), "event and stream are on different devices");
    if (!*event) *event = new Event{s.device_index(), nullptr, 0, nullptr};
    auto* e = static_cast<Event*>(*event);
    e->stream = state(s);
    e->times = std::make_shared<Event::Times>();
    e->sequence = enqueue(
        e->stream,
        [t = e->times] { t->at = std::chrono::steady_clock::now().time_since_epoch().count(); },
        "event");
  }
  void block(void* event, const c10::Stream& s) const override {
    auto* e = static_cast<Event*>(event);
    if (!e || !e->stream) return;
    visit(s.device_index());
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

}  // namespace
}  // namespace fakecuda
