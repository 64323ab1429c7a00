"""Z: a worker's peak memory if replicas shard their state, beside the formula."""

from programs import CHECKOUT

WIDE = CHECKOUT / "bench" / "models" / "wide.yaml"
SMALL = CHECKOUT / "examples" / "models" / "residual.yaml"
PARAMETERS = 16 * (2048 * 2048 + 2048)
WEIGHT, GRADIENT, ADAM = 4, 4, 8  # bytes of a parameter
REPLICAS = (2, 4)
SHARDS = ("none", "optimizer", "gradients", "parameters")
STAGES = 8  # of a worker whose parameters are shared out, of which two are gathered at a time
STEPS = 3


def formula(replicas, shard):
    """Bytes of all parameters on one worker, their gradients, and Adam's state, or its part of
    these."""
    stage = SHARDS.index(shard)  # of ZeRO
    part = lambda least: replicas if stage >= least else 1
    gathered = WEIGHT * 2 / STAGES if shard == "parameters" else 0
    return PARAMETERS * (WEIGHT / part(3) + gathered + GRADIENT / part(2) + ADAM / part(1))


def pair(bench):
    """The most that any worker had resident beyond what it has with a small model, in bytes."""
    found = {}
    for replicas in REPLICAS:
        empty = most(bench, SMALL, replicas, "none")
        for shard in SHARDS:
            found[f"{shard} {replicas}"] = most(bench, WIDE, replicas, shard) - empty
    return found


def most(bench, model, replicas, shard):
    """The peak memory of the largest worker; each replica takes one microbatch of two samples."""
    shape = (
        "--workers",
        replicas,
        "--replicas",
        replicas,
        "--microbatches",
        replicas,
        "--batch",
        2 * replicas,
    )
    if shard == "parameters":
        shape += ("--chunks", STAGES)
    # On one machine memory that two workers share would be counted for both.
    way = ("--transport", "quic", "--schedule", "gpipe", "--even", "--shard", shard)
    done = bench.steps(model, *way, *shape, "--steps", STEPS)
    return max(done["memory"])
