#!/usr/bin/env python3
"""Writes single_include/dtrain/dtrain.hpp from include/: one file to copy into a project. Beside it dtrain.cpp, for a
program that compiles the definitions once.

Plain concatenation of every header that dtrain.hpp reaches, bottom floor first and each after what it includes, names
deciding ties. Includes from outside dtrain are hoisted to the top, once each; those inside #if stay where they are.
A header's last lines, from `#if DTRAIN_DEFINITIONS` to `#endif  // DTRAIN_DEFINITIONS`, and what is reached only
through them, come after all others, together with the foreign includes that only they need, in one such #if
(core/config.hpp).
A header of dtrain inside `#if DTRAIN_WITH_...` is in the single header whatever the macro says.
The checks of system and standard at the beginning of core/config.hpp come before everything else.
The macros that dtrain.hpp puts aside are put aside before all of it, and back behind it.
No arguments; the same input gives the same bytes.
"""

import pathlib
import re
import sys
from typing import NamedTuple

# Bottom to top; files directly in include/dtrain/ stand above every folder.
FLOORS = ["core", "kernels", "async", "net", "stream", "identity", "rendezvous", "backend", "topology", "launch", "group", "ddp", "elastic"]
FRONT = ["policy.hpp", "process_group.hpp", "run.hpp", "elastic.hpp", "distributed_data_parallel.hpp"]
UMBRELLA = "dtrain.hpp"
CHECKS = "core/config.hpp"
# Above it, and not in the single header: <dtrain/NAME.hpp> and the folder NAME, which include the library of that name.
COMPONENTS = ["libtorch"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|endif)\b")
WITH_LIBRARY = re.compile(r"^#if DTRAIN_WITH_\w+$")
DEFINITIONS = '#define DTRAIN_IMPLEMENTATION  // all files of the program: -DDTRAIN_SEPARATE_COMPILATION=1\n#include "dtrain.hpp"\n'
SECTION_BEGIN = "#if DTRAIN_DEFINITIONS"
SECTION_END = "#endif  // DTRAIN_DEFINITIONS"


class AmalgamationError(Exception):
    """A sentence about a header that cannot be put in line."""


def component_of(name):
    """The component that a header belongs to, or None."""
    part = name.split("/")[0].removesuffix(".hpp")
    return part if part in COMPONENTS else None


def floor_of(name):
    """The floor of "core/error.hpp", as a number; higher is further up."""
    if name == UMBRELLA:
        return len(FLOORS) + 1
    if component_of(name):
        return len(FLOORS) + 2
    folder = name.split("/")[0]
    if "/" not in name:
        return len(FLOORS)
    if folder not in FLOORS:
        raise AmalgamationError(f"include/dtrain/{name}: '{folder}' is no floor; the floors are {', '.join(FLOORS)}")
    return FLOORS.index(folder)


class Header(NamedTuple):
    """What stands in a header."""

    lines: list  # without #pragma once, hoisted includes, and dtrain's own
    own: list  # the headers of dtrain that it includes
    foreign: list  # the other includes, as they are written
    definitions: list  # the name of its own last lines, if they are definitions


def parse(root, name):
    """The Header of that name, and the one that its last lines are if they are definitions, by their names."""
    path = root / "dtrain" / name
    if not path.is_file():
        raise AmalgamationError(f"include/dtrain/{name} is included but does not exist")
    text = path.read_text(encoding="utf-8").splitlines()
    if text[-1:] != [SECTION_END]:
        return {name: header_of(name, text)}
    if text.count(SECTION_BEGIN) != 1:
        raise AmalgamationError(f"include/dtrain/{name} does not begin the definitions that it ends: {SECTION_BEGIN}")
    begin, section = text.index(SECTION_BEGIN), f"{name} (definitions)"
    header = header_of(name, text[:begin])
    header.definitions.append(section)
    return {name: header, section: header_of(name, text[begin + 1 : -1])}


def header_of(name, text):
    """The Header with these lines."""
    header, conditions = Header([], [], [], []), []
    for line in text:
        condition = CONDITION.match(line)
        if condition:
            if condition.group(1) != "endif":
                conditions.append(line)
            elif conditions:
                conditions.pop()
        include = INCLUDE.match(line)
        if include and include.group(2).startswith("dtrain/"):
            if conditions and not (len(conditions) == 1 and WITH_LIBRARY.match(conditions[0])):
                raise AmalgamationError(f"include/dtrain/{name}: {line.strip()} stands inside #if; "
                                        "put the #if inside the included header")
            header.own.append(include.group(2).removeprefix("dtrain/"))
        elif include and not conditions:
            header.foreign.append(f"#include <{include.group(2)}>" if include.group(1) == "<" else line.strip())
        elif line.strip() != "#pragma once":
            header.lines.append(line.rstrip())
    return header


