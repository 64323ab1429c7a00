"""The recipes of the Makefile find what cargo builds. Programs that build nothing stand in for
cargo and for the set-up."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

MAKEFILE = Path(__file__).resolve().parent.parent / "Makefile"
# Does what matters of `cargo build --release`: puts a program into the target folder.
CARGO = """\
#!/bin/sh
release="${CARGO_TARGET_DIR:-from-config.toml}/release"
mkdir -p "$release"
printf '#!/bin/sh\\necho "bossman $*"\\n' >"$release/bossman"
chmod +x "$release/bossman"
"""


@unittest.skipUnless(shutil.which("make"), "needs make")
class Makefile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        # A space, because a checkout may lie below a folder whose name has one.
        self.root = Path(folder.name).resolve() / "the checkout"
        (self.root / "tools").mkdir(parents=True)
        shutil.copy(MAKEFILE, self.root)
        for name in ("check_tools.sh", "setup_libtorch.py"):
            (self.root / "tools" / name).touch()
        self.programs = self.root.parent / "programs"
        self.programs.mkdir()
        cargo = self.programs / "cargo"
        cargo.write_text(CARGO)
        cargo.chmod(0o755)

    def make(self, target, **more):
        """Runs `make` as from a shell, also if these tests run below another `make`."""
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        left_out = ("CARGO_TARGET_DIR", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        return subprocess.run(
            ["make", target],
            cwd=self.root,
            env={**kept, "PATH": path, **more},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def test_demo_and_build_end_well_whatever_target_folder_the_user_has_set(self):
        elsewhere = self.root.parent / "elsewhere"
        for target, told in (
            ("demo", "bossman train examples/digits/run.yaml --local 2"),
            ("build", ""),
        ):
            for more in ({}, {"CARGO_TARGET_DIR": str(elsewhere)}):
                with self.subTest(target=target, **more):
                    done = self.make(target, **more)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertIn(told, done.stdout.splitlines()[-1])
        self.assertTrue((self.root / "target/release/.all-formats").exists())
        self.assertFalse(elsewhere.exists())


if __name__ == "__main__":
    unittest.main()
