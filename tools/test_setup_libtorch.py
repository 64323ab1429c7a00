"""Tests of setup_libtorch.py and elf.py with made-up wheels: no network, no libtorch."""

import contextlib
import errno
import glob
import os
import random
import struct
import sysconfig
import tempfile
import threading
import unittest
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import setup_libtorch as setup
from elf import NotElf, needed_libraries

TOOLKIT_PINS = """\
Requires-Dist: nvidia-cuda-runtime==13.0.96.*; (sys_platform == 'linux') and extra == 'all'
Requires-Dist: nvidia-cuda-runtime==13.0.96.*; (sys_platform == 'linux') and extra == 'cudart'
Requires-Dist: nvidia-cublas==13.1.0.3.*; (sys_platform == 'linux') and extra == 'cublas'
Requires-Dist: nvidia-npp==13.0.1.2.*; (sys_platform == 'linux') and extra == 'npp'
"""
TORCH_PINS = """\
Requires-Dist: filelock
Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.2; platform_system == "Linux"
Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == "Linux"
Requires-Dist: triton==3.6.0; platform_system == "Linux"
"""


def elf_asking_for(*names):
    """The smallest library whose DT_NEEDED are `names`: header, two program headers, dynamic
    section, strings."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    offsets = [strings.index(name.encode()) for name in names]
    dynamic_at, base = 64 + 2 * 56, 0x10000
    dynamic_size = 16 * (len(names) + 2)
    strings_at = dynamic_at + dynamic_size
    size = strings_at + len(strings)
    dynamic = b"".join(struct.pack("<QQ", 1, offset) for offset in offsets)
    dynamic += struct.pack("<QQQQ", 5, base + strings_at, 0, 0)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, base, base, size, size, 4096)
    dynamic_header = struct.pack(
        "<IIQQQQQQ", 2, 4, dynamic_at, base, base, dynamic_size, dynamic_size, 8
    )
    return header + load + dynamic_header + dynamic + strings


class PyPI:
    """Stands in for pip: makes the wheel that is asked for, and remembers what was asked."""

    def __init__(self):
        self.asked = []
        self.damaged = {}

    def __call__(self, requirement, host, folder):
        self.asked.append(requirement)
        name, version = requirement.replace("-", "_").replace(".*", "").split("==")
        files = {f"nvidia/lib/{name}.so": b"", f"{name}-{version}.dist-info/METADATA": b"Name: x\n"}
        if name == "torch":
            files = {
                "torch/lib/libtorch_cpu.so": elf_asking_for(
                    "libc10.so", "libcudart.so.13", "libc.so.6"
                ),
                "torch/include/torch.h": b"",
                "torch/nn/functional.py": b"not needed",
                "torch-2.11.0.dist-info/METADATA": TORCH_PINS.encode(),
            }
        elif name == "cuda_toolkit":
            files = {"cuda_toolkit-13.0.2.dist-info/METADATA": TOOLKIT_PINS.encode()}
        wheel = folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, content in files.items():
                archive.writestr(path, content)
        if name in self.damaged:
            wheel.write_bytes(self.damaged[name](wheel.read_bytes()))


def damage(content, with_other):
    """What makes of an archive one with other bytes."""

    def damaged(whole):
        assert content in whole
        return whole.replace(content, with_other, 1)

    return damaged


class Fetching(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = Path(folder.name).resolve() / "cache"
        self.host = setup.Host("Linux", "x86_64", gpu=False)
        self.pypi = PyPI()
        quiet, setup.say = setup.say, lambda line: None
        self.addCleanup(setattr, setup, "say", quiet)

    def fetch(self, host=None, load=lambda library: None):
        return setup.fetch(self.cache, host or self.host, self.pypi, load)

    def test_without_a_gpu_only_the_wheels_that_the_cpu_library_names(self):
        libtorch = self.fetch()
        self.assertEqual(
            self.pypi.asked,
            ["torch==2.11.0", "cuda-toolkit==13.0.2", "nvidia-cuda-runtime==13.0.96.*"],
        )
        self.assertTrue((libtorch / "lib" / "libtorch_cpu.so").is_file())
        self.assertTrue((libtorch.parent / "nvidia" / "lib").is_dir())
        self.assertFalse((libtorch / "nn").exists())
        self.assertEqual(setup.version_of(libtorch), "2.11.0")

    def test_with_a_gpu_every_nvidia_wheel_that_torch_pins(self):
        self.fetch(setup.Host("Linux", "x86_64", gpu=True))
        self.assertEqual(
            sorted(self.pypi.asked),
            [
                "cuda-toolkit==13.0.2",
                "nvidia-cublas==13.1.0.3.*",
                "nvidia-cuda-runtime==13.0.96.*",
                "nvidia-nccl-cu13==2.28.9",
                "torch==2.11.0",
            ],
        )

    def test_a_second_run_downloads_nothing_and_leaves_nothing_lying(self):
        first = self.fetch()
        self.pypi.asked.clear()
        self.assertEqual(self.fetch(), first)
        self.assertEqual(self.pypi.asked, [])
        self.assertEqual(list(self.cache.rglob("*.whl")), [])

    def test_an_interrupted_run_leaves_nothing_that_is_used_and_keeps_whole_downloads(self):
        def interrupted(library):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.fetch(load=interrupted)
        self.assertEqual(list(self.cache.glob("libtorch-*")), [])
        self.pypi.asked.clear()
        self.assertTrue(self.fetch().is_dir())
        self.assertEqual(self.pypi.asked, [])

    def test_a_folder_left_by_a_killed_run_is_removed(self):
        killed = self.cache / "unpacking-old" / "torch" / "lib"
        killed.mkdir(parents=True)
        self.fetch()
        self.assertFalse(killed.exists())

    def test_a_damaged_wheel_is_named_deleted_and_fetched_anew(self):
        other_library = damage(b"libc10.so", b"libc11.so")
        other_pins = damage(b"nvidia-cublas", b"nvidia-cuBLAS")
        for name, how in (
            ("torch", other_library),
            ("torch", lambda whole: whole[: len(whole) // 2]),
            ("torch", lambda whole: b""),
            ("cuda_toolkit", other_pins),
        ):
            self.pypi.damaged = {name: how}
            with self.assertRaisesRegex(setup.Problem, f"^{name}-.*is damaged.*run again$"):
                self.fetch()
            wheels = [wheel.name.split("-")[0] for wheel in self.cache.rglob("*.whl")]
            self.assertNotIn(name, wheels)
        self.pypi.damaged = {}
        self.assertTrue(self.fetch().is_dir())

    def test_a_full_disk_is_one_problem_with_a_remedy(self):
        def full(number):
            def fail(*_, **__):
                raise OSError(number, os.strerror(number), "some.file")

            return fail

        for number in (errno.ENOSPC, errno.EDQUOT):
            for place in ("tempfile.mkdtemp", "zipfile.ZipFile.extractall"):
                with mock.patch(place, full(number)), self.assertRaises(setup.Problem) as raised:
                    self.fetch()
                self.assertRegex(
                    str(raised.exception),
                    f"^too little room in {self.cache}: .* takes about 1.7 GB there; "
                    ".* XDG_CACHE_HOME .*",
                )
        with mock.patch("tempfile.mkdtemp", full(errno.EACCES)), self.assertRaises(OSError):
            self.fetch()
        self.assertTrue(self.fetch().is_dir())

    def test_two_runs_at_once_download_once(self):
        at_work, other_started = threading.Event(), threading.Event()

        def slow(library):
            at_work.set()
            other_started.wait(10)

        first = threading.Thread(target=self.fetch, kwargs={"load": slow})
        first.start()
        self.assertTrue(at_work.wait(10))
        setup.say = lambda line: other_started.set()  # the second run says that it waits
        self.assertTrue(self.fetch().is_dir())
        first.join()
        self.assertEqual(len(self.pypi.asked), 3)


class Pip(unittest.TestCase):
    """What pip is asked for, and what becomes of its answer."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def download(self, status, free):
        """Runs pip_download with a program in pip's place. Returns its environment."""

        def pip(command, env, **_):
            (Path(env["TMPDIR"]) / "torch-2.11.0-any.whl").write_text("wheel")
            environments.append(env)
            return SimpleNamespace(returncode=status)

        environments, usage = [], SimpleNamespace(free=free)
        host = setup.Host("Linux", "x86_64", gpu=False)
        insisting = {"PIP_REQUIRE_VIRTUALENV": "true"}
        with contextlib.ExitStack() as patches:
            patches.enter_context(mock.patch.object(setup.subprocess, "run", pip))
            patches.enter_context(mock.patch.dict(os.environ, insisting))
            patches.enter_context(mock.patch.object(setup.shutil, "disk_usage", lambda _: usage))
            setup.pip_download("torch==2.11.0", host, self.folder)
        return environments[0]

    def test_a_pip_that_insists_on_virtual_environments_downloads_outside_one(self):
        self.assertEqual(self.download(0, 1e12)["PIP_REQUIRE_VIRTUALENV"], "0")

    def test_a_wheel_is_on_the_disk_before_it_has_its_name(self):
        wheel, there = self.folder / "torch-2.11.0-any.whl", []
        with mock.patch.object(setup.os, "fsync", lambda file: there.append(wheel.exists())):
            self.download(0, 1e12)
        self.assertEqual((there, wheel.read_text()), ([False], "wheel"))

    def test_if_pip_fails_without_room_the_disk_is_named(self):
        with self.assertRaisesRegex(setup.Problem, f"^too little room in {self.folder}: "):
            self.download(1, 1e9)
        with self.assertRaisesRegex(setup.Problem, "^pip could not download torch==2.11.0, "):
            self.download(1, 1e12)


