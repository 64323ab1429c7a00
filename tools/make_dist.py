"""Packs the programs of `make build` into an archive that runs on other machines.

usage: make_dist.py RELEASE_FOLDER OUT_FOLDER

The archive holds the two programs without symbols, a script that links a libtorch, completions and
the licences. It needs a libtorch 2.11 there, and on Linux glibc 2.34 or newer.
"""

import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PROGRAMS = ["bossman", "worker"]
SHELLS = {"bash": "bossman.bash", "zsh": "_bossman", "fish": "bossman.fish"}
NEWEST_GLIBC = (2, 34)
MOST_MIB = 40


def newest_glibc(program):
    """The newest version of glibc that a program asks for, such as (2, 34)."""
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", program.read_bytes())
    return max((int(major), int(minor)) for major, minor in versions)


def check_size(archive):
    """Ends the program if the archive is larger than an archive of programs should be. Returns its
    size in MiB."""
    size = archive.stat().st_size / 2**20
    if size > MOST_MIB:
        sys.exit(
            f"{archive} has {size:.1f} MiB, more than {MOST_MIB}: look for what made the programs "
            f"grow (`tar -tvf {archive}`), or raise MOST_MIB in tools/make_dist.py"
        )
    return size


def readme(system):
    """The archive's README.txt. Only Linux has a glibc."""
    text = (CHECKOUT / "tools/dist/README.txt").read_text()
    return text if system == "Linux" else re.sub(r"The programs need glibc .*?\. (?=\w)", "", text)


def pack(release, out):
    """Writes the archive and returns its path."""
    version = re.search(r'^version = "(.*)"', (CHECKOUT / "Cargo.toml").read_text(), re.M)[1]
    name = f"bossman-{version}-{platform.machine()}-{platform.system().lower()}"
    out.mkdir(parents=True, exist_ok=True)
    archive = out / f"{name}.tar.gz"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / name
        (root / "bin").mkdir(parents=True)
        for program in PROGRAMS:
            copy = root / "bin" / program
            shutil.copy2(release / program, copy)
            subprocess.run(["strip", copy], check=True)
            if platform.system() == "Linux" and newest_glibc(copy) > NEWEST_GLIBC:
                newest = ".".join(map(str, newest_glibc(copy)))
                sys.exit(
                    f"{program} asks for glibc {newest}: build it on a system with an older one"
                )
        (root / "completions").mkdir()
        for shell, file in SHELLS.items():
            text = subprocess.run(
                [release / "bossman", "completions", shell], check=True, capture_output=True
            ).stdout
            (root / "completions" / file).write_bytes(text)
        for file in [
            "LICENSE-APACHE",
            "LICENSE-MIT",
            "tools/dist/link_libtorch.sh",
        ]:
            shutil.copy2(CHECKOUT / file, root)
        (root / "README.txt").write_text(readme(platform.system()))
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(root, arcname=name)
    return archive


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    made = pack(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{made}: {check_size(made):.1f} MiB")
