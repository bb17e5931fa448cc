#!/usr/bin/env python3
"""Writes layers.svg beside itself: the layers of dtrain, from a user's program down to what carries the bytes.

  python3 examples/guide/layers.py            writes the picture
  python3 examples/guide/layers.py --check    exits with 1 where the picture is not what this script writes
"""

import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, MARGIN, ROW, GAP = 860, 10, 56, 10
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
CONTROL = ["rendezvous", "one session with the store", "for each rank: joining, keys,", "barriers, heartbeats, and the", "first cause of a failure,", "which aborts every backend"]


def text(x, y, content, size=13, weight="normal", colour="#1a202c"):
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{colour}">{escape(content)}</text>'


def box(x, y, width, height, kind):
    fill, line = STYLE[kind]
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{line}"/>'


def picture():
    height = MARGIN * 2 + len(ROWS) * ROW + (len(ROWS) - 1) * GAP
    wide, narrow = WIDTH - 2 * MARGIN, WIDTH - 3 * MARGIN - CONTROL_WIDTH
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for at, (name, what, kind) in enumerate(ROWS):
        y = MARGIN + at * (ROW + GAP)
        lines.append(box(MARGIN, y, wide if kind == "user" else narrow, ROW, kind))
        lines.append(text(MARGIN + 14, y + 23, name, 15, "bold"))
        lines.append(text(MARGIN + 14, y + 43, what))
    y = MARGIN + ROW + GAP
    left = MARGIN * 2 + narrow
    lines.append(box(left, y, CONTROL_WIDTH, height - MARGIN - y, "control"))
    lines.append(text(left + 14, y + 23, CONTROL[0], 15, "bold"))
    lines += [text(left + 14, y + 49 + 20 * at, line) for at, line in enumerate(CONTROL[1:])]
    return "\n".join([*lines, "</svg>", ""])


def main():
    path = pathlib.Path(__file__).with_name("layers.svg")
    if sys.argv[1:] == ["--check"]:
        if not path.is_file() or path.read_text() != picture():
            print("examples/guide/layers.svg is not what layers.py writes; run python3 examples/guide/layers.py")
            return 1
        return 0
    if sys.argv[1:]:
        print(__doc__)
        return 2
    path.write_text(picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
