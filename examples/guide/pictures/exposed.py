#!/usr/bin/env python3
"""Writes exposed.svg beside itself: what communication adds to a step, beside PyTorch DDP.

  python3 -B examples/guide/pictures/exposed.py            writes the picture
  python3 -B examples/guide/pictures/exposed.py --check    exits with 1 where the picture is not what this script draws
"""

import re
import sys

import svg

WIDTH, HEIGHT, TOP, BOTTOM, BAR = 720, 268, 66, 206, 27
MODELS = [("resnet18", "none", "ResNet-18,", "gradients none"), ("resnet18", "kept", "ResNet-18,", "gradients kept"),
          ("gpt", "none", "GPT-2 blocks,", "gradients none"), ("gpt", "kept", "GPT-2 blocks,", "gradients kept")]
# A row's first word, the colour, what the legend says and where.
SYSTEMS = [("dtrain", svg.BLUE, "dtrain", 8), ("c10d::Reducer", svg.AMBER, "c10d::Reducer from C++ over Gloo", 92),
           ("PyTorch", svg.GREY, "PyTorch DDP over Gloo", 328)]


def libtorch():
    """Exposed milliseconds by system, model and zero_grad, of a run that has all three systems."""
    peer = "\nc10d::Reducer zero_grad"
    runs = re.findall(r"^```\n(.*?)^```", svg.newest("libtorch.md", peer), re.MULTILINE | re.DOTALL)
    return {(row.what.split()[0], row.facts["model"], row.what.split()[-1]): 1e3 * row.fact("exposed_seconds")
            for run in runs if peer in run for row in svg.rows(run) if row.ranks == 2}


def hosts():
    """Percent that a step takes beyond the longer of computing and communicating: dtrain over Gloo, over MPI, and PyTorch."""
    text = " ".join(svg.newest("several_hosts.md", "DDP on gloo").split())
    ratios = re.search(r"([\d.]+) after \(Mpi\), [\d.]+ and ([\d.]+) \(Gloo\); PyTorch 2.15's DDP on gloo ([\d.]+)", text)
    if not ratios:
        raise SystemExit("bench/results/several_hosts.md: its newest run has no sentence with the ratios of overlap_bench")
    mpi, gloo, pytorch = (100 * (float(ratio) - 1) for ratio in ratios.groups())
    return gloo, mpi, pytorch


def bar(picture, x, value, most, colour, unit=""):
    height = (BOTTOM - TOP) * value / most
    picture.box(x, BOTTOM - height, BAR, height, colour)
    picture.text(x + BAR / 2, BOTTOM - height - 4, f"{value:.{1 if value < 10 else 0}f}{unit}", "middle")


def draw():
    picture = svg.Picture(WIDTH, HEIGHT)
    picture.title(18, "What communication adds to a training step (less is better)")
    for _, colour, words, x in SYSTEMS:
        picture.legend(x, 40, colour, words)
    measured = libtorch()
    for at, (model, zero_grad, first, second) in enumerate(MODELS):
        x = 14 + at * 116
        for position, (name, colour, _, _) in enumerate(SYSTEMS):
            bar(picture, x + position * (BAR + 2), measured[name, model, zero_grad], max(measured.values()), colour)
        picture.text(x + 43, BOTTOM + 17, first, "middle")
        picture.text(x + 43, BOTTOM + 31, second, "middle")
    picture.line(8, BOTTOM, 468, BOTTOM)
    picture.text(238, BOTTOM + 54, "LibTorch, 2 ranks on one host: milliseconds", "middle", bold=True)
    percent = hosts()
    for at, (value, colour, words) in enumerate(zip(percent, (svg.BLUE, svg.BLUE, svg.GREY), ("Gloo", "MPI", "Gloo"))):
        x = 552 + at * (BAR + 16)
        bar(picture, x, value, max(percent), colour, "%")
        picture.text(x + BAR / 2, BOTTOM + 17, words, "middle")
    picture.line(520, BOTTOM, 696, BOTTOM)
    picture.text(608, BOTTOM + 54, "Two hosts, 1 Gbit/s: percent", "middle", bold=True)
    return picture.svg()


if __name__ == "__main__":
    sys.exit(svg.main(__file__, draw))
