"""The sample of `make mutants`, its stored results, and its summary."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import mutants

CHANGES = [f"crates/pipeline/src/plan.rs:{n}:5: replace f{n} -> u64 with 0" for n in range(100)]


class Sample(unittest.TestCase):
    def test_a_change_keeps_its_lot_when_lines_move(self):
        moved = [change.replace("plan.rs:", "plan.rs:1") for change in CHANGES]
        drawn = [mutants.description(change) for change in mutants.drawn(CHANGES, 20, 1)]
        again = [mutants.description(change) for change in mutants.drawn(moved, 20, 1)]
        self.assertEqual(drawn, again)

    def test_a_new_change_takes_one_place_at_most(self):
        drawn = mutants.drawn(CHANGES, 20, 1)
        more = mutants.drawn([*CHANGES, "layerspec/src/lib.rs:1:1: replace g with ()"], 20, 1)
        self.assertGreaterEqual(len(set(drawn) & set(more)), 19)

    def test_another_seed_draws_others(self):
        self.assertNotEqual(mutants.drawn(CHANGES, 20, 1), mutants.drawn(CHANGES, 20, 2))


class Copy(unittest.TestCase):
    def test_what_is_equal_stays_and_what_differs_is_mended(self):
        with tempfile.TemporaryDirectory() as folder:
            checkout, tree = Path(folder) / "checkout", Path(folder) / "tree"
            (checkout / "src").mkdir(parents=True)
            subprocess.run(["git", "init", "--quiet"], cwd=checkout, check=True)
            files = {".gitignore": "/target\n", "src/a.rs": "a", "src/b.rs": "b"}
            for name, text in {**files, "target": "built"}.items():
                (checkout / name).write_text(text)
            mutants.copy(checkout, tree)
            os.utime(tree / "src/a.rs", (1, 1))
            (tree / "src/b.rs").write_text("changed")
            (tree / "src/c.rs").write_text("of another time")
            mutants.copy(checkout, tree)
            copied = [file for file in tree.rglob("*") if file.is_file()]
            self.assertEqual({str(f.relative_to(tree)): f.read_text() for f in copied}, files)
            self.assertEqual((tree / "src/a.rs").stat().st_mtime, 1)


class Results(unittest.TestCase):
    def test_a_result_counts_while_the_file_is_unchanged(self):
        change = "crates/pipeline/src/lib.rs:1:1: replace f with ()"
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "mutants.jsonl"
            self.assertEqual(mutants.read(results), {})
            mutants.append(results, {change: "caught"}, mutants.CHECKOUT)
            stored = mutants.read(results)
        key = (change, mutants.file_hash(change, mutants.CHECKOUT))
        self.assertEqual(stored, {key: "caught"})
        self.assertNotIn((change, "another file"), stored)

    def test_what_was_missed_is_listed(self):
        outcomes = {"a": "caught", "b": "missed", "c": "timeout", "d": "unviable"}
        lines, enough = mutants.summary(outcomes)
        self.assertEqual(
            lines, ["missed: b", "2 of 3 viable changes noticed; 1 did not compile"]
        )
        self.assertFalse(enough)

    def test_enough_is_95_of_100(self):
        for missed, expected in ((5, True), (6, False)):
            outcomes = {str(n): "missed" if n < missed else "caught" for n in range(100)}
            self.assertEqual(mutants.summary(outcomes)[1], expected)
        self.assertFalse(mutants.summary({"a": "unviable"})[1])


if __name__ == "__main__":
    unittest.main()
