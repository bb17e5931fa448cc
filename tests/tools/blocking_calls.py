#!/usr/bin/env python3
"""Holds every call in include/dtrain that can block a thread to the list in blocking_calls.txt beside this file.

  blocking_calls.py REPOSITORY   checks the repository's headers, the list, and the test cases that the list names
  blocking_calls.py --selftest   shows for each rule that breaking it is noticed

A line of the list is `file | function | call | what bounds it | test case`. What bounds it begins with one of
  deadline      waits for somebody else, until a deadline at most: the test case shows that it ends there
  ends          waits without a deadline for what is on its way to its end already: the test case shows that it ends
  nonblocking   the descriptor does not block, or the call was told not to
  local         the system answers by itself: a file, the random numbers, this process's own children that are dead
  none          no wait: a function of the same name, or one that only passes a deadline on
The last three need no test case: `-`. A `.wait()` without arguments is a StoreCall's or a Work's, which have deadlines. Mutexes are not on the list: each is held for a moment only, never over a wait.
Coroutines suspend instead of blocking (co_await); what they wait in is EventLoop, whose epoll_wait is on the list.
"""

import pathlib
import re
import sys
import tempfile

KINDS = ("deadline", "ends", "nonblocking", "local", "none")
TESTED = KINDS[:2]

SYSTEM = (
    "poll ppoll select pselect epoll_wait epoll_pwait connect accept accept4 recv recvfrom recvmsg read readv pread send "
    "sendto sendmsg write writev wait wait3 wait4 waitpid waitid getaddrinfo getnameinfo gethostbyname sleep usleep "
    "nanosleep clock_nanosleep pause sigwait sigwaitinfo sigtimedwait sigsuspend flock lockf open openat getrandom "
    "pthread_join pthread_cond_wait pthread_cond_timedwait sem_wait sem_timedwait mq_receive msgrcv splice sendfile "
    "syscall system popen fsync ioctl"
)
CALL = re.compile(
    r"(?<![\w>])::(?:" + "|".join(SYSTEM.split()) + r")(?=\()"
    r"|std::(?:fopen|freopen|fread|fwrite|fputs|fputc|fgets|fprintf|printf|fflush|getline|system)(?=\()"
    r"|std::this_thread::sleep_(?:for|until)(?=\()"
    r"|(?:std::thread|\bJoiningThread)(?= \w+(?:\{|;|\())"
    r"|(?:\.|->)(?:wait(?!\(\))|wait_for|wait_until|join|acquire|arrive_and_wait)(?=\()"
    r"|\b(?:futex_wait|block_until|block_until_complete|block_until_failed)(?=\()"
)
CONTROL = re.compile(r"^\s*(?:\} )?(?:if|for|while|switch|else|do|try|catch|return|case|default|throw|co_\w+)\b")
DEFINITION = re.compile(r"(~?\w+)\((?!.*\]\()")
RESULT = re.compile(r"\s*(?:[\w:<>\[\]*&,]+ )+(?:\w+::)*")  # what stands before the name in a function's declaration
TEST_CASE = re.compile(r'TEST_CASE(?:_TEMPLATE|_FIXTURE)?\(\s*(?:\w+,\s*)?((?:"(?:[^"\\]|\\.)*"\s*)+)')


def code_of(line):
    """A line without its comment and its strings."""
    line = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)
    return line.split("//")[0]


def function_around(lines, index):
    """The function that line `index` stands in: the nearest line above, less indented, that opens one."""
    indent = len(lines[index]) - len(lines[index].lstrip())
    for above in range(index - 1, -1, -1):
        line = code_of(lines[above])
        if not line.strip() or line.lstrip().startswith(("#", ":")):
            continue
        depth = len(line) - len(line.lstrip())
        if depth >= indent:
            continue
        indent = depth
        if CONTROL.match(line) or re.search(r"\]\s*(?:\(|\{)", line):
            continue
        found = DEFINITION.search(line)
        if found and not line.rstrip().endswith(";"):
            return found.group(1)
        named = re.match(r"\s*(?:class|struct|union) (\w+)", line)
        if named:
            return named.group(1)
    return "-"


def calls_in(name, text):
    """(file, function, call) for each call of a header."""
    lines = text.splitlines()
    found = []
    for index, line in enumerate(lines):
        code = code_of(line)
        if "co_await" in code or code.lstrip().startswith("#"):
            continue
        for call in CALL.finditer(code):
            token = call.group(0).lstrip(".->").lstrip(":")
            own = None if CONTROL.match(code) else DEFINITION.search(code)
            declared = not CONTROL.match(code) and re.match(rf"\s*(?:[\w:<>\[\]*&]+ )+{token}\(.*;$", code)
            named = own and own.group(1) == token and RESULT.fullmatch(code[: own.start()])
            if "} ->" in code or declared or (named and code.rstrip().endswith(("{", ","))):
                continue  # a concept's requirement, or the function of that name itself
            one_line = own and own.start() < call.start() and code.lstrip() == code[2:] and code.rstrip().endswith("}")
            found.append((name, own.group(1) if one_line else function_around(lines, index), token))
    return found


