// The allocator of device memory. Freed blocks stay in a cache for their stream and size.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace fakecuda {

c10::Allocator* device_allocator();

}  // namespace fakecuda
