"""Tests of what the benchmark computes and writes, with made-up measurements: nothing is run."""

import ast
import contextlib
import io
import sys
import unittest
import unittest.mock
import xml.etree.ElementTree as xml
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_commands
import build_times
import faults
import faults_page
import figures
import note
import page
import pages
import programs
import readme
import result_files
import run
import sections
import timeline
import workloads

MACHINE = {"processor": "one", "cores": 2, "memory_gib": 4.0, "system": "Linux", "python": "3"}


def result(*pairs, **more):
    return {
        "machine": MACHINE,
        "when": "2000-01-01",
        "pairs": list(pairs),
        "load": [0.5] * len(pairs),
        **more,
    }


def measurements(text):
    """The typed times, rates and shares of a text, outside code."""
    return note.MEASUREMENT.findall(note.CODE.sub("", text))


def steps(ours, single=0.8, **more):
    return {
        "pytorch single": single,
        "pytorch 1f1b": 0.6,
        "pytorch gpipe": 0.5,
        "bossman 1f1b": ours,
        **more,
    }


class Figures(unittest.TestCase):
    def test_steps_that_set_things_up_do_not_count(self):
        self.assertEqual(figures.settled([9, 9, 1, 3, 2], warm_up=2), 2)

    def test_lists_of_unequal_length_are_no_pairs(self):
        with self.assertRaisesRegex(ValueError, "1 values beside 2"):
            figures.ratio([1], [1, 2])

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
        self.assertEqual(
            self.goals({"P": result(steps(0.4))})[what], ["1.25", "at least 1.10", "yes"]
        )
        self.assertEqual(
            self.goals({"P": result(steps(0.5))})[what], ["1.00", "at least 1.10", "**no**"]
        )
        self.assertEqual(self.goals({})[what], ["not measured", "at least 1.10", ""])

    def test_auto_is_what_counts_where_there_is_one(self):
        pairs = [steps(0.4, **{"bossman auto": 0.5})]
        self.assertEqual(page.bossmans(pairs), [0.5])
        self.assertEqual(page.bossmans([steps(0.4)]), [0.4])

    def test_one_process_is_no_schedule(self):
        self.assertEqual(
            list(page.series([steps(0.4, **{"pytorch single, two at once": 0.1})], "pytorch")),
            ["1f1b", "gpipe"],
        )

    def test_the_furthest_prediction_counts(self):
        pair = steps(0.4, **{"predicted 1f1b": 0.36, "bossman gpipe": 0.5, "predicted gpipe": 0.51})
        self.assertAlmostEqual(page.furthest_prediction([pair]), 0.1)
        self.assertIsNone(page.furthest_prediction([steps(0.4)]))

    def test_a_page_has_a_part_for_each_workload_and_says_what_could_not_be_measured(self):
        results = {
            "P": result(steps(0.4, **{"predicted 1f1b": 0.42})),
            "H5": result(problem="it takes root\nand more"),
        }
        spent = {
            "forward": 0.1,
            "backward for inputs": 0.11,
            "backward for weights": 0.02,
            "waiting": 0.03,
        }
        text = page.text({**results, "timelines": {"1f1b": {"measured": {"0": spent}}}})
        self.assertIn("| BossMan 1f1b | 400 | 400 to 400 | 80.0 | 420 (+5%) |", text)
        self.assertIn("| a perfect 1F1B, from PyTorch's single process | 450 |", text)
        self.assertIn("Not measured: it takes root.", text)
        self.assertIn("| 1f1b | measured | 0 | 100 | 130 | 0 | 0 | 30 | 260 |", text)
        self.assertIn("](timeline-1f1b.svg)", text)
        self.assertNotIn("## T:", text)

    def test_every_page_is_what_was_measured(self):
        for path, text in pages.texts().items():
            problem = f"{path.name}: run `python3 bench/run.py --page`"
            self.assertEqual(path.read_text(encoding="utf-8"), text, problem)

    def test_every_workload_has_a_title(self):
        self.assertEqual(list(run.measures()), list(sections.TITLES))

    def test_two_machines_are_told_apart(self):
        other = {**result(), "machine": {**MACHINE, "processor": "other"}}
        text = sections.machines({"P": result(steps(1)), "T": other})
        self.assertIn("P: one, 2 cores", text)
        self.assertIn("T: other, 2 cores", text)


