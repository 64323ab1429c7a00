// Copies between host and device for which the host does not wait, and events. `src/transfer.rs`
// calls these functions, by the rules of `shim.cpp`.
//
// Each thread copies on a stream of its own, so a copy runs beside the device's kernels. Host
// memory is pinned, because a copy from or to other memory makes the host wait.

#include "guarded.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>

namespace {

// Makes a device this thread's own. libtorch selects a device for some calls and then the one
// before, which for a thread without one is the first GPU: it would get a context, half a gigabyte.
void settle_on(c10::Device device) { c10::impl::VirtualGuardImpl(device.type()).setDevice(device); }

// The stream for this thread's copies.
c10::Stream copy_stream(c10::Device device) {
  settle_on(device);
  thread_local std::optional<c10::Stream> own;
  if (!own || own->device() != device) {
    own = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false);
  }
  return *own;
}

at::Tensor pinned(const at::Tensor& like) {
  return at::empty(like.sizes(), like.options().device(at::kCPU).pinned_memory(true));
}

}  // namespace

extern "C" {

// Records an event after the work that this thread's stream was given.
char* bm_event_record(int32_t index, c10::Event** out) {
  return guarded([&] {
    c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    auto event = std::make_unique<c10::Event>(device.type());
    settle_on(device);
    event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    *out = event.release();
  });
}

char* bm_event_wait(const c10::Event* event) {
  return guarded([&] {
    settle_on(event->device());
    event->synchronize();
  });
}

void bm_event_free(c10::Event* event) {
  // Nobody hears of an error. A broken device has none to free.
  free(guarded([&] {
    std::unique_ptr<c10::Event> owned(event);
    settle_on(owned->device());
  }));
}

// Copies a dense tensor of a device to pinned memory, after `ready`. Waits for the copy.
char* bm_download(const at::Tensor* from, const c10::Event* ready, at::Tensor** out) {
  return guarded([&] {
    auto stream = copy_stream(from->device());
    ready->block(stream);
    c10::StreamGuard on(stream);
    auto host = pinned(*from);
    host.copy_(*from, /*non_blocking=*/true);
    c10::Event done(stream.device_type());
    done.record(stream);
    done.synchronize();
    *out = new at::Tensor(std::move(host));
  });
}

// Begins a copy of a tensor of a device to pinned memory, after this thread's work so far.
char* bm_begin_download(const at::Tensor* from, at::Tensor** out) {
  return guarded([&] {
    auto host = pinned(*from);
    host.copy_(*from, /*non_blocking=*/true);
    *out = new at::Tensor(std::move(host));
  });
}

// Copies a dense tensor of host memory to a device. This thread's later work comes after the copy.
char* bm_upload(const at::Tensor* from, int32_t index, at::Tensor** out) {
  return guarded([&] {
    c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    auto work = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    auto stream = copy_stream(device);
    auto host = pinned(*from);
    host.copy_(*from);
    c10::StreamGuard on(stream);
    auto copy = at::empty(from->sizes(), from->options().device(device));
    copy.copy_(host, /*non_blocking=*/true);
    c10::Event done(device.type());
    done.record(stream);
    done.block(work);
    // Its memory belongs to the stream of copies, and may be used anew once the work is done.
    copy.record_stream(work);
    *out = new at::Tensor(std::move(copy));
  });
}

}  // extern "C"
