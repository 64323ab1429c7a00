#!/usr/bin/env python3
"""Brings libtorch to this machine once, and points the checkout's `.libtorch` link at it.

Looked for in this order: the folder that LIBTORCH names; the user's cache folder; PyPI, or
PyTorch's own index where PyPI's CUDA build does not fit; what they give fills the cache. The torch
wheel is unpacked and never imported, so any Python from 3.8 on will do."""

import argparse
import contextlib
import errno
import fcntl
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import cuda_variant
from cuda_variant import NoVariant
from elf import NotElf, needed_libraries

VERSION = cuda_variant.VERSION
CHECKOUT = Path(__file__).resolve().parent.parent
# Has the CUDA builds that PyPI has not, each in a folder of its own.
INDEX_VARIABLE, INDEX = "BOSSMAN_TORCH_INDEX", "https://download.pytorch.org/whl"
WAY_OUT = f"set LIBTORCH to the folder of a libtorch {VERSION} that you have"
# What a build needs of the torch wheel; the rest is Python.
KEPT = ("torch/include/", "torch/lib/", "torch/share/", "torch/version.py", f"torch-{VERSION}")
# What the cache folder has to hold while libtorch is unpacked: the wheels and what is in them. With
# a GPU this is an estimate.
GB_ON_CPU, GB_WITH_GPU = 1.7, 8
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# What zipfile and the decoders raise if bytes of an archive are wrong.
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,
    ValueError,
)


class Problem(Exception):
    """A problem and its remedy, in one line for the user."""


class Host:
    """The machine, as far as the choice of wheels depends on it."""

    # The newest glibc that a tag may name, down to the oldest in use; pip takes them literally.
    GLIBC_TAGS = [f"manylinux_2_{minor}" for minor in range(28, 16, -1)]
    LINUX_TAGS = GLIBC_TAGS + [
        "manylinux2014",
        "manylinux_2_12",
        "manylinux2010",
        "manylinux_2_5",
        "manylinux1",
    ]

    def __init__(self, system, machine, gpu, variant=cuda_variant.DEFAULT, index=INDEX):
        self.linux = system == "Linux"
        if self.linux and machine in ("x86_64", "aarch64"):
            self.tags = [f"{tag}_{machine}" for tag in self.LINUX_TAGS]
        elif (system, machine) == ("Darwin", "arm64"):
            self.tags = ["macosx_11_0_arm64"]
        else:
            raise Problem(f"PyPI has no torch {VERSION} that fits {system} on {machine}: {WAY_OUT}")
        self.gpu = gpu and self.linux
        self.torch, self.index, kind = VERSION, None, "cuda" if self.gpu else "cpu"
        if self.gpu and variant != cuda_variant.DEFAULT:
            self.torch, kind = f"{VERSION}+{variant}", variant
            self.index = f"{index.rstrip('/')}/{variant}"
        self.name = f"{system}-{machine}-{kind}".lower()
        self.suffix = "so" if self.linux else "dylib"
        self.gb = GB_WITH_GPU if self.gpu else GB_ON_CPU

    @classmethod
    def this(cls, environment):
        system, machine = platform.system(), platform.machine()
        if system == "Linux":
            libc, version = platform.libc_ver()
            if libc != "glibc" or tuple(map(int, version.split(".")[:2])) < (2, 28):
                raise Problem(
                    f"torch {VERSION} from PyPI needs glibc 2.28 or newer, here is "
                    f"{libc or 'another libc'} {version}: {WAY_OUT}"
                )
        cls(system, machine, gpu=False)  # refuses what has no wheel at all
        variant = choose_variant(system, machine, environment)
        index = environment.get(INDEX_VARIABLE) or INDEX
        return cls(system, machine, variant != cuda_variant.CPU, variant, index)


def choose_variant(system, machine, environment):
    """The one that the user names, else one for the GPUs that are here, else "cpu"."""
    named = cuda_variant.wanted(environment)
    if named or system != "Linux":
        return named or cuda_variant.CPU
    here = cuda_variant.Machine.this(machine)
    if here is None:
        return cuda_variant.CPU
    variant, not_used = cuda_variant.choose(here)
    if not_used:
        say(not_used)
    return variant


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--print",
        action="store_true",
        help="print the folder of libtorch, and nothing else, on stdout",
    )
    options = parser.parse_args()
    try:
        libtorch = find(os.environ)
        point(CHECKOUT / ".libtorch", libtorch)
    except (Problem, NoVariant, NotElf, OSError) as problem:
        sys.exit(f"setup: {problem}")
    except KeyboardInterrupt:
        sys.exit("setup: stopped; the next run starts cleanly from here")
    if options.print:
        print(libtorch)
    else:
        say(f"libtorch {VERSION}: {libtorch}")