class Notes(unittest.TestCase):
    def test_a_note_takes_its_figures_from_the_results(self):
        pairs = {"one": [1, 2], "another": [2, 4]}
        self.assertEqual(note.filled("{ratio one / another} of it", pairs), "0.50 of it")
        with self.assertRaises(KeyError):
            note.filled("{ratio one / nothing}", pairs)

    def test_no_note_has_a_typed_figure(self):
        self.assertEqual(note.typed_figures("1.24 times, `256 KiB`, {ratio a 2 / b}"), ["1.24"])
        for path in sections.NOTES.glob("*.md"):
            self.assertEqual(note.typed_figures(path.read_text(encoding="utf-8")), [], path.name)


class Faults(unittest.TestCase):
    """The page of faults, from results as the scripts store them."""

    WHERE = {
        "machine": MACHINE,
        "when": "2000-01-01",
        "commit": "abc",
        "load": [0.5],
        "command": "bench/some.py --kills 2",
    }
    SAME = {"steps": 60, "seconds": 14.2, "quiet_seconds": 9.8, "tensors": 52, "equal": 51}

    def page(self, name, result):
        text = faults_page.text({name: {**self.WHERE, **result}})
        self.assertIn("`bench/some.py --kills 2` on one, 2 cores, on 2000-01-01", text)
        self.assertEqual(text.count(faults_page.NOT_MEASURED), len(faults_page.SECTIONS) - 1)
        return text

    def test_a_page_without_results_has_no_figure(self):
        self.assertEqual(measurements(faults_page.text({"P": result(), "D-slow": result()})), [])

    def test_the_cost_of_checkpoints_is_a_ratio_within_pairs(self):
        pairs = [{"without": 2.0, "with": 2.2}, {"without": 4.0, "with": 4.0}]
        text = self.page("K-checkpoint", {"what": "checkpoint", "every": 20, "pairs": pairs})
        self.assertIn("| checkpoint | 20 | 2 | 3.00 | 3.10 | 1.050 | 1.000 to 1.100 |", text)

    def test_the_state_of_a_model_has_peaks_times_and_a_rate(self):
        run = {"boss": 300_000_000, "workers": [2_000_000_000, 1_000_000_000]}
        without = {**run, "step_ms": [9000.0, 4000.0, 4100.0, 4000.0]}
        having = {**run, "step_ms": [9000.0, 4000.0, 5000.0, 4000.0]}
        pairs = [{"without": without, "with": having}]
        lost = {**run, "restore_s": [2.0, 1.0, 2.0]}
        more = {"every": 2, "steps": 4, "state_bytes": 1_600_000_000, "restored": lost}
        text = self.page("L-smol", {**more, "pairs": pairs, "fresh_page_us": 1.44})
        self.assertIn("| checkpoints | 300 | 2000 | 1000 | 13.0 | 1.25 |", text)
        self.assertIn("in 2.00, 2.00 s (median, worst), 0.80 GB/s", text.replace("\n", " "))
        self.assertIn("| time with checkpoints / without | 1.07 | 1.03 | no |", text)
        self.assertIn("| longest step / usual one, with checkpoints | 1.25 | 1.20 | no |", text)
        self.assertIn("| s for a GB of state, with a killed worker | 1.25 | 1.00 | no |", text)
        boss = "| MB of the boss with killed workers / without checkpoints, plus 267 |"
        self.assertIn(f"{boss} 0.53 | 1.00 | yes |", text)
        self.assertIn("memory took 1.4 us", text.replace("\n", " "))
        line = {"mbit": 300, "line": 36e6, "bytes": 1_600_000_000, "seconds": 50.0}
        text = self.page("L-smol-line", line)
        self.assertIn("| rate of the line / rate of the state | 1.12 | 1.11 | no |", text)
        text = self.page("L-random", {**run, "bytes": 10_000_000_000, "seconds": 41.4})
        self.assertIn("| 10.0 | 41 | 300 | 2000, 1000 |", text)

    def test_losses_have_a_row_for_each_signal_and_one_for_all(self):
        kill = {"signal": "SIGKILL", "notice": 0.1, "workers": 0.2, "state": 0.3, "redo": 0.1}
        losses = [kill, {**kill, "notice": 0.3}, {**kill, "signal": "SIGSTOP", "notice": 3.0}]
        text = self.page("R-gpt", {**self.SAME, "losses": losses})
        parts = "0.20, 0.20 | 0.30, 0.30 | 0.10, 0.10 |"
        self.assertIn(f"| SIGKILL | 2 | 0.80, 0.90 | 0.20, 0.30 | {parts}", text)
        self.assertIn(f"| all | 3 | 0.90, 3.60 | 0.30, 3.00 | {parts}", text)
        self.assertIn("  3.5 to 4.0  # 1\n```", text)
        self.assertIn("60 steps took 14 s with losses and 10 s without. 51 of 52 tensors", text)

    def test_a_pool_is_told_in_words(self):
        counts = {"joins": 3, "SIGTERM": 1, "SIGKILL": 2, "every": 5.0}
        text = self.page("J", {**self.SAME, **counts})
        self.assertIn("3 joins, 1 leaves and 2 kills, one every 5 s: 60 steps took 14 s", text)

    def test_chaos_is_a_part_of_the_page(self):
        strike = {"fault": "kill", "still": 3.0, "recoveries": 1, "stood": 0.0}
        text = self.page("C-digits", {"strikes": [strike], "equal": True})
        self.assertIn(f"| {faults.NAMES['kill']} | 1 | 0 | 3.00, 3.00 | yes |", text)


