#!/usr/bin/env python3
"""PyTorch on the CPU without CUDA's libraries, which would be 2 GB more to fetch: for checks
against it, not for training.

As a program: makes a virtual environment with torch in the user's cache folder once, and prints the
path of its Python.

    tools/pytorch.py                   torch
    tools/pytorch.py --transformers    torch and Hugging Face's transformers
    tools/pytorch.py --zoo             these, torchvision and timm
"""

import argparse
import ctypes
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import setup_libtorch as setup
import zoo_models
from elf import needed_libraries

# What `import torch` itself imports.
IMPORTED = ["filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions", "numpy"]
# The version of transformers that tests/huggingface was recorded with.
TRANSFORMERS = zoo_models.TRANSFORMERS
# Libraries of models, and what they import. They name torch with CUDA's libraries as a dependency,
# so they are installed without theirs.
MODELS = {"torchvision": zoo_models.TORCHVISION, "timm": zoo_models.TIMM}
IMPORTED_BY_MODELS = ["pillow", "huggingface_hub", "safetensors", "pyyaml", "numpy"]


def version(package="torch"):
    """The version of a package that this Python has, without loading it; None without it."""
    try:
        return metadata.version(package).split("+")[0]
    except metadata.PackageNotFoundError:
        return None


def load():
    """The torch module, whether or not CUDA's libraries are there."""
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError, ValueError):
        if sys.platform != "linux":
            raise
    # libtorch_python names CUDA's libraries and the loader wants them all, though a CPU calls
    # nothing in them. Those that libtorch_cpu names come from the libtorch of `make setup`; an
    # empty library stands in for each of the others.
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        del sys.modules[name]
    sys.setdlopenflags(os.RTLD_LAZY)
    libraries = Path(metadata.distribution("torch").locate_file("torch/lib"))
    beside = setup.CHECKOUT.joinpath(".libtorch").resolve().parent / "nvidia"
    real = {path.name: path for path in beside.rglob("*.so.*")}
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(
            {name for library in libraries.glob("*.so") for name in needed_libraries(library)}
        ):
            if not (libraries / name).exists() and not loads(name):
                ctypes.CDLL(
                    real.get(name) or empty_library(Path(folder), name), mode=ctypes.RTLD_GLOBAL
                )
        return importlib.import_module("torch")


def load_transformers():
    """The transformers module, which needs torch to be loaded. It asks no server for anything."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def loads(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def empty_library(folder, name):
    compiler = [
        os.environ.get("CC", "cc"),
        "-shared",
        "-x",
        "c",
        os.devnull,
        "-o",
        str(folder / name),
        f"-Wl,-soname,{name}",
    ]
    subprocess.run(compiler, check=True)
    return str(folder / name)


def environment(cache, with_transformers=False, with_models=False):
    """The Python of a virtual environment in `cache` that has torch; makes it if it does not exist
    yet. Adds transformers and the libraries of models to it on request."""
    ready = cache / f"pytorch-{setup.VERSION}-python{sys.version_info[0]}.{sys.version_info[1]}"
    install = [
        str(ready / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ]
    with setup.only_one(cache / "lock"):
        if not (ready / "whole").exists():
            shutil.rmtree(ready, ignore_errors=True)
            setup.say(f"making {ready}")
            run(sys.executable, "-m", "venv", str(ready))
            run(*install, "--quiet", *IMPORTED)
            run(*install, "--no-deps", f"torch=={setup.VERSION}")
            (ready / "whole").touch()
        added = ready / f"transformers-{TRANSFORMERS}"
        if with_transformers and not added.exists():
            setup.say(f"adding transformers to {ready}")
            run(*install, "--quiet", f"transformers=={TRANSFORMERS}")
            added.touch()
        added = ready / "-".join(f"{name}-{version}" for name, version in MODELS.items())
        if with_models and not added.exists():
            setup.say(f"adding {' and '.join(MODELS)} to {ready}")
            run(*install, "--quiet", *IMPORTED_BY_MODELS)
            exact = [f"{name}=={version}" for name, version in MODELS.items()]
            run(*install, "--quiet", "--no-deps", *exact)
            added.touch()
    return ready / "bin" / "python"


def run(*command):
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise setup.Problem(f"`{' '.join(command)}` failed, its reason is above")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--zoo", action="store_true")
    chosen = parser.parse_args()
    with_transformers = chosen.transformers or chosen.zoo
    wanted = {"torch": setup.VERSION}
    if with_transformers:
        wanted["transformers"] = TRANSFORMERS
    if chosen.zoo:
        wanted.update(MODELS)
    if all(version(package) == number for package, number in wanted.items()):
        print(sys.executable)
        return
    try:
        cache = setup.cache_folder(os.environ)
        cache.mkdir(parents=True, exist_ok=True)
        print(environment(cache, with_transformers, chosen.zoo))
    except (setup.Problem, OSError) as problem:
        sys.exit(f"pytorch: {problem}")


if __name__ == "__main__":
    main()
