"""gloo between two processes on loopback: bandwidth one way, and round trips. Prints one line of
JSON."""

import argparse
import json
import os
import time

from with_torch import torch  # before anything else of torch

import torch.distributed as dist
import torch.multiprocessing as mp

STREAMED = 1 << 30  # bytes sent in each measurement of bandwidth
SIZES = (256 << 10, 4 << 20)
TRIPS = 200


def bandwidth(rank, size):
    """Bytes a second, rank 0 to rank 1."""
    tensor = torch.zeros(size // 4)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(STREAMED // size):
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
    dist.barrier()
    return STREAMED / (time.perf_counter() - began)


def round_trip(rank, size):
    """Seconds there and back: the median."""
    tensor = torch.zeros(size // 4)
    times = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
        times.append(time.perf_counter() - began)
    return sorted(times)[TRIPS // 2]


def rank_main(rank, port):
    """The work of one rank; the first one prints."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    report = {
        "bandwidth": {size: bandwidth(rank, size) for size in SIZES},
        "round_trip": {size: round_trip(rank, size) for size in (1 << 10, *SIZES)},
    }
    if rank == 0:
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=29512)
    mp.spawn(rank_main, args=(parser.parse_args().port,), nprocs=2)


if __name__ == "__main__":
    main()
