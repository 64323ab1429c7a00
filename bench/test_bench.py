"""Tests of what the benchmark computes and writes, with made-up measurements: nothing is run."""

import sys
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import figures
import page
import programs
import run
import sections
import timeline
import workloads

MACHINE = {"processor": "one", "cores": 2, "memory_gib": 4.0, "system": "Linux", "python": "3"}


def result(*pairs, **more):
    return {"machine": MACHINE, "when": "2000-01-01", "pairs": list(pairs), "load": [0.5] * len(pairs)} | more


def steps(ours, single=0.8, **more):
    return {"pytorch single": single, "pytorch 1f1b": 0.6, "pytorch gpipe": 0.5, "bossman 1f1b": ours} | more


class Figures(unittest.TestCase):
    def test_steps_that_set_things_up_do_not_count(self):
        self.assertEqual(figures.settled([9, 9, 1, 3, 2], warm_up=2), 2)

    def test_a_ratio_is_taken_within_each_pair(self):
        # The machine is ten times slower during the second pair; nobody's fault.
        self.assertEqual(figures.ratio([2, 20, 2], [1, 10, 1]), 2)

    def test_a_ratio_wants_whole_pairs(self):
        with self.assertRaises(ValueError):
            figures.ratio([1, 2], [1])

    def test_the_best_is_best_over_all_pairs(self):
        self.assertEqual(figures.best({"a": [1, 9, 9], "b": [2, 2, 2]}), "b")

    def test_a_perfect_pipeline_waits_for_one_microbatch(self):
        self.assertEqual(figures.perfect_1f1b(0.8, microbatches=8), 0.45)
        self.assertEqual(figures.perfect_1f1b(0.8, microbatches=1), 0.8)


class Page(unittest.TestCase):
    def goals(self, results):
        rows = [goal.row(results) for goal in page.goals()]
        return {(row[0], row[1]): row[2:] for row in rows}

    def test_a_goal_is_reached_or_not(self):
        what = ("P", "throughput, of PyTorch's best schedule")
        self.assertEqual(self.goals({"P": result(steps(0.4))})[what], ["1.25", "at least 1.10", "yes"])
        self.assertEqual(self.goals({"P": result(steps(0.5))})[what], ["1.00", "at least 1.10", "**no**"])
        self.assertEqual(self.goals({})[what], ["not measured", "at least 1.10", ""])

    def test_auto_is_what_counts_where_there_is_one(self):
        pairs = [steps(0.4, **{"bossman auto": 0.5})]
        self.assertEqual(page.bossmans(pairs), [0.5])
        self.assertEqual(page.bossmans([steps(0.4)]), [0.4])

    def test_one_process_is_no_schedule(self):
        self.assertEqual(list(page.series([steps(0.4, **{"pytorch single, two at once": 0.1})], "pytorch")), ["1f1b", "gpipe"])

    def test_the_furthest_prediction_counts(self):
        pair = steps(0.4, **{"predicted 1f1b": 0.36, "bossman gpipe": 0.5, "predicted gpipe": 0.51})
        self.assertAlmostEqual(page.furthest_prediction([pair]), 0.1)
        self.assertIsNone(page.furthest_prediction([steps(0.4)]))

    def test_a_page_has_a_part_for_each_workload_and_says_what_could_not_be_measured(self):
        results = {"P": result(steps(0.4, **{"predicted 1f1b": 0.42})), "H5": result(problem="it takes root\nand more")}
        spent = {"forward": 0.1, "backward for inputs": 0.11, "backward for weights": 0.02, "waiting": 0.03}
        text = page.text(results | {"timelines": {"1f1b": {"measured": {"0": spent}}}})
        self.assertIn("| BossMan 1f1b | 400 | 400 to 400 | 80.0 | 420 (+5%) |", text)
        self.assertIn("| a perfect 1F1B, from PyTorch's single process | 450 |", text)
        self.assertIn("Not measured: it takes root.", text)
        self.assertIn("| 1f1b | measured | 0 | 100 | 130 | 0 | 0 | 30 | 260 |", text)
        self.assertIn("](timeline-1f1b.svg)", text)
        self.assertNotIn("## T:", text)

    def test_the_page_is_what_was_measured(self):
        if not run.PAGE.exists():
            self.skipTest("nothing was measured yet")
        self.assertEqual(run.PAGE.read_text(encoding="utf-8"), page.text(run.saved()))

    def test_every_workload_has_a_title(self):
        self.assertEqual(list(run.measures()), list(sections.TITLES))

    def test_two_machines_are_told_apart(self):
        other = result() | {"machine": MACHINE | {"processor": "other"}}
        text = sections.machines({"P": result(steps(1)), "T": other})
        self.assertIn("P: one, 2 cores", text)
        self.assertIn("T: other, 2 cores", text)