def find(environment):
    """The folder of a whole libtorch of the right version; fetches it if there is none."""
    named = environment.get("LIBTORCH")
    if named:
        return check_named(Path(named))
    return fetch(cache_folder(environment), Host.this(environment))


def check_named(libtorch):
    """`libtorch` without links, if it is what a build needs."""
    if not (libtorch / "include").is_dir() or not any((libtorch / "lib").glob("libtorch_cpu.*")):
        raise Problem(
            f"LIBTORCH={libtorch} holds no include/ or no lib/libtorch_cpu: name the folder that "
            "holds both, or unset it"
        )
    version = version_of(libtorch)
    if version != VERSION:
        raise Problem(
            f"LIBTORCH={libtorch} is version {version or 'unknown'}, expected {VERSION}: name "
            "another folder, or unset it"
        )
    return libtorch.resolve()


def version_of(libtorch):
    """Such as "2.11.0", from the file that libtorch's own archive carries or the one in a wheel;
    None if neither is there."""
    for name, form in (
        ("build-version", r"([\d.]+)"),
        ("version.py", r"__version__ = ['\"]([\d.]+)"),
    ):
        with contextlib.suppress(OSError):
            found = re.search(form, (libtorch / name).read_text(errors="replace"))
            if found:
                return found.group(1)
    return None


def cache_folder(environment):
    if platform.system() == "Darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "bossman"


def pip_download(requirement, host, folder):
    """Has pip fetch one wheel into `folder`, without what it depends on; pip checks its hash and
    shows its progress."""
    platforms = [word for tag in host.tags for word in ("--platform", tag)]
    python = ["--implementation", "cp", "--python-version", "3.12", "--abi", "cp312"]
    # All that pip writes goes here first: a run that was killed leaves no half wheel in `folder`,
    # and nothing elsewhere.
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-cache-dir",
            "--disable-pip-version-check",
        ]
        + ["--only-binary", ":all:", *python, *platforms, *indexes(requirement, host)]
        + ["--dest", str(partial), requirement],
        stdout=sys.stderr,
        # pip only downloads here, so it may do so outside a virtual environment.
        env={**os.environ, "TMPDIR": str(partial), "PIP_REQUIRE_VIRTUALENV": "0"},
        check=False,
    )
    if done.returncode != 0:
        # pip does not say in its exit code that the disk is full.
        if shutil.disk_usage(folder).free < host.gb * 1e9:
            raise no_room(folder, host)
        place, more = "", ""
        if host.index is not None:
            place = " from " + re.sub(r"//[^/]*@", "//", host.index)  # without a password
            more = (
                f"name a mirror with {INDEX_VARIABLE}, use the CPU with "
                f"{cuda_variant.VARIABLE}={cuda_variant.CPU}, "
            )
        raise Problem(
            f"pip could not download {requirement}{place}, its reason is above: run again, "
            f"`python3 -m pip install --upgrade pip`, {more}or {WAY_OUT}"
        )
    for wheel in partial.glob("*.whl"):
        # A wheel that has its name is whole, also after a power cut.
        with open(wheel, "rb") as file:
            os.fsync(file.fileno())
        wheel.replace(folder / wheel.name)


def indexes(requirement, host):
    """Where pip looks. Only torch has to come from the index of its variant; for the rest that is
    one more place beside those of pip's own configuration, PyPI by default."""
    if host.index is None:
        return []
    of_torch = requirement.startswith("torch==")
    return ["--index-url" if of_torch else "--extra-index-url", host.index]


def load(library):
    """Proves that the loader finds everything `library` needs, in a process of its own."""
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(library)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise Problem(f"the libtorch that was fetched does not load here ({reason}): {WAY_OUT}")


def fetch(cache, host, download=pip_download, load=load):
    """The libtorch in the cache. A folder with its final name is complete, because it gets that
    name last."""
    ready = cache / f"libtorch-{VERSION}-{host.name}"
    try:
        if not ready.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with only_one(cache / "lock"):
                if not ready.exists():
                    unpack_everything(cache, host, ready, download, load)
    except OSError as problem:
        if problem.errno in NO_ROOM:
            raise no_room(cache, host) from problem
        raise
    return (ready / "torch").resolve()


def no_room(folder, host):
    """The problem of a full disk."""
    remedy = ", set XDG_CACHE_HOME to a folder on another disk," if host.linux else ""
    return Problem(
        f"too little room in {folder}: fetching and unpacking libtorch takes about {host.gb} GB "
        f"there; delete files{remedy} or {WAY_OUT}"
    )


