"""curve.py, on files made here."""

import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

import curve

PROGRAM = Path(curve.__file__)


class Curve(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name, losses):
        path = self.folder / name
        lines = [
            json.dumps({"step": step, "loss": loss, "samples": 4})
            for step, loss in enumerate(losses, 1)
        ]
        path.write_text("\n".join(lines) + "\n")
        return path

    def run_it(self, *arguments):
        return subprocess.run(
            [sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=False
        )

    def test_it_says_how_far_two_runs_are_apart(self):
        done = self.run_it(
            self.file("a.jsonl", [2.0, 1.1, 1.0, 0.5]), self.file("b.jsonl", [2.0, 1.0, 1.0])
        )
        expected = [
            "3 steps in common, 1 only in a",
            "largest relative difference 1.0e-01, at step 2: 1.1 and 1",
            "final relative difference 0.0e+00, at step 3: 1 and 1",
        ]
        self.assertEqual(done.stdout.splitlines(), expected, done.stderr)

    def test_looks_at_the_model_between_steps_are_left_out(self):
        path = self.file("a.jsonl", [2.0, 1.0])
        path.write_text(path.read_text() + '{"step": 2, "epoch": 1, "validation": {"loss": 1.5}}\n')
        done = self.run_it(path, self.file("b.jsonl", [2.0, 1.0]))
        self.assertEqual(done.stdout.splitlines()[0], "2 steps in common", done.stderr)

    def test_it_draws_both_curves_and_their_distance(self):
        files = [
            self.file(name, [5 / step for step in range(1, 2001)])
            for name in ("a.jsonl", "b.jsonl")
        ]
        picture = self.folder / "c.svg"
        done = self.run_it(*files, "--svg", picture, "--names", "ours", "a < b")
        self.assertEqual(done.returncode, 0, done.stderr)
        root = xml.fromstring(picture.read_text())
        lines = [
            line.get("points").split() for line in root.iter("{http://www.w3.org/2000/svg}polyline")
        ]
        self.assertEqual(len(lines), 3)
        self.assertEqual(lines[0], lines[1])
        for points in lines:
            self.assertLessEqual(len(points), curve.POINTS)
            for point in points:
                x, y = map(float, point.split(","))
                self.assertTrue(0 <= x <= curve.WIDTH and 0 <= y <= curve.HEIGHT, point)
        self.assertIn(
            "a < b", [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        )

    def test_one_step_and_equal_losses_can_be_drawn(self):
        xml.fromstring(curve.svg({1: 0.5}, {1: 0.5}, ["a", "b"]))
        xml.fromstring(curve.svg({1: 0.5, 2: 0.5}, {1: 0.5, 2: 0.5}, ["a", "b"]))

    def test_what_is_no_loss_is_refused_with_its_place(self):
        good = self.file("good.jsonl", [1.0])
        for content, problem in [
            ('{"step":1,"loss":null}', "the loss of step 1 is no number"),
            ('{"step":1,"loss":NaN}', "the loss of step 1 is no number"),
            ('{"step":1,"loss":1}\nnonsense', "line 2 is no step: nonsense"),
            ("7", "line 1 is no step: 7"),
            ('{"step":9,"loss":1}', "no step in common"),
            ("", "no step in common"),
        ]:
            bad = self.folder / "bad.jsonl"
            bad.write_text(content)
            done = self.run_it(good, bad)
            self.assertEqual((done.returncode, problem in done.stderr), (1, True), done.stderr)

    def test_ticks_are_round_numbers(self):
        self.assertEqual(curve.ticks(0, 10), [0, 2, 4, 6, 8, 10])
        self.assertEqual([round(tick, 6) for tick in curve.ticks(0.13, 0.41)], [0.2, 0.3, 0.4])


if __name__ == "__main__":
    sys.exit(unittest.main())
