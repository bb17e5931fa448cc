"""Holds README.md to the repository: its programs are the examples, what it names exists.

usage: readme.py ROOT | readme.py --selftest

The first ```cpp block is examples/first_program.cpp; each other one stands in a file below examples/, line by line, but
for the indentation. Floors, presets, programs, files, headers, variables and the links to headings exist.
"""

import json
import pathlib
import re
import sys
from typing import NamedTuple


class Repository(NamedTuple):
    first_program: str
    examples: list  # texts
    floors: list
    presets: list
    programs: list
    files: list  # paths
    variables: list


def bare(text):
    """The lines without their indentation; where nothing stands there is no line."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def contains(lines, wanted):
    return any(lines[at : at + len(wanted)] == wanted for at in range(len(lines) - len(wanted) + 1))


def anchor(heading):
    """The name that a heading has in links."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def programs_in(readme, repository):
    blocks = re.findall(r"^```cpp\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    if not blocks or blocks[0] != repository.first_program:
        yield "the first ```cpp block is not examples/first_program.cpp; copy the one to the other"
    examples = [bare(text) for text in repository.examples]
    for block in blocks[1:]:
        if not any(contains(lines, bare(block)) for lines in examples):
            yield f"no file below examples/ has the ```cpp block that begins {bare(block)[0]!r}"


def names_in(readme, repository):
    house = re.search(r"^```\n(dtrain\.hpp .*?)^```", readme, re.MULTILINE | re.DOTALL)
    named = re.findall(r"^(\w+)/ ", house.group(1), re.MULTILINE) if house else []
    for floor in sorted(set(named) ^ set(repository.floors)):
        yield f"the floor {floor} is not in both the design section and include/dtrain"
    for what, pattern, existing in (
        ("preset", r"cmake --workflow --preset ([\w-]+)", repository.presets),
        ("program", r"build/[\w-]+/(?:examples|bench)/(\w+)", repository.programs),
        ("file", r"(?<![\w/])((?:bench|dtrain|examples|single_include|tests)/[\w./-]+\.\w+)", repository.files),
        ("variable", r"\b(DTRAIN_[A-Z_]+[A-Z])\b", repository.variables),
        ("heading", r"\]\(#([\w-]+)\)", [anchor(line) for line in re.findall(r"^#+ (.*)$", readme, re.MULTILINE)]),
    ):
        for name in sorted(set(re.findall(pattern, readme)) - set(existing)):
            yield f"the {what} {name} does not exist"


def problems(readme, repository):
    """What in the text of README.md is not so, one sentence each."""
    return [*programs_in(readme, repository), *names_in(readme, repository)]


def read(root):
    include = root / "include" / "dtrain"
    presets = json.loads((root / "CMakePresets.json").read_text())["workflowPresets"]
    files = [path for folder in ("bench", "examples", "include", "single_include", "tests")
             for path in (root / folder).rglob("*") if path.is_file()]
    sources = [path for path in files if path.suffix in (".cpp", ".hpp", ".cu")]
    paths = [path.relative_to(root).as_posix() for path in files]
    return Repository(
        first_program=(root / "examples" / "first_program.cpp").read_text(),
        examples=[path.read_text() for path in sources if "examples" in path.relative_to(root).parts],
        floors=[folder.name for folder in include.iterdir() if folder.is_dir()],
        presets=[preset["name"] for preset in presets],
        programs=[path.stem for path in sources if path.suffix == ".cpp"],
        files=paths + [path.removeprefix("include/") for path in paths] + ["dtrain/dtrain.hpp"],
        variables=sorted({name for path in [*sources, root / "CMakeLists.txt"]
                          if "tests" not in path.relative_to(root).parts
                          for name in re.findall(r"\bDTRAIN_[A-Z_]+[A-Z]\b", path.read_text(errors="replace"))}),
    )


def selftest():
    house = Repository("int x;\n", ["int f() {\n  int y;\n\n  g();\n}\n"], ["core"], ["demo"], ["whoami"],
                       ["examples/whoami.cpp"], ["DTRAIN_LOG"])
    good = ("# All of it\n```cpp\nint x;\n```\n```\ndtrain.hpp  all\ncore/  std\n```\ncmake --workflow --preset demo\n"
            "```cpp\nint y;\ng();\n```\n[all](#all-of-it) `examples/whoami.cpp` build/demo/examples/whoami `DTRAIN_LOG`\n")
    cases = [
        (good, 0),
        (good.replace("int x;", "int z;"), 1),
        (good.replace("g();", "h();"), 1),
        (good.replace("core/ ", "cores/ "), 2),
        (good.replace("preset demo", "preset dream"), 1),
        (good.replace("#all-of-it", "#none-of-it"), 1),
        (good.replace("examples/whoami.cpp", "examples/who.cpp"), 1),
        (good.replace("demo/examples/whoami", "demo/examples/who"), 1),
        (good.replace("DTRAIN_LOG", "DTRAIN_DOG"), 1),
        ("", 2),
    ]
    bad = [text for text, count in cases if len(problems(text, house)) != count]
    return [f"the check is wrong about: {text!r}" for text in bad]


def main():
    found = selftest() if sys.argv[1:] == ["--selftest"] else None
    if found is None:
        root = pathlib.Path(sys.argv[1])
        found = problems((root / "README.md").read_text(), read(root))
    for sentence in found:
        print(f"README.md: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
