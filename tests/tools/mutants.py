#!/usr/bin/env python3
"""Changes include/dtrain in one place at a time and shows that a test notices it: the list is mutants.txt beside this file.

  mutants.py [-j JOBS] REPOSITORY [WORD...]   runs the tests of each mutant; exit code 1 if one lives or shows nothing
  mutants.py --list REPOSITORY [WORD...]      prints the mutants and the place of each, and checks their texts and tests; runs none
  mutants.py --selftest                       shows for each rule that breaking it is noticed

With WORDs only the mutants that have one of them in their name, in a test's path or in the header's.

An entry of the list is a sentence, the test files (below tests/) that notice the mutant, the old text and the new one:

  a queue holds one element more
    unit/core/queue_test.cpp
  - size() >= limit
  + size() > limit

Entries are separated by empty lines; a line that begins with # is a comment. The old text stands once in all headers:
white space is not compared, so that a text that moves to another file, or is indented anew, is still found.

Each test file is compiled alone, header-only and without optimisation, first as it is: it must pass. Then it is compiled
with the changed header in a folder that the compiler searches first. The repository itself is only read. A mutant is
killed by a test that fails, crashes, or does not end in ten times the time that it needs without the mutant (30 s at
least). One that does not compile shows nothing: it is a fault of the list. $CXX is the compiler, by default c++ (through
ccache, where that is installed); $DTRAIN_CUDA_HEADERS names a folder with CUDA's and NCCL's headers, $DTRAIN_TORCH_PREFIX a LibTorch.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

FLAGS = ["-std=c++20", "-O0", "-g0", "-w", "-D_GLIBCXX_ASSERTIONS", "-DDOCTEST_CONFIG_USE_STD_HEADERS", "-pthread"]
SKIPPED, NO_TEST = 77, 2  # exit codes of tests/support/doctest_main.cpp
COMPILER_SECONDS = 1200
LEAST_SECONDS = 30

Mutant = collections.namedtuple("Mutant", "name tests old new")


class Fault(Exception):
    """The list, the tree or this machine is not as it must be: nothing was shown."""


class LeftOut(Exception):
    """This machine lacks what a test needs."""


def parse(text):
    """The mutants of a list, and what is wrong with its entries."""
    mutants, problems = [], []
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for block in re.split(r"\n\s*\n", lines.strip()):
        name, *rest = block.split("\n")
        tests = [line.strip() for line in rest if line.startswith("  ")]
        old = "\n".join(line[2:] for line in rest if line.startswith("- "))
        new = "\n".join(line[2:] for line in rest if line.startswith("+ "))
        strange = [line for line in rest if not line.startswith(("  ", "- ", "+ "))]
        if strange or not tests or not old or tokens(old) == tokens(new):
            why = f"has the line '{strange[0]}'" if strange else "has no test" if not tests else "changes nothing"
            problems.append(f"'{name}' {why}")
        elif name in (mutant.name for mutant in mutants):
            problems.append(f"two mutants are named '{name}'")
        else:
            mutants.append(Mutant(name, tests, old, new))
    return mutants, problems


def tokens(text):
    return re.findall(r"\w+|[^\w\s]", text)


class Headers:
    """The text of all headers, by their paths below include/."""

    def __init__(self, root):
        include = root / "include"
        self.texts = {path.relative_to(include).as_posix(): path.read_text() for path in sorted(include.rglob("*.hpp"))}

    def find(self, mutant):
        """The header with the mutant's old text, the line, and the changed header."""
        words = tokens(mutant.old)
        ends = [r"\b" if re.match(r"\w", word) else "" for word in (words[0], words[-1])]
        pattern = ends[0] + r"\s*".join(map(re.escape, words)) + ends[1]
        found = [(name, match) for name, text in self.texts.items() for match in re.finditer(pattern, text)]
        if len(found) != 1:
            places = ", ".join(name for name, _ in found)
            raise Fault(f"its old text stands {len(found)} times in the headers{': ' + places if found else ''}")
        name, match = found[0]
        text = self.texts[name]
        return name, text.count("\n", 0, match.start()) + 1, text[: match.start()] + mutant.new + text[match.end() :]


