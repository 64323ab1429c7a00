"""Tests of cuda_variant.py, and of setup_libtorch.py with a CUDA build from an index: a script in
place of nvidia-smi, a folder served on this machine in place of PyTorch's index and PyPI."""

import contextlib
import functools
import hashlib
import http.server
import io
import os
import tempfile
import threading
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import cuda_variant
import setup_libtorch as setup
from cuda_variant import Gpu, Machine, NoVariant
from test_setup_libtorch import elf_asking_for

GTX_980, GTX_1080, V100 = Gpu("GTX 980", (5, 2)), Gpu("GTX 1080", (6, 1)), Gpu("V100", (7, 0))
T4, A100, RTX_3090 = Gpu("T4", (7, 5)), Gpu("A100", (8, 0)), Gpu("RTX 3090", (8, 6))
RTX_4090, H100, B200 = Gpu("RTX 4090", (8, 9)), Gpu("H100", (9, 0)), Gpu("B200", (10, 0))
B300, THOR, RTX_5090 = Gpu("B300", (10, 3)), Gpu("Thor", (11, 0)), Gpu("RTX 5090", (12, 0))
GB10, K80, NEXT = Gpu("GB10", (12, 1)), Gpu("K80", (3, 7)), Gpu("Next", (14, 0))
UNKNOWN = Gpu("Mystery")

WHOLE = [  # driver, GPUs, the build that serves them all
    ("580.65.06", [T4], "cu130"),
    ("580.65.06", [A100, RTX_3090, RTX_4090, H100], "cu130"),
    ("590.44.01", [B200, B300], "cu130"),
    ("1000.1", [RTX_5090, GB10], "cu130"),
    ("580", [H100], "cu130"),
    ("579.99", [H100], "cu128"),
    ("575.57.08", [RTX_5090], "cu128"),
    ("570.26", [T4, B200], "cu128"),
    ("569.0", [T4, H100], "cu126"),
    ("550.54.14", [RTX_4090], "cu126"),
    ("525.60.13", [A100], "cu126"),
    ("580.65.06", [GTX_980], "cu126"),
    ("580.65.06", [GTX_1080], "cu126"),
    ("580.65.06", [V100, V100], "cu126"),
    ("570.86.15", [V100, H100], "cu126"),
    ("580.65.06", [UNKNOWN], "cu130"),
    ("535.54.03", [UNKNOWN], "cu126"),
    ("580.65.06", [UNKNOWN, V100], "cu126"),
    ("580.65.06", [], "cu130"),
    ("570.86.15", [], "cu128"),
    ("545.23.06", [], "cu126"),
    (None, [H100], "cu130"),
    (None, [GTX_1080], "cu126"),
    (None, [], "cu130"),
]
PART = [  # driver, GPUs, the build that serves most, what is said of the others
    (
        "580.65.06",
        [GTX_1080, RTX_5090, RTX_5090],
        "cu130",
        "torch for cu130; not used: GTX 1080 (compute capability 6.1): "
        "BOSSMAN_TORCH_VARIANT=cu126 would serve it",
    ),
    (
        "580.65.06",
        [V100, GTX_1080, RTX_5090],
        "cu126",
        "torch for cu126; not used: RTX 5090 (compute capability 12.0): "
        "BOSSMAN_TORCH_VARIANT=cu130 would serve it",
    ),
    (
        "575.57.08",
        [V100, RTX_5090],
        "cu128",
        "torch for cu128; not used: V100 (compute capability 7.0): "
        "BOSSMAN_TORCH_VARIANT=cu126 would serve it",
    ),
    (
        "580.65.06",
        [K80, K80, T4],
        "cu130",
        "torch for cu130; not used: K80 (compute capability 3.7): none of cu130, cu128, cu126 is "
        "built for it on x86_64",
    ),
    (
        "550.54.14",
        [RTX_5090, A100],
        "cu126",
        "torch for cu126; not used: RTX 5090 (compute capability 12.0): the driver is 550.54.14, "
        "update it to 570 or newer",
    ),
]
NONE = [  # driver, GPUs, why
    ("470.82.01", [T4], r"T4 \(.* 7.5\): the driver is 470.82.01, update it to 525 or newer;"),
    ("470.82.01", [UNKNOWN], r"Mystery: the driver is 470.82.01, update it to 525 or newer"),
    ("470.82.01", [], r"the NVIDIA GPU: the driver is 470.82.01, update it to 525 or newer"),
    ("524.9", [V100, V100], r"V100 [^V]*: the driver is 524.9, .* 525 or newer, at most 580;"),
    ("560.35.03", [RTX_5090], r"RTX 5090 .*: the driver is 560.35.03, update it to 570 or newer"),
    ("580.65.06", [K80], r"K80 .*: none of cu130, cu128, cu126 is built for it on x86_64"),
    ("580.65.06", [NEXT], r"Next .*14.0\): none of cu130, cu128, cu126 is built for it"),
    ("580.65.06", [THOR], r"Thor .*11.0\): none of cu130, cu128, cu126 is built for it"),
    ("470.82.01", [K80, T4], r"K80 .*none of .*, T4 .*the driver is 470.82.01, update it to 525"),
]
ARM = [
    ("580.65.06", [H100, GB10, RTX_3090], "cu130"),
    ("580.65.06", [THOR], "cu130"),
    ("570.86.15", [H100, B200], "cu128"),
    ("550.54.14", [H100], "cu126"),
    ("580.65.06", [T4], None),
    ("570.86.15", [THOR], None),
]


