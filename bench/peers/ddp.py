"""The encoder work in PyTorch, data parallel: one process, and two ranks under
DistributedDataParallel over gloo.

Prints one line of JSON: for each the seconds of every step, and the peak memory of every rank.
"""

import argparse
import json
import os
import time

from pipe import LAYERS, adam, batch, layers
from with_torch import peak_bytes, torch  # before anything else of torch

import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

RANKS = 2


def train(model, optimizer, samples, steps, wait):
    """Seconds of every step, each on a batch of its own; `wait` is called before the clock starts
    and stops."""
    times = []
    for _ in range(steps):
        x, y = batch(samples)
        wait()
        began = time.perf_counter()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        wait()
        times.append(time.perf_counter() - began)
    return times


def single(options):
    """The whole batch in one process."""
    model = layers(LAYERS)
    return train(model, adam([model]), options.batch, options.steps, lambda: None)


def rank(number, options):
    """One rank's half of the batch; the first one prints."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(options.port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(number)
    dist.init_process_group("gloo", rank=number, world_size=RANKS)
    model = nn.parallel.DistributedDataParallel(layers(LAYERS))
    times = train(model, adam([model]), options.batch // RANKS, options.steps, dist.barrier)
    memory = [None] * RANKS
    dist.all_gather_object(memory, peak_bytes())
    if number == 0:
        print(json.dumps({"steps": options.alone | {"DDP": times}, "memory": memory}), flush=True)
    dist.barrier()
    del model
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--port", type=int, default=29514)
    parser.add_argument("--rank", type=int, help="be this rank; the other runs elsewhere")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.alone = {}
    if options.rank is None:
        options.alone["single"] = single(options)
        mp.spawn(rank, args=(options,), nprocs=RANKS)
    else:
        rank(options.rank, options)


if __name__ == "__main__":
    main()
