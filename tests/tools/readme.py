"""Holds README.md to the repository: its first program is examples/first_program.cpp, its folders and presets exist.

usage: readme.py ROOT | readme.py --selftest
"""

import json
import pathlib
import re
import sys


def problems(readme, program, floors, presets):
    """What in the text of README.md is not so, one sentence each."""
    found = []
    blocks = re.findall(r"^```cpp\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    if not blocks or blocks[0] != program:
        found.append("the first ```cpp block is not examples/first_program.cpp; copy the one to the other")
    house = re.search(r"^```\n(dtrain\.hpp .*?)^```", readme, re.MULTILINE | re.DOTALL)
    named = re.findall(r"^(\w+)/ ", house.group(1), re.MULTILINE) if house else []
    for floor in sorted(set(named) ^ set(floors)):
        found.append(f"the floor {floor} is not in both the design section and include/dtrain")
    for preset in re.findall(r"cmake --workflow --preset ([\w-]+)", readme):
        if preset not in presets:
            found.append(f"the preset {preset} does not exist")
    return found


def check(root):
    include = root / "include" / "dtrain"
    presets = json.loads((root / "CMakePresets.json").read_text())["workflowPresets"]
    return problems(
        (root / "README.md").read_text(),
        (root / "examples" / "first_program.cpp").read_text(),
        [folder.name for folder in include.iterdir() if folder.is_dir()],
        [preset["name"] for preset in presets],
    )


def selftest():
    good = "```cpp\nint x;\n```\n```\ndtrain.hpp  all\ncore/  std\n```\ncmake --workflow --preset demo\n"
    cases = [
        (good, 0),
        (good.replace("int x;", "int y;"), 1),
        (good.replace("core/ ", "cores/ "), 2),
        (good.replace("preset demo", "preset dream"), 1),
        ("", 2),
    ]
    bad = [text for text, count in cases if len(problems(text, "int x;\n", ["core"], ["demo"])) != count]
    return [f"the check is wrong about: {text!r}" for text in bad]


def main():
    found = selftest() if sys.argv[1:] == ["--selftest"] else check(pathlib.Path(sys.argv[1]))
    for sentence in found:
        print(f"README.md: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
