"""Which CUDA build of torch fits this machine: its driver and its GPUs against what PyTorch built.

Not for use by itself; setup_libtorch.py asks."""

import re
import shutil
import subprocess
from pathlib import Path

VERSION = "2.11.0"
VARIABLE = "BOSSMAN_TORCH_VARIANT"
# The CUDA build that is torch on PyPI: https://dev-discuss.pytorch.org/t/
# transitioning-pypi-cuda-wheels-to-cuda-13-0-as-the-stable-release-2-11/3325
DEFAULT = "cu130"
CPU = "cpu"


class NoVariant(Exception):
    """No CUDA build fits this machine: why, and a remedy, in one line for the user."""


class Variant:
    """A CUDA build of torch: the oldest driver that it is used with, and the compute capabilities
    that it holds machine code for."""

    def __init__(self, name, driver, x86_64, aarch64):
        self.name, self.driver = name, driver
        self.built = {"x86_64": numbers(x86_64), "aarch64": numbers(aarch64)}

    def holds(self, gpu, machine):
        """Code for X.Y runs on each X.Z with Z >= Y, and on no other X:
        https://docs.nvidia.com/cuda/cuda-programming-guide/01-introduction/cuda-platform.html
        PyTorch's maintainers count on it: https://github.com/pytorch/pytorch/pull/178891"""
        if gpu.compute is None:
            return True
        major, minor = gpu.compute
        return any(major == x and minor >= y for x, y in self.built[machine])

    def takes(self, driver):
        return driver is None or number(driver) >= self.driver


def numbers(text):
    return [tuple(map(int, word.split("."))) for word in text.split()]


def number(driver):
    """570 of "570.86.15"."""
    return int(driver.split(".")[0])


# What each wheel of 2.11 is built for on x86_64 is the matrix in RELEASE.md, by
# https://github.com/pytorch/pytorch/pull/175253
# PTX is not counted on, which a driver could translate for newer GPUs. The wheels for aarch64 leave
# out 5.0 to 7.5 and 8.6, and have 11.0 for CUDA 13: .ci/manywheel/build_cuda.sh, by
# https://github.com/pytorch/pytorch/pull/166044
#
# Drivers: CUDA 13 needs 580 or newer, and CUDA 12.x 525 or newer, by minor-version compatibility:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
# That is "with limited feature-set", so a build for CUDA 12.8 is used only with the driver branch
# of CUDA 12.8, R570, and cu126 with the older ones:
# https://docs.nvidia.com/datacenter/tesla/drivers/supported-drivers-and-cuda-toolkit-versions.html
VARIANTS = [  # the newest first
    Variant("cu130", 580, "7.5 8.0 8.6 9.0 10.0 12.0", "8.0 9.0 10.0 11.0 12.0"),
    Variant("cu128", 570, "7.5 8.0 8.6 9.0 10.0 12.0", "8.0 9.0 10.0 12.0"),
    Variant("cu126", 525, "5.0 6.0 7.0 7.5 8.0 8.6 9.0", "8.0 9.0"),
]
# The last driver branch for GPUs before Turing, "legacy_580": https://wiki.nixos.org/wiki/NVIDIA
LAST_BEFORE_TURING, TURING = 580, (7, 5)
NAMES = [variant.name for variant in VARIANTS]


class Gpu:
    """A GPU; `compute` is such as (7, 5), or None if it is unknown."""

    def __init__(self, name, compute=None):
        self.name, self.compute = name, compute

    def __str__(self):
        known = self.compute and ".".join(map(str, self.compute))
        return f"{self.name} (compute capability {known})" if known else self.name


