"""gpu_page.py, on a program made here."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import gpu_page
import gpu_peer

DRIVER = {
    "device": "cuda:0",
    "processor": "cuda NVIDIA H100 80GB HBM3",
    "cuda": "CUDA 13.0 driver, cuda:0 NVIDIA H100 80GB HBM3",
    "libtorch": "2.11.0",
    "memory_total": 80 * 2**30,
    "memory_free": None,
}
SPEED = {
    "tokens_a_step": 4096,
    "tokens_per_s_1_worker": 120000.0,
    "step_ms_1_worker": 34.1,
    "tflop_s_1_worker": 20.0,
    "peak_bytes_1_worker": 11 * 2**29,
    "tokens_per_s_2_workers": 90000.0,
    "step_ms_2_workers": 45.5,
    "tflop_s_2_workers": 15.0,
    "peak_bytes_2_workers": None,
}


def line(section, figures, problem=None):
    return {
        "section": section,
        "ok": problem is None,
        "seconds": 1.25,
        "text": None if problem else "as it should be",
        "figures": figures,
        "problem": problem,
    }


def of(lines, preset="small", found=None):
    return gpu_page.page(lines, preset, "2026-01-02", found or {"problem": "it was not there"})


class Page(unittest.TestCase):
    def test_a_cell_is_short(self):
        self.assertEqual(gpu_page.cell({"case": "rnn", "error": 6.7e-5}), "case rnn, error 6.7e-05")
        self.assertEqual(gpu_page.cell("a" * 1000), "a" * gpu_page.LONGEST + "..")

    def test_a_page_has_the_device_the_sections_and_the_figures(self):
        products = line("device.products", {"bfloat16_tflop_s": 40.0})
        lines = [line("device.driver", DRIVER), products, line("speed.gpt", SPEED)]
        text = of(lines, found={"version": "2.11.0", "speed.gpt": {"eager": 0.04096}})
        for part in [
            "# Self-check of NVIDIA H100 80GB HBM3\n\nAll 3 sections of the self-check are",
            "| driver | CUDA 13.0 driver, cuda:0 NVIDIA H100 80GB HBM3 |\n",
            "| memory | 80.0 GiB |\n| date | 2026-01-02 |\n| preset | small |\n",
            "| device.driver | ok | 1.2 | as it should be |\n",
            "| gpt in bf16, one device | tokens/s | step, ms | TFLOP/s | of products | peak, GiB |",
            "| BossMan, one worker | 120,000 | 34.1 | 20 | 50% | 5.5 |\n",
            "| BossMan, two workers | 90,000 | 45.5 | 15 | 38% | - |\n",
            "| PyTorch 2.11.0, eager | 100,000 | 40.96 | 16.65 | 42% | - |\n",
            "\n\nThe peak is the most memory that tensors had at one time, and of two workers the",
            "| speed.gpt | peak_bytes_1_worker | 5,905,580,032 |\n",
            "| speed.gpt | step_ms_2_workers | 45.5 |\n",
        ]:
            self.assertIn(part, text)
        self.assertNotIn("memory_free", text)
        self.assertNotIn("peak_bytes_2_workers", text)
        self.assertNotIn("not a real GPU", text)

    def test_what_pytorch_says_beside_times_is_told(self):
        lines = [line("device.driver", DRIVER), line("speed.gpt", SPEED)]
        its = {
            "compiled": 0.03,
            "eager": 0.04,
            "peak_bytes": 3 * 2**29,
            "forms": {"layers": 0.05, "attention": 0.04},
        }
        text = of(lines, found={"version": "2.11.0", "speed.gpt": its})
        self.assertIn("| PyTorch 2.11.0, eager | 102,400 | 40 | 17.05 |  | 1.5 |\n", text)
        self.assertIn("| PyTorch 2.11.0, compiled | 136,533 | 30 | 22.73 |  | - |\n", text)
        self.assertIn("is the faster of: `layers` 50 ms, `attention` 40 ms.\n", text)
        self.assertLess(text.index("2.11.0, eager"), text.index("2.11.0, compiled"))
        self.assertNotIn("PyTorch's eager run took", text)
        self.assertNotIn("did not compile", text)
        its = {"eager": 0.04, "not compiled": "OSError: no\ncompiler"}
        found = {"version": "2.11.0", "speed.gpt": its, "rest": "PyTorch took longer than 5 s"}
        text = of(lines, found=found)
        self.assertIn("| PyTorch 2.11.0, eager |", text)
        self.assertNotIn("2.11.0, compiled", text)
        self.assertIn("\nPyTorch did not compile it: OSError: no compiler\n", text)
        self.assertIn("\nPyTorch took longer than 5 s; what it had not measured", text)

    def test_a_page_of_no_real_gpu_says_so_first(self):
        driver = {**DRIVER, "processor": "cuda fake GPU"}
        text = of([line("device.driver", driver)], "tiny")
        first = text.split("\n\n")[1]
        self.assertIn("preset tiny", first)
        self.assertIn("not a real GPU", first)
        text = of([line("device.driver", {"device": "cpu", "processor": "x86_64"})])
        self.assertIn("not a real GPU", text.split("\n\n")[1])

    def test_what_failed_and_what_was_skipped_is_named(self):
        lines = [
            line("cuts", {}, "the losses | differ\nfrom step 2 on"),
            line("speed", {"skipped": "preset tiny"}),
        ]
        text = of(lines)
        self.assertIn("these failed: cuts.", text)
        self.assertIn("| cuts | failed | 1.2 | the losses \\| differ from step 2 on |\n", text)
        self.assertIn("| speed | skipped | 1.2 | preset tiny |\n", text)
        self.assertIn("\nIt was not there.\n", text)
        self.assertIn("gave no results", of([]))

    def test_pytorch_is_only_asked_where_it_is_there_and_speed_is_known(self):
        measured = [line("device.driver", DRIVER), line("speed.gpt", SPEED)]
        # Another folder has a module of that name, too.
        without = types.SimpleNamespace(version=lambda: None)
        with mock.patch.object(gpu_page, "pytorch", without):
            self.assertEqual(gpu_page.peer(measured, "small"), {"problem": "PyTorch was not there"})
        self.assertIn("not measured", gpu_page.peer(measured[:1], "small")["problem"])


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def program(self, lines, code):
        """A program that prints these lines, as in an unpacked archive."""
        path = self.folder / "bin" / "bossman"
        path.parent.mkdir()
        said = "\n".join(lines)
        path.write_text(f'#!/bin/sh\ncat <<"END"\n$ {said}\nEND\necho "$@" >&2\nexit {code}\n')
        path.chmod(0o755)

    def test_lines_are_shown_and_the_page_is_written_even_if_something_failed(self):
        lines = [json.dumps(line("device.driver", DRIVER)), json.dumps(line("cuts", {}, "broken"))]
        self.program(["no JSON", *lines], 1)
        to = self.folder / "new" / "gpu.md"
        command = [sys.executable, gpu_page.__file__, "--programs", self.folder, "--to", to]
        done = subprocess.run(
            [*command, "--preset", "tiny", "--device", "cuda:0"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stderr, "self-check --json --preset tiny --device cuda:0\n")
        self.assertEqual(done.stdout, "\n".join(["$ no JSON", *lines, f"written to {to}", ""]))
        self.assertIn("| cuts | failed | 1.2 | broken |", to.read_text(encoding="utf-8"))

    def test_a_folder_without_programs_is_an_error(self):
        with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()):
            gpu_page.program_in(self.folder)
        self.assertIn("holds neither bossman nor bin/bossman", str(ended.exception.code))


class Asking(unittest.TestCase):
    """What is known of PyTorch after its program ended in some way."""

    LINES = [line("device.driver", DRIVER), line("speed.gpt", SPEED)]

    def peer(self, program, named=None, limit=3):
        """Runs this program instead of tools/gpu_peer.py."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "peer.py"
            path.write_text(f"import sys, time\n{program}\n", encoding="utf-8")
            there = types.SimpleNamespace(version=lambda: "2.11.0")
            with mock.patch.multiple(gpu_page, PEER=path, PEER_LIMIT=limit, pytorch=there):
                return gpu_page.peer(self.LINES, "small", named)

    SAYS = (
        'print(\'{"version": "2.11.0"}\')\nprint("a warning")\n'
        'print(\'{"model": "speed.gpt", "eager": 0.5}\', flush=True)\n'
    )

    def test_lines_of_a_model_are_put_together(self):
        more = 'print(\'{"model": "speed.gpt", "compiled": 0.25}\')'
        both = {"eager": 0.5, "compiled": 0.25}
        found = self.peer(self.SAYS + more, limit=60)
        self.assertEqual(found, {"version": "2.11.0", "speed.gpt": both})

    def test_a_time_limit_or_a_failure_loses_only_what_was_not_measured(self):
        known = {"version": "2.11.0", "speed.gpt": {"eager": 0.5}}
        late = self.peer(self.SAYS + 'print(\'{"mod\', end="", flush=True)\ntime.sleep(60)')
        self.assertEqual(late, {**known, "rest": "PyTorch took longer than 3 s"})
        failed = self.peer(self.SAYS + 'sys.exit("out of memory")', limit=60)
        self.assertEqual(failed, {**known, "rest": "PyTorch failed: out of memory"})

    def test_without_figures_there_is_only_the_reason(self):
        for program, problem in [
            ("sys.exit(2)", "PyTorch failed: no reason given"),
            ("print(7)", "PyTorch's figures cannot be read"),
            ('print(\'{"problem": "it has no CUDA"}\')', "it has no CUDA"),
        ]:
            self.assertEqual(self.peer(program, limit=60), {"problem": problem})
        late = self.peer("time.sleep(60)", limit=0.2)
        self.assertEqual(late, {"problem": "PyTorch took longer than 0.2 s"})

    def test_a_gpu_that_was_named_by_its_uuid_is_asked_by_it(self):
        program = 'print(\'{"version": "\' + sys.argv[2] + \'"}\')'
        for named, device in [
            (None, "cuda:0"),
            ("cuda:0,cuda:1", "cuda:0"),
            ("GPU-6f2f,GPU-41b3", "GPU-6f2f"),
        ]:
            self.assertEqual(self.peer(program, named, 60)["version"], device)


