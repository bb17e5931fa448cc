"""A rank of overlap_bench's peer, PyTorch's DistributedDataParallel on gloo:

    overlap_pytorch.py RANK WORLD_SIZE ADDRESS SAMPLES

Prints the lines that bench/intervals.hpp reads.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

LAYERS, ELEMENTS, LAYER_SECONDS = 50, 512 * 1024, 0.018


class Layer(torch.autograd.Function):
    """Its backward takes LAYER_SECONDS of the step's time without using the core, or none."""

    wake = None

    @staticmethod
    def forward(_, x, weight):
        return x * 1.0

    @staticmethod
    def backward(_, gradient):
        if Layer.wake is not None:
            Layer.wake += LAYER_SECONDS
            time.sleep(max(0.0, Layer.wake - time.monotonic()))
        return gradient, torch.full((ELEMENTS,), float(dist.get_rank() + 1))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(ELEMENTS)) for _ in range(LAYERS)])

    def forward(self, x):
        for weight in self.weights:
            x = Layer.apply(x, weight)
        return x.sum()


def main():
    rank, ranks, address, samples = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29432", rank=rank, world_size=ranks)
    model = torch.nn.parallel.DistributedDataParallel(Model())
    x = torch.ones(1, requires_grad=True)
    for sample in range(-1, samples + 1):  # PyTorch makes its buckets anew after the first step
        for kind in ["step", "communication"]:
            loss = model(x)
            dist.barrier()
            Layer.wake = time.monotonic() if kind == "step" else None
            begin = time.monotonic_ns()
            loss.backward()
            end = time.monotonic_ns()
            if sample > 0:
                sys.stdout.write(f"interval {kind} {sample} {begin} {end}\n")  # in one piece: two ranks write
                sys.stdout.flush()
            for weight in model.module.weights:
                if weight.grad[0] != (ranks + 1) / 2:
                    raise RuntimeError("a reduced gradient is wrong")
                weight.grad = None
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
