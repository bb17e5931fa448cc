"""Holds README.md and the guide to the repository: programs are the examples, what is named exists, the reader is "you".

usage: readme.py ROOT | readme.py --selftest

Each ```cpp block stands in a file below examples/, line by line, but for the indentation. Floors, presets, programs,
files, headers, variables and links exist.
Each picture of the guide is what its script draws from bench/results (all but elastic_loss.svg, whose script trains).
The prose of README.md and of each page for users (all but examples/guide/internals), without code and tables, has at most
12 relative pronouns and at least 5 words "you" or "your" in 1,000 words. README.md has at most 200 lines.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

README = "README.md"
README_LINES = 200
INTERNALS = "examples/guide/internals/"


class Repository(NamedTuple):
    examples: list  # texts
    floors: list
    presets: list
    programs: list
    files: list  # paths, of folders too
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


def prose_in(text):
    """The page's sentences: no code, tables, pictures, headings or addresses."""
    text = re.sub(r"^(?:\||#|!\[).*$", "", without_code(text), flags=re.MULTILINE)
    return re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^()\s]*\)", "", text))


def gauges_in(page, text):
    if page.startswith(INTERNALS):
        return
    prose = prose_in(text)
    words = len(re.findall(r"[A-Za-z][\w'-]*", prose))
    for what, pattern, bound, is_met in (
        ("that, which, those or whose", r"\b(?:that|which|those|whose)\b", "at most 12", lambda rate: rate <= 12),
        ("you or your", r"\byou(?:r|rs|rself)?\b", "at least 5", lambda rate: rate >= 5),
    ):
        found = len(re.findall(pattern, prose, re.IGNORECASE))
        if words and not is_met(1000 * found / words):
            yield f"{page}: {found} times {what} in {words} words of prose; {bound} in 1,000 are wanted"


def problems(pages, repository):
    """What is not so in the texts of the pages (by path), one sentence each."""
    found = [*floors_in(pages, repository)]
    if (lines := pages[README].count("\n")) > README_LINES:
        found.append(f"{README}: {lines} lines; at most {README_LINES} are wanted")
    for page, text in pages.items():
        found += [*programs_in(page, text, repository), *names_in(page, text, repository),
                  *links_in(page, pages, repository), *gauges_in(page, text)]
    return found


def read_pages(root):
    paths = [root / README, *sorted((root / "examples").rglob("*.md"))]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def read(root):
    include = root / "include" / "dtrain"
    presets = json.loads((root / "CMakePresets.json").read_text())["workflowPresets"]
    files = [path for folder in ("bench", "examples", "include", "single_include", "tests")
             for path in (root / folder).rglob("*") if path.is_file()]
    sources = [path for path in files if path.suffix in (".cpp", ".hpp", ".cu")]
    paths = [path.relative_to(root).as_posix() for path in files]
    folders = {folder.as_posix() for path in files for folder in path.relative_to(root).parents}
    return Repository(
        examples=[path.read_text() for path in sources if "examples" in path.relative_to(root).parts],
        floors=[folder.name for folder in include.iterdir() if folder.is_dir()],
        presets=[preset["name"] for preset in presets],
        programs=[path.stem for path in sources if path.suffix == ".cpp"],
        files=[*paths, *folders, *(path.removeprefix("include/").removeprefix("single_include/") for path in paths)],
        variables=sorted({name for path in [*sources, root / "CMakeLists.txt", root / "bench" / "cuda" / "ten_minutes"]
                          if path.relative_to(root).parts[:1] != ("tests",) or "emulation" in path.parts
                          for name in re.findall(r"\bDTRAIN_[A-Z_]+[A-Z]\b", path.read_text(errors="replace"))}),
    )


def selftest():
    page = INTERNALS + "design.md"
    repository = Repository(["int f() {\n  int y;\n\n  g();\n}\n"], ["core"], ["demo"], ["whoami"],
                            ["examples/whoami.cpp", page], ["DTRAIN_LOG"])
    good = {
        README: "# All of it\n```cpp\nint f() {\n```\ncmake --workflow --preset demo\n[all](#all-of-it) `examples/whoami.cpp` "
                f"build/demo/examples/whoami `DTRAIN_LOG` [design]({page}#the-floors)\n\nYou run {'it ' * 98}that\n",
        page: "# Design\n## The floors\n```\ndtrain.hpp  all\ncore/  std\n```\n```cpp\nint y;\ng();\n```\n"
              "[program](../../whoami.cpp) [home](../../../README.md#all-of-it)\n",
    }
    cases = [
        ("", "", 0),
        ("int f()", "int z()", 1),
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
        ("You run", "Somebody runs", 1),
        ("it that", "those that", 1),
        ("it that", "`those` that", 0),
        ("You run", "-\n" * README_LINES + "You run", 1),
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
        for script in sorted((root / "examples" / "guide" / "pictures").glob("*.py")):
            if "svg.main(" in script.read_text():  # has --check
                picture = subprocess.run([sys.executable, "-B", script, "--check"], capture_output=True, text=True, check=False)
                found += picture.stdout.splitlines() + picture.stderr.splitlines()
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
