// Tests that choose which stream is late.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include "common.h"
using at::Tensor;

static c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(at::kCUDA); }

int main() {
  load();
  auto main = guard().getStream(gpu), side = guard().getStreamFromGlobalPool(gpu);
  auto fill = [&](const c10::Stream& stream, Tensor& t, double value) {
    c10::StreamGuard on(stream);
    t.fill_(value);
  };
  part("one stream is late", [&] {
    FC(fakecuda_set_hold)(1, 0, 0);
    for (auto late : {main, side}) {
      FC(fakecuda_hold_stream)(0, main.id(), 0, 0);
      FC(fakecuda_hold_stream)(0, side.id(), 0, 0);
      auto t = at::zeros({8}, gpu);
      guard().synchronizeDevice(0);
      FC(fakecuda_hold_stream)(0, late.id(), 50000, 50000);
      fill(late, t, 1);
      fill(late == main ? side : main, t, 2);
      guard().synchronizeStream(late == main ? side : main);
      guard().synchronizeStream(late);
      ok(t[0].item<float>() == 1, late == main ? "the default stream" : "another stream");
    }
    FC(fakecuda_hold_stream)(0, main.id(), 0, 0);
    FC(fakecuda_hold_stream)(0, side.id(), 0, 0);
  });
  part("one stream is first", [&] {
    auto t = at::zeros({8}, gpu);
    guard().synchronizeDevice(0);
    FC(fakecuda_hold_stream)(0, side.id(), 50000, 50000);
    FC(fakecuda_this_stream_first)(0, side.id());
    fill(side, t, 1);
    fill(main, t, 2);
    usleep(10000);
    ok(!guard().queryStream(main), "the others hold their tasks");
    while (!guard().queryStream(main)) usleep(1000);
    ok(guard().queryStream(side) && t[0].item<float>() == 2, "until it is empty");
    fill(side, t, 3);
    fill(main, t, 4);
    guard().synchronizeStream(main);
    ok(!guard().queryStream(side), "but not when somebody waits for them");
    // A stream that is first and waits for another one.
    fill(main, t, 5);
    c10::Event event(at::kCUDA);
    event.record(main);
    event.block(side);
    fill(side, t, 6);
    guard().synchronizeStream(side);
    OK(t[0].item<float>() == 6);
    FC(fakecuda_this_stream_first)(0, -1);
  });
  printf("%d failures\n", failures);
  return failures != 0;
}
