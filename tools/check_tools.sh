#!/bin/sh
# Says in one line each which tools a build still needs here, with the command that installs them.

missing() { # what, then the packages of apt, dnf, pacman and brew
    if command -v apt-get >/dev/null; then how="sudo apt-get install $2"
    elif command -v dnf >/dev/null; then how="sudo dnf install $3"
    elif command -v pacman >/dev/null; then how="sudo pacman -S $4"
    elif command -v brew >/dev/null; then how="brew install $5"
    else how="the package $2"
    fi
    echo "missing: $1. Install it with: $how" >&2
    failed=1
}

command -v cargo >/dev/null || missing "cargo (Rust, also from https://rustup.rs)" rustup rustup rustup rustup
command -v "${CXX:-c++}" >/dev/null || missing "a C++ compiler (${CXX:-c++})" g++ gcc-c++ gcc gcc
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
    python3 -c 'import pip' 2>/dev/null || missing "pip for $(command -v python3)" python3-pip python3-pip python-pip python
else
    missing "python3 (3.8 or newer)" python3 python3 python python
fi
exit "${failed:-0}"