class ResultFiles(unittest.TestCase):
    def test_a_name_says_what_was_asked(self):
        also = ["replicas: 2", "redundancy: {neighbour: 1}"]
        self.assertEqual(
            result_files.name("C", "digits", *also), "C-digits-replicas-2-redundancy-neighbour-1"
        )

    def test_a_command_is_as_it_is_typed(self):
        words = ["/x/bench/chaos.py", "--keep", "--also", "replicas: 2"]
        with unittest.mock.patch.object(sys, "argv", words):
            self.assertEqual(result_files.command(), "bench/chaos.py --also 'replicas: 2'")

    def test_a_header_names_machine_day_and_commit(self):
        header = result_files.header()
        self.assertEqual(list(header), ["machine", "when", "commit", "load"])


class Prose(unittest.TestCase):
    """No measurement is typed into the prose of a page."""

    def test_measurements_are_told_from_other_numbers(self):
        text = "0.5 s, 12 MB/s and 45.4 %, in 97 % of 200 steps of `5 ms`, PyTorch 2.11, 256 KiB"
        self.assertEqual(measurements(text), ["0.5 s", "12 MB/s", "45.4 %", "97 %"])
        self.assertEqual(measurements("half of the 2 seconds; f:.0%"), ["2 seconds"])

    def test_no_page_is_written_with_a_typed_measurement(self):
        for module in (page, sections, faults_page, readme, build_commands):
            tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
            words = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
            typed = [found for text in words for found in measurements(str(text))]
            self.assertEqual(typed, [], module.__name__)

    def test_no_measurement_is_typed_into_readme(self):
        text = readme.README.read_text(encoding="utf-8")
        self.assertEqual(text.count(readme.BEGIN), 1)
        self.assertEqual(text.count(readme.END), 1)
        self.assertEqual(measurements(readme.prose(text)), [])


class Readme(unittest.TestCase):
    def test_only_what_was_measured_is_shown(self):
        self.assertNotIn("throughput", readme.block({}))
        text = readme.block({"P": result(steps(0.4)), "N": result(problem="no gloo")})
        self.assertIn("| a pipeline's throughput, of the best PyTorch schedule's | 1.25 |", text)
        self.assertEqual(len([line for line in text.splitlines() if line.startswith("| ")]), 3)

    def test_all_outside_the_marks_stays(self):
        text = readme.text({})
        self.assertEqual(readme.prose(text), readme.prose(readme.README.read_text("utf-8")))