class Choosing(unittest.TestCase):
    KNOWN = ["P", "P32", "T", "H5", "H20"]

    def test_names_and_the_beginning_of_names(self):
        self.assertEqual(run.chosen("T,P", self.KNOWN), ["P", "T"])
        self.assertEqual(run.chosen("H", self.KNOWN), ["H5", "H20"])
        self.assertEqual(run.chosen("H20", self.KNOWN), ["H20"])

    def test_another_name_is_refused(self):
        with self.assertRaisesRegex(ValueError, "--only Q: expected some of P, P32"):
            run.chosen("P,Q", self.KNOWN)


class Programs(unittest.TestCase):
    def test_the_last_line_counts(self):
        self.assertEqual(programs.last_json('worker 0 joined\n{"a": 1}\n'), {"a": 1})
        for output in ("", "ended\n"):
            with self.assertRaises(programs.Problem):
                programs.last_json(output)

    def test_what_a_failed_program_said_is_told(self):
        command = [sys.executable, "-c", "import sys; sys.exit('no torch here')"]
        with self.assertRaisesRegex(programs.Problem, "ended with 1:\nno torch here"):
            programs.report(command)

    def test_the_transport_report_is_understood(self):
        match = workloads.TRANSPORT.fullmatch("shared memory 4096 KiB round trip p50 us")
        self.assertEqual(match.groups(), ("shared memory", "4096", "round trip p50 us"))
        self.assertIsNone(workloads.TRANSPORT.fullmatch("quic 256 KiB best GB/s"))


def event(name, pid, worker, begin, length, number):
    """A trace event of step `number` as BossMan writes it."""
    args = {"step": number, "stage": worker, "microbatch": 0}
    return {"name": name, "ph": "X", "ts": begin, "dur": length, "pid": pid, "tid": worker, "args": args}


class Timeline(unittest.TestCase):
    TRACE = [
        {"name": "process_name", "ph": "M", "ts": 0, "dur": 0, "pid": 0, "tid": 0, "args": {"name": "measured"}},
        event("forward 0, stage 0", 0, 0, 100, 9000, number=1),
        event("backward for weights 0, stage 1", 0, 1, 22000, 2000, number=2),
        event("forward 0, stage 0", 0, 0, 20000, 1000, number=2),
        event("forward 0, stage 0", 1, 0, 30000, 1000, number=2),
    ]

    def test_the_last_step_is_shown_each_part_from_its_first_event(self):
        parts = timeline.read(self.TRACE)
        boxes = {(part, worker): row for part, rows in parts.items() for worker, row in rows.items()}
        self.assertEqual(list(boxes), [("measured", 0), ("measured", 1), ("predicted", 0)])
        times = [(box.begin, box.length) for row in boxes.values() for box in row]
        self.assertEqual(times, [(0, 0.001), (0.002, 0.002), (0, 0.001)])
        self.assertEqual(timeline.end(parts["measured"]), 0.004)

    def test_what_no_action_takes_is_waiting(self):
        spent = timeline.spent(timeline.read(self.TRACE)["measured"])
        self.assertEqual(spent[0], {"forward": 0.001, "waiting": 0.003})
        self.assertEqual(spent[1], {"backward for weights": 0.002, "waiting": 0.002})

    def test_a_picture_is_xml_with_a_box_for_each_event(self):
        picture = xml.fromstring(timeline.svg("a <step>", timeline.read(self.TRACE)))
        boxes = [box for box in picture.findall(".//{*}rect") if box.find("{*}title") is not None]
        widths = [float(box.get("width")) for box in boxes]
        self.assertEqual([round(width / widths[0], 1) for width in widths], [1.0, 2.0, 1.0])
        self.assertEqual(boxes[1].get("fill"), timeline.COLOURS["backward for weights"])
        self.assertEqual([entry.text for entry in picture.findall(".//{*}text")][1:3], ["forward", "backward for weights"])


if __name__ == "__main__":
    unittest.main()
