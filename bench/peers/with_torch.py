"""torch on one compute thread, as every peer uses it; `bench/run.py` sets what it needs to load
without CUDA's libraries."""

import os
import sys

# libtorch_python names functions of CUDA's libraries; a CPU never calls them, so they need not be
# found at once.
sys.setdlopenflags(os.RTLD_LAZY)

import torch  # noqa: E402

torch.set_num_threads(1)


def peak_bytes():
    """The most memory this process has had resident, as Linux counts it."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
