#!/usr/bin/env python3
"""Builds a program with dtrain, got in one of the ways that README.md names, as a user does, and runs it.

  check.py WAY --source REPOSITORY --binary BUILD --version X.Y.Z --compiler CXX --generator NAME --work FOLDER
           [--components A,B]

  find_package      installed, and found by CMake: with the components that were built, and not in another version; a
                    program with dtrain::compiled, too
  add_subdirectory  this repository inside another project
  fetch_content     the same by FetchContent
  pkg_config        installed, and found by pkg-config
  single_header     one file copied: the README's program, on two ranks, and another file of the same program; this one
                    also as a file that finds dtrain's definitions in another
  examples          each example of one file in a folder that has nothing but it and the single header
  debug_program     files with and without NDEBUG: whether the program counts as a debug one, optimised or not
  two_compilers     a .cpp by the host's compiler, a .cu by nvcc with CUDA switched on there, in one program
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
import compiler_warnings  # noqa: E402  (tests/tools has it)

SKIPPED = 77
COMPILE = ["-std=c++20", "-O0", *compiler_warnings.flags()]


class Failure(Exception):
    """A sentence and the output of what failed."""


class Skip(Exception):
    """Why the way cannot be tried here."""


def run(*command, **variables):
    """What the command printed."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=550, check=False, stdin=subprocess.DEVNULL, env={**os.environ, **variables})
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def need(program):
    if shutil.which(program) is None:
        raise Skip(f"no {program} on the path")


def install(options):
    prefix = options.work / "prefix"
    run("cmake", "--install", options.binary, "--prefix", prefix)
    return prefix


def with_cmake(options, *arguments):
    """Builds and runs the project in this folder."""
    build = options.work / "build"
    run("cmake", "-S", HERE, "-B", build, "-G", options.generator, f"-DCMAKE_CXX_COMPILER={options.compiler}",
        f"-DWAY={options.way}", f"-DDTRAIN_VERSION={options.version}", *arguments)
    run("cmake", "--build", build)
    run(build / "consumer")
    return build


def run_first_program(program):
    printed = run(program, "--nproc-per-node=2")
    if "[0] y = 3.000 x + 1.000, fitted on 2 rank(s)\n" not in printed:
        raise Failure(f"the first program does not print what README.md shows, but:\n{printed}")


def find_package(options):
    major, minor, _ = options.version.split(".")
    build = with_cmake(options, f"-DCMAKE_PREFIX_PATH={install(options)}", f"-DCOMPONENTS={';'.join(options.components)}",
                       "-DCMAKE_BUILD_TYPE=Debug",  # its optimisation is add_subdirectory's subject
                       f"-DNEXT_MINOR_VERSION={major}.{int(minor) + 1}",
                       f"-DFIRST_PROGRAM={options.source / 'examples' / 'first_program.cpp'}")
    run_first_program(build / "first_program")


