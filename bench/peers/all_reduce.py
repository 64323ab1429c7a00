"""gloo's all_reduce among processes of this machine. Prints one line of JSON: for each round the
longest of any rank."""

import argparse
import json
import os
import time

from with_torch import torch  # before anything else of torch

import torch.distributed as dist
import torch.multiprocessing as mp


def rank_main(rank, options):
    """The work of one rank; the first one prints."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port), GLOO_SOCKET_IFNAME="lo"
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    times = []
    for _ in range(options.rounds):
        tensor = torch.full((options.mib << 18,), rank + 1.0)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - began)
        assert tensor[0] == tensor[-1] == options.ranks * (options.ranks + 1) / 2
    longest = torch.tensor(times)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"seconds": longest.tolist()}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--port", type=int, default=29516)
    options = parser.parse_args()
    mp.spawn(rank_main, args=(options,), nprocs=options.ranks)


if __name__ == "__main__":
    main()