class Choosing(unittest.TestCase):
    def test_the_newest_build_that_serves_every_gpu(self):
        for driver, gpus, variant in WHOLE:
            with self.subTest(driver=driver, gpus=list(map(str, gpus))):
                chosen = cuda_variant.choose(Machine(driver, gpus))
                self.assertEqual(chosen, (variant, None))

    def test_the_build_that_serves_most_gpus_and_a_line_on_the_others(self):
        for driver, gpus, variant, line in PART:
            for order in (gpus, gpus[::-1]):
                with self.subTest(driver=driver, gpus=list(map(str, order))):
                    chosen = cuda_variant.choose(Machine(driver, order))
                    self.assertEqual(chosen, (variant, line))

    def test_no_build_is_one_line_with_a_remedy(self):
        for driver, gpus, why in NONE:
            with self.subTest(driver=driver, gpus=list(map(str, gpus))):
                with self.assertRaises(NoVariant) as raised:
                    cuda_variant.choose(Machine(driver, gpus))
                line = str(raised.exception)
                self.assertRegex(line, rf"^no CUDA build of torch 2\.11\.0 fits here: {why}")
                self.assertRegex(line, r"; or use the CPU with BOSSMAN_TORCH_VARIANT=cpu$")
                self.assertNotIn("\n", line)

    def test_the_builds_for_arm_hold_fewer_kinds(self):
        for driver, gpus, variant in ARM:
            with self.subTest(driver=driver, gpus=list(map(str, gpus))):
                machine = Machine(driver, gpus, "aarch64")
                if variant:
                    self.assertEqual(cuda_variant.choose(machine), (variant, None))
                else:
                    self.assertRaises(NoVariant, cuda_variant.choose, machine)

    def test_the_variable_takes_known_names_only(self):
        for name in ("cpu", "cu126", "cu128", "cu130"):
            self.assertEqual(cuda_variant.wanted({"BOSSMAN_TORCH_VARIANT": name}), name)
        self.assertIsNone(cuda_variant.wanted({}))
        self.assertIsNone(cuda_variant.wanted({"BOSSMAN_TORCH_VARIANT": ""}))
        with self.assertRaisesRegex(NoVariant, "=cu121 is unknown: use one of cpu, cu130, cu128"):
            cuda_variant.wanted({"BOSSMAN_TORCH_VARIANT": "cu121"})


class WithFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.programs = self.folder / "programs"
        self.programs.mkdir()

    def nvidia_smi(self, script):
        """Puts a script in place of nvidia-smi, which sees the fields that are asked for."""
        program = self.programs / "nvidia-smi"
        program.write_text(f'#!/bin/sh\ncase "$1" in\n{script}\nesac\n')
        program.chmod(0o755)

    def environment(self, **variables):
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        changed = mock.patch.dict(os.environ, {"PATH": path, **variables})
        changed.start()
        self.addCleanup(changed.stop)


