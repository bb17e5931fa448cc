#!/usr/bin/env python3
"""Holds the list of dtrain's environment variables (launch/configuration/known_variables.hpp) against what reads them:
dtrain warns of a variable whose name begins with DTRAIN_ and is not in the list.

  variable_names.py REPOSITORY   checks the list
  variable_names.py --selftest   shows for each rule that breaking it is noticed

A name of dtrain's is a whole string in include/dtrain. A development variable is an option of CMake, or a name that
tests, benches or examples read from the environment. A shell script that reads others takes them out of the environment
of what it starts, by `export -n`.
"""

import json
import pathlib
import re
import sys
import tempfile

LIST = "include/dtrain/launch/configuration/known_variables.hpp"
FOLDERS = ("tests", "bench", "examples", ".ci")
NAME = r"(DTRAIN_[A-Z0-9_]+)"
OPTION = re.compile(rf"\b(?:option|find_path|find_library|find_program)\({NAME}|\bset\({NAME} [^)]*\bCACHE\b")
READ = {
    ".cpp": re.compile(rf'\b(?:getenv|setting)\("{NAME}"|\w+ = "{NAME}"'),
    ".py": re.compile(rf'\benviron(?:\.get\(|\[)"{NAME}"'),
    "": re.compile(rf"\$\{{{NAME}"),
}
READ[".hpp"] = READ[".cpp"]


def names(pattern, text):
    """What the groups of a pattern's matches have."""
    return {name for match in pattern.finditer(text) for name in match.groups() if name}


def without_comments(text):
    return re.sub(r"//.*", "", text)


def lists_of(root):
    text = without_comments((root / LIST).read_text())
    lists = {}
    for match in re.finditer(r"string_view, (\d+)> (\w+)\{(.*?)\};", text, re.DOTALL):
        lists[match[2]] = re.findall(r'"(\w+)"', match[3])
    return lists


def read_by_dtrain(root):
    """Each whole string DTRAIN_... of the headers, and the header that has it."""
    found = {}
    for path in sorted((root / "include/dtrain").rglob("*.hpp")):
        if path != root / LIST:
            for name in re.findall(rf'"{NAME}"', without_comments(path.read_text())):
                found.setdefault(name, str(path.relative_to(root)))
    return found


def read_by_development(root):
    """The same of what CMake, tests, benches and examples read."""
    found = {}

    def add(path, more):
        for name in more:
            found.setdefault(name, str(path.relative_to(root)))

    for path in [root / "CMakeLists.txt", *sorted(path for folder in FOLDERS for path in (root / folder).rglob("*"))]:
        if not path.is_file() or path == pathlib.Path(__file__).resolve():
            continue
        if path.name == "CMakeLists.txt":
            add(path, names(OPTION, path.read_text()))
        elif path.suffix in READ and (path.suffix or path.open("rb").read(2) == b"#!"):
            text = path.read_text()
            kept = {name for line in re.findall(r"^export -n (.*)", text, re.MULTILINE) for name in re.findall(NAME, line)}
            add(path, names(READ[path.suffix], text) - kept)
    presets = root / "CMakePresets.json"
    for preset in json.loads(presets.read_text()).get("configurePresets", []):
        add(presets, {name for name in preset.get("cacheVariables", {}) if name.startswith("DTRAIN_")})
    return found


def check(root):
    lists = lists_of(root)
    wanted = {"user_variables", "worker_variables", "development_variables", "free_prefixes"}
    if lists.keys() != wanted:
        return [f"{LIST} has the lists {sorted(lists)}, not {sorted(wanted)}"]
    prefixes = tuple(lists["free_prefixes"])
    own = set(lists["user_variables"] + lists["worker_variables"])
    development = set(lists["development_variables"])
    read, others = read_by_dtrain(root), read_by_development(root)
    problems = [f"{where} names {name}, which is in no list of {LIST}" for name, where in read.items() if name not in own]
    problems += [f"{LIST} lists {name}, which no other header names" for name in sorted(own - read.keys())]
    problems += [f"{where} reads {name}: call it DTRAIN_TEST_..., list it in {LIST} as a development variable, or take it "
                 "out of the environment of the script's programs (export -n)" for name, where in others.items()
                 if name not in own | development and not name.startswith(prefixes)]
    problems += [f"{LIST} lists {name}, which neither CMake nor a test, bench or example reads"
                 for name in sorted(development - others.keys())]
    every = [name for names_ in lists.values() for name in names_]
    problems += [f"{LIST} lists {name} twice" for name in sorted({name for name in every if every.count(name) > 1})]
    problems += [f"{LIST} lists {name}, whose beginning is free" for name in sorted(own | development)
                 if name.startswith(prefixes)]
    return problems