def declared(parsed):
    """The headers that the umbrella reaches without any definitions."""
    reached, pending = set(), [UMBRELLA]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(parsed[name].own)
    return reached


def placed_after(before, first=frozenset()):
    """The names, each after those that before[name] has; those in `first` before all others, then the bottom floor's."""
    placed = []
    while len(placed) < len(before):
        left = set(before) - set(placed)
        ready = [name for name in left if not before[name] & left]
        if not ready:
            while others := left - set().union(*(before[name] for name in left)):
                left -= others
            raise AmalgamationError(f"these headers include each other in a circle: {', '.join(sorted(left))}")
        placed.append(min(ready, key=lambda name: (name not in first, floor_of(name), name)))
    return placed


def in_order(root):
    """The headers that the umbrella reaches, each after those it includes, what only definitions need last; and what
    parse() says of each."""
    parsed, pending = {}, [UMBRELLA]
    while pending:
        name = pending.pop()
        if name not in parsed:
            parsed.update(found := parse(root, name))
            pending += [other for header in found.values() for other in header.own + header.definitions]
    # A header's definitions may include it. Nothing else that they include may lead back to it: who includes that first
    # would get the definitions too early.
    whole = {name: {*header.own, *header.definitions} for name, header in parsed.items()}
    after = {name: set(header.own) for name, header in parsed.items()}
    for name, header in parsed.items():
        for definitions in header.definitions:
            whole[definitions].discard(name)
            after[definitions].add(name)
    placed_after(whole)
    return placed_after(after, declared(parsed)), parsed


def tidy(lines):
    """No blank lines at either end and no two in a row."""
    result = []
    for line in lines:
        if line or (result and result[-1]):
            result.append(line)
    while result and not result[-1]:
        result.pop()
    return result


def foreign_of(names, parsed):
    """The foreign includes of these headers; the system's own (with a slash or .h) come first, as in the headers."""
    foreign = {include for name in names for include in parsed[name].foreign}
    return sorted(foreign, key=lambda include: (".h>" not in include, include))


def bodies(names, parsed):
    """What these headers say, one after another; the umbrella's own lines are for who includes several of them."""
    text = []
    for name in names:
        if name != UMBRELLA:
            text += ["", f"// ---- dtrain/{name}", "", *tidy(parsed[name].lines)]
    return text


def take_checks(parsed):
    """Removes from core/config.hpp what stands between its opening comment and its next one: its checks."""
    lines = parsed[CHECKS].lines if CHECKS in parsed else []
    begin = next((i for i, line in enumerate(lines) if line and not line.startswith("///")), len(lines))
    end = next((i for i in range(begin, len(lines)) if lines[i].startswith("///")), len(lines))
    checks = tidy(lines[begin:end])
    del lines[begin:end]
    return ["", *checks] if checks else []


def macros(parsed, *kinds):
    """The lines of the umbrella that put macros aside, or back, and a blank one before them."""
    lines = [line for line in parsed[UMBRELLA].lines if line.startswith(kinds)]
    return ["", *lines] if lines else []


def amalgamate(repository):
    """The text of the single header."""
    root = repository / "include"
    version_text = (root / "dtrain/core/version.hpp").read_text(encoding="utf-8")
    version = ".".join(re.findall(r"^#define DTRAIN_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", version_text, re.M))
    licence = (repository / "LICENSE").read_text(encoding="utf-8").splitlines()
    order, parsed = in_order(root)
    ordinary = [name for name in order if name in declared(parsed)]
    defining = order[len(ordinary) :]
    text = [f"// dtrain {version}: distributed data-parallel training for any C++ model, in one header.",
            "// Made of include/dtrain by single_include/amalgamate.py; change it there.", "//"]
    text += [f"// {line}".rstrip() for line in licence]
    text += ["", "#pragma once", *take_checks(parsed), *macros(parsed, "#pragma push_macro", "#undef"), ""]
    text += foreign_of(ordinary, parsed) + bodies(ordinary, parsed)
    if defining:
        included = set(foreign_of(ordinary, parsed))
        only_theirs = [line for line in foreign_of(defining, parsed) if line not in included]
        text += ["", "#if DTRAIN_DEFINITIONS", "", *only_theirs, *bodies(defining, parsed), "", "#endif"]
    text += macros(parsed, "#pragma pop_macro")
    return "\n".join(text) + "\n"


def main():
    repository = pathlib.Path(__file__).resolve().parent.parent
    try:
        text = amalgamate(repository)
    except AmalgamationError as error:
        print(f"amalgamate.py: {error}", file=sys.stderr)
        return 1
    folder = repository / "single_include" / "dtrain"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dtrain.hpp").write_text(text, encoding="utf-8")
    (folder / "dtrain.cpp").write_text(DEFINITIONS, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
