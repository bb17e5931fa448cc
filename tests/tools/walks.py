#!/usr/bin/env python3
"""Writes examples/guide/internals/walks.md and its pictures from walks.txt and the first comment of each header.

usage: walks.py ROOT | walks.py --check ROOT | walks.py --selftest

walks.txt lists the stages of each walk, and the files of each stage in order. The script numbers the rows, marks a file that
an earlier row has by "again", counts the files, and draws the folders of each walk in its order. --check writes nothing: it
fails if a file is not what the script writes.
"""

import pathlib
import re
import sys
import textwrap
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "guide" / "pictures"))
import svg  # noqa: E402  (what the pictures of the guide share)

INPUT = "tests/tools/walks.txt"
INCLUDE = "include/dtrain/"
PAGE = "examples/guide/internals/walks.md"
PICTURES = "examples/guide/pictures/"
LEFT_OUT = re.compile(r"core/|async/(?:loop/|task)")  # what no walk names; the page says so


class Row(NamedTuple):
    files: list
    name: str  # of the sentence in the opening; empty: the first sentence
    what: str  # empty: the opening


class Stage(NamedTuple):
    thread: str
    title: str
    rows: list


class Walk(NamedTuple):
    title: str
    picture: str  # empty: the page itself
    before: list  # lines
    stages: list
    after: list


class Problem(Exception):
    """A sentence about walks.txt."""


def parse(text):
    """The page's beginning, and the walks."""
    walks = []
    lines = iter(text.splitlines())
    prose = None
    for line in lines:
        if line.startswith("= "):
            title, _, picture = line.removeprefix("= ").partition(" | ")
            walks.append(Walk(title, picture, [], [], []))
            prose = walks[-1].before
        elif line.startswith("@ "):
            thread, _, title = line.removeprefix("@ ").partition(" | ")
            walks[-1].stages.append(Stage(thread, title, []))
            prose = None
        elif line == ".":
            prose = walks[-1].after
        elif prose is not None:
            prose.append(line)
        elif walks and line:
            cell, _, what = line.partition(" | ")
            files, _, name = cell.partition(": ")
            walks[-1].stages[-1].rows.append(Row(files.split(", "), name, what))
        elif line and not line.startswith("#"):
            raise Problem(f"{INPUT}: {line!r} stands before the page's title")
    return walks[0], walks[1:]


def opening_of(text):
    """The comment after '/// @file', in one line."""
    lines = text.splitlines()
    words = []
    for line in lines[lines.index("/// @file") + 1:]:
        if not line.startswith("///"):
            break
        words += line.removeprefix("///").split()
    return " ".join(words)


def sentence_of(opening, name):
    """The sentence of the opening that begins with the name, without its full stop."""
    sentences = re.split(r"(?<=[.!?]) (?=\S)", opening)
    found = [sentence for sentence in sentences if sentence.startswith(name)]
    return found[0].rstrip(".") if found else None


def what_of(row, headers):
    if row.what:
        return row.what
    sentence = sentence_of(opening_of(headers[row.files[0]]), row.name)
    if len(row.files) > 1 or sentence is None:
        why = f"no sentence of its opening begins with {row.name!r}" if sentence is None else "it has several files"
        raise Problem(f"{INPUT}: {', '.join(row.files)}: write what happens here after ' | ', because {why}")
    return sentence.replace("<", "&lt;").replace("|", "\\|")