class Programs:
    """Compiles and runs test files of the tree `root`; keeps what all of them link. Threads: may be used by several."""

    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        self.compiler = shlex.split(os.environ.get("CXX", "")) or (["ccache"] if shutil.which("ccache") else []) + ["c++"]
        self.shared, self.lock = {}, threading.Lock()

    def call(self, command, doing):
        try:
            done = subprocess.run([*self.compiler, *map(str, command)], cwd=self.folder, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", timeout=COMPILER_SECONDS,
                                  check=False)
        except subprocess.TimeoutExpired as late:
            raise Fault(f"the compiler does not end in {COMPILER_SECONDS} s") from late
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if re.search(r"error|undefined", line)]
            raise Fault(f"does not {doing}: " + (errors or [done.stdout.strip()])[0])

    def compile(self, output, source, flags=(), changed=None):
        """`changed` is a folder in this one: a relative path, so that ccache knows a mutant again."""
        includes = [f"-I{path}" for path in (changed, self.root / "include", self.root / "tests", self.root) if path]
        self.call([*FLAGS, *includes, *flags, "-c", source, "-o", output], "compile")

    def object(self, name, sources, flags=()):
        """What is compiled once, as one file."""
        with self.lock:
            if name not in self.shared:
                joined = self.folder / f"{name}.cpp"
                joined.write_text("".join(f'#include "{path}"\n' for path in sources))
                self.compile(joined.with_suffix(".o"), joined.name, flags)
                self.shared[name] = joined.with_suffix(".o")
            return self.shared[name]

    def needs_of(self, test):
        """Flags, objects and arguments of a test's program, by its folder. The objects come last: the linker takes the first
        definition of an inline function, which must be the mutant's."""
        if test.startswith("libtorch/"):
            prefix = pathlib.Path(os.environ.get("DTRAIN_TORCH_PREFIX") or "/usr")
            headers = prefix / "include" / "torch" / "csrc" / "api" / "include"
            if not headers.is_dir():
                raise LeftOut("there is no LibTorch; Debian has it in libtorch-dev, and DTRAIN_TORCH_PREFIX names another")
            other = [] if prefix == pathlib.Path("/usr") else ["-isystem", f"{prefix}/include", f"-L{prefix}/lib",
                                                               f"-Wl,-rpath,{prefix}/lib"]
            return ["-isystem", str(headers), *other], ["-ltorch_cpu", "-lc10"], ["--nproc-per-node=2"]
        flags, objects = [], []
        if test.startswith("unit/cuda/"):
            named = os.environ.get("DTRAIN_CUDA_HEADERS")
            folders = [pathlib.Path(named)] if named else [pathlib.Path("/usr/local/cuda/include"), pathlib.Path("/usr/include")]
            for header in ("cuda_runtime_api.h", "nccl.h"):
                folder = next((folder for folder in folders if (folder / header).is_file()), None)
                if folder is None:
                    raise LeftOut(f"there is no {header}; DTRAIN_CUDA_HEADERS names a folder that has it")
                flags += ["-isystem", str(folder)]
            objects = [self.object("emulation", sorted((self.root / "tests" / "emulation").glob("*.cpp")), flags)]
            flags += [f"-DDTRAIN_{name}=1" for name in ("WITH_CUDA", "WITH_NCCL", "EMULATED_CUDA")]
        if test.startswith("unit/gloo/"):
            if not pathlib.Path("/usr/include/gloo").is_dir():
                raise LeftOut("there is no Gloo; Debian has it in libgloo-dev")
            flags, objects = ["-DDTRAIN_WITH_GLOO=1"], ["-lgloo"]
        main = self.object("main", [self.root / "tests" / "support" / "doctest_main.cpp"])
        return flags, [main, *objects], ["--abort-after=1"]

    def run(self, test, seconds, changed=None):
        """The exit code of a test file's program (None if it did not end in time), its output, and how long it ran."""
        source = self.root / "tests" / test
        if not source.is_file():
            raise Fault(f"there is no tests/{test}")
        flags, objects, arguments = self.needs_of(test)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            program = pathlib.Path(folder) / source.stem
            self.compile(program.with_suffix(".o"), source, flags, changed)
            self.call(["-pthread", program.with_suffix(".o"), *objects, "-o", program], "link")
            begin = time.monotonic()
            with open(program.with_suffix(".txt"), "w+", errors="replace") as output:
                process = subprocess.Popen([str(program), *arguments], stdin=subprocess.DEVNULL, stdout=output,
                                           stderr=output, cwd=folder, start_new_session=True)
                try:
                    code = process.wait(seconds)
                except subprocess.TimeoutExpired:
                    code = None
                finally:
                    try:  # the program, or processes that it left
                        os.killpg(process.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                    process.wait()
                output.seek(0)
                return code, output.read(), time.monotonic() - begin


class Trial:
    """Judges mutants of a tree."""

    def __init__(self, root, folder):
        self.headers, self.programs, self.folder = Headers(root), Programs(root, folder), folder
        self.limits, self.locks = {}, collections.defaultdict(threading.Lock)

    def limit_of(self, test):
        """Seconds that a test may take with a mutant, after it passed without one."""
        with self.locks[test]:
            if test not in self.limits:
                code, output, seconds = self.programs.run(test, 10 * LEAST_SECONDS)
                if code != 0:
                    why = "is skipped here" if code == SKIPPED else "does not end" if code is None else "fails"
                    raise Fault(f"tests/{test} {why} without the mutant:\n{output[-2000:]}")
                self.limits[test] = max(LEAST_SECONDS, 10 * seconds)
            return self.limits[test]

    def killer(self, mutant):
        """What notices the mutant; None if it lives."""
        name, _, text = self.headers.find(mutant)
        changed = re.sub(r"\W+", "_", mutant.name)
        header = self.folder / changed / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)
        for test in mutant.tests:
            limit = self.limit_of(test)
            code, output, _ = self.programs.run(test, limit, changed)
            if code in (SKIPPED, NO_TEST):
                raise Fault(f"tests/{test} ends with exit code {code}")
            if code != 0:
                case = re.search(r"^TEST CASE: +(.*)|it does not hold that (.*)", output, re.M)
                said = f": {case[1] or case[2]}" if case else ""
                how = f" (a hang: no end after {limit:.0f} s)" if code is None else f" (signal {-code})" if code < 0 else ""
                return f"by {test}{said}{how}"
        return None

    def judge(self, mutant):
        """killed, LIVES, FAULT or left out; why; and the seconds."""
        begin = time.monotonic()
        try:
            killer = self.killer(mutant)
            verdict, why = ("killed", killer) if killer else ("LIVES", "noticed by none of: " + ", ".join(mutant.tests))
        except Fault as fault:
            verdict, why = "FAULT", str(fault)
        except LeftOut as lack:
            verdict, why = "left out", str(lack)
        return verdict, why, time.monotonic() - begin


