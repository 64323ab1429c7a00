#!/bin/sh
# Points `libtorch` beside the programs to a libtorch 2.11, which they load when they start.
# usage: link_libtorch.sh [FOLDER]
# FOLDER holds lib/libtorch_cpu.so (on a Mac .dylib). Without FOLDER, Python's torch is taken.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
wanted=2.11

if [ $# -gt 0 ]; then
    folder=$1
else
    folder=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null) || {
        echo "python3 has no torch: run 'pip install torch==2.11.*', or name the folder of a libtorch $wanted" >&2
        exit 1
    }
fi
if [ ! -e "$folder/lib/libtorch_cpu.so" ] && [ ! -e "$folder/lib/libtorch_cpu.dylib" ]; then
    echo "$folder holds no lib/libtorch_cpu: name the folder that holds lib/" >&2
    exit 1
fi
# libtorch's archive has `build-version`, Python's torch has `version.py`.
version=$(cat "$folder/build-version" 2>/dev/null || sed -n "s/^__version__ = '\(.*\)'/\1/p" "$folder/version.py" 2>/dev/null || true)
case "$version" in
    $wanted | $wanted.* | $wanted+*) ;;
    *)
        echo "$folder is version ${version:-unknown}; the programs need $wanted" >&2
        exit 1
        ;;
esac
ln -sfn "$(cd "$folder" && pwd)" "$here/libtorch"
"$here/bin/bossman" --version
"$here/bin/worker" --version
