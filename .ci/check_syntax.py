#!/usr/bin/env python3
"""Runs every command of a compile_commands.json with -fsyntax-only: what the compiler says, without its optimiser.

  check_syntax.py [--changed-since=COMMIT [--at-most=N]] COMPILE_COMMANDS PATTERN...

Exits with 1 if a file whose path a pattern finds does not compile, or if a pattern finds none. With --changed-since, a
header's own check (below dtrain_verify_interface_header_sets) runs only if the header is another than in COMMIT; of more
than N such headers, as after a renaming of everything, N run, spread evenly over the folders.
"""

import argparse
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


HEADER_CHECK = re.compile(r"/dtrain_verify_interface_header_sets/(.*)\.c\w+$")


def changed_headers(commit):
    """The headers, as a program names them, that are others than in the commit."""
    names = subprocess.run(["git", "diff", "--name-only", "--relative=include", commit, "--", "."], check=True,
                           stdout=subprocess.PIPE, text=True, timeout=60).stdout
    return set(names.splitlines())


def spread(entries, most):
    """At most so many of them, evenly."""
    return entries if len(entries) <= most else [entries[at * len(entries) // most] for at in range(most)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--changed-since", metavar="COMMIT")
    parser.add_argument("--at-most", metavar="N", type=int, default=sys.maxsize)
    parser.add_argument("commands")
    parser.add_argument("patterns", nargs="+")
    arguments = parser.parse_args()
    entries = json.loads(pathlib.Path(arguments.commands).read_text())
    patterns = [re.compile(pattern) for pattern in arguments.patterns]
    problems = [f"no file is found by {pattern.pattern}" for pattern in patterns
                if not any(pattern.search(entry["file"]) for entry in entries)]
    entries = [entry for entry in entries if any(pattern.search(entry["file"]) for pattern in patterns)]
    if arguments.changed_since:
        changed = changed_headers(arguments.changed_since)
        headers = [entry for entry in entries
                   if (header := HEADER_CHECK.search(entry["file"])) and header.group(1) in changed]
        run = spread(headers, arguments.at_most)
        print(f"{len(run)} of {len(headers)} changed headers by themselves")
        entries = [entry for entry in entries if not HEADER_CHECK.search(entry["file"])] + run
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        problems += [problem for problem in pool.map(check, entries) if problem]
    for problem in problems:
        print(problem)
    print(f"{len(entries)} files checked, {len(problems)} problems")
    return 1 if problems or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
