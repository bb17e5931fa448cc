#!/usr/bin/env python3
"""Writes single_include/dtrain/dtrain.hpp from include/: one file to copy into a project.

Plain concatenation of every header that dtrain.hpp reaches, bottom floor first and each after what it includes, names
deciding ties. Includes from outside dtrain are hoisted to the top, once each; those inside #if stay where they are.
No arguments; the same input gives the same bytes.
"""

import pathlib
import re
import sys

# Bottom to top; files directly in include/dtrain/ stand above every folder.
FLOORS = ["core", "kernels", "async", "net", "stream", "identity", "rendezvous", "backend", "topology", "launch", "ddp", "group"]
FRONT = ["policy.hpp", "process_group.hpp", "run.hpp", "distributed_data_parallel.hpp"]
UMBRELLA = "dtrain.hpp"

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|endif)\b")


class AmalgamationError(Exception):
    """A sentence about a header that cannot be put in line."""


def floor_of(name):
    """The floor of "core/error.hpp", as a number; higher is further up."""
    if name == UMBRELLA:
        return len(FLOORS) + 1
    folder = name.split("/")[0]
    if "/" not in name:
        return len(FLOORS)
    if folder not in FLOORS:
        raise AmalgamationError(f"include/dtrain/{name}: '{folder}' is no floor; the floors are {', '.join(FLOORS)}")
    return FLOORS.index(folder)


def parse(root, name):
    """The header's lines without #pragma once and hoisted includes, dtrain's includes, and the others."""
    path = root / "dtrain" / name
    if not path.is_file():
        raise AmalgamationError(f"include/dtrain/{name} is included but does not exist")
    lines, own, foreign, depth = [], [], [], 0
    for line in path.read_text(encoding="utf-8").splitlines():
        condition = CONDITION.match(line)
        if condition:
            depth += -1 if condition.group(1) == "endif" else 1
        include = INCLUDE.match(line)
        if include and include.group(2).startswith("dtrain/"):
            if depth > 0:
                raise AmalgamationError(f"include/dtrain/{name}: {line.strip()} stands inside #if; "
                                        "put the #if inside the included header")
            own.append(include.group(2).removeprefix("dtrain/"))
        elif include and depth == 0:
            foreign.append(f"#include <{include.group(2)}>" if include.group(1) == "<" else line.strip())
        elif line.strip() != "#pragma once":
            lines.append(line.rstrip())
    return lines, own, foreign


def in_order(root):
    """The headers that the umbrella reaches, each after those it includes, and what parse() says of each."""
    parsed, pending = {}, [UMBRELLA]
    while pending:
        name = pending.pop()
        if name not in parsed:
            parsed[name] = parse(root, name)
            pending.extend(parsed[name][1])
    placed = []
    while len(placed) < len(parsed):
        ready = [name for name, (_, own, _) in parsed.items() if name not in placed and set(own) <= set(placed)]
        if not ready:
            circle = ", ".join(sorted(set(parsed) - set(placed)))
            raise AmalgamationError(f"these headers include each other in a circle: {circle}")
        placed.append(min(ready, key=lambda name: (floor_of(name), name)))
    return placed, parsed


def tidy(lines):
    """No blank lines at either end and no two in a row."""
    result = []
    for line in lines:
        if line or (result and result[-1]):
            result.append(line)
    while result and not result[-1]:
        result.pop()
    return result


def amalgamate(repository):
    """The text of the single header."""
    root = repository / "include"
    version_text = (root / "dtrain/core/version.hpp").read_text(encoding="utf-8")
    version = ".".join(re.findall(r"^#define DTRAIN_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", version_text, re.M))
    licence = (repository / "LICENSE").read_text(encoding="utf-8").splitlines()
    order, parsed = in_order(root)
    foreign = {include for name in order for include in parsed[name][2]}
    text = [f"// dtrain {version}: distributed data-parallel training for any C++ model, in one header.",
            "// Made of include/dtrain by single_include/amalgamate.py; change it there.", "//"]
    text += [f"// {line}".rstrip() for line in licence]
    text += ["", "#pragma once", ""]
    # The system's own headers (with a slash or .h) come first, as in the headers themselves.
    text += sorted(foreign, key=lambda include: (".h>" not in include, include))
    for name in order:
        body = tidy(parsed[name][0])
        # The umbrella's own lines are only its comment.
        if name != UMBRELLA:
            text += ["", f"// ---- dtrain/{name}", "", *body]
    return "\n".join(text) + "\n"


def main():
    repository = pathlib.Path(__file__).resolve().parent.parent
    try:
        text = amalgamate(repository)
    except AmalgamationError as error:
        print(f"amalgamate.py: {error}", file=sys.stderr)
        return 1
    target = repository / "single_include" / "dtrain" / "dtrain.hpp"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
