#!/usr/bin/env python3
"""Checks what a program pays for dtrain in bytes of code, functions and headers, none of which depends on the machine.

  budget.py ROOT COMPILER         README's program with the definitions apart, and what its front end includes
  budget.py ROOT COMPILER whole   README's program header-only, which compiles for a minute
  budget.py --selftest

A limit is what was measured with g++ 12 on x86-64, and a twentieth more; other compilers are held to the limit of headers alone.
Where a change makes the program smaller, lower the limit; where a feature needs more, raise it in the commit that adds it.
"""

import pathlib
import platform
import re
import subprocess
import sys
import tempfile

PROGRAM = "examples/first_program.cpp"
APART = {"bytes of code": 10_500, "functions": 44, "headers of dtrain": 228}
WHOLE = {"bytes of code": 1_010_000, "functions": 2_310}  # launch::Any has both ways to start
# Headers of the standard library that the front end must not include: each costs 0.1 s or more, or is for definitions.
REFUSED = {"filesystem", "fstream", "iostream", "random", "regex"}
# Classes of elastic jobs, which the program does not name: at -O0 g++ 12 would compile their coroutines, if they were no templates.
UNNAMED = re.compile(r"::(ElasticWorker|ElasticSupervisor|Formation\w+)\b")


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=550, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def code_of(listing):
    """Bytes in the sections .text and .text.* of `size -A`, and how many functions `nm` lists."""
    sizes, symbols = listing
    code = sum(int(size) for size in re.findall(r"^\.text\S*\s+(\d+)", sizes, re.MULTILINE))
    return {"bytes of code": code, "functions": len(re.findall(r"^\S+ [tTwW] ", symbols, re.MULTILINE))}


def listing_of(root, compiler, flags):
    """What `size -A` and `nm` list of the object file of README's program."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = pathlib.Path(folder) / "program.o"
        run(compiler, "-std=c++20", f"-I{root}/include", *flags, "-c", f"{root}/{PROGRAM}", "-o", compiled)
        return run("size", "-A", compiled), run("nm", "--defined-only", "-C", compiled)


def unnamed_in(symbols):
    """A sentence for each class that the program does not name, and of which `nm -C` lists a function."""
    functions = re.findall(r"^\S+ [tTwW] (.*)", symbols, re.MULTILINE)
    found = {name for function in functions for name in UNNAMED.findall(function)}
    return [f"it has code of {name}, which it does not name, at -O0" for name in sorted(found)]


def headers_of(root, compiler, flags):
    """Files that the front end reads: those of dtrain, and the standard headers that they name."""
    listed = run(compiler, "-std=c++20", f"-I{root}/include", *flags, "-M", f"{root}/{PROGRAM}")
    own = sorted(set(re.findall(r"\S*/include/dtrain/\S+\.hpp", listed)))
    std = set(re.findall(r"/include/c\+\+/[\d.]+/(\w+)(?=\s)", listed))
    return own, std


def over(limits, measured):
    """A sentence for each limit that is passed, or that no longer bounds anything: a tenth above what is measured."""
    found = []
    for what, limit in limits.items():
        if measured[what] > limit:
            found.append(f"{measured[what]} {what}, more than the budget's {limit}")
        elif measured[what] < 0.9 * limit:
            found.append(f"{measured[what]} {what}: lower the budget's {limit} (tests/tools/budget.py)")
    return found


def check(root, compiler, whole):
    flags = [] if whole else ["-DDTRAIN_SEPARATE_COMPILATION=1"]
    measured = code_of(listing_of(root, compiler, ["-O2", *flags]))
    limits = WHOLE if whole else APART
    problems = unnamed_in(listing_of(root, compiler, ["-O0"])[1]) if whole else []
    if not whole:
        own, std = headers_of(root, compiler, flags)
        measured["headers of dtrain"] = len(own)
        problems += [f"the front end includes <{name}>" for name in sorted(std & REFUSED)]
    print(", ".join(f"{count} {what}" for what, count in measured.items()))
    gnu12 = "clang" not in run(compiler, "--version") and run(compiler, "-dumpversion").startswith("12")
    if not gnu12 or platform.machine() != "x86_64":
        print("the limits of code are those of g++ 12 on x86-64, and are not compared")
        limits = {what: limit for what, limit in limits.items() if what == "headers of dtrain"}
    return problems + over(limits, measured)


def selftest():
    sizes = "section size addr\n.text 100 0\n.text.unlikely 20 0\n.data 7 0\n"
    symbols = "0 T main\n0 W f()\n0 t g()\n0 D datum\n"
    assert code_of((sizes, symbols)) == {"bytes of code": 120, "functions": 3}
    assert unnamed_in("0 T main\n0 W a::ElasticWorker::run()\n0 D a::FormationState\n") == [
        "it has code of ElasticWorker, which it does not name, at -O0"]
    assert over({"functions": 100}, {"functions": 101}) == ["101 functions, more than the budget's 100"]
    assert over({"functions": 100}, {"functions": 95}) == []
    assert over({"functions": 100}, {"functions": 80}) == ["80 functions: lower the budget's 100 (tests/tools/budget.py)"]
    return []


def main(arguments):
    if arguments == ["--selftest"]:
        problems = selftest()
    elif len(arguments) in (2, 3) and arguments[2:] in ([], ["whole"]):
        problems = check(pathlib.Path(arguments[0]).resolve(), arguments[1], arguments[2:] == ["whole"])
    else:
        raise SystemExit(__doc__)
    for problem in problems:
        print(f"README's program: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