class BuildTimes(unittest.TestCase):
    DEMO = "step 9: loss 0.1\ntest accuracy 97.53 %, loss 0.1\n"

    def results(self):
        header = {**Faults.WHERE, "commit": "abc"}
        demo = build_times.measured(header, 434.0, False, self.DEMO)
        return {"demo": demo, "test": build_times.measured(header, 1800.0, True, "ok")}

    def test_what_was_measured_is_on_the_page_and_in_readme(self):
        results = {build_commands.NAME: self.results()}
        text = page.text(results)
        self.assertIn("## Build times", text)
        end = "2 | 0.5 | 2000-01-01 | abc | one |"
        self.assertIn(f"| `make demo` from nothing | 7.2 | downloaded | {end}", text)
        self.assertIn(f"| `make test` from nothing | 30.0 | at hand | {end}", text)
        self.assertNotIn("make check", text)
        told = "took 7.2 minutes on 2 cores and reached 97.53 % test accuracy."
        self.assertIn(f"`make demo` from nothing {told}", readme.block(results))
        self.assertNotIn("accuracy", self.results()["test"])

    def test_nothing_measured_is_not_told(self):
        self.assertNotIn("## Build times", page.text({}))
        self.assertEqual(build_commands.sentence({}), "")

    def commands(self, names, reuse):
        plan = build_times.plan(names, Path("/place"), Path("/none"), reuse)
        return [(name, " ".join(command)) for name, command in plan]

    def test_from_nothing_has_no_crates_and_no_built_files(self):
        demo = self.commands(["demo"], reuse=False)[1:]
        deleted = "rm -rf /place/clone/target /place/cargo"
        made = "mkdir -p /place/cargo"
        self.assertEqual(demo, [(None, deleted), (None, made), ("demo", "make demo")])
        reused = self.commands(["demo"], reuse=True)[1:]
        self.assertEqual(reused, [(None, "rm -rf /place/clone/target"), ("demo", "make demo")])

    def test_a_warm_check_comes_after_another_and_an_edit(self):
        check = self.commands(["check"], reuse=True)[1:]
        edited = (None, f"sed -i 1i // A new line. {build_commands.EDITED}")
        self.assertEqual(check, [(None, "make check"), edited, ("check", "make check")])
        self.assertTrue((programs.CHECKOUT / build_commands.EDITED).is_file())

    def test_a_failed_command_is_told(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            seconds, output = build_times.timed([sys.executable, "-c", "print(7)"], None, None)
        self.assertEqual(said.getvalue(), output)
        self.assertEqual((output, seconds > 0), ("7\n", True))
        with self.assertRaisesRegex(programs.Problem, "ended with 3; see above"):
            build_times.timed([sys.executable, "-c", "raise SystemExit(3)"], None, None)


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
    return {
        "name": name,
        "ph": "X",
        "ts": begin,
        "dur": length,
        "pid": pid,
        "tid": worker,
        "args": args,
    }


class Timeline(unittest.TestCase):
    TRACE = [
        {
            "name": "process_name",
            "ph": "M",
            "ts": 0,
            "dur": 0,
            "pid": 0,
            "tid": 0,
            "args": {"name": "measured"},
        },
        event("forward 0, stage 0", 0, 0, 100, 9000, number=1),
        event("backward for weights 0, stage 1", 0, 1, 22000, 2000, number=2),
        event("forward 0, stage 0", 0, 0, 20000, 1000, number=2),
        event("forward 0, stage 0", 1, 0, 30000, 1000, number=2),
    ]

    def test_the_last_step_is_shown_each_part_from_its_first_event(self):
        parts = timeline.read(self.TRACE)
        boxes = {
            (part, worker): row for part, rows in parts.items() for worker, row in rows.items()
        }
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
        self.assertEqual(
            [entry.text for entry in picture.findall(".//{*}text")][1:3],
            ["forward", "backward for weights"],
        )


if __name__ == "__main__":
    unittest.main()