class AskingTheMachine(WithFolder):
    def machine(self):
        """What is found with nothing but the script on PATH and `proc` in place of /proc."""
        with mock.patch.dict(os.environ, {"PATH": str(self.programs)}):
            return Machine.this("x86_64", self.folder / "proc")

    def proc(self, version, *models):
        for number, model in enumerate(models):
            gpu = self.folder / "proc" / "gpus" / f"0000:{number:02}:00.0"
            gpu.mkdir(parents=True)
            (gpu / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 41\n")
        (self.folder / "proc").mkdir(exist_ok=True)
        (self.folder / "proc" / "version").write_text(f"NVRM version: {version}\nGCC version: 12\n")

    def assert_found(self, driver, gpus):
        found = self.machine()
        self.assertEqual(found.driver, driver)
        self.assertEqual([(gpu.name, gpu.compute) for gpu in found.gpus], gpus)

    def test_a_machine_without_a_gpu(self):
        self.assertIsNone(self.machine())
        self.nvidia_smi("*) echo No devices were found; exit 6;;")
        self.assertIsNone(self.machine())

    def test_nvidia_smi_tells_driver_names_and_compute_capabilities(self):
        self.nvidia_smi(
            "--query-gpu=name,driver_version,compute_cap) "
            "echo 'NVIDIA H100 80GB HBM3, 570.86.15, 9.0'; "
            "echo 'Quadro P4000, 570.86.15, 6.1'; echo 'Odd, 570.86.15, [N/A]';;"
        )
        self.assert_found(
            "570.86.15",
            [("NVIDIA H100 80GB HBM3", (9, 0)), ("Quadro P4000", (6, 1)), ("Odd", None)],
        )

    def test_an_old_nvidia_smi_does_not_know_compute_capabilities(self):
        self.nvidia_smi(
            "*compute_cap*) echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2;;\n"
            "*) echo 'Tesla T4, 470.82.01';;"
        )
        self.assert_found("470.82.01", [("Tesla T4", None)])

    def test_without_nvidia_smi_the_driver_itself_tells(self):
        self.proc("NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39", "Tesla T4")
        self.assert_found("535.54.03", [("Tesla T4", None)])
        self.nvidia_smi("*) echo 'Failed to initialize NVML'; exit 18;;")
        self.assert_found("535.54.03", [("Tesla T4", None)])

    def test_the_open_driver_tells_too(self):
        self.proc("NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root)")
        self.assert_found("580.65.06", [])

    def test_a_driver_of_an_unknown_form_is_unknown(self):
        self.proc("something else")
        self.assert_found(None, [])


def wheel(folder, name, version, files, requires=(), tag="py3-none-any"):
    """A wheel in `folder`, as small as pip takes it."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    files = {
        **files,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/RECORD": "",
    }
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)


TORCH = {
    "torch/lib/libtorch_cpu.so": elf_asking_for("libc10.so", "libcudart.so.12", "libc.so.6"),
    "torch/lib/libtorch_cuda.so": elf_asking_for("libc10.so"),
    "torch/include/torch.h": b"",
    "torch/version.py": "__version__ = '2.11.0+cu126'\n",
    "torch/nn/functional.py": b"not needed",
}
ON_LINUX = 'platform_system == "Linux"'
ONE_BY_ONE = [
    "filelock",
    f"nvidia-cuda-runtime-cu12==12.6.77; {ON_LINUX}",
    f"nvidia-cublas-cu12==12.6.4.1; {ON_LINUX}",
    f"triton==3.6.0; {ON_LINUX}",
]
BY_TOOLKIT = [
    f"cuda-toolkit[cublas,cudart]==12.6.3; {ON_LINUX}",
    f"nvidia-nccl-cu12==2.28.9; {ON_LINUX}",
]


class Handler(http.server.SimpleHTTPRequestHandler):
    """The folders of an index, with the links of a name escaped as PyTorch's index does it."""

    def __init__(self, *arguments, asked, **named):
        self.asked = asked
        super().__init__(*arguments, **named)

    def list_directory(self, path):
        self.asked.append(self.path)
        links = "".join(
            f'<a href="{file.name.replace("+", "%2B")}'
            f'#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}">{file.name}</a>\n'
            for file in sorted(Path(path).glob("*.whl"))
        )
        page = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        return io.BytesIO(page)

    def log_message(self, *_):
        pass


class FetchingFromAnIndex(WithFolder):
    def setUp(self):
        super().setUp()
        self.site, self.asked = self.folder / "site", []
        self.site.mkdir()
        handler = functools.partial(Handler, directory=str(self.site), asked=self.asked)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.base = f"http://127.0.0.1:{server.server_port}"
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            self.addCleanup(os.environ.__setitem__, name, os.environ.pop(name))
        self.environment(
            PIP_CONFIG_FILE=os.devnull,
            PIP_INDEX_URL=f"{self.base}/pypi",
            PIP_RETRIES="0",
            no_proxy="127.0.0.1",
            NO_PROXY="127.0.0.1",
        )
        self.said, self.loaded = [], []
        changed = mock.patch.object(setup, "say", self.said.append)
        changed.start()
        self.addCleanup(changed.stop)

    def publish_torch(self, variant, requires):
        self.torch(self.site / "whl" / variant / "torch", f"2.11.0+{variant}", requires)

    def torch(self, folder, version, requires):
        tag = "cp312-cp312-manylinux_2_28_x86_64"
        wheel(folder, "torch", version, TORCH, requires, tag)

    def publish(self, name, version, requires=(), at="pypi"):
        files = {} if requires else {f"nvidia/{name}/lib/lib.so": b""}
        wheel(self.site / at / name.replace("_", "-"), name, version, files, requires)

    def publish_libraries(self, at="pypi"):
        self.publish("nvidia_cuda_runtime_cu12", "12.6.77", at=at)
        self.publish("nvidia_cublas_cu12", "12.6.4.1", at=at)
        self.publish("nvidia_nccl_cu12", "2.28.9", at=at)
        marker = "(sys_platform == 'linux' or sys_platform == 'win32') and extra =="
        pins = [
            f"nvidia-cublas-cu12==12.6.4.1.*; {marker} 'all'",
            f"nvidia-cublas-cu12==12.6.4.1.*; {marker} 'cublas'",
            f"nvidia-cuda-runtime-cu12==12.6.77.*; {marker} 'cudart'",
            f"nvidia-npp-cu12==12.3.1.54.*; {marker} 'npp'",
        ]
        self.publish("cuda_toolkit", "12.6.3", pins, at=at)

    def host(self, variant="cu126"):
        gpu = variant != "cpu"
        return setup.Host("Linux", "x86_64", gpu, variant, f"{self.base}/whl/")

    def fetch(self, host):
        with open(self.folder / "pip", "a") as file, contextlib.redirect_stderr(file):
            errors = os.dup(2)
            os.dup2(file.fileno(), 2)  # pip's
            try:
                return setup.fetch(self.folder / "cache", host, load=self.loaded.append)
            finally:
                os.dup2(errors, 2)
                os.close(errors)

    def libraries(self, libtorch):
        return sorted(folder.name for folder in (libtorch.parent / "nvidia").iterdir())

    def test_torch_comes_from_the_index_and_its_libraries_from_pypi(self):
        self.publish_torch("cu126", ONE_BY_ONE)
        self.publish_torch("cu128", [])
        self.publish_libraries()
        libtorch = self.fetch(self.host())
        self.assertEqual(libtorch.parent.name, "libtorch-2.11.0-linux-x86_64-cu126")
        self.assertEqual(
            self.libraries(libtorch), ["nvidia_cublas_cu12", "nvidia_cuda_runtime_cu12"]
        )
        self.assertEqual(setup.version_of(libtorch), "2.11.0")
        self.assertIn("+cu126", (libtorch / "version.py").read_text())
        self.assertTrue((libtorch.parent / "torch-2.11.0+cu126.dist-info").is_dir())
        self.assertFalse((libtorch / "nn").exists())
        self.assertEqual(
            [library.name for library in self.loaded], ["libtorch_cpu.so", "libtorch_cuda.so"]
        )
        self.assertIn("fetching torch 2.11.0+cu126", self.said)
        self.assertNotIn("/pypi/torch/", self.asked)
        self.assertEqual(list((self.folder / "cache").rglob("*.whl")), [])
        self.asked.clear()
        self.assertEqual(self.fetch(self.host()), libtorch)
        self.assertEqual(self.asked, [])

    def test_libraries_by_cuda_toolkit_and_found_in_the_index_alone(self):
        self.publish_torch("cu126", BY_TOOLKIT)
        self.publish_libraries(at="whl/cu126")
        self.assertEqual(
            self.libraries(self.fetch(self.host())),
            ["nvidia_cublas_cu12", "nvidia_cuda_runtime_cu12", "nvidia_nccl_cu12"],
        )

    def test_an_interrupted_run_keeps_whole_downloads(self):
        self.publish_torch("cu126", ONE_BY_ONE)
        self.publish_libraries()
        with mock.patch.object(self, "loaded") as loaded:
            loaded.append.side_effect = KeyboardInterrupt
            self.assertRaises(KeyboardInterrupt, self.fetch, self.host())
        self.asked.clear()
        self.assertTrue(self.fetch(self.host()).is_dir())
        self.assertEqual(self.asked, [])

    def test_an_index_without_the_variant_is_one_clear_error(self):
        self.publish_torch("cu128", ONE_BY_ONE)
        with self.assertRaisesRegex(
            setup.Problem,
            r"^pip could not download torch==2\.11\.0\+cu126 from http://127[^@\n]*: run again, "
            r"[^\n]*, name a mirror with BOSSMAN_TORCH_INDEX, use the CPU with "
            r"BOSSMAN_TORCH_VARIANT=cpu, or set LIBTORCH [^\n]*$",
        ):
            host = self.host()
            host.index = host.index.replace("//", "//user:secret@")
            self.fetch(host)

    def test_the_default_and_the_cpu_keep_their_folders_and_ask_pypi_alone(self):
        self.torch(self.site / "pypi" / "torch", "2.11.0", ONE_BY_ONE)
        self.publish_libraries()
        for variant, folder, libraries in (
            ("cu130", "cuda", ["nvidia_cublas_cu12", "nvidia_cuda_runtime_cu12"]),
            ("cpu", "cpu", ["nvidia_cuda_runtime_cu12"]),
        ):
            libtorch = self.fetch(self.host(variant))
            self.assertEqual(libtorch.parent.name, f"libtorch-2.11.0-linux-x86_64-{folder}")
            self.assertEqual(self.libraries(libtorch), libraries)
        self.assertFalse([path for path in self.asked if path.startswith("/whl")])

    def test_from_the_gpu_to_the_host(self):
        with mock.patch.multiple(
            setup.platform,
            system=lambda: "Linux",
            machine=lambda: "x86_64",
            libc_ver=lambda: ("glibc", "2.35"),
        ):
            self.nvidia_smi("*) echo 'NVIDIA A100, 550.54.14, 8.0';;")
            host = setup.Host.this({"BOSSMAN_TORCH_INDEX": "http://mirror/whl"})
            self.assertEqual((host.name, host.torch), ("linux-x86_64-cu126", "2.11.0+cu126"))
            self.assertEqual(host.index, "http://mirror/whl/cu126")
            default = setup.Host.this({}).index
            self.assertEqual(default, "https://download.pytorch.org/whl/cu126")
            cpu = setup.Host.this({"BOSSMAN_TORCH_VARIANT": "cpu"})
            self.assertEqual((cpu.name, cpu.gpu, cpu.index), ("linux-x86_64-cpu", False, None))
            named = setup.Host.this({"BOSSMAN_TORCH_VARIANT": "cu130"})
            self.assertEqual((named.name, named.torch), ("linux-x86_64-cuda", "2.11.0"))
            self.assertEqual(self.said, [])
            self.nvidia_smi("*) echo 'V100, 580.65.06, 7.0'; echo 'K80, 580.65.06, 3.7';;")
            self.assertEqual(setup.Host.this({}).torch, "2.11.0+cu126")
            self.assertRegex("\n".join(self.said), r"^torch for cu126; not used: K80 [^\n]*$")
            self.nvidia_smi("*) echo 'Tesla T4, 470.82.01';;")
            with self.assertRaisesRegex(NoVariant, "update it to 525 or newer; or use the CPU"):
                setup.Host.this({})


if __name__ == "__main__":
    unittest.main()