def subdirectory(options):
    options.components = []
    build = with_cmake(options, f"-DDTRAIN_SOURCE={options.source}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    commands = (build / "compile_commands.json").read_text()
    if not any("dtrain_compiled.cpp" in line and " -O2 " in line for line in commands.splitlines()):
        raise Failure("dtrain::compiled is not optimised where the project states no build type")
    if list(build.rglob("libdtrain_compiled.*")):
        raise Failure("dtrain::compiled is built though nothing links it")


def pkg_config(options):
    need("pkg-config")
    found = list(install(options).rglob("dtrain.pc"))
    if len(found) != 1:
        raise Failure(f"installed are these dtrain.pc: {found}")
    # Moved as a whole, it still says where it is.
    moved = options.work / "moved"
    (options.work / "prefix").rename(moved)
    path = str(moved / found[0].parent.relative_to(options.work / "prefix"))
    if run("pkg-config", "--modversion", "dtrain", PKG_CONFIG_PATH=path).strip() != options.version:
        raise Failure("dtrain.pc has another version than the package")
    refused = subprocess.run(["pkg-config", "--exists", "dtrain >= 99"], env={**os.environ, "PKG_CONFIG_PATH": path},
                             check=False)
    if refused.returncode == 0:
        raise Failure("pkg-config finds dtrain 99")
    flags = run("pkg-config", "--cflags", "--libs", "dtrain", PKG_CONFIG_PATH=path).split()
    program = options.work / "consumer"
    run(options.compiler, *COMPILE, f'-DEXPECTED_VERSION="{options.version}"', HERE / "consumer.cpp", *flags, "-o",
        program)
    run(program)


def copy_single_header(options):
    (options.work / "dtrain").mkdir()
    for name in ("dtrain.hpp", "dtrain.cpp"):
        shutil.copy(options.source / "single_include" / "dtrain" / name, options.work / "dtrain")


def examples(options):
    copy_single_header(options)
    sources = sorted((options.source / "examples").glob("*.cpp"))
    if not sources:
        raise Failure("there is no example")
    for source in sources:
        example = pathlib.Path(shutil.copy(source, options.work))
        # Declarations are enough, and take a fifth of the time; whoami calls functions that few programs need.
        apart = [] if source.stem == "whoami" else ["-DDTRAIN_SEPARATE_COMPILATION=1"]
        run(options.compiler, *COMPILE, *apart, "-fsyntax-only", f"-I{options.work}", example)
        example.unlink()


def single_header(options):
    copy_single_header(options)
    program = options.work / "first_program"
    run(options.compiler, *COMPILE, f"-I{options.work}", options.source / "examples" / "first_program.cpp",
        HERE / "other_unit.cpp", "-pthread", "-o", program)
    run_first_program(program)
    run(options.compiler, *COMPILE, "-DDTRAIN_SEPARATE_COMPILATION=1", f"-I{options.work}",
        options.source / "examples" / "first_program.cpp", HERE / "other_unit.cpp", options.work / "dtrain" / "dtrain.cpp",
        "-pthread", "-o", program)
    run_first_program(program)


def two_compilers(options):
    need("nvcc")
    cuda = pathlib.Path(shutil.which("nvcc")).resolve().parents[1]
    unit, copy = options.work / "other_unit.o", options.work / "other_unit.cu"
    shutil.copy(HERE / "other_unit.cpp", copy)
    warnings = ",".join(flag for flag in COMPILE if flag.startswith("-W"))
    run("nvcc", "-std=c++20", "-O0", "-Xcompiler", warnings, "-DDTRAIN_WITH_CUDA=1", f"-I{options.source / 'include'}",
        f"-I{HERE}", "-c", copy, "-o", unit)
    program = options.work / "consumer"
    run(options.compiler, *COMPILE, f"-I{options.source / 'include'}", HERE / "first_unit.cpp", unit, "-pthread",
        f"-L{cuda / 'lib64'}", f"-Wl,-rpath,{cuda / 'lib64'}", "-lcudart", "-o", program)
    run(program)


def debug_program(options):
    files = {}
    for name in ["main", "part"]:
        files[name] = options.work / f"{name}.cpp"
    files["main"].write_text('#include <cstdio>\n#include "dtrain/core/debug_program.hpp"\nbool of_part();\n'
                             'int main() { std::printf("%d%d", dtrain::is_debug_program(), of_part()); }\n')
    files["part"].write_text('#include "dtrain/core/debug_program.hpp"\n'
                             'bool of_part() { return dtrain::is_debug_program(); }\n')
    for optimised in ["-O0", "-O2"]:
        for flags in [{}, {"main"}, {"part"}, {"main", "part"}]:  # the files with NDEBUG
            objects = []
            for name, file in files.items():
                objects.append(options.work / f"{name}.o")
                run(options.compiler, *COMPILE, optimised, *(["-DNDEBUG"] if name in flags else []),
                    f"-I{options.source / 'include'}", "-c", file, "-o", objects[-1])
            run(options.compiler, *objects, "-o", options.work / "program")
            found = run(options.work / "program")
            wanted = "00" if len(flags) == len(files) else "11"  # both files have the same answer
            if found != wanted:
                raise Failure(f"{optimised}, NDEBUG in {sorted(flags)}: the program says {found}, not {wanted}")


WAYS = {"find_package": find_package, "add_subdirectory": subdirectory, "fetch_content": subdirectory,
        "pkg_config": pkg_config, "single_header": single_header, "examples": examples,
        "debug_program": debug_program, "two_compilers": two_compilers}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--components", type=lambda text: text.split(",") if text else [], default=[])
    for name in ["version", "compiler", "generator"]:
        parser.add_argument(f"--{name}", required=True)
    for name in ["source", "binary", "work"]:
        parser.add_argument(f"--{name}", required=True, type=lambda text: pathlib.Path(text).resolve())
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    try:
        WAYS[options.way](options)
    except Skip as skip:
        print(f"SKIPPED: {skip}")
        return SKIPPED
    except (Failure, subprocess.TimeoutExpired) as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
