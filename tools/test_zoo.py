"""zoo.py: what counts as a result, what an error is, and the page. Needs no torch."""

import argparse
import contextlib
import io
import json
import signal
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import zoo
import zoo_models
import zoo_page

VERSIONS = {"torch": "2.11.0", "timm": "1.0.31", "importer": "abc"}


def row(case, **found):
    return {
        "model": case.name,
        "suite": case.suite,
        "made_with": case.made_with(),
        "versions": VERSIONS,
        "parameters": 1_230_000,
        "imported": True,
        "layers": 10,
        "aten": 1,
        "output": 0.0,
        "loss": 2e-8,
        "gradient": 3e-6,
        "buffer": None,
        "rounding": {},
        "workers": [1, 2],
        "cut": "stages.1",
        "checked": True,
        "seconds": 12.3,
        **found,
    }


class Fake:
    """A figure of the check."""

    def __init__(self, workers, kind, error, name="a", limit=zoo_page.LIMIT):
        self.workers, self.kind, self.error, self.name = workers, kind, error, name
        self.limit = limit


class Zoo(unittest.TestCase):
    def setUp(self):
        self.cases = zoo_models.cases()
        self.case = next(case for case in self.cases if case.name == "coat_tiny")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_the_list_has_every_model_once(self):
        self.assertEqual(len({case.key for case in self.cases}), len(self.cases))
        counts = {suite: 0 for suite in zoo_models.SUITES}
        for case in self.cases:
            counts[case.suite] += 1
            self.assertTrue(all("batch" in line for line in case.inputs), case.key)
        self.assertEqual(
            counts,
            {"classification": 80, "segmentation": 6, "video": 9, "timm": 113, "transformers": 30},
        )
        known = {case.name for case in self.cases}
        self.assertLessEqual(set(zoo_models.WITHIN), known)

    def test_a_result_counts_for_the_same_model_versions_and_importer(self):
        good = row(self.case)
        self.assertTrue(zoo.done(good, self.case, VERSIONS))
        self.assertFalse(zoo.done(None, self.case, VERSIONS))
        self.assertFalse(zoo.done(good, self.case, {**VERSIONS, "importer": "abd"}))
        self.assertFalse(zoo.done({**good, "made_with": "x: [batch]"}, self.case, VERSIONS))

    def test_the_last_row_of_a_model_counts_and_tidying_keeps_it(self):
        path = self.folder / "zoo.jsonl"
        other = self.cases[0]
        zoo.append(path, row(self.case, layers=1))
        zoo.append(path, row(other))
        zoo.append(path, row(self.case, layers=2))
        zoo.append(path, {**row(self.case), "model": "gone"})
        self.assertEqual(zoo.read(path)[self.case.key]["layers"], 2)
        zoo.tidy(path, self.cases)
        lines = path.read_text(encoding="utf-8").splitlines()
        self.assertEqual([json.loads(line)["model"] for line in lines], [other.name, "coat_tiny"])
        self.assertEqual(zoo.read(path)[self.case.key]["layers"], 2)

    def test_half_a_row_is_an_error(self):
        path = self.folder / "zoo.jsonl"
        path.write_text(json.dumps(row(self.case)) + '\n{"model": "r', encoding="utf-8")
        with self.assertRaisesRegex(SystemExit, "line 2 is no result"):
            zoo.read(path)
        self.assertEqual(zoo.read(self.folder / "none.jsonl"), {})

    def run_all(self, cases, run, **chosen):
        """The models whose rows were added, with `run` in place of a process of each."""
        results = self.folder / "zoo.jsonl"
        for program in ("bossman", "worker"):
            (self.folder / program).touch()
        chosen = {"jobs": 1, "minutes": 1, "again": False, "programs": self.folder, **chosen}
        before = len(zoo.read(results))
        with mock.patch.multiple(zoo, RESULTS=results, versions=lambda _: VERSIONS, run=run):
            with contextlib.redirect_stdout(io.StringIO()):
                zoo.run_all(argparse.Namespace(**chosen), cases)
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        return [json.loads(line)["model"] for line in lines[before:]]

    def test_models_without_a_result_come_before_those_with_an_old_one(self):
        old, fresh, new = self.cases[:3]
        results = self.folder / "zoo.jsonl"
        zoo.append(results, row(old, versions={**VERSIONS, "importer": "abb"}))
        zoo.append(results, row(fresh))
        ran = self.run_all([old, fresh, new], lambda case, *_: row(case))
        self.assertEqual(ran, [new.name, old.name])

    def test_models_run_side_by_side(self):
        both = threading.Barrier(2)

        def run(case, *_):
            both.wait(60)
            return row(case)

        self.assertEqual(len(self.run_all(self.cases[:2], run, jobs=2)), 2)

    def test_no_model_begins_after_the_time(self):
        self.assertEqual(self.run_all(self.cases, lambda case, *_: row(case), minutes=0), [])

    def test_the_processes_of_models_are_killed_with_the_run_and_none_starts_later(self):
        running, known = [], []

        def run(case, _, processes):
            known.append(processes)
            if len(known) == 2:
                while not running:
                    pass
                sys.exit("stopped")
            running.append(processes.start(["sleep", "600"]))
            running[-1].wait()

        with self.assertRaisesRegex(SystemExit, "stopped"):
            self.run_all(self.cases[:3], run, jobs=2)
        self.assertEqual({process.wait(10) for process in running}, {-signal.SIGKILL})
        with self.assertRaisesRegex(RuntimeError, "has ended"):
            known[0].start(["sleep", "600"])

    def test_models_are_chosen_by_name_and_spread_over_the_suites(self):
        chosen = zoo.chosen_cases(self.cases, ["timm/coat_tiny", "bert"], 4)
        self.assertEqual([case.key for case in chosen], ["timm/coat_tiny", "transformers/bert"])
        fourth = zoo.chosen_cases(self.cases, [], 4)
        self.assertEqual({case.suite for case in fourth}, set(zoo_models.SUITES))
        self.assertEqual(len(fourth), 20 + 2 + 3 + 29 + 8)
        with self.assertRaisesRegex(SystemExit, "no model is called nothing"):
            zoo.chosen_cases(self.cases, ["nothing"], 1)

    def test_an_error_has_a_class(self):
        for error, found in {
            "aten.roll.default in layers.0, net.py, line 3: `x.roll(1)`: BossMan has": "aten.roll",
            "torch.export cannot follow the module: no": "torch.export",
            "forward() computes in training what it does not in evaluation: a": "evaluation",
            "forward() writes to the buffer a, which only": "buffer",
            "--check: `bossman train` failed: why": "bossman",
            "--check: expected 3 losses, bossman wrote 2": "check",
            "the import took more than 30 s of CPU": "time",
            "RuntimeError: [enforce fail] can't allocate memory": "memory",
            "KeyError: 3": "other",
        }.items():
            self.assertEqual(zoo.class_of(error), found, error)

    def test_an_error_is_one_line_without_folders_of_this_machine(self):
        said = zoo.one_line("a in /opt/lib/timm/models/x.py, line 3:\n  `y / z / w`: no")
        self.assertEqual(said, "a in timm/models/x.py, line 3: `y / z / w`: no")
        said = zoo.one_line("`bossman predict /tmp/a1/predict/run.yaml --local 1`")
        self.assertEqual(said, "`bossman predict run.yaml --local 1`")
        self.assertEqual(len(zoo.one_line("x" * 1000)), 300)

    def test_a_row_keeps_the_worst_figures(self):
        kept = zoo.Row(self.folder / "row.json", self.case, VERSIONS)
        for figure in (
            Fake(1, "loss", 1e-8),
            Fake(1, "loss", 3e-8),
            Fake(2, "loss", 2e-8),
            Fake(2, "gradient", float("nan")),
            Fake(2, "gradient", 1.0, limit=0.5),
            Fake(1, "gradient", None, limit=0.3),
            Fake(2, "output", None),
            Fake(2, "cut", None, "stages.1"),
        ):
            kept.figure(figure)
        found = json.loads(kept.path.read_text(encoding="utf-8"))
        self.assertEqual(
            (found["loss"], found["gradient"], found["output"], found["workers"]),
            (3e-8, "nan", None, [1, 2]),
        )
        self.assertEqual((found["cut"], found["rounding"]), ("stages.1", {"gradient": 0.5}))
        kept.figure(Fake(3, "cut", None, "no comparison"))
        self.assertEqual(kept.found["cut"], "stages.1")
        found.update(imported=True, checked=True)
        self.assertEqual(zoo_page.state(found), "wrong")

    def test_the_end_of_the_process_tells_which_limit_it_met(self):
        chosen = argparse.Namespace(import_seconds=30, check_seconds=90)
        begun = row(self.case, imported=False, checked=False)
        for code, said, error in (
            (-signal.SIGPROF, [], "the import took more than 30 s of CPU"),
            (-signal.SIGALRM, [], "the check took more than 90 s"),
            (None, [], "took more than 330 s in all"),
            (-11, ["why"], "the process ended with -11: why"),
        ):
            found = zoo.finish(dict(begun), code, said, chosen, 330, 1.23)
            self.assertEqual((found["error"], found["seconds"]), (error, 1.2))
        good = zoo.finish(row(self.case), 0, [], chosen, 330, 5)
        self.assertEqual(zoo_page.state(good), "right")
        self.assertNotIn("error", good)


