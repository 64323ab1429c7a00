// The memory of GPUs that several processes share.
//
// A file has a table for each device: which processes have reserved how many bytes.
// `FAKECUDA_SHARED` names it. Without it, each process has its GPUs for itself.
#pragma once

#include <cstddef>

namespace fakecuda {

// Says how many bytes of a device this process has reserved. False, and nothing is said, if all
// processes together would have more than the limit.
bool say_reserved(int device, size_t bytes, size_t limit);

// What other processes that are alive have reserved.
size_t reserved_by_others(int device);

}  // namespace fakecuda
