#!/usr/bin/env python3
"""Writes layers.svg beside itself: the layers of dtrain, from a user's program down to what carries the bytes.

  python3 -B examples/guide/pictures/layers.py            writes the picture
  python3 -B examples/guide/pictures/layers.py --check    exits with 1 where the picture is not what this script draws
"""

import sys

import svg

WIDTH, MARGIN, ROW, GAP = 860, 10, 56, 10
INK = "#1a202c"  # on boxes that are light on every page
STYLE = {
    "user": ("#fff4d6", "#b88a00"),
    "step": ("#dcebfb", "#2b6cb0"),
    "policy": ("#e3f4e1", "#2f855a"),
    "control": ("#f0e6f6", "#805ad5"),
}
CONTROL_WIDTH = 220
# Each row: the name, what it does, its choices, and the kind that gives it a colour.
ROWS = [
    ("your program", "any model with parameters(); calls ready(i) when gradient i is final", "user"),
    ("DistributedDataParallel", "buckets gradients, launches a bucket once it is full, averages it", "step"),
    ("stream", "enqueues the bucket and goes on: a host queue, or a CUDA stream", "step"),
    ("topology", "Flat | Hierarchical | Ring | Tree | ParameterServer", "policy"),
    ("backend", "SharedMemory | Mpi | MpiCollectives | Gloo | Nccl | Staged", "policy"),
    ("launch", "PerNode: starts its ranks | PerProcess: mpirun, srun, torchrun, ... | Any", "policy"),
]
CONTROL = ["rendezvous", "one session with the store", "for each rank: joining, keys,", "barriers, heartbeats, and the",
           "first cause of a failure,", "which aborts every backend"]


def box(picture, x, y, width, height, kind, name):
    fill, line = STYLE[kind]
    picture.box(x, y, width, height, fill, radius=6, line=line)
    picture.text(x + 14, y + 23, name, colour=INK, size=15, bold=True)


def draw():
    height = MARGIN * 2 + len(ROWS) * ROW + (len(ROWS) - 1) * GAP
    wide, narrow = WIDTH - 2 * MARGIN, WIDTH - 3 * MARGIN - CONTROL_WIDTH
    picture = svg.Picture(WIDTH, height)
    for at, (name, what, kind) in enumerate(ROWS):
        y = MARGIN + at * (ROW + GAP)
        box(picture, MARGIN, y, wide if kind == "user" else narrow, ROW, kind, name)
        picture.text(MARGIN + 14, y + 43, what, colour=INK, size=13)
    y = MARGIN + ROW + GAP
    left = MARGIN * 2 + narrow
    box(picture, left, y, CONTROL_WIDTH, height - MARGIN - y, "control", CONTROL[0])
    for at, line in enumerate(CONTROL[1:]):
        picture.text(left + 14, y + 49 + 20 * at, line, colour=INK, size=13)
    return picture.svg()


if __name__ == "__main__":
    sys.exit(svg.main(__file__, draw))
