"""Holds README.md and the guide (examples/guide/*.md) to the repository: programs are the examples, what is named exists.

usage: readme.py ROOT | readme.py --selftest

README.md's first ```cpp block is examples/first_program.cpp; each other one, of every page, stands in a file below
examples/, line by line, but for the indentation. Floors, presets, programs, files, headers, variables and links exist.
The number below the first table of a walk ("### Walk 1: ...") is that of its files; "again" is in front of a file that an
earlier row of the walks has, and of no other. The picture of the layers is what its script writes.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

README = "README.md"


class Repository(NamedTuple):
    first_program: str
    examples: list  # texts
    floors: list
    presets: list
    programs: list
    files: list  # paths
    variables: list


def bare(text):
    """The lines without their indentation, and without empty ones."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def contains(lines, wanted):
    return any(lines[at : at + len(wanted)] == wanted for at in range(len(lines) - len(wanted) + 1))


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """The names that the page's headings have in links."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def programs_in(page, text, repository):
    blocks = re.findall(r"^```cpp\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    if page == README and (not blocks or blocks.pop(0) != repository.first_program):
        yield f"{page}: the first ```cpp block is not examples/first_program.cpp; copy the one to the other"
    examples = [bare(example) for example in repository.examples]
    for block in blocks:
        if not any(contains(lines, bare(block)) for lines in examples):
            yield f"{page}: no file below examples/ has the ```cpp block that begins {bare(block)[0]!r}"


def links_in(page, pages, repository):
    for target in sorted(set(re.findall(r"\]\(([^()\s]+)\)", without_code(pages[page])))):
        path, _, anchor = target.partition("#")
        if re.match(r"https?:", target):
            continue
        file = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if file not in pages and file not in repository.files:
            yield f"{page}: the file {file} that it links to does not exist"
        elif anchor and anchor not in anchors(pages.get(file, "")):
            yield f"{page}: the heading {target} does not exist"


def names_in(page, text, repository):
    for what, pattern, existing in (
        ("preset", r"cmake --workflow --preset ([\w-]+)", repository.presets),
        ("program", r"build/[\w-]+/(?:examples|bench)/(\w+)", repository.programs),
        ("file", r"(?<![\w/])((?:bench|dtrain|examples|single_include|tests)/[\w./-]+\.\w+)", repository.files),
        ("variable", r"\b(DTRAIN_[A-Z_]+[A-Z])\b", repository.variables),
    ):
        for name in sorted(set(re.findall(pattern, text)) - set(existing)):
            yield f"{page}: the {what} {name} does not exist"


def floors_in(pages, repository):
    lists = [block for text in pages.values()
             for block in re.findall(r"^```\n(dtrain\.hpp .*?)^```", text, re.MULTILINE | re.DOTALL)]
    if len(lists) != 1:
        yield f"{len(lists)} blocks list the floors, beginning with dtrain.hpp; there is to be one"
    named = [floor for block in lists for floor in re.findall(r"^(\w+)/ ", block, re.MULTILINE)]
    for floor in sorted(set(named) ^ set(repository.floors)):
        yield f"the floor {floor} is not in both the list of the floors and include/dtrain"


def walks_in(page, text):
    """The tables of the walks: rows whose first cell is "[again ]`FILE`[, `FILE`]...", and "N files[, M of them again]."."""
    seen = set()  # files of all earlier rows
    for name, walk in re.findall(r"^### (Walk \d+).*\n((?:(?!^#).*\n)*)", text, re.MULTILINE):
        earlier = set(seen)
        tables = re.findall(r"^\| file \|.*\n\| --- .*\n((?:\|.*\n)*)", walk, re.MULTILINE)
        for table in tables:
            for again, cell in re.findall(r"^\| (again )?(`.*?) \|", table, re.MULTILINE):
                for file in re.findall(r"`(.*?)`", cell):
                    if bool(again) != (file in seen):
                        yield f"{page}: {name}: {file} stands in {'no' if again else 'an'} earlier row of the walks, but " \
                              f"{'has' if again else 'lacks'} \"again\""
                    if re.match(r"dtrain/(core|async/loop|async/task)/", file):
                        yield f"{page}: {name}: {file} is of a folder that the walks leave out"
                seen |= set(re.findall(r"`(.*?)`", cell))
        files = set(re.findall(r"`(.*?)`", " ".join(row.split("|")[1] for row in "".join(tables[:1]).splitlines())))
        again = len(files & earlier)
        counted = f"{len(files)} files" + (f", {again} of them again" if again else "") + "."
        stated = re.search(r"^\d+ files.*?\.", walk, re.MULTILINE)
        if not stated or stated[0] != counted:
            yield f"{page}: {name}: its table has {counted!r}, the text has {stated[0] if stated else 'no number'!r}"


def problems(pages, repository):
    """What is not so in the texts of the pages (by path), one sentence each."""
    found = [*floors_in(pages, repository)]
    for page, text in pages.items():
        found += [*programs_in(page, text, repository), *names_in(page, text, repository),
                  *links_in(page, pages, repository), *walks_in(page, text)]
    return found


def read_pages(root):
    paths = [root / README, *sorted((root / "examples" / "guide").glob("*.md"))]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


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
        files=paths + [path.removeprefix("include/").removeprefix("single_include/") for path in paths],
        variables=sorted({name for path in [*sources, root / "CMakeLists.txt", root / "bench" / "cuda" / "ten_minutes"]
                          if path.relative_to(root).parts[:1] != ("tests",) or "emulation" in path.parts
                          for name in re.findall(r"\bDTRAIN_[A-Z_]+[A-Z]\b", path.read_text(errors="replace"))}),
    )


def selftest():
    page = "examples/guide/design.md"
    repository = Repository("int x;\n", ["int f() {\n  int y;\n\n  g();\n}\n"], ["core"], ["demo"], ["whoami"],
                            ["examples/whoami.cpp", page], ["DTRAIN_LOG"])
    good = {
        README: "# All of it\n```cpp\nint x;\n```\ncmake --workflow --preset demo\n[all](#all-of-it) `examples/whoami.cpp` "
                f"build/demo/examples/whoami `DTRAIN_LOG` [design]({page}#the-floors)\n",
        page: "# Design\n## The floors\n```\ndtrain.hpp  all\ncore/  std\n```\n```cpp\nint y;\ng();\n```\n"
              "[program](../whoami.cpp) [home](../../README.md#all-of-it)\n"
              "### Walk 1: a\n| file | what |\n| --- | --- |\n| `a`, `b` | x |\n| again `a` | y |\n\n2 files. All.\n\n"
              "| file | what |\n| --- | --- |\n| `c` | x |\n\n"
              "### Walk 2: b\n| file | what |\n| --- | --- |\n| `d` | `x` |\n| again `b` | y |\n\n2 files, 1 of them again.\n",
    }
    cases = [
        ("", "", 0),
        ("int x;", "int z;", 1),
        ("g();", "h();", 1),
        ("core/ ", "cores/ ", 2),
        ("dtrain.hpp  all", "all", 2),
        ("preset demo", "preset dream", 1),
        ("(#all-of-it", "(#none-of-it", 1),
        ("README.md#all-of-it", "README.md#none-of-it", 1),
        ("design.md#the-floors", "design.md#the-roof", 1),
        ("../whoami.cpp", "../who.cpp", 1),
        ("`examples/whoami.cpp", "`examples/who.cpp", 1),
        ("demo/examples/whoami", "demo/examples/who", 1),
        ("DTRAIN_LOG", "DTRAIN_DOG", 1),
        ("2 files. All", "3 files. All", 1),
        ("2 files. All", "Two files. All", 1),
        ("2 files, 1 of", "2 files, 2 of", 1),
        ("| again `a` |", "| `a` |", 1),
        ("| `d` |", "| again `d` |", 1),
        ("| `d` |", "| `d`, `e` |", 1),
        ("| `c` |", "| again `c` |", 1),
        ("| `c` |", "| `dtrain/core/c` |", 1),
    ]
    wrong = []
    for old, new, count in cases:
        pages = {name: text.replace(old, new) if old else text for name, text in good.items()}
        found = problems(pages, repository)
        if len(found) != count:
            wrong.append(f"selftest {old!r} -> {new!r}: wanted {count} problems, got {found}")
    return wrong


def main():
    if sys.argv[1:] == ["--selftest"]:
        found = selftest()
    else:
        root = pathlib.Path(sys.argv[1])
        found = problems(read_pages(root), read(root))
        picture = subprocess.run([sys.executable, "-B", root / "examples" / "guide" / "layers.py", "--check"],
                                 capture_output=True, text=True, check=False)
        found += picture.stdout.splitlines() + picture.stderr.splitlines()
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
