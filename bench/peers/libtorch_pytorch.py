"""The ranks of libtorch_bench's peer, PyTorch's DistributedDataParallel over Gloo, as PyTorch sets it:

    libtorch_pytorch.py RANKS resnet18|gpt SAMPLES MEETING_FILE

The networks and the order of the steps are those of bench/libtorch/. Prints the lines that bench/intervals.hpp reads.
"""

import ctypes
import datetime
import math
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


class ResidualBlock(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return torch.relu(self.main(x) + self.shortcut(x))


class TransformerBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.first_norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, heads = x.size(0), x.size(1), 8
        parts = self.attention(self.first_norm(x)).view(batch, length, 3, heads, self.width // heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = query.matmul(key.transpose(-2, -1)) / math.sqrt(self.width // heads)
        weights = weights.masked_fill(future, -math.inf).softmax(-1)
        mixed = weights.matmul(value).transpose(1, 2).reshape(batch, length, self.width)
        y = x + self.projection(mixed)
        return y + self.shrink(nn.functional.gelu(self.grow(self.second_norm(y))))


def make_network(name):
    if name == "gpt":
        return nn.Sequential(*[TransformerBlock(512) for _ in range(6)], nn.Linear(512, 2048))
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    channels = 64
    for out in [64, 128, 256, 512]:
        layers += [ResidualBlock(channels, out, 1 if out == channels else 2), ResidualBlock(out, out, 1)]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def make_inputs(name):
    return torch.rand(4, 3, 32, 32) if name == "resnet18" else torch.rand(2, 32, 512)


def say(line):
    sys.stdout.write(line + "\n")  # in one piece: several ranks write
    sys.stdout.flush()


def run_rank(ranks, model, samples, meeting, rank):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
    )
    plain = make_network(model)
    ddp = nn.parallel.DistributedDataParallel(make_network(model), gradient_as_bucket_view=True)
    networks = {"plain": plain, "step": ddp}
    optimizers = {kind: torch.optim.SGD(net.parameters(), 0.001) for kind, net in networks.items()}
    inputs = make_inputs(model)
    processor = {}
    for sample in range(-1, samples + 1):  # two to warm up: PyTorch makes its buckets anew after the first
        for mode in ["none", "kept"]:
            for kind in ["plain", "step"] if sample % 2 == 0 else ["step", "plain"]:
                net, optimizer = networks[kind], optimizers[kind]
                dist.barrier()
                processor_begin = time.process_time()
                begin = time.monotonic_ns()
                net.zero_grad(set_to_none=mode == "none")
                net(inputs).square().mean().backward()
                optimizer.step()
                end = time.monotonic_ns()
                used = time.process_time() - processor_begin
                if sample > 0:
                    say(f"interval {kind}.{mode} {sample} {begin} {end}")
                    processor[f"{kind}.{mode}"] = processor.get(f"{kind}.{mode}", 0) + used
    for kind, seconds in processor.items():
        say(f"fact processor.{kind} {seconds / samples}")
    dist.destroy_process_group()


def main():
    ranks, model, samples, meeting = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    if len(sys.argv) > 5:
        run_rank(ranks, model, samples, meeting, int(sys.argv[5]))
        return 0

    def end_with_this_process():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    others = [
        subprocess.Popen([sys.executable, *sys.argv, str(rank)], preexec_fn=end_with_this_process)
        for rank in range(ranks)
    ]
    return max(abs(other.wait()) for other in others)


if __name__ == "__main__":
    sys.exit(main())
