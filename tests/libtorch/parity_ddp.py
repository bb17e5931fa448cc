#!/usr/bin/env python3
"""Trains the models of parity_probe with PyTorch's DistributedDataParallel over Gloo, and compares the results.

  parity_ddp.py FOLDER    FOLDER has what `parity_probe --nproc-per-node=2 FOLDER` wrote; prints the table of cases
                          and exits with 1 if a difference is above what its case allows
"""

import datetime
import io
import math
import pathlib
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 50
RANKS = 2


def values(shape, seed):
    """As values() of parity_values.hpp."""
    count = math.prod(shape)
    numbers = [((1000003 * seed + i) % 2**32 * 2654435761 % 2**32) / 2147483648.0 - 1 for i in range(count)]
    return torch.tensor(numbers, dtype=torch.float64).to(torch.float32).reshape(shape)


def fill(tensor, seed):
    with torch.no_grad():
        tensor.copy_(values(tensor.shape, seed) * 0.5)


def fill_parameters(module, rank):
    for i, parameter in enumerate(module.parameters()):
        fill(parameter, 100 * rank + i)


def seed_of(rank, step, turn=0):
    return 1000 + 100 * step + 10 * turn + rank


def inputs(rank, step, turn=0):
    return values([4, 6], seed_of(rank, step, turn))


def loss_of(output, rank, step, turn=0):
    output = output.to(torch.float32) if output.dtype == torch.bfloat16 else output
    target = values(output.shape, 50000 + seed_of(rank, step, turn)).to(output.dtype)
    return nn.functional.mse_loss(output, target)


def layers(rank, *middle):
    net = nn.Sequential(nn.Linear(6, 16), *middle, nn.Tanh(), nn.Linear(16, 3))
    fill_parameters(net, rank)
    return net


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def momentum_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def train(optimizer, backward, set_to_none=True):
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        backward(step)
        optimizer.step()


def wrap(net, **options):
    """In a process group of its own: a case that Gloo refuses leaves the others alone."""
    return DistributedDataParallel(net, process_group=dist.new_group(), **options)


def train_net(rank, net, make_optimizer, set_to_none=True, convert=lambda x: x, after=lambda: None, **options):
    ddp = wrap(net, **options)

    def backward(step):
        loss_of(ddp(convert(inputs(rank, step))), rank, step).backward()
        after()

    train(make_optimizer([p for p in net.parameters() if p.requires_grad]), backward, set_to_none)
    return net


def sgd(rank):
    return train_net(rank, layers(rank), plain_sgd)


def momentum(rank):
    return train_net(rank, layers(rank), momentum_sgd)


def kept(rank):
    return train_net(rank, layers(rank), momentum_sgd, set_to_none=False)


def adam(rank):
    return train_net(rank, layers(rank), adamw)


def clipped(rank):
    net = layers(rank)
    return train_net(rank, net, plain_sgd, after=lambda: nn.utils.clip_grad_norm_(net.parameters(), 0.05))


class Heads(nn.Sequential):
    """The second head is used on the ranks below `ranks`."""

    def __init__(self, rank, ranks):
        super().__init__(nn.Linear(6, 3), nn.Linear(6, 3))
        self.used = rank < ranks
        fill_parameters(self, rank)

    def forward(self, x):
        return self[0](x) + self[1](x) if self.used else self[0](x)


def unused(rank):
    return train_net(rank, Heads(rank, 0), adamw, find_unused_parameters=True)


def used_on_rank0(rank):
    return train_net(rank, Heads(rank, 1), adamw, find_unused_parameters=True)


def static_graph(rank):
    return train_net(rank, Heads(rank, 0), adamw, static_graph=True)


def frozen(rank):
    net = layers(rank)
    net[0].requires_grad_(False)
    return train_net(rank, net, momentum_sgd)


def batch_norm(rank, **options):
    norm = nn.BatchNorm1d(16)
    fill(norm.running_mean, 900 + (rank if options.get("broadcast_buffers", True) else 0))
    return train_net(rank, layers(rank, norm), plain_sgd, **options)


def own_buffers(rank):
    return batch_norm(rank, broadcast_buffers=False)


def sync_batch_norm(rank):
    """One process with the samples of all ranks."""
    net = layers(0, nn.BatchNorm1d(16))

    def backward(step):
        output = net(torch.cat([inputs(r, step) for r in range(RANKS)])).chunk(RANKS)
        sum(loss_of(output[r], r, step) / RANKS for r in range(RANKS)).backward()

    train(plain_sgd(net.parameters()), backward)
    return net


def no_sync(rank):
    net = layers(rank)
    ddp = wrap(net)

    def one(step, turn):
        (loss_of(ddp(inputs(rank, step, turn)), rank, step, turn) / 4).backward()

    def backward(step):
        with ddp.no_sync():
            for turn in range(3):
                one(step, turn)
        one(step, 3)

    train(momentum_sgd(net.parameters()), backward)
    return net


