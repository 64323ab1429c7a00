"""Tests of run_tests.py."""

import argparse
import contextlib
import io
import os
import sys
import unittest
from pathlib import Path
from unittest import mock

import run_tests
from run_tests import Job, Result

TESTS = ["pool::joins", "pool_checkpoints::resumes", "law_1::in_memory::skip", "pool::leaves"]


def job(tests):
    return Job("pipeline it", ["it"], Path("."), tests)


class Splitting(unittest.TestCase):
    def test_a_large_program_is_split_by_its_modules_and_each_test_runs_once(self):
        jobs = run_tests.jobs_of(("tests", "it", "deps/it", Path("tests")), [*TESTS, "alone"])
        self.assertEqual(
            [(job.title, job.command) for job in jobs],
            [
                ("tests pool", ["deps/it", "--exact", "pool::joins", "pool::leaves"]),
                ("tests pool_checkpoints", ["deps/it", "--exact", "pool_checkpoints::resumes"]),
                ("tests law_1", ["deps/it", "--exact", "law_1::in_memory::skip"]),
                ("tests", ["deps/it", "--exact", "alone"]),
            ],
        )
        self.assertEqual([job.tests for job in jobs], [2, 1, 1, 1])

    def test_other_programs_run_whole(self):
        for program in [("pipeline", "it"), ("tests", "tests")]:
            jobs = run_tests.jobs_of((*program, "deps/it", Path(".")), TESTS)
            self.assertEqual([(job.command, job.tests) for job in jobs], [(["deps/it"], 4)])

    def test_the_longest_jobs_start_first(self):
        self.assertLess(run_tests.rank("tests law_1"), run_tests.rank("tests verify"))
        self.assertLess(run_tests.rank("tests verify"), run_tests.rank("tests losses"))

    def test_a_list_is_read(self):
        listed = "law_1::in_memory::skip: test\nsrc/lib.rs - x (line 3): test\nfast: benchmark\n"
        found = run_tests.LISTED.findall(listed)
        self.assertEqual(found, ["law_1::in_memory::skip", "src/lib.rs - x (line 3)"])


class Times(unittest.TestCase):
    def test_only_test_programs_are_asked_for_times(self):
        self.assertEqual(run_tests.timed(job(1)).command, ["it", *run_tests.TIMED_BY_LIBTEST])
        examples = job(None)
        self.assertEqual(run_tests.timed(examples), examples)

    def test_the_slowest_tests_are_listed_with_their_job(self):
        outputs = [
            ("link", "test a::b ... ok <0.250s>\ntest c ... FAILED <11.000s>\n"),
            ("shm", "test d - should panic ... ok <2.000s>\nnote: no test\n"),
        ]
        expected = ["  11.0 s  link: c", "   2.0 s  shm: d - should panic", "   0.2 s  link: a::b"]
        self.assertEqual(run_tests.slowest_lines(outputs), expected)


