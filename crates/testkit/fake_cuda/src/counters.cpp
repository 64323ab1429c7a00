#include "counters.h"

#include <atomic>

namespace fakecuda {
namespace {
std::atomic<uint64_t> counters[FC_COUNTERS];
}

void count(int what) { ++counters[what]; }
uint64_t counted(int what) { return counters[what]; }
void reset_counts() {
  for (auto& counter : counters) counter = 0;
}

}  // namespace fakecuda
