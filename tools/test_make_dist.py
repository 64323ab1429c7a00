"""The archive's script links a libtorch of the right version, and refuses all else with a
remedy."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import make_dist

SCRIPT = make_dist.CHECKOUT / "tools/dist/link_libtorch.sh"


class LinkLibtorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "dist/bin").mkdir(parents=True)
        for program in make_dist.PROGRAMS:
            path = self.root / "dist/bin" / program
            path.write_text(f"#!/bin/sh\necho {program} started\n")
            path.chmod(0o755)
        self.script = self.root / "dist/link_libtorch.sh"
        self.script.write_bytes(SCRIPT.read_bytes())

    def torch(self, name, library="libtorch_cpu.so", **files):
        folder = self.root / name
        (folder / "lib").mkdir(parents=True)
        (folder / "lib" / library).touch()
        for file, text in files.items():
            (folder / file.replace("__", ".").replace("_", "-")).write_text(text)
        return folder

    def run_script(self, *args, path=os.environ["PATH"]):
        command = ["/bin/sh", str(self.script), *map(str, args)]
        return subprocess.run(
            command, capture_output=True, text=True, env={"PATH": path}, timeout=20
        )

    def test_links_an_archive_and_a_wheel(self):
        archive = self.torch("archive", build_version="2.11.0+cpu\n")
        wheel = self.torch("wheel", version__py="from x import y\n__version__ = '2.11.1+cu130'\n")
        mac = self.torch("mac", "libtorch_cpu.dylib", build_version="2.11.0\n")
        for torch in (archive, wheel, mac, archive):
            done = self.run_script(torch)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout, "bossman started\nworker started\n")
            self.assertEqual((self.root / "dist/libtorch").resolve(), torch.resolve())

    def test_refuses_with_a_remedy(self):
        cases = [
            (self.root / "none", "holds no lib/libtorch_cpu: name the folder that holds lib/"),
            (
                self.torch("old", build_version="2.10.0\n"),
                "is version 2.10.0; the programs need 2.11",
            ),
            (
                self.torch("newer", build_version="2.110.0\n"),
                "is version 2.110.0; the programs need 2.11",
            ),
            (self.torch("unknown"), "is version unknown; the programs need 2.11"),
        ]
        for folder, problem in cases:
            done = self.run_script(folder)
            self.assertEqual((done.returncode, done.stderr), (1, f"{folder} {problem}\n"))
        tools = self.root / "tools"
        tools.mkdir()
        (tools / "dirname").symlink_to("/usr/bin/dirname")
        self.assertIn("pip install torch==2.11.*", self.run_script(path=str(tools)).stderr)

    def test_the_newest_glibc_counts(self):
        program = self.root / "program"
        program.write_bytes(b"\0GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.17\0")
        self.assertEqual(make_dist.newest_glibc(program), (2, 34))

    def test_only_linux_is_told_of_glibc(self):
        linux, mac = make_dist.readme("Linux"), make_dist.readme("Darwin")
        glibc = "The programs need glibc 2.34 or newer. "
        self.assertEqual(linux.count(glibc), 1)
        self.assertEqual(mac, linux.replace(glibc, ""))

    def test_a_large_archive_is_refused(self):
        archive = self.root / "bossman.tar.gz"
        archive.touch()
        os.truncate(archive, make_dist.MOST_MIB * 2**20)
        self.assertEqual(make_dist.check_size(archive), make_dist.MOST_MIB)
        os.truncate(archive, make_dist.MOST_MIB * 2**20 + 2**20)
        with self.assertRaises(SystemExit) as ended:
            make_dist.check_size(archive)
        self.assertIn("has 41.0 MiB, more than 40: look for", str(ended.exception.code))


if __name__ == "__main__":
    unittest.main()