def two_passes(rank):
    net = layers(rank)
    ddp = wrap(net)

    def backward(step):
        for turn in range(2):
            loss_of(ddp(inputs(rank, step, turn)), rank, step, turn).backward()

    train(plain_sgd(net.parameters()), backward)
    return net


def several_roots(rank):
    net = layers(rank)
    ddp = wrap(net)

    def backward(step):
        output = ddp(inputs(rank, step))
        loss = loss_of(output, rank, step)
        torch.autograd.backward([loss, output], [torch.ones([]), values([4, 3], 5) * 0.01])

    train(plain_sgd(net.parameters()), backward)
    return net


def retain_graph(rank):
    net = layers(rank)
    ddp = wrap(net)

    def backward(step):
        loss = loss_of(ddp(inputs(rank, step)), rank, step)
        loss.backward(retain_graph=True)
        loss.backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= RANKS

    train(plain_sgd(net.parameters()), backward)
    return net


def create_graph(rank):
    net = layers(rank)
    ddp = wrap(net)

    def backward(step):
        by = [inputs(rank, step).requires_grad_()] + list(net.parameters())
        loss = loss_of(ddp(by[0]), rank, step)
        for derivative in torch.autograd.grad([loss], by, create_graph=True):
            loss = loss + 0.1 * derivative.square().sum()
        loss.backward()

    train(plain_sgd(net.parameters()), backward)
    return net


def embedding(rank):
    net = nn.Embedding(10, 4, sparse=True)
    fill_parameters(net, rank)
    ddp = wrap(net)

    def backward(step):
        words = (torch.arange(6).square() + 7 * step + 3 * rank).remainder(10)
        loss_of(ddp(words), rank, step).backward()

    train(plain_sgd(net.parameters()), backward)
    return net


class Tied(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 6))
        self.again = self.weight
        fill(self.weight, 100 * rank)

    def forward(self, x):
        return x.matmul(self.weight).tanh().matmul(self.again)


def tied(rank):
    return train_net(rank, Tied(rank), momentum_sgd)


def channels_last(rank):
    net = nn.Conv2d(3, 4, 3)
    fill_parameters(net, rank)
    net.to(memory_format=torch.channels_last)
    ddp = wrap(net)

    def backward(step):
        images = values([2, 3, 6, 6], seed_of(rank, step)).contiguous(memory_format=torch.channels_last)
        loss_of(ddp(images), rank, step).backward()

    train(momentum_sgd(net.parameters()), backward)
    return net


def two_wrappers(rank):
    generator = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    discriminator = layers(rank)
    fill_parameters(generator, rank + 5)
    wrapped_generator, wrapped_discriminator = wrap(generator), wrap(discriminator)
    optimizer = plain_sgd(generator.parameters())

    def backward(step):
        made = wrapped_generator(inputs(rank, step))
        optimizer.zero_grad(set_to_none=True)
        loss_of(discriminator(made), rank, step).backward()
        optimizer.step()
        discriminator.zero_grad(set_to_none=True)
        loss_of(wrapped_discriminator(made.detach()), rank, step, 1).backward()

    train(momentum_sgd(discriminator.parameters()), backward)
    return nn.ModuleDict({"generator": generator, "discriminator": discriminator})


def loaded(rank):
    net = layers(rank)
    ddp = wrap(net)

    def backward(step):
        if step == 25:
            stream = io.BytesIO()
            torch.save(layers(7).state_dict(), stream)
            stream.seek(0)
            net.load_state_dict(torch.load(stream))
        loss_of(ddp(inputs(rank, step)), rank, step).backward()

    train(momentum_sgd(net.parameters()), backward)
    return net


def f64(rank):
    return train_net(rank, layers(rank).to(torch.float64), plain_sgd, convert=lambda x: x.to(torch.float64))


def bf16(rank):
    return train_net(rank, layers(rank).to(torch.bfloat16), plain_sgd, convert=lambda x: x.to(torch.bfloat16))


class Odd(nn.Module):
    def __init__(self, weight, extra=None):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.register_buffer("extra", extra)

    def forward(self, x):
        scaled = torch.view_as_real(self.weight).flatten() if self.weight.is_complex() else self.weight.flatten()
        return x * scaled + (0 if self.extra is None else self.extra.to(x.dtype).sum())


def complex_parameter(rank):
    return train_net(rank, Odd(torch.view_as_complex(values([3, 2], 100 * rank))), plain_sgd)


def nine_dimensions(rank):
    return train_net(rank, Odd(values([1, 1, 1, 1, 1, 1, 1, 2, 3], 100 * rank)), plain_sgd)


def int16_buffer(rank):
    return train_net(rank, Odd(values([6], 100 * rank), torch.full([3], 1 + rank, dtype=torch.int16)), plain_sgd)


def expanded_buffer(rank):
    return train_net(rank, Odd(values([6], 100 * rank), torch.full([1], 1.0 + rank).expand(3)), plain_sgd)


