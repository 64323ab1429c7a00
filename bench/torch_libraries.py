"""Where torch finds its libraries: without CUDA's, empty ones stand in, as tools/pytorch.py does.

They are made once, before anything is timed, so that a peer's start is that of `import torch`
alone."""

import os
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import pytorch  # noqa: E402
import setup_libtorch as setup  # noqa: E402
from elf import needed_libraries  # noqa: E402


def environment(folder):
    """The environment in which a peer can `import torch`; empty libraries are made in `folder`
    where CUDA's are missing."""
    libraries = Path(metadata.distribution("torch").locate_file("torch/lib"))
    beside = setup.CHECKOUT.joinpath(".libtorch").resolve().parent / "nvidia"
    real = {path.name: path.parent for path in beside.rglob("*.so.*")}
    folder.mkdir(parents=True, exist_ok=True)
    folders = {folder}
    for name in sorted(
        {name for library in libraries.glob("*.so") for name in needed_libraries(library)}
    ):
        if name in real:
            folders.add(real[name])
        elif (
            not (libraries / name).exists()
            and not (folder / name).exists()
            and not pytorch.loads(name)
        ):
            pytorch.empty_library(folder, name)
    path = [str(folder) for folder in sorted(folders)] + [os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, path))}