class Peer(unittest.TestCase):
    def test_pytorch_has_the_sizes_of_the_presets(self):
        preset = gpu_page.CHECKOUT / "bossman/src/self_check/preset.rs"
        text = preset.read_text(encoding="utf-8")
        for name, words in [
            ("small", "Preset::Small | Preset::Large => Sizes {"),
            ("large", "Preset::Large => Some(Sizes {"),
        ]:
            sizes = dict(re.findall(r"(\w+): (\d+),", text.split(words)[1].split("}")[0]))
            for key, size in gpu_peer.SIZES[name].items():
                self.assertEqual(int(sizes[key]), size, f"{name} {key}")

    def test_the_models_are_those_of_the_page(self):
        self.assertEqual(list(gpu_peer.MODELS), list(gpu_page.TIMED))

    def figures(self, times, compile_problem=None):
        """The lines of a model with forms that take these times."""

        def measure(_torch, _device, made, compiled):
            if compiled and compile_problem:
                raise RuntimeError(compile_problem)
            return made / 2 if compiled else made

        forms = {
            name: lambda _torch, _device, _preset, time=time: time for name, time in times.items()
        }
        torch = types.SimpleNamespace(manual_seed=lambda _: None)
        with mock.patch.dict(gpu_peer.MODELS, {"speed.gpt": forms}):
            with mock.patch.object(gpu_peer, "measure", measure):
                return list(gpu_peer.figures(torch, "cpu", "small", "speed.gpt"))

    def test_the_faster_form_counts_and_is_compiled(self):
        times = {"slow": 8.0, "fast": 6.0}
        [eager, compiled] = self.figures(times)
        self.assertEqual(eager, {"model": "speed.gpt", "eager": 6.0, "forms": times})
        self.assertEqual(compiled, {"model": "speed.gpt", "compiled": 3.0})

    def test_why_a_model_was_not_compiled_is_told(self):
        [eager, compiled] = self.figures({"": 8.0}, "no compiler")
        self.assertEqual(eager, {"model": "speed.gpt", "eager": 8.0})
        problem = "RuntimeError: no compiler"
        self.assertEqual(compiled, {"model": "speed.gpt", "not compiled": problem})

    def test_a_uuid_makes_its_gpu_the_only_one(self):
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="1"):
            self.assertEqual(gpu_peer.visible("cuda:1"), "cuda:1")
            self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], "1")
            self.assertEqual(gpu_peer.visible("GPU-6f2f"), "cuda:0")
            self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], "GPU-6f2f")


if __name__ == "__main__":
    unittest.main()