class OnTheFakeGpu(unittest.TestCase):
    PROGRAM = ("tests", "it", "deps/it", Path("tests"))
    TESTS = ["law_1::in_memory::skip", "law_1::over_sockets::convnet", "writing::lines"]

    def jobs(self, problem):
        with mock.patch.object(run_tests, "why_no_fake_gpu", return_value=problem):
            return run_tests.gpu_jobs(self.PROGRAM, self.TESTS, {"FAKECUDA_SEED": "7"})

    def test_chosen_tests_run_on_it(self):
        [found] = self.jobs(None)
        self.assertEqual(found.title, "gpu law_1")
        self.assertEqual(found.command[-2:], ["--exact", "law_1::in_memory::skip"])
        self.assertEqual((found.tests, found.environment["FAKECUDA_SEED"]), (1, "7"))
        self.assertEqual(found.environment["BOSSMAN_TEST_DEVICE"], "cuda")

    def test_skipped_tests_are_counted_with_the_reason_and_refused_where_they_are_needed(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            with mock.patch.dict(os.environ, BOSSMAN_NEEDS_FAKE_GPU=""):
                self.assertEqual(self.jobs("no compiler"), [])
            with mock.patch.dict(os.environ, BOSSMAN_NEEDS_FAKE_GPU="1"):
                self.assertRaises(SystemExit, self.jobs, "no compiler")
        lines = said.getvalue().splitlines()
        self.assertEqual(lines, ["1 of 1 GPU tests skipped: no compiler"] * 2)

    def test_the_chosen_tests_of_the_worker_are_there(self):
        sources = (run_tests.CHECKOUT / "worker" / "src").rglob("*.rs")
        text = "".join(path.read_text(encoding="utf-8") for path in sources)
        for test in run_tests.ON_FAKE_GPU["worker", "worker"]:
            self.assertIn(f"fn {test.rpartition('::')[2]}()", text)

    def test_other_programs_do_not_run_on_it(self):
        program = ("worker", "worker", "deps/worker", Path("worker"))
        self.assertEqual(run_tests.gpu_jobs(program, self.TESTS, {}), [])


class Seeds(unittest.TestCase):
    PROGRAMS = [
        ("worker", "worker", "deps/worker", Path("worker")),
        ("tests", "it", "deps/it", Path("tests")),
    ]

    def jobs(self, seeds, cuts):
        """The jobs, and the calls that found whether there is a fake GPU."""
        tests = ["law_1::in_memory::skip", "losses::mse", "writing::lines"]
        with mock.patch.object(run_tests, "tests_of", return_value=tests):
            with mock.patch.object(run_tests, "why_no_fake_gpu", return_value=None) as asked:
                return run_tests.seed_jobs(self.PROGRAMS, seeds, cuts), asked.call_count

    def test_one_seed_comes_after_the_other(self):
        found, asked = self.jobs(range(7, 9), None)
        titles = [f"gpu {name} seed {seed}" for seed in (7, 8) for name in ("law_1", "losses")]
        self.assertEqual([job.title for job in found], titles)
        seeds = [job.environment["FAKECUDA_SEED"] for job in found]
        self.assertEqual(seeds, ["7", "7", "8", "8"])
        self.assertEqual(asked, 1, "once for each program that has such tests")

    def test_all_cuts_run_unless_a_number_is_given(self):
        for cuts, expected in [(None, None), (3, "3")]:
            for job in self.jobs(range(1, 2), cuts)[0]:
                self.assertEqual(job.environment.get("BOSSMAN_LAW_1_CUTS"), expected)

    def test_seeds_are_a_number_or_a_range(self):
        self.assertEqual(list(run_tests.seeds_of("3")), [1, 2, 3])
        self.assertEqual(list(run_tests.seeds_of("7-9")), [7, 8, 9])
        self.assertEqual(list(run_tests.seeds_of("7-7")), [7])
        for wrong in ["", "0", "-3", "9-7", "0-2", "7-", "x", "1-2-3"]:
            self.assertRaises(argparse.ArgumentTypeError, run_tests.seeds_of, wrong)
        self.assertEqual(run_tests.at_least_one("2"), 2)
        for wrong in ["", "0", "-1", "x"]:
            self.assertRaises(argparse.ArgumentTypeError, run_tests.at_least_one, wrong)

    def test_a_job_that_takes_too_long_names_its_seed_and_the_command_that_repeats_it(self):
        waits = ["sh", "-c", "exec sleep 60"]
        seed = {"FAKECUDA_SEED": "7", "BOSSMAN_TEST_DEVICE": "cuda"}
        late = Job("gpu law_1 seed 7", waits, Path("/tmp"), 1, seed)
        with mock.patch.object(run_tests, "TIME_LIMIT", 0.1):
            result = run_tests.run(late)
        self.assertFalse(result.succeeded)
        self.assertEqual(
            result.output.splitlines()[-2:],
            [
                "stopped after 0.1 s with FAKECUDA_SEED=7; repeat it with",
                "cd /tmp && env CARGO_MANIFEST_DIR=/tmp FAKECUDA_SEED=7 BOSSMAN_TEST_DEVICE=cuda"
                " sh -c 'exec sleep 60'",
            ],
        )
        with mock.patch.dict(os.environ, clear=True):
            fake = late._replace(command=[str(run_tests.FAKE_GPU), "it"], environment={})
            self.assertIn(" s with FAKECUDA_SEED=1; ", run_tests.stopped(fake))
        self.assertNotIn("SEED", run_tests.stopped(job(3)))

    def test_tests_on_the_fake_gpu_are_counted_with_their_time(self):
        results = [
            Result("", "", 4, 1, False, 2.25, 1.0, True),
            Result("", "", 2, 0, True, 1.5, 1.0, True),
            Result("", "", 9, 0, True, 100.0, 1.0, False),
        ]
        line = run_tests.fake_gpu_line(results)
        self.assertEqual(line, "7 tests on the fake GPU in 4 s, 2 s of processor time")
        self.assertIsNone(run_tests.fake_gpu_line(results[2:]))
        with mock.patch.object(run_tests, "FAKE_GPU", Path("true")):
            self.assertTrue(run_tests.run(Job("a", ["true"], Path("/"))).on_fake_gpu)
        self.assertFalse(run_tests.run(Job("a", ["true"], Path("/"))).on_fake_gpu)

    def test_the_work_of_a_job_and_of_what_it_started_is_counted(self):
        busy = f"{sys.executable} -c 'sum(range(3_000_000))'; true"
        result = run_tests.run(Job("a", ["sh", "-c", busy], Path("/")))
        self.assertGreater(result.worked, 0.02)
        self.assertIn(f" {result.seconds:.1f} s, {result.worked:.1f} s of proc", result.line)

    def test_a_program_that_is_left_behind_holds_no_job_up(self):
        left = "sleep 30 & echo 'test result: ok. 1 passed; 0 failed; 0 ignored;'"
        result = run_tests.run(Job("a", ["sh", "-c", left], Path("/"), 1))
        self.assertTrue(result.succeeded, result)
        self.assertLess(result.seconds, 25)

    def test_a_job_ends_as_its_program_does(self):
        for command, succeeds in [("true", True), ("exit 3", False), ("kill -9 $$", False)]:
            result = run_tests.run(Job("a", ["sh", "-c", command], Path("/")))
            self.assertEqual(result.succeeded, succeeds, command)


class OnRealGpus(unittest.TestCase):
    PROGRAM = ("tests", "it", "deps/it", Path("tests"))
    TESTS = ["by_hand::steps", *run_tests.WITH_NCCL]

    def jobs(self, gpus):
        """The tests that run, and what is said of the others."""
        said = io.StringIO()
        with mock.patch.object(run_tests, "tests_of", return_value=self.TESTS):
            with mock.patch.object(run_tests, "count_gpus", return_value=gpus):
                with contextlib.redirect_stdout(said):
                    found = run_tests.real_gpu_jobs([self.PROGRAM], 3)
        for job in found:
            cuda = {"BOSSMAN_TEST_DEVICE": "cuda", "BOSSMAN_LAW_1_CUTS": "3"}
            self.assertEqual(job.environment, cuda)
            self.assertEqual(job.command[:4], ["deps/it", "--test-threads", "1", "--exact"])
            self.assertEqual(job.tests, len(job.command[4:]))
        return [test for job in found for test in job.command[4:]], said.getvalue().splitlines()

    def test_without_enough_gpus_the_tests_with_nccl_are_skipped_and_counted(self):
        two = "1 of 3 GPU tests skipped: NCCL needs two GPUs"
        three = "1 of 3 GPU tests skipped: NCCL needs three GPUs"
        self.assertEqual(self.jobs(1), (self.TESTS[:1], [two, three]))
        pair = "collective::two_replicas_come_to_the_same_as_with_frames"
        self.assertEqual(self.jobs(2), ([self.TESTS[0], pair], [three]))
        self.assertEqual(self.jobs(3), (self.TESTS, []))

    def test_the_tests_with_nccl_are_known(self):
        folder = run_tests.CHECKOUT / "tests" / "tests" / "it"
        for test in run_tests.WITH_NCCL:
            self.assertIn(test, run_tests.ON_FAKE_GPU["tests", "it"])
            module, name = test.split("::")
            text = (folder / f"{module}.rs").read_text(encoding="utf-8")
            self.assertIn(f"fn {name}()", text)

    def test_gpus_are_counted_without_their_slices(self):
        listed = "GPU 0: NVIDIA A100 (UUID: GPU-a)\n  MIG 3g.20gb Device 0: (UUID: MIG-a)\n"
        done = mock.Mock(stdout=f"{listed}GPU 1: NVIDIA A100 (UUID: GPU-b)\n")
        with mock.patch.object(run_tests.subprocess, "run", return_value=done):
            self.assertEqual(run_tests.count_gpus(), 2)
        with mock.patch.object(run_tests.subprocess, "run", side_effect=FileNotFoundError):
            self.assertEqual(run_tests.count_gpus(), 0)


class Verdicts(unittest.TestCase):
    RESULT = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out\n"

    def test_every_test_ran(self):
        self.assertEqual(run_tests.verdict(job(3), True, self.RESULT), (2, 0, None))
        self.assertEqual(run_tests.verdict(job(None), True, self.RESULT * 2), (4, 0, None))

    def test_a_test_that_is_left_out_or_runs_twice_is_a_failure(self):
        for tests in (2, 4):
            passed, failed, problem = run_tests.verdict(job(tests), True, self.RESULT)
            self.assertEqual((passed, failed), (2, 0))
            self.assertEqual(problem, f"FAILED: 3 of {tests} tests ran")

    def test_a_program_without_a_result_is_a_failure(self):
        self.assertEqual(run_tests.verdict(job(3), False, "killed"), (0, 0, "FAILED"))


if __name__ == "__main__":
    unittest.main()
