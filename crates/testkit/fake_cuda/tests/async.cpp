// What a GPU does that a CPU does not: its memory is out of reach, its work is late, its errors
// come later.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "common.h"
using at::Tensor;
static c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(at::kCUDA); }
static Tensor pinned(double v, int64_t n = 1000) { return at::full({n}, v).pin_memory(); }
static std::string what(std::function<void()> f) {
  try {
    f();
  } catch (const c10::AcceleratorError& e) {
    return std::string("AcceleratorError ") + e.what_without_backtrace();
  } catch (const c10::OutOfMemoryError& e) {
    return std::string("OutOfMemoryError ") + e.what_without_backtrace();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}
static void hold(uint32_t low, uint32_t high) { FC(fakecuda_set_hold)(1, low, high); }
static double ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
int main() {
  load();
  part("memory", [] {
    auto t = at::ones({4}, gpu);
    pid_t child = fork();
    if (child == 0) {
      volatile float x = *static_cast<float*>(t.data_ptr());
      (void)x;
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the host cannot read device memory");
    auto [free_, total] = c10::getDeviceAllocator(at::kCUDA)->getMemoryInfo(0);
    OK(total == size_t(1) << 30 && free_ < total);
    FC(fakecuda_set_memory)(0, 64 << 20);
    {
      auto a = at::empty({8 << 20}, gpu);
      auto e = what([] { at::empty({12 << 20}, gpu); });
      printf("     %s\n", e.c_str());
      OK(e.rfind("OutOfMemoryError CUDA out of memory. Tried to allocate", 0) == 0);
    }
    ok(at::empty({12 << 20}, gpu).defined(), "memory freed is found again, in other sizes");
    OK(what([] { at::empty({2}, at::Device(at::kCUDA, 5)); }) != "");
    printf("     %s\n", what([] { at::empty({2}, at::Device(at::kCUDA, 5)); }).c_str());
    FC(fakecuda_set_memory)(0, 1 << 30);
    auto u = at::empty({4}, gpu);
    OK(u.isnan().all().item<bool>());
  });
  part("several devices", [] {
    auto a = at::arange(6, at::TensorOptions(gpu).dtype(at::kFloat));
    auto b = a.to(gpu1);
    OK(b.device() == gpu1 && close(b + 1, at::arange(1, 7).to(at::kFloat)));
    OK(close(b.to(gpu), a));
    guard().setDevice(gpu1);
    OK(at::ones({1}, at::kCUDA).device() == gpu1);
    guard().setDevice(gpu);
    auto w = at::ones({6}, gpu).requires_grad_(true);
    (w * a).to(gpu1).mul(2).sum().backward();
    OK(close(w.grad(), 2 * at::arange(6).to(at::kFloat)) && w.grad().device() == gpu);
  });
  part("copies come late", [] {
    hold(20000, 20000);
    auto out = pinned(0);
    auto x = at::ones({1000}, gpu) * 3;
    guard().synchronizeDevice(0);
    out.copy_(x, true);
    ok(out.sum().item<float>() == 0, "a copy to the host that was not waited for has not come");
    guard().synchronizeStream(guard().getStream(gpu));
    OK(out.sum().item<float>() == 3000);
    auto in = pinned(1);
    auto y = at::empty({1000}, gpu);
    y.copy_(in, true);
    in.fill_(7);
    ok(y.sum().item<float>() == 7000, "a source that is overwritten too early is read too late");
    in.fill_(1);
    y.copy_(in, true);
    c10::Event e(at::kCUDA);
    e.record(guard().getStream(gpu));
    e.synchronize();
    in.fill_(7);
    ok(y.sum().item<float>() == 1000, "not where an event was waited for");
    auto plain = at::full({1000}, 1.0);
    y.copy_(plain, true);
    plain.fill_(7);
    ok(y.sum().item<float>() == 1000, "memory that is not pinned is read at once");
  });
  part("streams", [] {
    hold(20000, 20000);
    auto side = guard().getStreamFromGlobalPool(gpu), main = guard().getStream(gpu);
    OK(side != main);
    auto w = at::ones({100, 100}, gpu);
    guard().synchronizeDevice(0);
    using std::chrono::milliseconds;
    auto run = [&](bool wait, bool wait_back) {
      hold(0, 0);
      Tensor x = at::zeros({100, 100}, gpu), y;
      guard().synchronizeDevice(0);
      hold(wait ? 0 : 20000, wait ? 0 : 20000);
      x.copy_(w * 2);  // on the main stream
      if (wait) {
        c10::Event e(at::kCUDA);
        e.record(main);
        e.block(side);
      }
      hold(wait_back ? 0 : 20000, wait_back ? 0 : 20000);
      {
        c10::StreamGuard on(side);
        y = x.matmul(w);
      }
      if (!wait) std::this_thread::sleep_for(milliseconds(10));
      if (wait_back) {
        c10::Event e(at::kCUDA);
        e.record(side);
        e.block(main);
      }
      return y.sum().item<float>();
    };
    OK(run(true, true) == 2 * 1e6);
    ok(run(false, true) != 2 * 1e6,
       "a kernel on another stream that does not wait computes with what was there");
    ok(std::isnan(run(true, false)), "and so does who does not wait for it");
    // memory that is freed while another stream uses it
    for (bool recorded : {false, true}) {
      hold(0, 0);
      Tensor x = at::ones({1000}, gpu), y = at::empty({1000}, gpu);
      guard().synchronizeDevice(0);
      c10::Event e(at::kCUDA);
      e.record(main);
      e.block(side);
      {
        hold(20000, 20000);
        c10::StreamGuard on(side);
        y.copy_(x);
      }
      hold(0, 0);
      if (recorded) x.record_stream(side);
      x = Tensor();
      auto z = at::zeros({1000}, gpu);
      guard().synchronizeStream(main);
      guard().synchronizeStream(side);
      ok((y.sum().item<float>() == 1000) == recorded,
         recorded ? "record_stream keeps memory" : "without record_stream it is used anew");
    }
  });
  part("events", [] {
    hold(20000, 20000);
    auto main = guard().getStream(gpu);
    guard().synchronizeDevice(0);
    c10::Event a(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT),
        b(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    OK(a.query());
    a.record(main);
    auto x = at::ones({300, 300}, gpu).matmul(at::ones({300, 300}, gpu));
    b.record(main);
    ok(!b.query() && !guard().queryStream(main), "not done yet");
    ok(what([&] { a.elapsedTime(b); }) != "", "no time before it is done");
    double start = ms();
    while (!b.query()) std::this_thread::yield();
    ok(ms() - start < 200, "it is done by itself after a while");
    b.synchronize();
    double t = a.elapsedTime(b);
    printf("     %.3f ms\n", t);
    OK(t > 0 && t < 100);
  });
  part("errors", [] {
    hold(0, 500);
    auto bad = at::embedding(at::ones({3, 2}, gpu), at::tensor({1, 2}, at::kLong).to(gpu));
    guard().synchronizeDevice(0);
    auto x = at::ones({10}, gpu1);
    FC(fakecuda_inject_error)(1, 3, 700, "an illegal memory access was encountered");
    int calls = 0;
    std::string e = what([&] {
      for (; calls < 100000; ++calls) x = x + 1;
    });
    printf("     after %d calls: %s\n", calls, e.substr(0, e.find('\n')).c_str());
    OK(e.rfind("AcceleratorError CUDA error: an illegal memory access was encountered", 0) == 0);
    OK(calls > 0);
    OK(what([&] { x.cpu(); }) != "" && what([&] { at::ones({1}, gpu1); }) != "" &&
       what([&] { guard().synchronizeDevice(1); }) != "");
    OK(what([&] { at::ones({1}, gpu).cpu(); }) == "");
    x = Tensor();
    FC(fakecuda_clear_error)(1);
    OK(at::ones({1}, gpu1).item<float>() == 1);
    // An index out of bounds is found by the kernel, after the call.
    hold(20000, 20000);
    auto g = at::ones({3, 3}, gpu);
    Tensor r;
    auto index = at::full({3, 1}, 9, at::TensorOptions(gpu).dtype(at::kLong));
    auto now = what([&] { r = g.gather(1, index); });
    ok(now == "", "gather out of bounds is no error of the call");
    auto later = what([&] { r.cpu(); });
    printf("     %s\n", later.substr(0, later.find('\n')).c_str());
    OK(later.find("device-side assert") != std::string::npos);
    FC(fakecuda_clear_error)(0);
  });
  part("counts", [] {
    hold(0, 0);
    auto x = at::ones({10}, gpu);
    guard().synchronizeDevice(0);
    FC(fakecuda_reset_counts)();
    auto y = (x * 2 + 1).relu().matmul(x);
    OK(FC(fakecuda_count)(FC_ITEM) == 0 && FC(fakecuda_count)(FC_BLOCKING_COPY) == 0 &&
       FC(fakecuda_count)(FC_STREAM_SYNC) == 0);
    y.item();
    x.cpu();
    x.equal(x);
    guard().synchronizeStream(guard().getStream(gpu));
    OK(FC(fakecuda_count)(FC_ITEM) == 2 && FC(fakecuda_count)(FC_BLOCKING_COPY) == 1 &&
       FC(fakecuda_count)(FC_STREAM_SYNC) == 1);
  });
  printf("%d failures\n", failures);
  return failures != 0;
}
