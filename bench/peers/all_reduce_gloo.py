"""The ranks of all_reduce_bench's peer Gloo, through torch.distributed:

    all_reduce_gloo.py RANKS SOCKET

See bench/all_reduce/protocol.hpp for what is asked and pattern.hpp for the values.
"""

import multiprocessing
import socket
import sys
import tempfile
import time

import torch
import torch.distributed as dist

PERIOD = 1021


def values(rank):
    state, list_ = rank + 1, []
    for _ in range(PERIOD):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        list_.append(1 + (state >> 16) % 3)
    return torch.tensor(list_, dtype=torch.float32)


def fill(buffer, pattern, shift):
    """pattern: longer than a period by a period."""
    whole = buffer.numel() // PERIOD * PERIOD
    buffer[:whole].view(-1, PERIOD).copy_(pattern[shift : shift + PERIOD].expand(whole // PERIOD, PERIOD))
    buffer[whole:].copy_(pattern[shift : shift + buffer.numel() - whole])


def is_right(buffer, pattern, shift):
    whole = buffer.numel() // PERIOD * PERIOD
    rows = buffer[:whole].view(-1, PERIOD)
    return bool((rows == pattern[shift : shift + PERIOD]).all()) and torch.equal(
        buffer[whole:], pattern[shift : shift + buffer.numel() - whole]
    )


def measure(buffers, own, sums, samples, warm_ups, iteration):
    times = []
    for sample in range(-warm_ups, samples):
        shifts = [(iteration + i) * 7 % PERIOD for i in range(len(buffers))]
        for buffer, shift in zip(buffers, shifts):
            fill(buffer, own, shift)
        dist.barrier()
        begin = time.monotonic_ns()
        for buffer in buffers:
            dist.all_reduce(buffer)
        end = time.monotonic_ns()
        for buffer, shift in zip(buffers, shifts):
            if not is_right(buffer, sums, shift):
                raise RuntimeError("a result is wrong")
        iteration += len(buffers)
        if sample >= 0:
            times += [begin, end]
    return times, iteration


def serve(rank, ranks, name, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=ranks)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect("\0" + name[1:])
    lines = link.makefile("rw")
    lines.write("rank %d\n" % rank)
    lines.flush()
    own, sums = values(rank).repeat(2), sum(values(other) for other in range(ranks)).repeat(2)
    memory, iteration = torch.empty(0), 0
    for line in lines:
        _, _, size, count, warm_ups, samples = line.split()
        elements, count = int(size) // 4, int(count)
        stride = (elements + 15) // 16 * 16
        if memory.numel() < stride * count:
            memory = torch.empty(stride * count)
        buffers = [memory[i * stride : i * stride + elements] for i in range(count)]
        times, iteration = measure(buffers, own, sums, int(samples), int(warm_ups), iteration)
        lines.write("times " + " ".join(map(str, times)) + "\n")
        lines.flush()


def main():
    ranks, name = int(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        running = [
            context.Process(target=serve, args=(rank, ranks, name, folder + "/meeting")) for rank in range(ranks)
        ]
        for process in running:
            process.start()
        for process in running:
            process.join()
        sys.exit(any(process.exitcode for process in running))


if __name__ == "__main__":
    main()
