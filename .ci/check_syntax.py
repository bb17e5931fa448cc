#!/usr/bin/env python3
"""Runs every command of a compile_commands.json with -fsyntax-only: what the compiler says, without its optimiser.

  check_syntax.py COMPILE_COMMANDS PATTERN...    exits with 1 if a file whose path a pattern finds does not compile, or
                                                 if a pattern finds none
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys


def check(entry):
    """The compiler's output if the file does not compile, else nothing."""
    command = shlex.split(entry["command"])
    output = command.index("-o")
    command[output:output + 2] = ["-fsyntax-only"]
    done = subprocess.run(command, cwd=entry["directory"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=300, check=False)
    return "" if done.returncode == 0 else f"{entry['file']} does not compile:\n{done.stdout}"


def main():
    entries = json.loads(pathlib.Path(sys.argv[1]).read_text())
    patterns = [re.compile(pattern) for pattern in sys.argv[2:]]
    problems = [f"no file is found by {pattern.pattern}" for pattern in patterns
                if not any(pattern.search(entry["file"]) for entry in entries)]
    entries = [entry for entry in entries if any(pattern.search(entry["file"]) for pattern in patterns)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        problems += [problem for problem in pool.map(check, entries) if problem]
    for problem in problems:
        print(problem)
    print(f"{len(entries)} files checked, {len(problems)} problems")
    return 1 if problems or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
