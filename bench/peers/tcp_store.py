"""Times PyTorch's TCPStore: many clients connect, add to one key and wait for another, as rendezvous_bench's ranks do.

    tcp_store.py CLIENTS PROCESSES SAMPLES

The store has a process of its own; the clients are threads (its calls block) of PROCESSES processes. Prints
`version V`, then a line `seconds S` for each sample: from telling all processes to begin until the last client is done.
"""

import datetime
import multiprocessing
import sys
import threading
import time

import torch
from torch.distributed import TCPStore

PATIENCE = datetime.timedelta(seconds=120)


def serve(pipe):
    store = TCPStore("127.0.0.1", 0, None, True, PATIENCE, False)
    pipe.send(store.port)
    pipe.recv()


def one(port, clients, sums, stores):
    store = TCPStore("127.0.0.1", port, None, False, PATIENCE, False)
    stores.append(store)  # stays open until the sample has ended
    total = store.add("count", 1)
    sums.append(total)
    if total == clients:
        store.set("all", "1")
    store.wait(["all"], PATIENCE)


def play(pipe, port, clients, threads):
    sums, stores = [], []
    gate = threading.Event()

    def run():
        gate.wait()
        one(port, clients, sums, stores)

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    pipe.send("ready")
    pipe.recv()
    gate.set()
    for thread in running:
        thread.join()
    pipe.send((time.monotonic(), sums))
    pipe.recv()


def sample(context, clients, processes):
    pipe, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port = pipe.recv()
    players = []
    for i in range(processes):
        share = clients * (i + 1) // processes - clients * i // processes
        end, theirs = context.Pipe()
        player = context.Process(target=play, args=(theirs, port, clients, share), daemon=True)
        player.start()
        players.append((player, end))
    for _, end in players:
        end.recv()
    begin = time.monotonic()
    for _, end in players:
        end.send("begin")
    results = [end.recv() for _, end in players]
    if sorted(total for _, sums in results for total in sums) != list(range(1, clients + 1)):
        sys.exit("the sums are wrong")
    for player, end in players:
        end.send("end")
        player.join()
    pipe.send("end")
    server.join()
    return max(moment for moment, _ in results) - begin


def main():
    clients, processes, samples = (int(argument) for argument in sys.argv[1:4])
    context = multiprocessing.get_context("fork")
    print("version", torch.__version__)
    for _ in range(samples):
        print("seconds %.9f" % sample(context, clients, min(clients, processes)), flush=True)


if __name__ == "__main__":
    main()
