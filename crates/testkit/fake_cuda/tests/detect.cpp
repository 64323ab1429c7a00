// A training loop that feeds itself through two pinned buffers and reads its loss late: right, and
// with one wait left out.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

#include "common.h"
using at::Tensor;
static c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(at::kCUDA); }
enum Bug { kNone, kBufferReused, kStreamsApart, kResultUnread, kNoRecordStream, kBugs };
static double run(Bug bug, Tensor data) {
  auto main = guard().getStream(gpu), copies = guard().getStreamFromGlobalPool(gpu);
  Tensor buffers[2] = {at::empty({16, 8}).pin_memory(), at::empty({16, 8}).pin_memory()},
         results = at::zeros({12}).pin_memory();
  std::optional<c10::Event> read[2];
  Tensor w = at::full({4, 8}, 0.1, gpu);
  double sum = 0;
  for (int i = 0; i < 12; ++i) {
    int b = i % 2;
    if (read[b] && bug != kBufferReused) read[b]->synchronize();
    buffers[b].copy_(data.narrow(0, i, 1).squeeze(0));
    Tensor x;
    {
      c10::StreamGuard on(copies);
      x = buffers[b].to(gpu, at::kFloat, true, false);
      read[b].emplace(at::kCUDA);
      read[b]->record(copies);
    }
    if (bug != kStreamsApart) read[b]->block(main);
    if (bug != kNoRecordStream) x.record_stream(main);
    Tensor y = at::relu(at::linear(x, w)).sum();
    x = Tensor();
    w = w + 0.001 * y;
    results.select(0, i).copy_(y, true);
  }
  if (bug != kResultUnread) guard().synchronizeStream(main);
  sum = results.sum().item<float>();
  guard().synchronizeDevice(0);
  return sum;
}
int main() {
  load();
  at::manual_seed(1);
  auto data = at::rand({12, 16, 8});
  FC(fakecuda_set_hold)(1, 0, 0);
  double right = run(kNone, data);
  const char* names[] = {"right", "a pinned buffer filled too early", "no wait between streams",
                         "a result read too early", "no record_stream"};
  for (int bug = 0; bug < kBugs; ++bug) {
    int wrong = 0, runs = 60;
    for (int seed = 0; seed < runs; ++seed) {
      FC(fakecuda_set_hold)(seed, 0, 1500);
      double got = run(Bug(bug), data);
      wrong += !(std::abs(got - right) < 1e-3 * std::abs(right));
    }
    printf("     %-35s wrong numbers in %d of %d runs\n", names[bug], wrong, runs);
    if (bug == 0)
      OK(wrong == 0);
    else
      OK(wrong > 0);
  }
  printf("%d failures\n", failures);
  return failures != 0;
}
