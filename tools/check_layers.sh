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

never layerspec tokio quinn torch-sys pipeline link runtime tensor data worker bossman testkit
never pipeline tokio quinn torch-sys link runtime tensor data worker bossman testkit
never simulator tokio quinn torch-sys shm link runtime tensor data worker bossman
never shm tokio quinn torch-sys layerspec pipeline link runtime tensor data worker bossman testkit
never link torch-sys runtime tensor data worker bossman testkit
never runtime torch-sys tensor data worker bossman testkit
never tensor tokio quinn pipeline link runtime data worker bossman testkit
never data quinn link runtime worker bossman testkit
never worker bossman testkit
never bossman worker testkit
exit "${failed:-0}"