class Damage(unittest.TestCase):
    """The bytes of a wheel are wrong, as after a power cut or from a bad disk."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.wheel = Path(folder.name) / "torch-2.11.0-any.whl"
        self.to = Path(folder.name) / "unpacked"
        quiet, setup.say = setup.say, lambda line: None
        self.addCleanup(setattr, setup, "say", quiet)
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("torch/lib/libtorch_cpu.so", bytes(range(256)) * 4)
            archive.writestr("torch-2.11.0.dist-info/METADATA", TORCH_PINS)
        self.whole = self.wheel.read_bytes()

    def use(self, content):
        self.wheel.write_bytes(content)
        list(setup.pins(self.wheel))
        setup.unpack(self.wheel, self.to)

    def test_a_stream_that_cannot_be_inflated_is_damage(self):
        for name in (b"libtorch_cpu.so", b"METADATA"):
            with self.subTest(name):
                at = self.whole.index(name) + len(name)
                # A block of the type that deflate does not have.
                content = self.whole[:at] + b"\x07" + self.whole[at + 1 :]
                with self.assertRaisesRegex(setup.Problem, "is damaged") as raised:
                    self.use(content)
                self.assertIsInstance(raised.exception.__cause__, zlib.error)
                self.assertFalse(self.wheel.exists())

    def test_flipped_bytes_never_raise_anything_else(self):
        chance = random.Random(1)
        for _ in range(1000):
            content = bytearray(self.whole)
            for _ in range(chance.randint(1, 4)):
                content[chance.randrange(len(content))] = chance.randrange(256)
            with contextlib.suppress(setup.Problem):
                self.use(content)
                self.wheel.unlink()
            self.assertFalse(self.wheel.exists())


class Choosing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def libtorch(self, name, **files):
        libtorch = self.folder / name
        (libtorch / "lib").mkdir(parents=True)
        (libtorch / "include").mkdir()
        (libtorch / "lib" / "libtorch_cpu.so").touch()
        for file, text in files.items():
            (libtorch / file.replace("__", "-").replace("_py", ".py")).write_text(text)
        return libtorch

    def test_libtorch_variable_wins_if_its_version_is_right(self):
        archive = self.libtorch("archive", build__version="2.11.0+cpu\n")
        wheel = self.libtorch("wheel", version_py="__all__ = []\n__version__ = '2.11.0+cu130'\n")
        for libtorch in (archive, wheel):
            self.assertEqual(setup.find({"LIBTORCH": str(libtorch)}), libtorch)

    def test_libtorch_variable_with_another_version_is_one_clear_error(self):
        old = self.libtorch("old", build__version="2.4.1+cpu\n")
        with self.assertRaisesRegex(
            setup.Problem, r"^LIBTORCH=.*/old is version 2\.4\.1, expected 2\.11\.0: [^\n]*$"
        ):
            setup.find({"LIBTORCH": str(old)})
        with self.assertRaisesRegex(setup.Problem, "version unknown"):
            setup.find({"LIBTORCH": str(self.libtorch("nameless"))})
        with self.assertRaisesRegex(setup.Problem, "holds no include/"):
            setup.find({"LIBTORCH": str(self.folder / "nowhere")})

    def test_a_machine_without_a_wheel_is_told_of_libtorch(self):
        for system, machine in (("Windows", "AMD64"), ("Linux", "riscv64"), ("Darwin", "x86_64")):
            with self.assertRaisesRegex(setup.Problem, f"{system} on {machine}: set LIBTORCH"):
                setup.Host(system, machine, gpu=False)

    def test_the_link_is_made_and_moved_but_never_replaces_a_folder(self):
        one, two, link = self.libtorch("one"), self.libtorch("two"), self.folder / ".libtorch"
        for libtorch in (one, two, two):
            setup.point(link, libtorch)
            self.assertEqual(link.resolve(), libtorch)
        with self.assertRaisesRegex(setup.Problem, "is not a link"):
            setup.point(one, two)


class ReadingElf(unittest.TestCase):
    def read(self, content):
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            return needed_libraries(file.name)

    def test_names_in_order(self):
        self.assertEqual(
            self.read(elf_asking_for("libb.so.1", "liba.so")), ["libb.so.1", "liba.so"]
        )

    def test_a_real_library(self):
        libraries = glob.glob(sysconfig.get_path("platstdlib") + "/lib-dynload/*-linux-gnu*.so")
        if not libraries:
            self.skipTest("this Python has no ELF modules beside it")
        asked = {name for library in libraries for name in needed_libraries(library)}
        self.assertIn("libc.so.6", asked)

    def test_garbage_is_refused_whatever_it_is(self):
        whole = elf_asking_for("liba.so")
        for content in (
            b"",
            b"#!/bin/sh\n",
            whole[:40],
            whole[:100],
            whole[:-4],
            b"\x7fELF\x01\x01" + whole[6:],
        ):
            with self.assertRaises(NotElf):
                self.read(content)

    def test_flipped_bytes_never_raise_anything_else(self):
        chance = random.Random(1)
        for _ in range(2000):
            content = bytearray(elf_asking_for("liba.so", "libb.so"))
            for _ in range(chance.randint(1, 4)):
                content[chance.randrange(len(content))] = chance.randrange(256)
            try:
                self.read(bytes(content))
            except NotElf:
                pass


if __name__ == "__main__":
    unittest.main()
