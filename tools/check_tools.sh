#!/bin/sh
# Says in one line each which tools a build still needs here, and how to get them.

missing() { # what, then how to get it
    echo "missing: $1. $2" >&2
    failed=1
}

install() { # the packages of apt, dnf, pacman and brew
    if command -v apt-get >/dev/null; then how="sudo apt-get install $1"
    elif command -v dnf >/dev/null; then how="sudo dnf install $2"
    elif command -v pacman >/dev/null; then how="sudo pacman -S $3"
    elif command -v brew >/dev/null; then how="brew install $4"
    else how="the package $1"
    fi
    echo "Install it with: $how"
}

install_rust() {
    # The rustup of dnf and brew puts no cargo into PATH.
    if command -v apt-get >/dev/null || command -v pacman >/dev/null; then
        echo "$(install rustup - rustup -), or get it from https://rustup.rs"
    else
        echo "Get it from https://rustup.rs"
    fi
}

number() { # a version such as 1.89.0: as a number that can be compared, 0 for other texts
    echo "$1" | sed -e 's/^\([0-9][0-9]*\)\.\([0-9][0-9]*\).*/\1 * 1000 + \2/' -e t -e 's/.*/0/'
}

check_rust() {
    # rustup installs the version that rust-toolchain.toml names.
    command -v rustup >/dev/null && return
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
    here=$(cargo --version | sed -n 's/^cargo \([^ ]*\).*/\1/p')
    if [ $(($(number "$here"))) -lt $(($(number "$needed"))) ]; then
        missing "cargo (Rust) $needed or newer, here is ${here:-an unknown version}" \
            "$(install_rust)"
    fi
}

check_pip() {
    python3 -c 'import pip' 2>/dev/null && return
    what="pip for $(command -v python3)"
    # A package of the system would not bring it into a virtual environment.
    if python3 -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)'; then
        missing "$what" "Run \`python3 -m ensurepip\`, or leave the virtual environment"
    else
        missing "$what" "$(install python3-pip python3-pip python-pip python)"
    fi
}

if command -v cargo >/dev/null; then check_rust; else missing "cargo (Rust)" "$(install_rust)"; fi
# CXX may name a program with arguments, such as `ccache g++`.
compiler=${CXX:-c++}
command -v "${compiler%% *}" >/dev/null \
    || missing "a C++ compiler (${compiler%% *})" "$(install g++ gcc-c++ gcc gcc)"
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
    check_pip
else
    missing "python3 (3.8 or newer)" "$(install python3 python3 python python)"
fi
exit "${failed:-0}"
