#!/usr/bin/env python3
"""Checks that what must not compile does not, and says why in the sentence that the file expects.

  compile_fail.py --compiler CXX [--include DIR]... compiles FILE...   all compile as they are, in one go
  compile_fail.py --compiler CXX [--include DIR]... fails FILE         with -DDTRAIN_COMPILE_FAIL it does not, and the
                                                                       output has the text of every `// expect: TEXT`,
                                                                       one error with `// one error`, and with
                                                                       `// fails as: c++17` it is compiled as that
  compile_fail.py --compiler CXX [--include DIR]... selftest           the two checks themselves can fail

--precompiled HEADER: beside it lies HEADER.gch, which g++ made of it with the same flags; HEADER includes
dtrain/dtrain.hpp, and is included before each file that defines no macro.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import compiler_warnings


def compile_file(compiler, includes, source, *flags, standard="c++20"):
    """The exit status and everything the compiler said."""
    command = [compiler, f"-std={standard}", "-fsyntax-only", *flags, *(f"-I{path}" for path in includes), str(source)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=600, check=False)
    return done.returncode, done.stdout


def expectations(source):
    """The texts of the file's `// expect: ` lines."""
    mark = "// expect: "
    lines = (line.strip() for line in pathlib.Path(source).read_text().splitlines())
    return [line.removeprefix(mark).strip() for line in lines if line.startswith(mark)]


def options(source):
    """The standard that the file fails with, and whether it fails with one error."""
    text = pathlib.Path(source).read_text()
    standard = re.search(r"^// fails as: (\S+)$", text, re.MULTILINE)
    return standard[1] if standard else "c++20", re.search(r"^// one error$", text, re.MULTILINE) is not None


def check_compiles(compiler, includes, *sources, warnings=compiler_warnings.AS_ERRORS):
    """What all include comes first; then each file stands in a namespace of its own, where its names meet no other's."""
    paths = [pathlib.Path(source).resolve() for source in sources]
    lines = [line for path in paths for line in path.read_text().splitlines() if line.startswith("#include ")]
    for number, path in enumerate(paths):
        lines += [f"namespace file_{number} {{", f'#include "{path}"', "}"]
    with tempfile.TemporaryDirectory() as folder:
        joined = pathlib.Path(folder) / "joined.cpp"
        joined.write_text("\n".join(lines) + "\n")
        status, output = compile_file(compiler, includes, joined, *warnings)
    names = " or ".join(path.name for path in paths)
    return [] if status == 0 else [f"{names} does not compile as it is:\n{output}"]


def check_fails(compiler, includes, source, precompiled=None):
    wanted = expectations(source)
    if not wanted:
        return [f"{source} has no line '// expect: ...'"]
    # What the sentences are about is templates: the rest need not be read each time.
    standard, is_one = options(source)
    text = pathlib.Path(source).read_text()
    use_precompiled = precompiled and standard == "c++20" and "#define" not in text
    status, output = compile_file(compiler, includes, source, *(["-include", precompiled] if use_precompiled else []),
                                  "-DDTRAIN_COMPILE_FAIL", "-DDTRAIN_SEPARATE_COMPILATION=1", standard=standard)
    if status == 0:
        return [f"{source} compiles with -DDTRAIN_COMPILE_FAIL"]
    problems = [f"{source}: the compiler does not say '{text}' but:\n{output}" for text in wanted if text not in output]
    errors = len(re.findall(r"^\S+: (?:fatal )?error: ", output, re.MULTILINE))
    if is_one and errors != 1:
        problems.append(f"{source}: one error was expected, the compiler has {errors}:\n{output}")
    return problems


def selftest(compiler, includes):
    """Runs both checks on files that must pass and on files that must not."""
    good = """// expect: a box needs a size
template <class T>
int size() {
  static_assert(sizeof(T) < 8, "a box needs a size");
  return 1;
}
#ifdef DTRAIN_COMPILE_FAIL
using Box = double;
#else
using Box = char;
#endif
int width() { return size<Box>(); }
"""
    cases = [
        ("good", good, check_compiles, None),
        ("good", good, check_fails, None),
        ("broken as it is", good + "nonsense\n", check_compiles, "does not compile as it is"),
        ("warns as it is", good + "int narrow(long value) { return value; }\n", check_compiles, "does not compile as it is"),
        ("one of two", (good, good + "nonsense\n"), check_compiles, "does not compile as it is"),
        ("both of two", (good, good), check_compiles, None),
        ("never fails", good.replace("double", "char"), check_fails, "compiles with -DDTRAIN_COMPILE_FAIL"),
        ("another sentence", good.replace("expect: a box", "expect: a bag"), check_fails, "does not say"),
        ("one of two sentences", "// expect: something else\n" + good, check_fails, "does not say"),
        ("one error", good.replace("// expect", "// one error\n// expect"), check_fails, None),
        ("a second error", good.replace("// expect", "// one error\n// expect") + "#ifdef DTRAIN_COMPILE_FAIL\nnonsense;\n#endif\n",
         check_fails, "one error was expected, the compiler has 2"),
        ("as C++17", "// fails as: c++17\n// expect: old\n#if __cplusplus < 202002L\n#error old\n#endif\n", check_fails, None),
        ("no expectation", good.replace("// expect", "// hope"), check_fails, "has no line"),
    ]
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for name, texts, check, wanted in cases:
            sources = []
            for text in [texts] if isinstance(texts, str) else texts:
                sources.append(pathlib.Path(folder) / f"case{len(sources)}.cpp")
                sources[-1].write_text(text)
            found = "\n".join(check(compiler, includes, *sources))
            if (wanted is None and found) or (wanted is not None and wanted not in found):
                problems.append(f"selftest '{name}' of {check.__name__}: wanted {wanted}, got: {found or 'nothing'}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--precompiled")
    parser.add_argument("mode", choices=["compiles", "fails", "selftest"])
    parser.add_argument("source", nargs="*")
    arguments = parser.parse_args()
    if arguments.mode == "selftest":
        problems = selftest(arguments.compiler, arguments.include)
    elif arguments.mode == "compiles":
        problems = check_compiles(arguments.compiler, arguments.include, *arguments.source,
                                  warnings=compiler_warnings.flags())
    else:
        problems = check_fails(arguments.compiler, arguments.include, *arguments.source, precompiled=arguments.precompiled)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
