// Memory that processes share, and pinned memory that late copies use.
//
//     memory                runs itself twice for GPUs that processes share
//     memory hold MIB       takes so much memory of GPU 0, says so, and sleeps until it is killed
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <signal.h>
#include <sys/prctl.h>

#include <string>
#include <vector>

#include "common.h"
using at::Tensor;

static c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(at::kCUDA); }
static void hold(uint32_t low, uint32_t high) { FC(fakecuda_set_hold)(1, low, high); }
static Tensor mebibytes(int64_t count) {
  return at::empty({count << 20}, at::TensorOptions(gpu).dtype(at::kByte));
}
static size_t free_mebibytes() {
  return c10::getDeviceAllocator(at::kCUDA)->getMemoryInfo(0).first >> 20;
}
static bool is_full(int64_t count) {
  try {
    mebibytes(count);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  }
  return false;
}

static int take_and_hold(const char* count) {
  load();
  char said = 'y';
  Tensor taken;
  try {
    taken = mebibytes(atoi(count));
  } catch (const c10::OutOfMemoryError&) {
    said = 'n';
  }
  if (write(STDOUT_FILENO, &said, 1) != 1) return 1;
  for (;;) pause();
}

struct Child {
  pid_t id;
  char said = '?';
  explicit Child(const char* count) {
    int ends[2];
    if (pipe(ends)) exit(1);
    id = fork();
    if (id == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // no child outlives this test
      dup2(ends[1], STDOUT_FILENO);
      execl("/proc/self/exe", "memory", "hold", count, nullptr);
      _exit(1);
    }
    close(ends[1]);
    if (read(ends[0], &said, 1) != 1) said = '?';
    close(ends[0]);
  }
  void kill() const { ::kill(id, SIGKILL); }
  void bury() const { waitpid(id, nullptr, 0); }
};

static void shared_by_processes() {
  OK(free_mebibytes() == 512);
  Child one("200"), two("200"), three("200");
  ok(one.said == 'y' && two.said == 'y' && three.said == 'n', "two of three processes have room");
  OK(free_mebibytes() == 112);
  ok(is_full(150) && !is_full(100), "this process has the rest");
  {
    auto kept = mebibytes(100);
  }
  OK(free_mebibytes() == 12);
  c10::getDeviceAllocator(at::kCUDA)->emptyCache();
  ok(free_mebibytes() == 112, "memory whose cache is released is free to all");
  one.kill();
  siginfo_t info;
  waitid(P_PID, one.id, &info, WEXITED | WNOWAIT);
  ok(free_mebibytes() == 312, "memory of a process that was killed is free, also of a zombie");
  one.bury();
  OK(free_mebibytes() == 312);
  auto taken = mebibytes(300);
  ok(is_full(20), "and this process can take it");
  taken = Tensor();
  ok(!is_full(312), "the own cache is released before memory is out");
  two.kill();
  three.kill();
  two.bury();
  three.bury();
  c10::getDeviceAllocator(at::kCUDA)->emptyCache();
  OK(free_mebibytes() == 512);
}

static void pinned() {
  hold(0, 0);
  auto x = at::ones({1000}, gpu), y = at::zeros({1000}, gpu);
  auto empty = [] { return at::empty({1000}).pin_memory(); };
  guard().synchronizeDevice(0);
  void* first;
  {
    auto never_used = empty();
    first = never_used.data_ptr();
  }
  auto a = empty();
  ok(a.data_ptr() == first, "a block that no stream uses is used anew at once");
  a.fill_(5);
  hold(30000, 30000);
  y.copy_(a, true);
  a = Tensor();
  auto b = empty();
  ok(b.data_ptr() != first, "not one that a late copy reads");
  b.fill_(6);
  auto c = empty();
  ok(c.data_ptr() != first && c.data_ptr() != b.data_ptr(), "and not the next time");
  guard().synchronizeDevice(0);
  ok(y.sum().item<float>() == 5000, "the copy has read what was there");
  auto d = empty();
  ok(d.data_ptr() == first, "it is used anew when the copy is over");
  // The other direction, on another stream, through a part of a block.
  auto side = guard().getStreamFromGlobalPool(gpu);
  void* second = d.data_ptr();
  {
    c10::StreamGuard on(side);
    for (int i = 0; i < 3; ++i) d.narrow(0, 100, 50).copy_(x.narrow(0, 0, 50), true);
  }
  d = Tensor();
  ok(empty().data_ptr() != second, "not one that a late copy writes");
  guard().synchronizeStream(side);
  std::vector<Tensor> next = {empty(), empty(), empty()};
  bool again = false;
  for (auto& t : next) again = again || t.data_ptr() == second;
  ok(again, "until its stream is done");
  auto small = at::empty({600}).pin_memory(), large = at::empty({1024}).pin_memory();
  void* place = small.data_ptr();
  small = Tensor();
  ok(at::empty({1024}).pin_memory().data_ptr() == place, "blocks have powers of two as sizes");
}

int main(int count, char** arguments) {
  if (count > 2) return take_and_hold(arguments[2]);
  std::string file = "/tmp/fake-cuda-shared-" + std::to_string(getpid());
  setenv("FAKECUDA_SHARED", file.c_str(), 1);
  setenv("FAKECUDA_MEMORY", std::to_string(512 << 20).c_str(), 1);
  load();
  part("memory that processes share", shared_by_processes);
  part("pinned memory", pinned);
  unlink(file.c_str());
  printf("%d failures\n", failures);
  return failures != 0;
}
