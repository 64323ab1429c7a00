"""`bossman check` accepts every model file of the examples. Without the program there is nothing to
test."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

import setup_libtorch

BOSSMAN = Path(
    os.environ.get("BOSSMAN") or setup_libtorch.CHECKOUT / "target" / "debug" / "bossman"
)
EXAMPLES = setup_libtorch.CHECKOUT / "examples"


@unittest.skipUnless(BOSSMAN.is_file(), "needs bossman")
class Examples(unittest.TestCase):
    def test_every_model_file_is_right(self):
        models = [
            path
            for path in EXAMPLES.glob("*/*.yaml")
            if "\nlayers:\n" in path.read_text(encoding="utf-8")
        ]
        self.assertGreater(len(models), 7)
        for model in sorted(models):
            with self.subTest(model=model.relative_to(EXAMPLES)):
                done = subprocess.run(
                    [BOSSMAN, "check", model],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    sys.exit(unittest.main())