def run_all(root, mutants, jobs):
    """Prints the verdict of each mutant as it comes; the exit code."""
    counts = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="dtrain_mutants_") as folder:
        trial = Trial(root, pathlib.Path(folder))
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            trials = {pool.submit(trial.judge, mutant): mutant for mutant in mutants}
            for done in concurrent.futures.as_completed(trials):
                verdict, why, seconds = done.result()
                counts["hang"] += "(a hang" in why
                counts[verdict] += 1
                print(f"{verdict:8} {trials[done].name} [{seconds:.0f} s] {why}", flush=True)
    print(f"{len(mutants)} mutants: {counts['killed']} killed ({counts['hang']} by a hang), {counts['LIVES']} live, "
          f"{counts['FAULT']} faults, {counts['left out']} left out")
    return 0 if counts["LIVES"] + counts["FAULT"] == 0 else 1


def chosen(mutants, words, headers):
    """The mutants that one of the words is a part of, with the place of each: `header:line`, or what is wrong."""
    found = []
    for mutant in mutants:
        try:
            name, line, _ = headers.find(mutant)
            place = f"include/{name}:{line}"
        except Fault as fault:
            place = f"FAULT: {fault}"
        if not words or any(word in text for word in words for text in (mutant.name, place, *mutant.tests)):
            found.append((mutant, place))
    return found


