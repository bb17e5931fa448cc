"""What the pictures of the guide share: shapes in middle tones without a background, for light and dark pages alike; the
figures of bench/results; and the command line, `python3 -B examples/guide/pictures/NAME.py [--check]`."""

import pathlib
import re
import sys
from typing import NamedTuple
from xml.sax.saxutils import escape

RESULTS = pathlib.Path(__file__).resolve().parents[3] / "bench" / "results"

# Each has a contrast of at least 3 with white and with #0d1117; TEXT has 4.3 with both. bench/picture_colors.hpp has them too.
TEXT, BLUE, GREEN, RED, AMBER, GREY = "#767b82", "#3f83c9", "#2f9465", "#d64f4a", "#b57d1c", "#878d95"


class Row(NamedTuple):
    """A line of a benchmark, as bench/result_rows.hpp prints it."""

    what: str  # system and name: "dtrain step"
    ranks: int
    milliseconds: float
    samples: int
    facts: dict  # texts by name

    def fact(self, name):
        return float(self.facts[name])


class Picture:
    """Shapes in their order: those that come later lie above."""

    def __init__(self, width, height):
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{TEXT}">'
        ]

    def add(self, tag, content="", **attributes):
        """Numbers are rounded, attributes that are empty are left out, and "_" in a name is "-"."""
        words = [f'{name.replace("_", "-")}="{value if isinstance(value, str) else f"{value:.5g}"}"'
                 for name, value in attributes.items() if value]
        self.lines.append(f"<{tag} {' '.join(words)}" + (f">{escape(content)}</{tag}>" if content else "/>"))

    def text(self, x, y, words, anchor="", colour="", size=0, bold=False):
        self.add("text", words, x=x, y=y, text_anchor=anchor, fill=colour, font_size=size, font_weight="bold" if bold else "")

    def title(self, y, words):
        self.text(8, y, words, size=13, bold=True)

    def box(self, x, y, width, height, colour, radius=0, line=""):
        self.add("rect", x=x, y=y, width=width, height=height, fill=colour, rx=radius, stroke=line)

    def dot(self, x, y):
        """Is seen on a bar, too."""
        self.add("circle", cx=x, cy=y, r=3.5, fill="#f2c14e", stroke="#3a3a3a")

    def line(self, x1, y1, x2, y2, colour=TEXT, dashes="", opacity=0):
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_dasharray=dashes, opacity=opacity)

    def curve(self, points, colour, width):
        self.add("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), fill="none", stroke=colour,
                 stroke_width=width)

    def legend(self, x, y, colour, words):
        self.box(x, y - 10, 11, 11, colour)
        self.text(x + 16, y, words)

    def svg(self):
        return "\n".join([*self.lines, "</svg>", ""])


def result(page):
    """The text of a page of bench/results."""
    return (RESULTS / page).read_text(encoding="utf-8")


def newest(page, *wanted):
    """The run with all the words wanted whose heading (of the first level) has the latest date."""
    runs = [run for run in re.split(r"^(?=# )", result(page), flags=re.MULTILINE) if all(words in run for words in wanted)]
    if not runs:
        raise SystemExit(f"bench/results/{page} has no run with {' and '.join(repr(words) for words in wanted)}")
    return max(runs, key=lambda run: re.findall(r"\d{4}-\d\d-\d\d", run.splitlines()[0]))


def rows(text):
    found = []
    for line in text.splitlines():
        match = re.match(r"(\S.*?)\s{2,}(\d+)\s+([\d.]+) ms\s+(\d+)(?:\s+(.*))?$", line)
        if match:
            facts = {name: value.strip('"') for name, value in re.findall(r'(\w+) ("[^"]*"|\S+)', match[5] or "")}
            found.append(Row(" ".join(match[1].split()), int(match[2]), float(match[3]), int(match[4]), facts))
    return found


def main(script, draw):
    """Writes the picture that lies beside the script, or checks it. @returns the exit code"""
    path = pathlib.Path(script).with_suffix(".svg")
    if sys.argv[1:] == ["--check"]:
        if not path.is_file() or path.read_text(encoding="utf-8") != draw():
            name = f"examples/guide/pictures/{path.stem}"
            print(f"{name}.svg is not what {path.stem}.py draws; run python3 -B {name}.py")
            return 1
        return 0
    if sys.argv[1:]:
        print(f"usage: python3 -B examples/guide/pictures/{path.stem}.py [--check]")
        return 2
    path.write_text(draw(), encoding="utf-8")
    return 0
