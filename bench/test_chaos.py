"""Tests of what chaos.py draws, reads and writes; nothing is run but a process that sleeps."""

import queue
import sys
import tempfile
import unittest
from collections import Counter
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import chaos
import faults
import faults_page
import star
import world


def outcome(kinds, still, recoveries=1):
    struck = tuple(faults.Fault(kind, 1.0, 0.0, 0.1) for kind in kinds)
    return faults.Outcome(faults.Strike(1.0, struck, 1.0), still, recoveries)


class Drawing(unittest.TestCase):
    def test_the_same_seed_draws_the_same(self):
        def draw(seed):
            return list(islice(faults.draw(seed, list(faults.SECONDS), 0.2), 50))

        self.assertEqual(draw(1), draw(1))
        self.assertNotEqual(draw(1), draw(2))

    def test_each_kind_comes_equally_often_and_lasts_as_it_should(self):
        strikes = islice(faults.draw(3, list(faults.SECONDS), 0.2), 400)
        struck = [fault for strike in strikes for fault in strike.faults]
        counts = Counter(fault.kind for fault in struck)
        self.assertEqual(counts.keys(), faults.SECONDS.keys())
        self.assertLessEqual(max(counts.values()) - min(counts.values()), 1)
        for fault in struck:
            least, most = faults.SECONDS[fault.kind]
            self.assertTrue(
                least <= fault.seconds <= most
                and 0 <= fault.whom < 1
                and 0.01 <= fault.share <= 0.2,
                fault,
            )

    def test_some_strikes_are_of_two_faults(self):
        counts = Counter(
            len(strike.faults) for strike in islice(faults.draw(0, ["kill"], 0.2), 500)
        )
        self.assertEqual(counts.keys(), {1, 2})
        self.assertTrue(60 <= counts[2] <= 140, counts)


class Table(unittest.TestCase):
    def rows(self, outcomes, equal):
        strikes = [outcome.measured() for outcome in outcomes]
        table = faults_page.chaos({"strikes": strikes, "equal": equal})[0]
        return table.splitlines()[2:]

    def test_a_row_for_each_kind_and_one_for_all(self):
        outcomes = [
            outcome(["kill"], 3),
            outcome(["kill"], 5),
            outcome(["pause"], 1, recoveries=0),
            outcome(["cut", "kill"], 9),
        ]
        lines = self.rows(outcomes, True)
        self.assertEqual(lines[0], "| a worker is killed (SIGKILL) | 2 | 0 | 4.00, 5.00 | yes |")
        self.assertEqual(lines[1].split(" | ", 1)[1], "1 | 1 | 1.00, 1.00 | yes |")
        self.assertEqual(lines[2], "| two of these at once | 1 | 0 | 9.00, 9.00 | yes |")
        self.assertEqual(lines[3], "| all | 4 | 1 | 4.00, 9.00 | yes |")
        self.assertTrue(all("**no**" in line for line in self.rows(outcomes, False)))

    def test_nothing_given_is_no_row(self):
        self.assertEqual(self.rows([], True), [])

    def test_every_kind_has_a_name(self):
        self.assertEqual(list(faults.NAMES), [*faults.SECONDS, "two at once"])


class Metrics(unittest.TestCase):
    def test_the_last_whole_step_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "metrics.jsonl"
            self.assertEqual(world.last_step(path), 0)
            path.write_text(
                '{"step":1,"loss":2.5}\n{"step":12,"loss":null}\n'
                '{"step":12,"epoch":1}\n{"step":13,"lo'
            )
            self.assertEqual(world.last_step(path), 12)

    def test_the_clock_is_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "metrics.jsonl"
            path.write_text('{"step":1,"loss":2.5,"step_ms":7}\n')
            self.assertEqual(chaos.metrics(path), [{"step": 1, "loss": 2.5}])


class RunFile(unittest.TestCase):
    def test_all_presets_say_how_long_and_where_checkpoints_are(self):
        with tempfile.TemporaryDirectory() as folder:
            for preset in chaos.EVERY:
                text = chaos.run_file(
                    Path(folder), "run", preset, 77, ["replicas: 2"], True
                ).read_text()
                self.assertEqual(text.count("\nsteps:"), 1, text)
                self.assertIn("\nsteps: 77\nreplicas: 2\ncheckpoint: {dir: ", text)
                self.assertNotIn(
                    "checkpoint",
                    chaos.run_file(Path(folder), "run", preset, 77, [], False).read_text(),
                )


class Programs(unittest.TestCase):
    def test_a_program_is_heard_and_ends(self):
        heard = queue.Queue()
        command = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]
        program = world.Program("one", command, None, heard)
        self.addCleanup(program.process.wait)
        self.addCleanup(program.process.kill)
        self.assertEqual(heard.get(timeout=60), (program, "here"))
        self.assertTrue(program.runs() and program.wanted)
        program.end()
        program.process.wait(timeout=60)
        program.reader.join(timeout=60)
        program.process.stdout.close()
        self.assertFalse(program.runs() or program.wanted)


class Star(unittest.TestCase):
    def test_lines_share_no_address_and_devices_have_names_that_fit(self):
        found = [address for number in range(8) for address in star.addresses(number)]
        self.assertEqual(len(set(found)), 16)
        self.assertLessEqual(len(f"{star.end(7)}m"), 15)


if __name__ == "__main__":
    unittest.main()
