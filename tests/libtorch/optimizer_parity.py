#!/usr/bin/env python3
"""Trains the model of optimizer_parity with PyTorch's ZeroRedundancyOptimizer and powerSGD_hook, and compares.

  optimizer_parity.py FOLDER    FOLDER has what `optimizer_parity --nproc-per-node=2 FOLDER` wrote; prints the differences
                                and exits with 1 if one is above what its case allows
"""

import datetime
import math
import os
import pathlib
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = 50
RANKS = 2
SHAPES = [[7], [64, 33], [128, 40], [1]]


def values(shape, seed):
    """As value() of optimizer_parity.cpp."""
    numbers = [
        ((1000003 * seed + i) % 2**32 * 2654435761 % 2**32) / 2147483648.0 - 1 for i in range(math.prod(shape))
    ]
    return torch.tensor(numbers, dtype=torch.float64).to(torch.float32).reshape(shape)


def target(i, shape, rank, step):
    return values(shape, 1000 + 100 * step + 10 * rank + i)


class Model(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(values(shape, i)) for i, shape in enumerate(shapes)])

    def forward(self, rank, step):
        return sum(
            0.5 * (weight - target(i, list(weight.shape), rank, step)).square().sum()
            for i, weight in enumerate(self.weights)
        )


def sharded(rank, kind, **options):
    model = Model(SHAPES)
    ddp = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=kind, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        ddp(rank, step).backward()
        optimizer.step()
    return [number for weight in model.weights for number in weight.detach().flatten().tolist()]


def power_sgd(rank):
    model = Model([[96, 64], [64]])
    ddp = DistributedDataParallel(model)
    # PyTorch's buckets are made anew after the first step, and the hook must begin after that.
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    losses = []
    for _ in range(STEPS):
        with torch.no_grad():
            losses.append(
                sum(
                    0.5
                    * (
                        weight.double()
                        - 0.5 * sum(target(i, list(weight.shape), r, 0).double() for r in range(RANKS))
                    ).square().sum().item()
                    for i, weight in enumerate(model.weights)
                )
            )
        optimizer.zero_grad()
        ddp(rank, 0).backward()
        optimizer.step()
    return losses


def run_rank(folder, rank):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=60),
    )
    results = {
        "adamw": sharded(rank, torch.optim.AdamW, lr=1e-3),
        "momentum": sharded(rank, torch.optim.SGD, lr=0.01, momentum=0.9),
        "power_sgd": power_sgd(rank),
    }
    if rank == 0:
        for name, numbers in results.items():
            (folder / f"torch.{name}").write_text("\n".join(repr(number) for number in numbers))
    dist.barrier()
    os._exit(0)  # PyTorch 1.13 now and then ends with std::terminate where it destroys its process group


def compare(folder):
    failures = 0
    for name, what, allowed in [
        ("adamw", "ZeroRedundancyOptimizer with AdamW: greatest difference of a weight", 1e-6),
        ("momentum", "ZeroRedundancyOptimizer with momentum: greatest difference of a weight", 1e-6),
        ("power_sgd", "powerSGD_hook: greatest difference of a loss, relative to the first", 0.02),
    ]:
        mine, other = (
            [float(line) for line in (folder / f"{system}.{name}").read_text().split()] for system in ["dtrain", "torch"]
        )
        found = math.inf
        if len(mine) == len(other):
            found = max(abs(a - b) for a, b in zip(mine, other)) / (other[0] if name == "power_sgd" else 1)
        failures += not found <= allowed  # also for a NaN
        print(f"{what} after {STEPS} steps on {RANKS} ranks: {found:.1e} (allowed: {allowed:g})")
        if name == "power_sgd":
            print(f"  the loss went from {mine[0]:.6g} to {mine[-1]:.6g}, and PyTorch's to {other[-1]:.6g}")
    return failures


def main():
    folder = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2:
        return run_rank(folder, int(sys.argv[2]))
    (folder / "store").unlink(missing_ok=True)
    ranks = [subprocess.Popen([sys.executable, "-B", __file__, str(folder), str(rank)]) for rank in range(RANKS)]
    if any([process.wait() for process in ranks]):
        sys.exit("a rank of PyTorch's failed")
    sys.exit(1 if compare(folder) else 0)


if __name__ == "__main__":
    main()
