#!/bin/sh
# The walls between the crates: says which crate depends on what it must never depend on.

never() { # crate, then what it must not depend on, directly or through others
    crate=$1
    shift
    tree=$(cargo tree --locked --package "$crate" --edges normal,build --prefix none --format '{lib} {p}') || exit 1
    for forbidden in "$@"; do
        if printf '%s\n' "$tree" | grep -q " $forbidden v"; then
            echo "$crate must not depend on $forbidden; see: cargo tree --package $crate --invert $forbidden" >&2
            failed=1
        fi
    done
}

never layerspec tokio quinn torch-sys pipeline link tensor data worker bossman
never pipeline tokio quinn torch-sys link tensor data worker bossman
never shm tokio quinn torch-sys layerspec pipeline link tensor data worker bossman
never link torch-sys tensor data worker bossman
never tensor tokio quinn pipeline link data worker bossman
never data quinn link worker bossman
never worker bossman
never bossman worker
exit "${failed:-0}"
