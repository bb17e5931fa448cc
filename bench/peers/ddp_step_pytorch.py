"""The ranks of ddp_step_bench's peer, PyTorch's DistributedDataParallel, each on a GPU of its own if there are so many:

    ddp_step_pytorch.py cuda|cpu RANKS SAMPLES STEPS SIZE,SIZE,...

For each sample a model with DDP and one without take turns: STEPS steps in a row ("interval ddp", "interval plain"), and
what one step takes of the calling thread while the device has nothing else to do ("fact host_ddp", "fact host_plain").
The third kind, "zero", is a step of DDP and of a ZeroRedundancyOptimizer with fused AdamW.
A step is the forward pass, which costs next to nothing, and loss.backward(), whose one node hands autograd all gradients
at once. The difference is what DDP takes: its hooks, buckets and collectives. That is to PyTorch's advantage: what its
collectives hide behind the addition of the gradients is not counted. Gradients are views of the buckets, so that
nothing is copied, and everything else is as PyTorch sets it. With cpu, over Gloo, the script can be tried without a GPU.
Prints the lines that bench/intervals.hpp reads.
"""

import ctypes
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time

BEGAN = time.monotonic()

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer


class Backward(torch.autograd.Function):
    """Its backward pass has all gradients ready."""

    @staticmethod
    def forward(context, gradients, x, *weights):
        context.gradients = gradients
        return x * 1.0

    @staticmethod
    def backward(context, gradient):
        return (None, gradient, *context.gradients)


class Model(torch.nn.Module):
    def __init__(self, sizes, gradients):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size)) for size in sizes])
        self.gradients = gradients

    def forward(self, x):
        return Backward.apply(self.gradients, x, *self.weights)


def step(model, x):
    model(x).backward()


def say(line):
    sys.stdout.write(line + "\n")  # in one piece: several ranks write
    sys.stdout.flush()


def tell_phase(rank, phase):
    if rank == 0:
        print(f"{time.monotonic() - BEGAN:6.1f} s: PyTorch: {phase}", file=sys.stderr, flush=True)


def measure(device, rank, ranks, samples, steps, sizes):
    on_gpu = device.type == "cuda"
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    tell_phase(rank, "models")
    gradients = [torch.full((size,), float(rank + 1), device=device) for size in sizes]
    plain = Model(sizes, gradients).to(device)
    ddp = torch.nn.parallel.DistributedDataParallel(
        Model(sizes, gradients).to(device), device_ids=[device] if on_gpu else None, gradient_as_bucket_view=True
    )
    zero = torch.nn.parallel.DistributedDataParallel(
        Model(sizes, gradients).to(device), device_ids=[device] if on_gpu else None, gradient_as_bucket_view=True
    )
    optimizer = ZeroRedundancyOptimizer(
        zero.parameters(), optimizer_class=torch.optim.AdamW, parameters_as_bucket_view=True, lr=1e-3, fused=on_gpu
    )
    x = torch.ones((), device=device, requires_grad=True)

    def run(kind, model):
        step(model, x)
        if kind == "zero":
            optimizer.step()

    def check(model, wanted):
        for weight in model.parameters():
            if not torch.allclose(weight.grad, torch.full_like(weight.grad, wanted)):
                raise RuntimeError("a gradient is wrong")
            weight.grad.zero_()

    tell_phase(rank, "the first steps")
    kinds = [("ddp", ddp), ("plain", plain), ("zero", zero)]
    for kind, model in kinds:  # PyTorch makes its buckets anew after the first step
        for _ in range(2):
            run(kind, model)
            for weight in model.parameters():
                weight.grad.zero_()
    for sample in range(samples + 1):
        tell_phase(rank, f"sample {sample}")
        for turn in range(len(kinds)):
            kind, model = kinds[(sample + turn) % len(kinds)]
            synchronize()
            dist.barrier()
            begin = time.monotonic_ns()
            for _ in range(steps):
                run(kind, model)
            synchronize()
            end = time.monotonic_ns()
            dist.barrier()
            synchronize()
            single = time.monotonic_ns()
            run(kind, model)
            enqueued = time.monotonic_ns()
            synchronize()
            if sample > 0:  # the first one is a warm-up
                say(f"interval {kind} {sample} {begin} {end}")
                say(f"fact host_{kind} {(enqueued - single) * 1e-9}")
            check(model, (steps + 1) * ((ranks + 1) / 2 if kind != "plain" else rank + 1))
    say("fact buckets 0")  # it does not say how many
    if rank == 0:
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else "none"
        say(f"version PyTorch {torch.__version__}, NCCL {nccl}")


def run_rank(kind, rank, ranks, samples, steps, sizes, meeting):
    device = torch.device(f"cuda:{rank % torch.cuda.device_count()}" if kind == "cuda" else "cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    tell_phase(rank, "a process group")
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
    )
    measure(device, rank, ranks, samples, steps, sizes)
    tell_phase(rank, "the end")
    dist.destroy_process_group()


def main():
    kind, ranks, samples, steps = sys.argv[1], *map(int, sys.argv[2:5])
    sizes = [int(size) for size in sys.argv[5].split(",")]
    if len(sys.argv) > 6:
        run_rank(kind, int(sys.argv[6]), ranks, samples, steps, sizes, sys.argv[7])
        return 0

    def end_with_this_process():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv]
        others = [
            subprocess.Popen([*command, str(rank), os.path.join(folder, "meeting")], preexec_fn=end_with_this_process)
            for rank in range(ranks)
        ]
        return max(abs(other.wait()) for other in others)


if __name__ == "__main__":
    sys.exit(main())
