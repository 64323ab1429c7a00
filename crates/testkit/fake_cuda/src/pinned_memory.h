// Memory of the host that the device copies from and to while the host goes on.
#pragma once

#include <c10/core/Allocator.h>

namespace fakecuda {

c10::Allocator* pinned_allocator();
bool is_pinned(const void*);

}  // namespace fakecuda