def page_of(start, walks, headers):
    lines = [f"# {start.title}", *start.before]
    seen = set()  # files of all earlier rows
    for walk in walks:
        lines += [f"## {walk.title}", *walk.before,
                  f"![The folders in the order of this walk, with the numbers of the rows](../pictures/{walk.picture}.svg)", ""]
        earlier = set(seen)
        number = 0
        files = set()
        for stage in walk.stages:
            lines += [f"**{stage.title}** ({stage.thread})", "", "| | file | what |", "| --- | --- | --- |"]
            for row in stage.rows:
                for file in row.files:
                    if file not in headers:
                        raise Problem(f"{INPUT}: there is no header {INCLUDE}{file}")
                    if LEFT_OUT.match(file):
                        raise Problem(f"{INPUT}: {file} is in a folder that the walks leave out")
                number += 1
                cells = [f"{'again ' if file in seen else ''}[`{file}`](../../../{INCLUDE}{file})" for file in row.files]
                lines.append(f"| {number} | {', '.join(cells)} | {what_of(row, headers)} |")
                files |= set(row.files)
                seen |= set(row.files)
            lines.append("")
        again = len(files & earlier)
        lines += [f"{len(files)} files" + (f", {again} of them of an earlier walk" if again else "") + ".",
                  *walk.after]
        while not lines[-1]:
            lines.pop()
        lines.append("")
    return "\n".join(lines)


WIDTH, TEXTS, BOX, GAP = 860, 196, 36, 18
COLOURS = {  # of floors; others are grey
    "ddp": svg.BLUE, "group": svg.BLUE, "backend": svg.GREEN, "kernels": svg.GREEN, "stream": svg.GREEN, "topology": svg.GREEN,
    "launch": svg.RED, "identity": svg.RED, "rendezvous": svg.AMBER,
}


def folders_of(stage, number):
    """(folder, rows) of the stage's files, neighbours in one folder together; a folder has at most two levels."""
    found = []
    for row in stage.rows:
        number += 1
        for file in row.files:
            folder = "/".join(file.split("/")[:-1][:2]) or file
            if not found or found[-1][0] != folder:
                found.append((folder, []))
            if number not in found[-1][1]:
                found[-1][1].append(number)
    return found, number


