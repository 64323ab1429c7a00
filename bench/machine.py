"""The machine of the measurements."""

import mmap
import os
import platform
import time
from pathlib import Path


def describe():
    """The machine, as the page shows it."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def processor():
    """The processor's name, and what tells apart those of the same name, where Linux says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(
        reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line])
    )
    name = fields.get("model name", platform.machine())
    wide = [
        flag for flag in ("avx2", "avx512f", "amx_tile") if flag in fields.get("flags", "").split()
    ]
    number = (
        f", family {fields['cpu family']} model {fields['model']}" if "cpu family" in fields else ""
    )
    return f"{name}{number}{', ' if wide else ''}{', '.join(wide)}"


def fresh_page_us():
    """The microseconds that the first use of a page of memory takes. In a virtual machine whose
    free memory goes back to its host, it can be ten times as long as otherwise."""
    size, seconds = 256 << 20, []
    with mmap.mmap(-1, size) as memory:
        for _ in range(2):
            began = time.perf_counter()
            for place in range(0, size, mmap.PAGESIZE):
                memory[place] = 1
            seconds.append(time.perf_counter() - began)
    return (seconds[0] - seconds[1]) / (size / mmap.PAGESIZE) * 1e6


def load():
    """The load: programs that wanted a core in the last minute."""
    return round(os.getloadavg()[0], 2)
