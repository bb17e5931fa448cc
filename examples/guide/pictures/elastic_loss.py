#!/usr/bin/env python3
"""Kills workers of an elastic training at given steps, and draws the loss of each step beside that of an undisturbed run.

  python3 -B examples/guide/pictures/elastic_loss.py build/demo/examples/fashion_mnist [SVG]

The picture is elastic_loss.svg beside this script, where no SVG is named. The training is one epoch on three ranks.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import svg

KILLS = [60, 130]
FLAGS = ["--nproc-per-node=3", "--min-ranks=1", "--max-restarts=10", "--elastic", "--epochs=1", "--global-batch=240"]
WIDTH, HEIGHT, LEFT, BOTTOM = 860, 300, 50, 40


def commits(folder):
    """The lines of all workers so far; the last one of a file may be half written."""
    found = []
    for path in folder.glob("log.*"):
        for line in path.read_text(encoding="ascii").splitlines():
            try:
                found.append({**json.loads(line), "process": int(path.suffix[1:])})
            except json.JSONDecodeError:
                pass
    return found


def train(program, kills):
    """Runs the training. @returns its commits, and the steps after which a worker was killed"""
    killed = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with open(folder / "output", "w+", encoding="utf-8") as output:
            job = subprocess.Popen([program, *FLAGS, f"--commit-log={folder}/log"], stdout=output, stderr=output)
            while job.poll() is None:
                lines = commits(folder)
                last = max((line["step"] for line in lines), default=0)
                if len(killed) < len(kills) and last >= kills[len(killed)]:
                    attempt = max(line["attempt"] for line in lines)
                    victim = max(line["process"] for line in lines if line["attempt"] == attempt)
                    os.kill(victim, signal.SIGKILL)
                    killed.append(last)
                time.sleep(0.02)
            output.seek(0)
            text = output.read()
        if job.returncode != 0 or len(killed) != len(kills):
            raise SystemExit(f"the training ended with {job.returncode}, {len(killed)} workers were killed:\n{text}")
        print("".join(line + "\n" for line in text.splitlines() if "lost" in line or "ranks:" in line or "accuracy" in line))
        return commits(folder), killed


def losses(lines):
    """The mean loss of each step over the ranks of the last attempt that committed it."""
    found = {}
    for line in lines:
        attempt, values = found.get(line["step"], (0, []))
        if line["attempt"] > attempt:
            attempt, values = line["attempt"], []
        if line["attempt"] == attempt:
            values = [*values, line["loss"]]
        found[line["step"]] = (attempt, values)
    return [sum(values) / len(values) for _, (_, values) in sorted(found.items())]


def draw(disturbed, undisturbed, killed):
    most = max(*disturbed, *undisturbed)
    step = (WIDTH - LEFT - 10) / len(disturbed)
    picture = svg.Picture(WIDTH, HEIGHT)
    for values, colour, stroke in ((undisturbed, svg.AMBER + "90", 7), (disturbed, svg.BLUE, 1.5)):
        width = (WIDTH - LEFT - 10) / len(values)
        picture.curve([(LEFT + i * width, HEIGHT - BOTTOM - value / most * (HEIGHT - BOTTOM - 20))
                       for i, value in enumerate(values)], colour, stroke)
    for at in killed:
        x = LEFT + at * step
        picture.line(x, 20, x, HEIGHT - BOTTOM, svg.RED, "4 3")
        picture.text(x + 4, 32, f"kill -9 after step {at}", colour=svg.RED, size=13)
    picture.line(LEFT, HEIGHT - BOTTOM, WIDTH - 10, HEIGHT - BOTTOM)
    picture.line(LEFT, 20, LEFT, HEIGHT - BOTTOM)
    picture.text(LEFT, HEIGHT - 14, f"loss of steps 1 to {len(disturbed)}: with two workers killed (thin, blue), "
                 "and of a run without kills (wide, brown)", size=13)
    picture.text(LEFT - 8, 26, f"{most:.1f}", "end", size=13)
    picture.text(LEFT - 8, HEIGHT - BOTTOM + 4, "0", "end", size=13)
    return picture.svg()


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    path = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else pathlib.Path(__file__).with_suffix(".svg")
    undisturbed, _ = train(sys.argv[1], [])
    disturbed, killed = train(sys.argv[1], KILLS)
    path.write_text(draw(losses(disturbed), losses(undisturbed), killed), encoding="utf-8")
    apart = max(abs(a - b) for a, b in zip(losses(disturbed), losses(undisturbed)))
    print(f"the losses of no step differ by more than {apart:.1e}; written: {path}")


if __name__ == "__main__":
    main()
