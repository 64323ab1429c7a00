// Devices, their memory, streams and events: all that needs no operator.
#pragma once

#include "counters.h"
#include "device_memory.h"
#include "errors.h"
#include "machine.h"
#include "pinned_memory.h"
#include "streams.h"
