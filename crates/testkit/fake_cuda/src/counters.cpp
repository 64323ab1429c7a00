#include "counters.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace fakecuda {
namespace {

using Counter = std::atomic<uint64_t>;
constexpr size_t kBytes = 4096;
static_assert(Counter::is_always_lock_free && sizeof(Counter) == 8, "processes share the counters");
static_assert(FC_COUNTERS * sizeof(Counter) <= kBytes, "the file is one page");

// The counters. They lie in a file if the environment names one, so that another process can read
// them, and reads them after this one was killed.
Counter* place() {
  const char* name = getenv("FAKECUDA_COUNTS");
  if (name == nullptr) return new Counter[FC_COUNTERS]();
  int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  void* page = MAP_FAILED;
  if (file >= 0 && ftruncate(file, kBytes) == 0)
    page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) {
    fprintf(stderr, "fake CUDA: FAKECUDA_COUNTS=%s: %m\n", name);
    _exit(2);
  }
  close(file);
  return static_cast<Counter*>(page);
}

Counter* counters() {
  static Counter* all = place();
  return all;
}

// The file is there when the library is.
Counter* const at_load = counters();

}  // namespace

void count(int what) { ++counters()[what]; }
uint64_t counted(int what) { return counters()[what]; }
void reset_counts() {
  for (int i = 0; i < FC_COUNTERS; ++i) counters()[i] = 0;
}

}  // namespace fakecuda
