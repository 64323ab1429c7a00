"""check_tools.sh names each tool that is missing, with a remedy that works here. Programs that do
nothing stand in for the tools."""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "check_tools.sh"
NEEDED = re.search(
    r'^rust-version = "(.*)"', (SCRIPT.parent.parent / "Cargo.toml").read_text(), re.MULTILINE
)[1]
RUSTUP = "https://rustup.rs"
# A Python outside any virtual environment that has no pip.
PYTHON_WITHOUT_PIP = """case "$2" in *pip* | *base_prefix*) exit 1 ;; esac"""


class CheckTools(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        self.path = self.root / "bin"
        self.path.mkdir()
        for name in ("sed", "dirname"):
            (self.path / name).symlink_to(shutil.which(name))
        for name in ("c++", "python3"):
            self.stub(name)
        self.cargo(NEEDED + ".0")

    def stub(self, name, script=""):
        path = self.path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def cargo(self, version):
        self.stub("cargo", f"echo 'cargo {version} (30a34c682 2025-05-25)'")

    def without(self, name):
        (self.path / name).unlink()

    def check(self, *expected, **more):
        """Runs the script; `expected` are its lines."""
        done = subprocess.run(
            ["/bin/sh", str(SCRIPT)],
            env={"PATH": str(self.path), **more},
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.stderr.splitlines(), list(expected))
        self.assertEqual((done.returncode, done.stdout), (1 if expected else 0, ""))

    def test_nothing_is_said_if_nothing_is_missing(self):
        self.check()

    def test_an_old_cargo_is_refused_unless_rustup_gives_another(self):
        major, minor = NEEDED.split(".")[:2]
        for version in (f"{major}.{int(minor) - 1}.9", f"{major}.9.0", "0.99.0"):
            self.cargo(version)
            self.check(
                f"missing: cargo (Rust) {NEEDED} or newer, here is {version}. Get it from {RUSTUP}"
            )
        self.stub("rustup")
        self.check()
        self.without("rustup")
        for version in (f"{major}.{int(minor) + 1}.0-nightly", f"{major}.1000.0", "2.0.0"):
            self.cargo(version)
            self.check()
        for script, version in (("exit 1", "an unknown version"), ("echo cargo of.us", "of.us")):
            self.stub("cargo", script)
            self.check(
                f"missing: cargo (Rust) {NEEDED} or newer, here is {version}. Get it from {RUSTUP}"
            )

    def test_cargo_comes_from_rustup_where_no_package_brings_it(self):
        self.without("cargo")
        self.check(f"missing: cargo (Rust). Get it from {RUSTUP}")
        for manager, told in (
            ("brew", f"Get it from {RUSTUP}"),
            ("dnf", f"Get it from {RUSTUP}"),
            ("pacman", f"Install it with: sudo pacman -S rustup, or get it from {RUSTUP}"),
            ("apt-get", f"Install it with: sudo apt-get install rustup, or get it from {RUSTUP}"),
        ):
            self.stub(manager)
            self.check(f"missing: cargo (Rust). {told}")
            self.without(manager)

    def test_the_compiler_may_have_arguments(self):
        self.without("c++")
        self.stub("ccache")
        self.check(CXX="ccache g++")
        self.stub("dnf")
        for more, name in (({}, "c++"), ({"CXX": "clang++ -stdlib=libc++"}, "clang++")):
            self.check(
                f"missing: a C++ compiler ({name}). Install it with: sudo dnf install gcc-c++",
                **more,
            )

    def test_a_virtual_environment_without_pip_needs_no_package(self):
        environment = self.root / "environment"
        command = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
        subprocess.run(command, check=True)
        python = self.path / "python3"
        self.stub("apt-get")
        self.stub("python3", f'exec "{environment}/bin/python3" "$@"')
        self.check(
            f"missing: pip for {python}. Run `python3 -m ensurepip`, or leave the virtual "
            "environment"
        )
        self.stub("python3", PYTHON_WITHOUT_PIP)
        self.check(f"missing: pip for {python}. Install it with: sudo apt-get install python3-pip")

    def test_an_old_python_is_as_good_as_none(self):
        told = "missing: python3 (3.8 or newer). Install it with: brew install python"
        self.stub("brew")
        self.stub("python3", "exit 1")
        self.check(told)
        self.without("python3")
        self.check(told)


if __name__ == "__main__":
    unittest.main()