def unpack_everything(cache, host, ready, download, load):
    for left_behind in cache.glob("unpacking-*"):
        shutil.rmtree(left_behind)
    unpacking = Path(tempfile.mkdtemp(prefix="unpacking-", dir=cache))
    wheels = Wheels(cache / "downloads" / host.name, host, download)
    try:
        torch = wheels.get("torch", host.torch)
        unpack(torch, unpacking, KEPT)
        for name, version in nvidia_wheels(torch, unpacking / "torch" / "lib", wheels):
            unpack(wheels.get(name, version), unpacking)
        say("checking that it loads")
        for name in ["libtorch_cpu"] + ["libtorch_cuda"] * host.gpu:
            load(unpacking / "torch" / "lib" / f"{name}.{host.suffix}")
        (unpacking / "torch" / "build-version").write_text(VERSION + "\n")
        unpacking.chmod(0o755)
        unpacking.rename(ready)
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)
    shutil.rmtree(wheels.folder)


class Wheels:
    """The wheels of one machine, each fetched when it is first asked for."""

    def __init__(self, folder, host, download):
        self.folder, self.host, self.download = folder, host, download

    def get(self, name, version):
        self.folder.mkdir(parents=True, exist_ok=True)
        pattern = f"{name.replace('-', '_')}-{version.replace('.*', '')}*.whl"
        if not any(self.folder.glob(pattern)):
            say(f"fetching {name} {version}")
            self.download(f"{name}=={version}", self.host, self.folder)
        found = next(self.folder.glob(pattern), None)
        if found is None:
            raise Problem(
                f"pip downloaded {name}=={version} but {self.folder} holds no {pattern}: {WAY_OUT}"
            )
        return found


def nvidia_wheels(torch, libraries, wheels):
    """Names and versions of the nvidia wheels that this machine needs, as the torch wheel pins
    them.

    With a GPU, all of them. Without one, only those that carry a library which libtorch_cpu itself
    asks for. Most builds pin `cuda-toolkit[cublas,cudart,..]`, and that pins for each word the
    wheel in which lies lib<word>.so; others pin the wheels themselves, such as
    nvidia-cuda-runtime-cu12."""
    host = wheels.host
    if not host.linux:
        return
    needed = set(needed_libraries(libraries / "libtorch_cpu.so"))
    stems = {name.split(".so")[0][len("lib") :].lower() for name in needed}
    for name, words, version, _ in pins(torch):
        if name == "cuda-toolkit":
            for part, _, part_version, word in pins(wheels.get(name, version)):
                if word in words and (host.gpu or word in stems):
                    yield part, part_version
        elif name.startswith("nvidia-") and (host.gpu or library_in(name) in stems):
            yield name, version


def library_in(wheel):
    """The library that gives an nvidia wheel its name: "cudart" for nvidia-cuda-runtime-cu12."""
    word = re.sub(r"^nvidia-(?:cuda-)?|-cu\d+$", "", wheel)
    return {"runtime": "cudart", "nvtx": "nvtoolsext"}.get(word, word)


def pins(wheel):
    """For each `Requires-Dist: name[word,word]==version; .. extra == 'extra'` of a wheel: (name,
    words, version, extra)."""
    with reading(wheel) as archive:
        metadata = next(
            (name for name in archive.namelist() if name.endswith(".dist-info/METADATA")), None
        )
        text = archive.read(metadata).decode() if metadata else ""
    for line in re.finditer(
        r"^Requires-Dist: ([\w-]+)(?:\[([\w,-]+)\])?==([\w.*]+)(.*)$", text, re.MULTILINE
    ):
        name, words, version, marker = line.groups()
        extra = re.search(r"extra == ['\"](\w+)['\"]", marker)
        yield name, (words or "").split(","), version, extra and extra.group(1)


def unpack(wheel, folder, kept=("",)):
    """Unpacks what of `wheel` has a name that starts with one of `kept`."""
    say(f"unpacking {wheel.name} ({wheel.stat().st_size / 1e6:.0f} MB)")
    with reading(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(kept)])


@contextlib.contextmanager
def reading(wheel):
    """A wheel as an archive. Deletes it if it is damaged, so that the next run fetches it anew."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (*DAMAGED, OSError) as problem:
        # A place outside the file is EINVAL, and a broken bzip2 stream has no number. Others, such
        # as a full disk, say nothing of the wheel.
        if isinstance(problem, OSError) and problem.errno not in (errno.EINVAL, None):
            raise
        wheel.unlink()
        raise Problem(
            f"{wheel.name} is damaged ({problem}) and was deleted: run again"
        ) from problem


@contextlib.contextmanager
def only_one(path):
    """Holds the lock file at `path`; the system lets go of it whatever way this process ends."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup is fetching libtorch, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def point(link, libtorch):
    """Makes `link` lead to `libtorch`, in one step for everybody who looks."""
    if link.is_symlink() or not link.exists():
        if os.path.realpath(link) != str(libtorch):
            fresh = link.with_name(f"{link.name}.{os.getpid()}")
            fresh.symlink_to(libtorch)
            fresh.replace(link)
    elif link.resolve() != libtorch:
        raise Problem(f"{link} is not a link: move it away, so that it can be one to {libtorch}")


def say(line):
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
