// What happened, in numbers. `fakecuda.h` names the counters.
#pragma once

#include <cstdint>

#include "fakecuda.h"

namespace fakecuda {

void count(int what);
uint64_t counted(int what);
void reset_counts();

}  // namespace fakecuda