def selftest():
    """Trials in a tree of one header, whose test needs no doctest."""
    files = {
        "include/dtrain/limit.hpp": "inline bool within(int n) {\n  return n >= 0 &&\n         n <= 9;\n}\ninline int other = 9;\n",
        "tests/support/doctest_main.cpp": "int test();\nint main() { return test(); }\n",
        "tests/unit/limit_test.cpp": '#include "dtrain/limit.hpp"\n#include <cstdio>\n#include <cstdlib>\nint test() {\n'
                                     '  if (within(10)) std::puts("TEST CASE:  the end is within");\n'
                                     "  while (!within(0)) {\n  }\n  if (!within(1)) std::abort();\n"
                                     "  return !within(9) ? 77 : within(10) ? 1 : 0;\n}\n",
        "tests/unit/failing_test.cpp": "int test() { return 1; }\n",
        "tests/unit/skipped_test.cpp": "int test() { return 77; }\n",
    }
    entry = "a number\n  unit/limit_test.cpp\n- n <= 9\n+ n <= 10"
    trials = [
        (entry, "killed by unit/limit_test.cpp: the end is within"),
        (entry.replace("n <= 9\n", "n>=0 && n <= 9\n"), "killed"),  # over a line's end
        (entry.replace("n <= 9", "0 && n").replace("n <= 10", "0 & n"), "LIVES"),
        (entry.replace("n <= 9", "n >= 0").replace("n <= 10", "n != 0"), "(a hang: no end after 1 s)"),
        (entry.replace("n <= 9", "n >= 0").replace("n <= 10", "n != 1"), "(signal 6)"),
        (entry.replace("n <= 10", "n < 9"), "FAULT tests/unit/limit_test.cpp ends with exit code 77"),
        (entry.replace("n <= 10", "m <= 10"), "FAULT does not compile"),
        (entry.replace("n <= 9", "<= 99"), "FAULT its old text stands 0 times"),
        (entry.replace("- n <= 9", "- 9"), "FAULT its old text stands 2 times"),
        (entry.replace("- n <= 9", "- <= 9;").replace("limit_test", "lost_test"), "FAULT there is no tests/unit/lost_test.cpp"),
        (entry.replace("limit_test", "failing_test"), "fails without the mutant"),
        (entry.replace("limit_test", "skipped_test"), "is skipped here without the mutant"),
        (entry.replace("unit/limit_test", "unit/cuda/limit_test"), "left out there is no cuda_runtime_api.h"),
    ]
    lists = [
        (entry, None),
        ("# a comment\n\n" + entry + "\n\n" + entry.replace("a number", "another"), None),
        (entry + "\n\n" + entry, "two mutants are named 'a number'"),
        (entry.replace("  unit/limit_test.cpp\n", ""), "'a number' has no test"),
        (entry.replace("n <= 10", "n  <=  9"), "'a number' changes nothing"),
        (entry + "\n* x", "'a number' has the line '* x'"),
    ]
    problems = []
    for text, wanted in lists:
        found = "\n".join(parse(text)[1])
        if (wanted is None and found) or (wanted is not None and wanted not in found):
            problems.append(f"selftest: wanted {wanted} of a list, got: {found or 'nothing'}")
    global LEAST_SECONDS  # pylint: disable=global-statement
    LEAST_SECONDS = 1
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "tree"
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "tests/unit/cuda").mkdir()
        shutil.copy(root / "tests/unit/limit_test.cpp", root / "tests/unit/cuda")
        os.environ["DTRAIN_CUDA_HEADERS"] = folder
        trial = Trial(root, pathlib.Path(folder))
        for text, wanted in trials:
            verdict, why, _ = trial.judge(parse(text)[0][0])
            if wanted not in f"{verdict} {why}":
                problems.append(f"selftest: wanted '{wanted}' of a mutant, got: {verdict} {why}")
        if any((root / name).read_text() != text for name, text in files.items()):
            problems.append("selftest: the tree was changed")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--selftest", action="store_true")
    parser.add_argument("repository", nargs="?", type=pathlib.Path)
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    if options.selftest:
        problems = selftest()
    elif options.repository is None:
        parser.print_help()
        return 2
    else:
        root = options.repository.resolve()
        mutants, problems = parse(pathlib.Path(__file__).with_suffix(".txt").read_text())
        found = chosen(mutants, options.words, Headers(root))
        if not found:
            problems.append("no mutant has one of these words")
        if options.list:
            for mutant, place in found:
                print(f"{mutant.name}\n    {place}, {', '.join(mutant.tests)}")
            print(f"{len(found)} mutants")
            problems += [f"'{mutant.name}': {place}" for mutant, place in found if place.startswith("FAULT")]
            problems += [f"'{mutant.name}': there is no tests/{test}" for mutant, _ in found for test in mutant.tests
                         if not (root / "tests" / test).is_file()]
        elif not problems:
            return run_all(root, [mutant for mutant, _ in found], options.jobs)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