def selftest():
    files = {
        LIST: 'constexpr std::array<std::string_view, 1> user_variables{"DTRAIN_LOG"};\n'
              'constexpr std::array<std::string_view, 1> worker_variables{"DTRAIN_ATTEMPT"};\n'
              'constexpr std::array<std::string_view, 2> development_variables{"DTRAIN_INSTALL", "DTRAIN_PEER"};\n'
              'constexpr std::array<std::string_view, 1> free_prefixes{"DTRAIN_TEST_"};\n',
        "include/dtrain/a.hpp": 'getenv("DTRAIN_LOG");  // not "DTRAIN_LOGS"\n"set DTRAIN_LOGS"; e["DTRAIN_ATTEMPT"];\n',
        "CMakeLists.txt": "option(DTRAIN_INSTALL)\nset(DTRAIN_OWN 1)\n",
        "CMakePresets.json": '{"configurePresets": [{"cacheVariables": {"DTRAIN_INSTALL": "ON", "OTHER": "1"}}]}',
        "tests/a.cpp": 'std::getenv("DTRAIN_PEER"); getenv("DTRAIN_TEST_X"); "DTRAIN_LOGS";\n',
        "tests/b.py": 'os.environ.get("DTRAIN_PEER")\n',
        "bench/run": "#!/bin/bash\nexport -n DTRAIN_STEPS\necho ${DTRAIN_STEPS:-}\n",
    }
    changes = {
        ("include/dtrain/a.hpp", 'e["DTRAIN_ATTEMPT"]', 'e["DTRAIN_ATTEMPT"]; e["DTRAIN_NEW"]'): "names DTRAIN_NEW",
        ("include/dtrain/a.hpp", 'getenv("DTRAIN_LOG")', ""): "lists DTRAIN_LOG, which no other header names",
        ("include/dtrain/a.hpp", 'e["DTRAIN_ATTEMPT"]', ""): "lists DTRAIN_ATTEMPT, which no other",
        ("CMakeLists.txt", "set(DTRAIN_OWN 1)", "set(DTRAIN_OWN 1 CACHE STRING x)"): "CMakeLists.txt reads DTRAIN_OWN",
        ("CMakePresets.json", "OTHER", "DTRAIN_OTHER"): "CMakePresets.json reads DTRAIN_OTHER",
        ("tests/a.cpp", "TEST_X", "X"): "tests/a.cpp reads DTRAIN_X",
        ("tests/b.py", "PEER", "PEERS"): "tests/b.py reads DTRAIN_PEERS",
        ("bench/run", "export -n", "export"): "bench/run reads DTRAIN_STEPS",
        (LIST, '"DTRAIN_PEER"', '"DTRAIN_PEER", "DTRAIN_GONE"'): "lists DTRAIN_GONE, which neither",
        (LIST, '"DTRAIN_PEER"', '"DTRAIN_PEER", "DTRAIN_LOG"'): "lists DTRAIN_LOG twice",
        (LIST, '"DTRAIN_TEST_"', '"DTRAIN_TEST_", "DTRAIN_PE"'): "lists DTRAIN_PEER, whose beginning is free",
        (LIST, "free_prefixes", "prefixes"): "has the lists",
    }
    problems = []
    for change, expected in {None: None, **changes}.items():
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text.replace(*change[1:]) if change and change[0] == name else text)
            found = check(root)
        if (expected is None and found) or (expected and not any(expected in problem for problem in found)):
            problems.append(f"{change}: expected {expected}, found {found}")
    return problems


def main(arguments):
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    problems = selftest() if arguments == ["--selftest"] else check(pathlib.Path(arguments[0]).resolve())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
