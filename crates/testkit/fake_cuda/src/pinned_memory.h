// Memory of the host that the device copies from and to while the host goes on.
//
// As in libtorch, a freed block is used anew when the streams that use it have done what they were
// given before. Blocks have powers of two as sizes.
#pragma once

#include <c10/core/Allocator.h>

#include "streams.h"

namespace fakecuda {

c10::Allocator* pinned_allocator();
bool is_pinned(const void*);

// Notes that a stream uses the block of this address. False if it is not pinned.
bool use_pinned(const void*, StreamState*);

}  // namespace fakecuda
