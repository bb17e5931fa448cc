#!/usr/bin/env python3
"""Checks single_include/dtrain: dtrain.hpp, and dtrain.cpp beside it.

  single_header.py REPOSITORY fresh      they are what amalgamate.py makes of include/ now
  single_header.py REPOSITORY selftest   the comparison notices a stale file; what only definitions need comes last
  single_header.py REPOSITORY standard   compiled as C++17, it says in a few lines that it needs C++20
  single_header.py REPOSITORY COMPILER   a program that has only dtrain.hpp compiles with g++, clang++ or nvcc
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

import compiler_warnings

PROGRAM = """#include <dtrain/dtrain.hpp>
#include <cstdio>
int main() {
  std::printf("%d.%d.%d\\n", dtrain::version.major, dtrain::version.minor, dtrain::version.patch);
  return 0;
}
"""
# A small tree: the definitions at the end of one header need one more; and what the single header says after its
# licence.
SPLIT = {
    "core/version.hpp": "",
    "core/config.hpp": '/// Macros.\n\n// Early.\n#if OLD\n#error old\n#include "new"\n#endif\n\n#include <span>\n\n'
                       "/// More.\nint config;\n",
    "core/error.hpp": "#include <string>\nint error;\n",
    "net/socket.hpp": '#include "dtrain/core/error.hpp"\n#include <span>\nvoid socket();\n\n#if DTRAIN_DEFINITIONS\n'
                      '#include <string>\n#include "dtrain/net/door.hpp"\nDTRAIN_DEFINED void socket() {}\n'
                      "#endif  // DTRAIN_DEFINITIONS\n",
    "net/window.hpp": "int window();\n\n#if DTRAIN_DEFINITIONS\n#include <vector>\nDTRAIN_DEFINED int window() {}\n"
                      "#endif  // DTRAIN_DEFINITIONS\n",
    "net/door.hpp": "#include <vector>\n#include <poll.h>\n#if A\n#include <door.h>\n#endif\nint door;\n",
    "topology/flat.hpp": '#include "dtrain/net/socket.hpp"\n#include "dtrain/net/window.hpp"\nint flat;\n',
    "dtrain.hpp": '#include "dtrain/core/config.hpp"\n#include "dtrain/topology/flat.hpp"\n',
}
SPLIT_MADE = """
#pragma once

// Early.
#if OLD
#error old
#include "new"
#endif

#include <span>
#include <string>

// ---- dtrain/core/config.hpp

/// Macros.

/// More.
int config;

// ---- dtrain/core/error.hpp

int error;

// ---- dtrain/net/socket.hpp

void socket();

// ---- dtrain/net/window.hpp

int window();

// ---- dtrain/topology/flat.hpp

int flat;

#if DTRAIN_DEFINITIONS

#include <poll.h>
#include <vector>

// ---- dtrain/net/door.hpp

#if A
#include <door.h>
#endif
int door;

// ---- dtrain/net/socket.hpp (definitions)

DTRAIN_DEFINED void socket() {}

// ---- dtrain/net/window.hpp (definitions)

DTRAIN_DEFINED int window() {}

#endif
"""
SKIPPED = 77


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          check=False, **options)


def copy_of(repository, folder):
    """What amalgamate.py reads, in a folder of its own."""
    folder = pathlib.Path(folder)
    for name in ["include", "single_include"]:
        shutil.copytree(repository / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "LICENSE", folder)
    return folder


def stale(repository):
    """A sentence if a committed file is not what the script makes."""
    committed = repository / "single_include" / "dtrain"
    with tempfile.TemporaryDirectory() as folder:
        fresh = copy_of(repository, folder)
        done = run([sys.executable, "-B", str(fresh / "single_include" / "amalgamate.py")])
        if done.returncode != 0:
            return f"amalgamate.py failed:\n{done.stdout}"
        for made in (fresh / "single_include" / "dtrain").iterdir():
            file = committed / made.name
            if not file.is_file() or file.read_bytes() != made.read_bytes():
                return f"{file} is stale: run single_include/amalgamate.py and commit the result"
    return ""


def selftest(repository):
    """A fresh copy passes; one whose include/ changed afterwards does not."""
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of(repository, folder)
        done = run([sys.executable, "-B", str(copy / "single_include" / "amalgamate.py")])
        if done.returncode != 0 or stale(copy):
            return f"a file just made counts as stale: {done.stdout}{stale(copy)}"
        with open(copy / "include" / "dtrain" / "core" / "version.hpp", "a", encoding="utf-8") as header:
            header.write("// changed\n")
        if not stale(copy):
            return "a changed header goes unnoticed"
        shutil.rmtree(copy / "include")
        for name, text in SPLIT.items():
            (copy / "include" / "dtrain" / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / "include" / "dtrain" / name).write_text("#pragma once\n" + text)
        done = run([sys.executable, "-B", str(copy / "single_include" / "amalgamate.py")])
        made = (copy / "single_include" / "dtrain" / "dtrain.hpp").read_text()
        return "" if made.endswith("\n" + SPLIT_MADE) else f"of the small tree became: {done.stdout}{made}"


def compile_alone(repository, compiler):
    """Compiles, links and runs PROGRAM with nothing else of dtrain on the include path."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "dtrain").mkdir()
        shutil.copy(repository / "single_include" / "dtrain" / "dtrain.hpp", pathlib.Path(folder) / "dtrain")
        source = "main.cu" if compiler == "nvcc" else "main.cpp"
        (pathlib.Path(folder) / source).write_text(PROGRAM)
        warnings = compiler_warnings.flags()
        flags = ["-Xcompiler", ",".join(warnings)] if compiler == "nvcc" else [*warnings, "-pthread"]
        command = [compiler, "-std=c++20", *flags, "-I.", source, "-o", "program"]
        done = run(command, cwd=folder)
        if done.returncode != 0 or (compiler_warnings.are_errors() and "warning" in done.stdout):
            return f"{' '.join(command)}\n{done.stdout}"
        done = run([str(pathlib.Path(folder) / "program")])
        return "" if done.returncode == 0 else f"the program exits with {done.returncode}:\n{done.stdout}"


def older_standard(repository):
    """Compiles PROGRAM as C++17 with a fresh single header."""
    compiler = shutil.which("c++")
    if compiler is None:
        print("SKIPPED: no c++ on the path")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of(repository, folder)
        done = run([sys.executable, "-B", str(copy / "single_include" / "amalgamate.py")])
        if done.returncode != 0:
            return f"amalgamate.py failed:\n{done.stdout}"
        (copy / "main.cpp").write_text(PROGRAM)
        done = run([compiler, "-std=c++17", "-fsyntax-only", "-Isingle_include", "main.cpp"], cwd=copy)
    lines = done.stdout.splitlines()
    errors = [line for line in lines if "error: " in line]
    if done.returncode == 0 or len(lines) > 12 or not errors or "C++20 is needed; compile with -std=c++20" not in errors[0]:
        return f"as C++17 the compiler exits with {done.returncode} and says in {len(lines)} lines:\n" + "\n".join(lines[:40])
    return ""


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    repository, what = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    if what not in ["fresh", "selftest", "standard"] and shutil.which(what) is None:
        print(f"SKIPPED: no {what} on the path")
        return SKIPPED
    checks = {"fresh": stale, "selftest": selftest, "standard": older_standard}
    problem = checks[what](repository) if what in checks else compile_alone(repository, what)
    if problem:
        print(problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
