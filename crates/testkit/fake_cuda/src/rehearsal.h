// A kernel that runs for the forms of its results alone, so that the real one can run later.
#pragma once

#include <optional>
#include <vector>

#include "forms.h"

namespace fakecuda {

// Runs the CPU's kernel on tensors of the host that have the forms of the arguments, and waits for
// it. It reads and writes no memory of the device, and draws none of its random numbers. Nothing if
// this does not tell the forms: the kernel throws, resizes an argument, or returns another.
std::optional<std::vector<ResultForm>> rehearse(Call& call);

}  // namespace fakecuda