# PyTorch 2's optimizer and C++'s round some steps of AdamW otherwise.
ADAMW = 0 if torch.__version__.startswith("1.") else 1e-6

# Name of the files, function, what is trained, the most that the results may differ by.
CASES = [
    ("sgd", sgd, "three layers, SGD", 0),
    ("momentum", momentum, "SGD with momentum and weight decay", 0),
    ("kept", kept, "the same, gradients set to zero instead of none", 0),
    ("adamw", adam, "AdamW", ADAMW),
    ("clipped", clipped, "clip_grad_norm_ (C++'s rounds its factor otherwise)", 1e-6),
    ("unused", unused, "a layer that no rank uses, AdamW", ADAMW),
    ("used_on_rank0", used_on_rank0, "a layer that rank 0 alone uses, AdamW", ADAMW),
    ("static_graph", static_graph, "static_graph with a layer that no rank uses, AdamW", ADAMW),
    ("frozen", frozen, "a frozen layer that differs between the ranks", 0),
    ("batch_norm", batch_norm, "BatchNorm, buffers of rank 0", 0),
    ("own_buffers", own_buffers, "BatchNorm, each rank's own buffers", 0),
    ("sync_batch_norm", sync_batch_norm, "SyncBatchNorm (Python: one process with all samples)", 1e-6),
    ("no_sync", no_sync, "no_sync, four passes", 0),
    ("two_passes", two_passes, "two passes that reduce in a step", 0),
    ("several_roots", several_roots, "two roots, one with a gradient", 0),
    ("retain_graph", retain_graph, "retain_graph (Python: second pass all-reduced by hand)", 0),
    ("create_graph", create_graph, "second derivatives in the loss", 0),
    ("embedding", embedding, "a sparse embedding", 0),
    ("tied", tied, "a tied parameter", 0),
    ("channels_last", channels_last, "a convolution with channels_last memory", 0),
    ("two_wrappers", two_wrappers, "generator and discriminator, two wrappers", 0),
    ("loaded", loaded, "torch::load after step 25", 0),
    ("f64", f64, "f64", 0),
    ("bf16", bf16, "bf16", 0),
    ("complex", complex_parameter, "a complex parameter", 0),
    ("nine_dimensions", nine_dimensions, "a parameter of nine dimensions", 0),
    ("int16_buffer", int16_buffer, "an int16 buffer", 0),
    ("expanded_buffer", expanded_buffer, "an expanded buffer", 0),
]


def state_of(module):
    for name, parameter in module.named_parameters():
        yield name, parameter
        yield name + ".grad", parameter.grad
    yield from module.named_buffers()


def written(name, tensor):
    if tensor is None:
        return name + " none"
    tensor = tensor.detach()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    tensor = tensor.to_dense() if tensor.is_sparse else tensor
    return " ".join([name] + [value.hex() for value in tensor.to(torch.float64).flatten().tolist()])


def run_rank(folder, rank):
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder.resolve()}/store", rank=rank, world_size=RANKS, timeout=limit
    )
    for name, case, _, _ in CASES:
        path = folder / f"torch.{name}.{rank}"
        try:
            path.write_text("\n".join(written(*item) for item in state_of(case(rank))))
        except RuntimeError as error:
            path.write_text("refused " + str(error).strip().splitlines()[0].split(". ")[0])
    dist.barrier()
    dist.destroy_process_group()


def parsed(path):
    lines = [line.split(" ") for line in path.read_text().splitlines()]
    return {name: None if rest == ["none"] else [float.fromhex(value) for value in rest] for name, *rest in lines}


def difference(mine, theirs):
    """The largest difference of any element; a sentence where the files do not list the same."""
    if mine.keys() != theirs.keys():
        return f"dtrain has {' '.join(mine)}, PyTorch {' '.join(theirs)}"
    most = 0.0
    for name in mine:
        a, b = mine[name], theirs[name]
        if (a is None) != (b is None) or (a is not None and len(a) != len(b)):
            return f"{name} differs in its shape, or one of them has none"
        for x, y in zip(a or [], b or []):
            if not abs(x - y) <= most:  # also for a NaN
                most = abs(x - y)
    return most


def compare(folder):
    failures = 0
    print(f"{'case':58} difference after {STEPS} steps on {RANKS} ranks, PyTorch {torch.__version__}")
    for name, _, title, allowed in CASES:
        most = 0.0
        for rank in range(RANKS):
            mine, other = folder / f"dtrain.{name}.{rank}", folder / f"torch.{name}.{rank}"
            if other.read_text().startswith("refused "):
                most = "Python refuses: " + other.read_text().removeprefix("refused ")
                continue
            found = difference(parsed(mine), parsed(other))
            if isinstance(most, float):
                most = found if isinstance(found, str) else max(most, found)
            failures += isinstance(found, str) or not found <= allowed
        shown = most if isinstance(most, str) else "none" if most == 0 else f"{most:.1e}"
        print(f"{title:58} {shown}")
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
