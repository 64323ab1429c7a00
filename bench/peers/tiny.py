"""The residual work in PyTorch without microbatches: one process, and two ranks over gloo. Prints
one line of JSON."""

import argparse
import json
import os
import time

from with_torch import torch  # before anything else of torch

import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

RANKS, BATCH, WIDTH = 2, 32, 512


class Front(nn.Module):
    """Layers up to the middle; gives on its output and the value that is skipped to the second
    half."""

    def __init__(self):
        super().__init__()
        self.before = nn.Sequential(nn.Linear(1, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.after = nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, x):
        kept = self.before(x)
        return self.after(kept), kept


class Back(nn.Module):
    """Layers from the sum on."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1), nn.Sigmoid()
        )

    def forward(self, x, kept):
        return self.layers(x + kept)


def batch():
    """Inputs and targets."""
    x = torch.rand(BATCH, 1)
    return x, torch.sin(x)


def single(steps):
    """Seconds of every step in one process."""
    front, back = Front(), Back()
    optimizer = torch.optim.Adam([*front.parameters(), *back.parameters()], lr=3e-3, fused=True)
    times = []
    for _ in range(steps):
        x, y = batch()
        began = time.perf_counter()
        nn.functional.mse_loss(back(*front(x)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    return times


def rank_main(rank, steps, port, alone):
    """The work of one rank; the first one prints."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    part = (Front, Back)[rank]()
    stage = PipelineStage(part, rank, RANKS, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=1, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.Adam(part.parameters(), lr=3e-3, fused=True)
    times = []
    for _ in range(steps):
        x, y = batch()
        began = time.perf_counter()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=[])
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        times.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps({"steps": {"single": alone, "two ranks": times}}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--port", type=int, default=29513)
    options = parser.parse_args()
    mp.spawn(rank_main, args=(options.steps, options.port, single(options.steps)), nprocs=RANKS)


if __name__ == "__main__":
    main()