def parse(text):
    """The entries of the list, and what is wrong with its lines."""
    entries, problems = {}, []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 5 or not all(fields):
            problems.append(f"line {number} of the list has not five fields")
        elif fields[3].split()[0].rstrip(":") not in KINDS:
            problems.append(f"line {number} of the list: '{fields[3]}' begins with none of: {', '.join(KINDS)}")
        elif tuple(fields[:3]) in entries:
            problems.append(f"line {number} of the list says again what an earlier one says")
        else:
            entries[tuple(fields[:3])] = (fields[3], fields[4])
    return entries, problems


def test_cases(root):
    names = set()
    for path in sorted((root / "tests").rglob("*.[ch]pp")):
        for case in TEST_CASE.finditer(path.read_text()):
            names.add("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', case.group(1))))
    return names


def check(root, listed):
    entries, problems = parse(listed)
    include = root / "include" / "dtrain"
    calls = set()
    for path in sorted(include.rglob("*.hpp")):
        calls.update(calls_in(path.relative_to(include).as_posix(), path.read_text()))
    for call in sorted(calls - entries.keys()):
        problems.append(f"{call[0]}: {call[1]} calls {call[2]}, which can block and is not on the list: {' | '.join(call)}")
    for call in sorted(entries.keys() - calls):
        problems.append(f"the list says that in {call[0]} {call[1]} calls {call[2]}, and it does not")
    cases = test_cases(root)
    for call, (bound, case) in entries.items():
        where = f"the list's line for {call[2]} in {call[0]}, {call[1]}"
        if case == "-" and bound.split()[0].rstrip(":") in TESTED:
            problems.append(f"{where} names no test case, and '{bound}' needs one")
        if case != "-" and case not in cases:
            problems.append(f"{where} names a test case that is not there: '{case}'")
    return problems


def selftest():
    header = (
        "namespace dtrain {\ninline void doze(int fd) {\n  // ::poll(this)\n  const auto nap = [&](int ms) {\n"
        "    ::poll(nullptr, 0, ms);\n  };\n  co_await event.wait(deadline);\n  nap(fd);\n}\nclass A {\n  void b() { x.join(); }\n"
        "  void c(int first,\n         int second) {\n    if (first) {\n      changed_.wait(lock);\n    }\n  }\n};\n}\n"
    )
    good = (
        "a/b.hpp | doze | poll | deadline: the caller's | it ends\n"
        "a/b.hpp | b | join | ends: its thread is told to | it ends\n"
        "a/b.hpp | c | wait | local: nothing | -\n"
    )
    cases = [
        (header, good, None),
        (header + "inline void d() {\n  ::usleep(3);\n}\n", good, "d calls usleep"),
        (header + "inline void d() {\n  while (::read(1, 2, 3) < 0) {\n  }\n}\n", good, "d calls read"),
        (header + "inline void d() {\n  block_until(changed, lock,\n              late);\n}\n", good, "d calls block_until"),
        (header + "inline void d() {\n  changed.wait(lock, [] {\n    return over;\n  });\n}\n", good, "d calls wait"),
        (header + "inline bool block_until(Changed& changed,\n                        Deadline late) {\n}\n", good, None),
        (header, good.replace("a/b.hpp | b | join", "a/b.hpp | b | wait"), "it does not"),
        (header, good.replace("a/b.hpp | b | join", "a/b.hpp | b | wait"), "b calls join"),
        (header, good.replace("is told to | it ends", "is told to | it never ends"), "a test case that is not there"),
        (header, good.replace("caller's | it ends", "caller's | -"), "names no test case"),
        (header, good.replace("local: nothing", "hope"), "begins with none of"),
        (header, good + "a/b.hpp | x\n", "has not five fields"),
        (header, good + good.splitlines()[0], "says again"),
    ]
    problems = []
    for text, listed, wanted in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "include" / "dtrain" / "a").mkdir(parents=True)
            (root / "include" / "dtrain" / "a" / "b.hpp").write_text(text)
            (root / "tests").mkdir()
            (root / "tests" / "b_test.cpp").write_text('TEST_CASE("it ends") {}\n')
            found = "\n".join(check(root, listed))
            if (wanted is None and found) or (wanted is not None and wanted not in found):
                problems.append(f"selftest: wanted {wanted}, got: {found or 'nothing'}")
    return problems


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    listed = pathlib.Path(__file__).with_name("blocking_calls.txt")
    if sys.argv[1] == "--selftest":
        problems = selftest()
    else:
        problems = check(pathlib.Path(sys.argv[1]), listed.read_text() if listed.exists() else "")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
