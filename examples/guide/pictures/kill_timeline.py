#!/usr/bin/env python3
"""Writes kill_timeline.svg beside itself: what happens after a worker of an elastic job is killed, and how long it takes.

  python3 -B examples/guide/pictures/kill_timeline.py            writes the picture
  python3 -B examples/guide/pictures/kill_timeline.py --check    exits with 1 where the picture is not what this script draws
"""

import sys

import svg

WIDTH, HEIGHT, LEFT, RIGHT = 720, 312, 92, 710
# From the left to the right: where a stretch begins, its colour, and two lines of words.
SURVIVORS = [(LEFT, svg.BLUE, "step n", ""), (152, svg.AMBER, "loss noticed,", "call throws"),
             (236, svg.AMBER, "3 ranks form,", "compare state"), (326, svg.BLUE, "step n again,", "commit"),
             (412, svg.BLUE, "more steps", ""), (486, svg.GREEN, "4 ranks form", ""), (566, svg.GREEN, "state is sent", ""),
             (648, svg.BLUE, "next step,", "commit")]
NEWCOMER = [(200, svg.GREY, "another worker 3 starts and makes its model", ""), (486, svg.GREEN, "joins", ""),
            (566, svg.GREEN, "receives it", ""), (648, svg.BLUE, "", "")]
PAUSES = [("dtrain   kill, 1 MB ", "kill, 1 MB model", svg.AMBER), ("dtrain   kill, 100 MB ", "kill, 100 MB model", svg.AMBER),
          ("dtrain   join, 300 MB of state ", "join, 300 MB state", svg.GREEN)]


def stretches(picture, y, entries, end):
    for (x, colour, first, second), after in zip(entries, [*(entry[0] for entry in entries[1:]), end]):
        picture.box(x, y, after - x - 2, 18, colour)
        for line, words in enumerate((first, second)):
            if words:
                picture.text((x + after) / 2 - 1, y + 31 + 13 * line, words, "middle", size=11)


def bracket(picture, x, end, words):
    picture.line(x, 52, end, 52)
    picture.line(x, 48, x, 56)
    picture.line(end, 48, end, 56)
    picture.text((x + end) / 2, 45, words, "middle")


def seconds(milliseconds):
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def draw():
    picture = svg.Picture(WIDTH, HEIGHT)
    picture.title(18, "One worker of four is killed, and another one takes its place (not to scale)")
    bracket(picture, 152, 410, "pause after the kill")
    bracket(picture, 486, RIGHT, "pause for the new worker")
    picture.text(LEFT - 8, 78, "workers 0-2", "end")
    stretches(picture, 65, SURVIVORS, RIGHT + 2)
    picture.text(LEFT - 8, 141, "worker 3", "end")
    stretches(picture, 128, SURVIVORS[:1], 152)
    picture.text(154, 142, "killed", colour=svg.RED, bold=True)
    stretches(picture, 128, NEWCOMER, RIGHT + 2)
    picture.title(204, "How long the other ranks pause, beyond one step: median, and the slowest")
    found = {row.what: row for row in svg.rows(svg.newest("elastic.md", *(line for line, _, _ in PAUSES)))}
    for at, (line, words, colour) in enumerate(PAUSES):
        y = 218 + 30 * at
        row = found[" ".join(line.split())]
        width = 0.75 * row.milliseconds
        picture.text(126, y + 13, words, "end")
        picture.box(134, y, width, 18, colour)
        picture.text(140 + width, y + 13, f"{seconds(row.milliseconds)} (slowest of {row.samples}: "
                     f"{seconds(1e3 * row.fact('max_seconds'))})")
    return picture.svg()


if __name__ == "__main__":
    sys.exit(svg.main(__file__, draw))
