"""The encoder work in PyTorch: one process, and two ranks over gloo under
torch.distributed.pipelining's schedules.

Prints one line of JSON: for every schedule the seconds of every step, when the first step was done
(Unix time), and the peak memory of every rank."""

import argparse
import json
import os
import time

from with_torch import peak_bytes, torch  # before anything else of torch

import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import pipelining

WIDTH, HEADS, FEEDFORWARD, LENGTH, LAYERS = 256, 4, 1024, 64, 8
RANKS = 2
ONE_STAGE = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
SEVERAL_STAGES = {
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "interleaved-zb": pipelining.ScheduleInterleavedZeroBubble,
}
SCHEDULES = [*ONE_STAGE, *SEVERAL_STAGES]


def layers(count):
    """A row of pre-norm encoder layers."""
    one = {"dim_feedforward": FEEDFORWARD, "dropout": 0.0, "batch_first": True, "norm_first": True}
    return nn.Sequential(*[nn.TransformerEncoderLayer(WIDTH, HEADS, **one) for _ in range(count)])


def adam(modules):
    """The optimizer of this work over all parameters of `modules`, in its fused form."""
    return torch.optim.Adam(
        [p for module in modules for p in module.parameters()], lr=1e-4, fused=True
    )


def batch(samples):
    """Inputs and targets."""
    return torch.randn(samples, LENGTH, WIDTH), torch.randn(samples, LENGTH, WIDTH)


def single(options):
    """Seconds of every step in one process, microbatch after microbatch."""
    model = layers(LAYERS)
    optimizer = adam([model])
    times = []
    for _ in range(options.steps):
        x, y = batch(options.batch)
        began = time.perf_counter()
        for part, target in zip(x.chunk(options.microbatches), y.chunk(options.microbatches)):
            (nn.functional.mse_loss(model(part), target) / options.microbatches).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    return times


def pipeline(name, rank, options):
    """This rank's part of the model: (the schedule, the optimizer, the numbers of its stages, the
    number of all)."""
    each = 1 if name in ONE_STAGE else options.stages_per_rank
    count = each * RANKS
    numbers = [rank + RANKS * i for i in range(each)]
    parts = [layers(LAYERS // count) for _ in numbers]
    stages = [
        pipelining.PipelineStage(part, number, count, torch.device("cpu"))
        for part, number in zip(parts, numbers)
    ]
    one = name in ONE_STAGE
    make = ONE_STAGE[name] if one else SEVERAL_STAGES[name]
    schedule = make(
        stages[0] if one else stages,
        n_microbatches=options.microbatches,
        loss_fn=nn.functional.mse_loss,
    )
    return schedule, adam(parts), numbers, count


def steps(name, rank, options):
    """(seconds of every step, Unix time at the end of the first) under the schedule `name`."""
    schedule, optimizer, numbers, count = pipeline(name, rank, options)
    times, first = [], None
    for _ in range(options.steps):
        x, y = batch(options.batch)
        inputs = [x] if 0 in numbers else []
        targets = {"target": y, "losses": []} if count - 1 in numbers else {}
        dist.barrier()
        began = time.perf_counter()
        schedule.step(*inputs, **targets)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        times.append(time.perf_counter() - began)
        first = first or time.time()
    return times, first


def rank_main(rank, options):
    """The work of one rank; the first one prints."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(options.port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    report = {"steps": {}, "first_step_unix": options.first}
    for name in options.schedules:
        times, first = steps(name, rank, options)
        report["steps"][name] = times
        report["first_step_unix"] = report["first_step_unix"] or first
    memory = [None] * RANKS
    dist.all_gather_object(memory, peak_bytes())
    if rank == 0:
        report["steps"] |= options.alone
        print(json.dumps(report | {"memory": memory}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--schedules", default="gpipe", help=f"with commas: single, {', '.join(SCHEDULES)}"
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument(
        "--stages-per-rank", type=int, default=2, help="of the interleaved schedules"
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--port", type=int, default=29511)
    parser.add_argument(
        "--rank", type=int, help="be this rank only; the other is started elsewhere"
    )
    options = parser.parse_args()
    names = options.schedules.split(",")
    options.schedules = [name for name in names if name != "single"]
    options.alone, options.first = {}, None
    if "single" in names:
        options.alone["single"] = single(options)
    if not options.schedules:
        print(json.dumps({"steps": options.alone, "memory": [peak_bytes()]}))
    elif options.rank is not None:
        rank_main(options.rank, options)
    else:
        mp.spawn(rank_main, args=(options,), nprocs=RANKS)


if __name__ == "__main__":
    main()
