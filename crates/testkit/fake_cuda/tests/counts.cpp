// Counts in a file, which another process reads.
//
//     counts            runs itself twice, with one file, and reads that
//     counts once       computes
//     counts work       computes, says so, and sleeps until it is killed
#include <signal.h>
#include <sys/prctl.h>

#include <array>
#include <fstream>
#include <string>

#include "common.h"

using Counts = std::array<uint64_t, FC_COUNTERS>;

static Counts read_counts(const std::string& file) {
  Counts counts{};
  std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(counts.data()), sizeof counts);
  return counts;
}

static void compute() {
  load();
  auto pinned = at::ones({8}).pin_memory(), plain = at::ones({8});
  auto a = at::empty({8}, gpu);
  a.copy_(pinned, true);
  a.copy_(plain);
  auto b = a + a;
  pinned.copy_(b, true);
  plain.copy_(b);
  a.copy_(b);
  b.sum().item<float>();
}

static int work() {
  compute();
  if (write(STDOUT_FILENO, "done\n", 5) != 5) return 1;
  for (;;) pause();
}

struct Child {
  pid_t id;
  int said;
};

static Child start(const char* program) {
  int ends[2];
  if (pipe(ends)) exit(1);
  pid_t id = fork();
  if (id == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // no child outlives this test
    dup2(ends[1], STDOUT_FILENO);
    execl(program, program, "work", nullptr);
    _exit(1);
  }
  close(ends[1]);
  return {id, ends[0]};
}

static bool worked(const Child& child) {
  char said[5];
  return read(child.said, said, 5) == 5;
}

int main(int count, char** arguments) {
  if (count > 1 && arguments[1] == std::string("once")) return compute(), 0;
  if (count > 1) return work();
  std::string file = "/tmp/fake-cuda-counts-" + std::to_string(getpid());
  setenv("FAKECUDA_COUNTS", file.c_str(), 1);
  part("counts of another process", [&] {
    Child first = start("/proc/self/exe");
    OK(worked(first));
    Counts one = read_counts(file);
    OK(std::ifstream(file, std::ios::ate).tellg() == 4096);
    OK(one[FC_TO_DEVICE_ASYNC] == 1 && one[FC_TO_DEVICE_BLOCKING] == 1);
    OK(one[FC_TO_HOST_ASYNC] == 1 && one[FC_TO_HOST_BLOCKING] == 1 && one[FC_ON_DEVICES] == 1);
    OK(one[FC_BLOCKING_COPY] == 2 && one[FC_ITEM] == 1 && one[FC_KERNEL] == 2);
    kill(first.id, SIGKILL);
    waitpid(first.id, nullptr, 0);
    ok(read_counts(file) == one, "the counts outlive a process that is killed");
    Child both[2] = {start("/proc/self/exe"), start("/proc/self/exe")};
    OK(worked(both[0]) && worked(both[1]));
    Counts three = read_counts(file);
    bool sum = true;
    for (int i = 0; i < FC_COUNTERS; ++i) sum = sum && three[i] == 3 * one[i];
    ok(sum, "processes with one file add to the same numbers");
    for (Child& child : both) kill(child.id, SIGKILL);
    for (Child& child : both) waitpid(child.id, nullptr, 0);
  });
  unlink(file.c_str());
  printf("%d failures\n", failures);
  return failures != 0;
}