def arrow(picture, points):
    """A line through the points, horizontal and vertical in turns, with a head at its end."""
    (_, y1), (x2, y2) = points[-2:]
    head = [(-6, -3.5), (-6, 3.5)] if y1 == y2 else [(-3.5, -6), (3.5, -6)]
    picture.add("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in points), fill="none", stroke=svg.TEXT)
    picture.add("polygon", points=" ".join(f"{x2 + x:g},{y2 + y:g}" for x, y in [(0, 0), *head]))


def picture_of(walk):
    """Each stage is a band: its boxes are folders in order, an arrow leads from each to the next."""
    texts, lines, boxes = [], [], []
    y = number = 0
    for stage in walk.stages:
        folders, number = folders_of(stage, number)
        left = [*((line, True) for line in textwrap.wrap(stage.title, 24)),
                *((line, False) for line in textwrap.wrap(stage.thread.replace("`", ""), 28))]
        texts += [(y + GAP + 12 + 16 * at, line, bold) for at, (line, bold) in enumerate(left)]
        x, top = TEXTS, y + GAP
        for folder, rows in folders:
            width = max(44, 7 * len(folder) + 14)
            if x + width > WIDTH - 8:
                x, top = TEXTS, top + BOX + GAP + 4
            boxes.append((x, top, width, folder, rows))
            x += width + GAP
        y = max(top + BOX, y + GAP + 16 * len(left)) + GAP
        lines.append(y)
    picture = svg.Picture(WIDTH, y - GAP + 4)
    for line in lines[:-1]:
        picture.line(0, line, WIDTH, line, svg.GREY, opacity=0.3)
    for at, line, bold in texts:
        picture.text(4, at, line, bold=bold)
    for x, top, width, folder, rows in boxes:
        numbers = f"{rows[0]}-{rows[-1]}" if len(rows) > 1 else str(rows[0])
        picture.box(x, top, width, BOX, "none", radius=5, line=COLOURS.get(folder.split("/")[0], svg.GREY))
        picture.text(x + width / 2, top + 16, folder, anchor="middle")
        picture.text(x + width / 2, top + 30, numbers, anchor="middle", size=10)
    for (x1, y1, width1, *_), (x2, y2, width2, *_) in zip(boxes, boxes[1:]):
        turn, from_x, to_x = y1 + BOX + GAP // 2, x1 + width1 / 2, x2 + width2 / 2
        if y1 == y2:
            arrow(picture, [(x1 + width1, y1 + BOX / 2), (x2, y1 + BOX / 2)])
        elif x2 + 8 < from_x < x2 + width2 - 8:
            arrow(picture, [(from_x, y1 + BOX), (from_x, y2)])
        else:
            arrow(picture, [(from_x, y1 + BOX), (from_x, turn), (to_x, turn), (to_x, y2)])
    return picture.svg()


def read_headers(root):
    include = root / INCLUDE
    return {path.relative_to(include).as_posix(): path.read_text(encoding="utf-8") for path in include.rglob("*.hpp")}


def written(text, headers):
    """Path: content of each file. @throws Problem"""
    start, walks = parse(text)
    return {PAGE: page_of(start, walks, headers), **{f"{PICTURES}{walk.picture}.svg": picture_of(walk) for walk in walks}}


def selftest():
    headers = {"a.hpp": "#pragma once\n/// @file\n/// A: first. B: the\n/// second.\n\n/// C.\n",
               "d/e/f/b.hpp": "#pragma once\n/// @file\n/// It <is>.\n", "core/c.hpp": "#pragma once\n/// @file\n/// C.\n"}
    good = ("# Note.\n\n= Page\n\nBegin.\n\n= Walk 1: x | one\n\nPath.\n\n@ main | First stage\na.hpp\na.hpp: B\n"
            "d/e/f/b.hpp\n.\nEnd.\n\n= Walk 2: y | two\n\n@ main | Only\na.hpp, d/e/f/b.hpp | both\n.\n")
    problems = []

    def expect(what, is_met):
        if not is_met:
            problems.append(f"selftest: {what}")

    files = written(good, headers)
    page = files[PAGE]
    expect("three files", sorted(files) == [PAGE, PICTURES + "one.svg", PICTURES + "two.svg"])
    for line in ["# Page", "Begin.", "## Walk 1: x", "Path.", "**First stage** (main)", "2 files.", "End.",
                 "| 1 | [`a.hpp`](../../../include/dtrain/a.hpp) | A: first |",
                 "| 2 | again [`a.hpp`](../../../include/dtrain/a.hpp) | B: the second |",
                 "| 3 | [`d/e/f/b.hpp`](../../../include/dtrain/d/e/f/b.hpp) | It &lt;is> |",
                 "| 1 | again [`a.hpp`](../../../include/dtrain/a.hpp), "
                 "again [`d/e/f/b.hpp`](../../../include/dtrain/d/e/f/b.hpp) | both |",
                 "2 files, 2 of them of an earlier walk."]:
        expect(f"the page has the line {line!r}, but is\n{page}", line in page.splitlines())
    expect("no note is written", "Note" not in page)
    picture = files[PICTURES + "one.svg"]
    expect("folders of two levels, with their rows", ">d/e<" in picture and ">1-2<" in picture)
    expect("an arrow", picture.count("<polyline") == 1)
    for old, new, word in [("a.hpp: B", "a.hpp: D", "begins with 'D'"), ("a.hpp: B", "z.hpp", "no header include/dtrain/z.hpp"),
                           ("a.hpp: B", "core/c.hpp", "leave out"), (" | both", "", "several files"),
                           ("# Note", "Note", "before the page's title")]:
        try:
            written(good.replace(old, new), headers)
            problems.append(f"selftest: {new!r} in place of {old!r} is no problem")
        except Problem as problem:
            expect(f"{word!r} in the sentence {problem}", word in str(problem))
    return problems


def main(arguments):
    if arguments == ["--selftest"]:
        problems = selftest()
    elif len(arguments) not in (1, 2) or (len(arguments) == 2 and arguments[0] != "--check"):
        print(__doc__)
        return 2
    else:
        root = pathlib.Path(arguments[-1])
        problems = []
        try:
            for name, content in written((root / INPUT).read_text(encoding="utf-8"), read_headers(root)).items():
                if len(arguments) == 1:
                    (root / name).write_text(content, encoding="utf-8")
                elif not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != content:
                    problems.append(f"{name} is not what the script writes; run python3 -B tests/tools/walks.py .")
        except Problem as problem:
            problems.append(str(problem))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