class Machine:
    """What decides: the driver such as "570.86.15", None if unknown; the GPUs; the processor."""

    def __init__(self, driver, gpus, machine="x86_64"):
        self.driver, self.gpus, self.machine = driver, gpus, machine

    @classmethod
    def this(cls, machine, proc=Path("/proc/driver/nvidia")):
        """This machine; None if it has no NVIDIA GPU that a program could use."""
        driver, gpus = ask_nvidia_smi()
        if not gpus:  # no nvidia-smi, as in some containers, or it does not work
            from_proc = read(proc / "version")
            if from_proc is None:
                return None
            found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", from_proc)
            driver = found and found.group(1)
            models = (
                re.search(r"^Model:\s*(.+?)\s*$", read(file) or "", re.MULTILINE)
                for file in sorted(proc.glob("gpus/*/information"))
            )
            gpus = [Gpu(model.group(1)) for model in models if model]
        return cls(driver, gpus, machine)


def ask_nvidia_smi():
    """The driver and the GPUs; (None, []) without a GPU or without a working nvidia-smi.

    That of drivers before 510 does not know compute_cap and refuses the question:
    https://github.com/huggingface/candle/issues/733"""
    tool = shutil.which("nvidia-smi")  # also the sign of a GPU under WSL
    for fields in ("name,driver_version,compute_cap", "name,driver_version"):
        lines = tool and output([tool, f"--query-gpu={fields}", "--format=csv,noheader"])
        if lines:
            break
    else:
        return None, []
    driver, gpus = None, []
    for line in filter(str.strip, lines.splitlines()):
        words = [word.strip() for word in line.split(",")]
        if len(words) < 2:
            continue
        if re.fullmatch(r"\d+(\.\d+)*", words[1]):
            driver = words[1]
        compute = re.fullmatch(r"(\d+)\.(\d+)", words[2]) if len(words) > 2 else None
        gpus.append(Gpu(words[0], compute and tuple(map(int, compute.groups()))))
    return driver, gpus


def output(command):
    """What `command` prints; None if it fails, or hangs as with a broken driver."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def read(file):
    try:
        return file.read_text(errors="replace")
    except OSError:
        return None


def wanted(environment):
    """The variant that the user names; None if it is left to us."""
    name = environment.get(VARIABLE) or None
    if name not in (None, CPU, *NAMES):
        raise NoVariant(f"{VARIABLE}={name} is unknown: use one of {', '.join([CPU, *NAMES])}")
    return name


def choose(machine):
    """The name of the newest build that serves most GPUs of `machine`, and a line on the GPUs that
    it does not serve, None if there are none."""
    # Without a list of GPUs the driver alone decides.
    gpus = machine.gpus or [Gpu("the NVIDIA GPU")]
    served = {
        variant.name: [gpu for gpu in gpus if fits(variant, gpu, machine)] for variant in VARIANTS
    }
    best = max(VARIANTS, key=lambda variant: len(served[variant.name]))  # the first, if equal
    left = [gpu for gpu in gpus if gpu not in served[best.name]]
    if len(left) == len(gpus):
        raise NoVariant(
            f"no CUDA build of torch {VERSION} fits here: {reasons(left, machine)}; or use the CPU "
            f"with {VARIABLE}={CPU}"
        )
    if not left:
        return best.name, None
    return best.name, f"torch for {best.name}; not used: {reasons(left, machine, best)}"


def fits(variant, gpu, machine):
    return variant.takes(machine.driver) and variant.holds(gpu, machine.machine)


def reasons(gpus, machine, chosen=None):
    """Each kind of GPU once, with the reason why it is not used."""
    told = {}
    for gpu in gpus:
        told.setdefault(str(gpu), reason(gpu, machine, chosen))
    return ", ".join(f"{gpu}: {why}" for gpu, why in told.items())


def reason(gpu, machine, chosen):
    holding = [variant for variant in VARIANTS if variant.holds(gpu, machine.machine)]
    if not holding:
        return f"none of {', '.join(NAMES)} is built for it on {machine.machine}"
    usable = [variant.name for variant in holding if variant.takes(machine.driver)]
    if usable:
        return f"{VARIABLE}={usable[0]} would serve it"
    update = f"{min(variant.driver for variant in holding)} or newer"
    if gpu.compute and gpu.compute < TURING:
        update += f", at most {LAST_BEFORE_TURING}"
    return f"the driver is {machine.driver}, update it to {update}"
