"""Z: what a worker's memory comes to where replicas share out their state, beside the formula."""

from programs import CHECKOUT

WIDE = CHECKOUT / "bench" / "models" / "wide.yaml"
SMALL = CHECKOUT / "examples" / "models" / "residual.yaml"
PARAMETERS = 16 * (2048 * 2048 + 2048)
WEIGHT, GRADIENT, ADAM = 4, 4, 8  # bytes of a parameter
REPLICAS = (2, 4)
SHARDS = ("none", "optimizer", "gradients")
STEPS = 3


def formula(replicas, shard):
    """Bytes of all parameters on one worker, their gradients, and Adam's state, or its part of these."""
    gradient = GRADIENT / (replicas if shard == "gradients" else 1)
    return PARAMETERS * (WEIGHT + gradient + ADAM / (replicas if shard != "none" else 1))


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
    shape = ("--workers", replicas, "--replicas", replicas, "--microbatches", replicas, "--batch", 2 * replicas)
    done = bench.steps(model, "--schedule", "gpipe", *shape, "--even", "--shard", shard, "--steps", STEPS)
    return max(done["memory"])
