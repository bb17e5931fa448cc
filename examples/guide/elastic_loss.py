#!/usr/bin/env python3
"""Kills workers of an elastic training at given steps, and draws the loss of each step beside that of an undisturbed run.

  python3 examples/guide/elastic_loss.py build/demo/examples/fashion_mnist [SVG]

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


def curve(values, most, colour):
    step = (WIDTH - LEFT - 10) / len(values)
    points = " ".join(f"{LEFT + i * step:.1f},{HEIGHT - BOTTOM - value / most * (HEIGHT - BOTTOM - 20):.1f}"
                      for i, value in enumerate(values))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def picture(disturbed, undisturbed, killed):
    most = max(*disturbed, *undisturbed)
    step = (WIDTH - LEFT - 10) / len(disturbed)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        curve(undisturbed, most, "#a0aec0"),
        curve(disturbed, most, "#2b6cb0"),
    ]
    for at in killed:
        x = LEFT + at * step
        lines.append(f'<line x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#c53030" stroke-dasharray="4 3"/>')
        lines.append(f'<text x="{x + 4:.1f}" y="32" fill="#c53030">kill -9 after step {at}</text>')
    lines += [
        f'<line x1="{LEFT}" y1="{HEIGHT - BOTTOM}" x2="{WIDTH - 10}" y2="{HEIGHT - BOTTOM}" stroke="#1a202c"/>',
        f'<line x1="{LEFT}" y1="20" x2="{LEFT}" y2="{HEIGHT - BOTTOM}" stroke="#1a202c"/>',
        f'<text x="{LEFT}" y="{HEIGHT - 14}">step 1 to {len(disturbed)} of the epoch: loss with two workers killed (blue), '
        "undisturbed (grey)</text>",
        f'<text x="8" y="26">{most:.1f}</text>',
        f'<text x="24" y="{HEIGHT - BOTTOM}">0</text>',
        "</svg>",
    ]
    return "\n".join([*lines, ""])


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    svg = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else pathlib.Path(__file__).with_suffix(".svg")
    undisturbed, _ = train(sys.argv[1], [])
    disturbed, killed = train(sys.argv[1], KILLS)
    svg.write_text(picture(losses(disturbed), losses(undisturbed), killed), encoding="ascii")
    apart = max(abs(a - b) for a, b in zip(losses(disturbed), losses(undisturbed)))
    print(f"the losses of no step differ by more than {apart:.1e}; written: {svg}")


if __name__ == "__main__":
    main()