class Page(unittest.TestCase):
    def setUp(self):
        self.cases = [case for case in zoo_models.cases() if case.suite == "timm"][:6]

    def test_a_model_is_right_wrong_not_compared_or_refused(self):
        rows = [
            row(self.cases[0]),
            row(self.cases[1], gradient=2e-4),
            row(self.cases[4], gradient=2e-4, rounding={"gradient": 3e-4}),
            row(self.cases[2], checked=False, error="took | long", **{"class": "time"}),
            row(
                self.cases[3],
                imported=False,
                checked=False,
                layers=None,
                aten=None,
                output=None,
                loss=None,
                gradient=None,
                workers=[],
                cut=None,
                error="aten.roll.default in a: no",
                **{"class": "aten.roll"},
            ),
        ]
        text = zoo_page.page(self.cases, {f"timm/{one['model']}": one for one in rows})
        names = [case.name for case in self.cases]
        for line in (
            "| timm | 6 | 5 | 4 | 2 | 40 % |",
            "| **all** | 6 | 5 | 4 | 2 | 40 % |",
            "| torchvision, video | 0 | 0 | 0 | 0 |  |",
            f"| aten.roll | 1: `{names[3]}` | aten.roll.default in a: no |",
            f"| time | 1: `{names[2]}` | took \\| long |",
            f"| above 1e-4 | 1: `{names[1]}` | output 0, loss 2e-08, gradient 2e-04 |",
            f"| `{names[0]}` | `{self.cases[0].made_with()}` | 1.23 M | 10 | 1 | 0 | 2e-08 |"
            " 3e-06 |  |  | `stages.1` | 12 | right |",
            " 2e-04 |  | 3e-04 | `stages.1` | 12 | right |",
            "For 1 of the models that were run the limit is rounding.",
        ):
            self.assertIn(line + "\n", text)
        self.assertNotIn(names[5], text)
        long = [line for line in text.splitlines() if len(line) > 100 and line[0] != "|"]
        self.assertEqual(long, [])

    def test_a_model_of_which_something_is_not_compared_is_not_right(self):
        for missing in ("output", "loss", "gradient"):
            self.assertEqual(zoo_page.state(row(self.cases[0], **{missing: None})), "wrong")
        chaotic = row(self.cases[0], gradient=None, rounding={"gradient": 0.3})
        self.assertEqual(zoo_page.state(chaotic), "right")
        self.assertIn("and of 1 of these it is above 0.1", zoo_page.roundings([chaotic]))
        self.assertEqual(zoo_page.state({**chaotic, "buffer": 2e-4}), "wrong")
        sharp = row(self.cases[0], loss=2e-3, rounding={"gradient": 0.05})
        self.assertEqual(zoo_page.state(sharp), "wrong")
        sharp["rounding"]["loss"] = 0.01
        self.assertEqual(zoo_page.state(sharp), "right")
        no_parameters = row(self.cases[0], gradient=None, parameters=0)
        self.assertEqual(zoo_page.state(no_parameters), "right")

    def test_a_row_is_said_in_a_line(self):
        self.assertIn(": right: 10 layers, output 0,", zoo_page.said(row(self.cases[0])))
        failed = row(self.cases[0], checked=False, error="why")
        self.assertIn(": not compared: why (12.3 s)", zoo_page.said(failed))

    def test_the_page_is_of_the_results(self):
        written = zoo_page.PAGE.read_text(encoding="utf-8")
        self.assertEqual(zoo_page.page(zoo_models.cases(), zoo.read(zoo.RESULTS)), written)


if __name__ == "__main__":
    unittest.main()
