// Random numbers of the device.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>

namespace fakecuda {

at::Generator new_generator(int device);

// The generator of a device; -1 is the current one.
const at::Generator& default_generator(int device);

// A generator of the CPU for one kernel. Throws if the given generator is not the device's.
at::Generator inner_of(const std::optional<at::Generator>& generator, int device);

}  // namespace fakecuda
