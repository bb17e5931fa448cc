#!/usr/bin/env python3
"""Writes all_reduce.svg beside itself: dtrain's all-reduce in shared memory beside the faster of Open MPI and Gloo.

  python3 -B examples/guide/pictures/all_reduce.py            writes the picture
  python3 -B examples/guide/pictures/all_reduce.py --check    exits with 1 where the picture is not what this script draws
"""

import math
import re
import sys

import svg

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, BAR = 720, 256, 44, 712, 62, 224, 25
LEAST, MOST = 0.5, 14
SIZES = ["4 B", "64 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB"]
COLOURS = {2: svg.BLUE, 4: svg.GREEN}


def speeds():
    """Speed relative to the peer's, by ranks and size: of memory that dtrain allocated, and of any. No real-time priority."""
    run = svg.newest("all_reduce.md", "no real-time priority", "| arena before | after | foreign before | after |")
    cells = re.findall(r"^\| (\d) ranks, (\d+ \w+) \|" + r" *[\d.]+ \(([\d.]+)\) \|" * 4, run, re.MULTILINE)
    return {(int(ranks), size): (float(arena), float(foreign)) for ranks, size, _, arena, _, foreign in cells}


def y_of(speed):
    return BOTTOM - (BOTTOM - TOP) * math.log(speed / LEAST) / math.log(MOST / LEAST)


def draw():
    found = speeds()
    picture = svg.Picture(WIDTH, HEIGHT)
    picture.title(18, "All-reduce in shared memory: speed relative to the faster of Open MPI and Gloo")
    picture.legend(LEFT, 40, COLOURS[2], "2 ranks")
    picture.legend(LEFT + 76, 40, COLOURS[4], "4 ranks")
    picture.legend(LEFT + 152, 40, svg.RED, "slower than the peer")
    picture.dot(LEFT + 308, 36)
    picture.text(LEFT + 318, 40, "the same with memory that dtrain did not allocate")
    for speed in (0.5, 1, 2, 5, 10):
        picture.line(LEFT, y_of(speed), RIGHT, y_of(speed), opacity=0.3)
        picture.text(LEFT - 6, y_of(speed) + 4, f"{speed:g} x", "end")
    group = (RIGHT - LEFT) / len(SIZES)
    for at, size in enumerate(SIZES):
        middle = LEFT + (at + 0.5) * group
        picture.text(middle, BOTTOM + 20, size, "middle")
        for ranks, x in ((2, middle - BAR - 1), (4, middle + 1)):
            arena, foreign = found[ranks, size]
            top, bottom = sorted((y_of(arena), y_of(1)))
            picture.box(x, top, BAR, max(bottom - top, 1), COLOURS[ranks] if arena >= 1 else svg.RED)
            picture.dot(x + BAR / 2, y_of(foreign))
            picture.text(x + BAR / 2, min(top, y_of(foreign) - 3) - 4, f"{arena:.2g}", "middle", size=11)
    picture.line(LEFT, y_of(1), RIGHT, y_of(1))
    return picture.svg()


if __name__ == "__main__":
    sys.exit(svg.main(__file__, draw))
