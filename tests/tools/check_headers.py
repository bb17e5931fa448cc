#!/usr/bin/env python3
"""Checks the structure of include/dtrain: floors, folders, sizes, openings, names, headers that cost every user
compile time, and comments whose references have no noun.

  check_headers.py REPOSITORY   checks the repository's headers
  check_headers.py --selftest   shows for each rule that breaking it is noticed
"""

import pathlib
import re
import sys
import tempfile
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "single_include"))
import amalgamate  # noqa: E402  (the one list of floors is there)

FORBIDDEN = {"regex", "future", "filesystem", "iostream", "ranges", "format", "source_location"}
LONGEST = 450
MOST_IN_A_FOLDER = 15
LONGEST_OPENING = 40  # words
# One idea, which each backend, device or coroutine has for itself. All other types have a name of their own.
SAME_IDEA = {
    "Communicator", "Channel", "Transport", "Endpoint", "MessageHandle", "PendingMessage", "Allocation",
    "Stream", "StreamRef", "CommunicationStream", "Event", "ExternalEvent",
    "Category", "Awaiter", "FinalAwaiter",
    "State",  # of an optimizer's rule, which names its own
    "Partial",  # what a kernel's arithmetic adds up in
    "DistributedDataParallel", "ShardedOptimizer",  # of a model, and of a component's modules
}
DEFINITION = re.compile(
    r"^[ \t]*(?:template\s*<[^;{]*>\s*)?(?:class|struct|union|enum|enum class|concept)\s+(?:\[\[\w+\]\]\s+)?(\w+)"
    r"(?:\s+final)?\s*(?::(?!:)|\{|=)", re.MULTILINE)


def height(name):
    """Where a header stands; a header includes only what stands lower, or its own folder."""
    if name in amalgamate.FRONT:
        return amalgamate.floor_of(name), amalgamate.FRONT.index(name)
    return amalgamate.floor_of(name), 0


def check_includes(name, text):
    problems = []
    lines = text.splitlines()
    for line in lines:
        include = amalgamate.INCLUDE.match(line)
        if not include:
            continue
        bracket, target = include.groups()
        if bracket == "<":
            if target in FORBIDDEN:
                problems.append(f"{name} includes <{target}>, which costs every user compile time or is not everywhere")
            continue
        if not target.startswith("dtrain/"):
            problems.append(f'{name} includes "{target}"; headers are named from "dtrain/"')
            continue
        target = target.removeprefix("dtrain/")
        same_folder = "/" in target and name.split("/")[0].removesuffix(".hpp") == target.split("/")[0]
        if not same_folder and height(target) >= height(name):
            problems.append(f"{name} includes {target}, which is not on a lower floor")
    if amalgamate.SECTION_BEGIN in lines and '#include "dtrain/core/config.hpp"' not in lines:
        problems.append(f"{name} asks for DTRAIN_DEFINITIONS and does not include dtrain/core/config.hpp, which sets it")
    return problems


def check_text(name, text):
    problems = []
    lines = text.splitlines()
    if lines[:2] != ["#pragma once", "/// @file"] or len(lines) < 3 or not lines[2].startswith("/// "):
        problems.append(f"{name} does not open with '#pragma once', '/// @file' and a '/// ' sentence")
    if len(lines) > LONGEST:
        problems.append(f"{name} has {len(lines)} lines; the most is {LONGEST}")
    code = re.sub(r"//.*", "", text)
    if re.search(r"\bstd::source_location\b", code):
        problems.append(f"{name} uses std::source_location, which clang 14 lacks; use dtrain::SourceLocation")
    if re.search(r"\bstd::(?:jthread|stop_token)\b", code):
        problems.append(f"{name} uses std::jthread or its stop token, which libc++ lacks; use async::JoiningThread")
    for inside in re.findall(r"^#if (DTRAIN_WITH_\w+)\n+[ \t]+", text, re.MULTILINE):
        problems.append(f"{name} asks for {inside} within a function or class, which then differs between the program "
                        "and the definitions compiled apart; ask around whole declarations, or of a value at run time")
    return problems


NAMES_FILE = re.compile(r"\b(?:\w+\.[hc]pp\b|[a-z_]+/)")


def check_opening(name, text):
    """The comment after '/// @file' is short, and says what the header is, not who uses it."""
    words = []
    for line in text.splitlines()[2:]:
        if not line.startswith("///"):
            break
        words += line.removeprefix("///").split()
    problems = []
    if len(words) > LONGEST_OPENING:
        problems.append(f"{name} has {len(words)} words in its opening; the most is {LONGEST_OPENING}: say what it is, and "
                        "leave out who uses it")
    problems += [f"{name} names {named} in its opening; name types, and leave out who uses it"
                 for named in NAMES_FILE.findall(" ".join(words))]
    return problems


def check_folders(names):
    folders = Counter(name.rpartition("/")[0] for name in names)
    problems = [f"{folder}/ has {count} headers; the most is {MOST_IN_A_FOLDER}: put those of one subject into a subfolder"
                for folder, count in sorted(folders.items()) if count > MOST_IN_A_FOLDER]
    return problems + [f"{name}: definitions stand at the end of their header, below {amalgamate.SECTION_BEGIN}"
                       for name in names if name.endswith("_definitions.hpp")]


def check_circles(texts):
    """In each folder, its headers and subfolders include each other in one direction only."""
    includes = {name: re.findall(r'^#include "dtrain/([^"]+)"', text, re.MULTILINE) for name, text in texts.items()}
    folders = sorted({"/".join(parts[:depth]) + "/" for parts in (name.split("/") for name in texts)
                      for depth in range(1, len(parts))})
    problems = []
    for folder in folders:
        def entry(name):
            return folder + name[len(folder):].split("/")[0] + "/" * ("/" in name[len(folder):])
        graph = {}
        for name, targets in includes.items():
            if name.startswith(folder):
                graph.setdefault(entry(name), set()).update(entry(t) for t in targets if t.startswith(folder))
        left = {at: below - {at} for at, below in graph.items()}
        while free := [at for at, below in left.items() if not below.intersection(left)]:
            for at in free:
                del left[at]
        while above := left.keys() - set().union(*left.values()):
            for at in above:
                del left[at]
        if any(at.endswith("/") for at in left):
            problems.append(f"{', '.join(sorted(left))} include each other in a circle; move what is shared up, or into "
                            "the lower folder")
    return problems


def check_types(texts):
    """No two types of one name, wherever they stand, so that a name says what is meant."""
    homes = {}
    for name, text in texts.items():
        for match in DEFINITION.finditer(re.sub(r"//.*", "", text)):
            homes.setdefault(match.group(1), []).append(name)
    return [f"{' and '.join(where)} define a type {type_} each; give each idea a name of its own"
            for type_, where in sorted(homes.items()) if len(where) > 1 and type_ not in SAME_IDEA]


def check_words(name, text, refused):
    """The private vocabulary of earlier versions does not come back."""
    return [f"{name} has the name {word}, which was given up for a standard term"
            for word in sorted(refused.intersection(re.findall(r"\w+", text)))]


COMMENT = re.compile(r'R"([^( ]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"' r"|'(?:\\.|[^'\\\n])'"  # texts, which may have slashes
                     r"|(?P<begin>///<?|//)(?P<text>[^\n]*)", re.DOTALL)
NO_NOUN = re.compile(r"(?:^|[.:] |^@file |[.:] - |^- )(Of|Those|That|What) ")
# At the beginning of a comment after code; "at least 1" and "as many as the ranks" are quantities.
BARE_PREPOSITION = re.compile(r"(?!at (?:least|most) |as \w+ as )(of|in|for|by|with|as|to|at|from) ")
REFUSED_PHRASES = re.compile(r"\b(as much(?! as\b)|of (?:its|their) own|theirs)\b")


def comments_of(text):
    """The comments of a header: line, '///', '///<' or '//', and the text, in which lines that follow each other are
    one."""
    found = []
    last = None
    for match in COMMENT.finditer(text):
        begin = match.group("begin")
        if begin is None:
            continue
        line = text.count("\n", 0, match.start()) + 1
        stands_alone = not text[:match.start()].rpartition("\n")[2].strip()
        words = match.group("text").strip()
        if found and stands_alone and begin != "///<" and last == (line - 1, begin):
            found[-1][2] += " " + (words or ".")  # an empty line ends a sentence
        else:
            found.append([line, begin, words])
        last = (line, begin) if stands_alone else None
    return found


def check_comments_after_code(name, text):
    """A comment after code begins with the noun that its preposition needs. In a function's '//' comment, other
    prepositions than 'of' may begin a sentence: '// from here on the destructor ends the process'."""
    problems = []
    lines = text.splitlines()
    for match in COMMENT.finditer(text):
        begin = match.group("begin")
        line = text.count("\n", 0, match.start()) + 1
        follows_code = text[:match.start()].rpartition("\n")[2].strip()
        continues = line > 1 and "///<" in lines[line - 2]
        if begin is None or not follows_code and (begin != "///<" or continues):
            continue
        word = BARE_PREPOSITION.match(match.group("text").strip())
        if word and (begin == "///<" or word.group(1) == "of"):
            problems.append(f"{name}:{line} has a comment after code that begins with '{word.group(1)}'; begin with the noun "
                            "that it stands for")
    return problems


def check_comments(name, text):
    """A sentence of a documentation comment begins with its noun, and no phrase leaves its noun to the reader."""
    problems = []
    for line, begin, words in comments_of(text):
        openings = NO_NOUN.findall(words) if begin != "//" else []
        problems += [f"{name}:{line} has a sentence that begins with '{word}' in its comment; begin with a noun"
                     for word in openings]
        problems += [f"{name}:{line} has '{phrase}' in a comment; name the noun that it stands for"
                     for phrase in REFUSED_PHRASES.findall(words)]
    return problems


def included_by(texts, first):
    """The headers that one reaches, itself among them."""
    reached, pending = set(), [first]
    while pending:
        name = pending.pop()
        if name in texts and name not in reached:
            reached.add(name)
            pending += re.findall(r'^#include "dtrain/([^"]+)"', texts[name], re.MULTILINE)
    return reached


def check_finiteness(name, text):
    """The compiler takes these for constants under -ffast-math."""
    return [f"{name} calls std::{call}, which -ffast-math makes a constant; call kernels::is_finite"
            for call in re.findall(r"\bstd::(isfinite|isinf|isnan)\b", text)]


LOCALE_HEADERS = {"sstream", "fstream", "iomanip", "locale", "clocale", "cctype", "ctype.h", "locale.h"}
STREAMS_OF_BYTES = {"libtorch/optimizer_tensors.hpp"}  # LibTorch's archives take a stream; no number is written to it
FOLLOWS_LOCALE = re.compile(
    r"(?<![\w.>])(?:std::|::)?(strto(?:d|f|ld)|sto(?:d|f|ld)|atof|v?sscanf|setlocale|localeconv|strftime|strcoll"
    r"|is(?:alpha|alnum|digit|xdigit|space|upper|lower|print|punct|graph|cntrl|blank)|to(?:lower|upper))\s*\(")
PRINTS_REAL = re.compile(r"printf\s*\([^;]*?\"[^\"\n]*%[-+ #0-9.*]*[aefgAEFG]")
DECLARES_REAL = re.compile(r"\b(?:double|float)\s+(\w+)")
WHOLE_CAST = re.compile(r"static_cast<(?:std::)?(?:u?int\w*|std::size_t|unsigned|long)[^<>]*>\(")


def arguments_of(text, call):
    """What stands between the parentheses of each call."""
    for match in re.finditer(re.escape(call) + r"\(", text):
        depth, end = 1, match.end()
        while end < len(text) and depth > 0:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield text[match.end():end - 1]


def check_locale(name, text, reals):
    """Ranks with different locales would compare and send different texts. @param reals the folder's names of numbers
    that are not whole"""
    problems = []
    code = re.sub(r"//.*", "", text)
    remedy = ("which follows the user's setlocale(); use core/text/format_text.hpp, std::from_chars or a comparison of "
              "bytes")
    for target in re.findall(r"^#\s*include <([^>]+)>", code, re.MULTILINE):
        if target in LOCALE_HEADERS and name not in STREAMS_OF_BYTES:
            problems.append(f"{name} includes <{target}>, {remedy}")
    problems += [f"{name} calls {call}, {remedy}" for call in FOLLOWS_LOCALE.findall(code)]
    if PRINTS_REAL.search(code):
        problems.append(f"{name} prints a floating-point number by printf, {remedy}")
    for argument in arguments_of(code, "std::to_string"):
        is_real = re.search(r"<double|<float|\bdouble\b|\bfloat\b|\d\.\d|\de-?\d", argument)
        is_real = is_real or reals.intersection(re.findall(r"\w+", argument))
        if is_real and not WHOLE_CAST.match(argument):
            problems.append(f"{name} calls std::to_string({argument}), {remedy}")
    return problems


def check(repository, refused=frozenset()):
    """A sentence for each broken rule."""
    root = pathlib.Path(repository) / "include"
    names = sorted(str(path.relative_to(root / "dtrain")) for path in (root / "dtrain").rglob("*") if path.is_file())
    if not names:
        return [f"no header below {root}/dtrain"]
    problems = check_folders(names)
    texts = {name: (root / "dtrain" / name).read_text(encoding="utf-8") for name in names}
    problems += check_types(texts) + check_circles(texts)
    reals = {}
    for name, text in texts.items():
        reals.setdefault(name.rpartition("/")[0], set()).update(DECLARES_REAL.findall(re.sub(r"//.*", "", text)))
    for name, text in texts.items():
        problems += check_words(name, text, refused)
        problems += check_locale(name, text, reals[name.rpartition("/")[0]])
        problems += check_finiteness(name, text)
        problems += check_comments(name, text)
        problems += check_comments_after_code(name, text)
        if "/" not in name and name not in [*amalgamate.FRONT, amalgamate.UMBRELLA] and not amalgamate.component_of(name):
            problems.append(f"{name} is none of the front's files: {', '.join(amalgamate.FRONT)}")
            continue
        try:
            amalgamate.floor_of(name)
            problems += check_text(name, text) + check_opening(name, text) + check_includes(name, text)
        except amalgamate.AmalgamationError as error:
            problems.append(str(error))
    try:
        reached, _ = amalgamate.in_order(root)
        problems += [f"{name} is not reached from dtrain.hpp" for name in names
                     if name not in reached and not amalgamate.component_of(name)]
        for component in amalgamate.COMPONENTS:
            reached = included_by(texts, f"{component}.hpp")
            problems += [f"{name} is not reached from {component}.hpp" for name in names
                         if amalgamate.component_of(name) == component and name not in reached]
    except amalgamate.AmalgamationError as error:
        problems.append(str(error))
    return problems


def selftest():
    """Breaks each rule alone in a small tree of headers."""
    head = "#pragma once\n/// @file\n/// One thing.\n"
    good = {
        "core/error.hpp": head + "#include <string>\n",
        "core/log.hpp": head + '#include "dtrain/core/error.hpp"\n',
        "net/socket.hpp": head + '#include "dtrain/core/log.hpp"\n',
        "policy.hpp": head + '#include "dtrain/net/socket.hpp"\n',
        "run.hpp": head + '#include "dtrain/policy.hpp"\n',
        "dtrain.hpp": head + '#include "dtrain/run.hpp"\n',
    }
    section = {
        "core/config.hpp": head,
        "net/socket.hpp": good["net/socket.hpp"] + '#include "dtrain/core/config.hpp"\n' + amalgamate.SECTION_BEGIN +
                          '\n#include "dtrain/net/door.hpp"\n' + amalgamate.SECTION_END + "\n",
        "net/door.hpp": head + "#include <poll.h>\n",
    }
    component = {"libtorch.hpp": head + '#include <torch/torch.h>\n#include "dtrain/libtorch/module.hpp"\n',
                 "libtorch/module.hpp": head + "#include <dtrain/dtrain.hpp>\n"}
    cases = [
        ({}, None),
        ({"core/log.hpp": head + '#include "dtrain/net/socket.hpp"\n'}, "which is not on a lower floor"),
        ({"net/socket.hpp": head + '#include "dtrain/core/log.hpp"\n#include "dtrain/ddp/x.hpp"\n'}, "lower floor"),
        ({"policy.hpp": head + '#include "dtrain/net/socket.hpp"\n#include "dtrain/run.hpp"\n'}, "lower floor"),
        ({"core/error.hpp": head + '#include "dtrain/core/log.hpp"\n'}, "in a circle"),
        ({"core/error.hpp": head + "#if A\n#include <regex>\n#endif\n"}, "includes <regex>"),
        ({"core/error.hpp": head + "#  include <iostream>\n"}, "includes <iostream>"),
        ({"core/error.hpp": head + "using L = std::source_location;\n"}, "uses std::source_location"),
        ({"core/error.hpp": head + "/// No std::source_location here.\n"}, None),
        ({"core/error.hpp": head + "std::jthread t;\n"}, "uses std::jthread"),
        ({"core/error.hpp": head + "#include <sstream>\n"}, "includes <sstream>, which follows"),
        ({"core/error.hpp": head + "double d = std::strtod(t, nullptr);\n"}, "calls strtod"),
        ({"core/error.hpp": head + "bool b = isalpha(c) != 0;\n"}, "calls isalpha"),
        ({"core/error.hpp": head + "bool b = is_digit(c) || names.isalpha(c);\n"}, None),
        ({"core/error.hpp": head + 'std::snprintf(t, sizeof t, "%d of %.3g", n, d);\n'}, "by printf"),
        ({"core/error.hpp": head + 'std::snprintf(t, sizeof t, "%d", n);\nf("%f1");\n'}, None),
        ({"core/error.hpp": head + "auto t = std::to_string(std::chrono::duration<double>(f(1)).count());\n"},
         "calls std::to_string"),
        ({"core/error.hpp": head + "struct O { double fraction; };\n",
          "core/log.hpp": head + "auto t = std::to_string(options.fraction);\n"}, "calls std::to_string"),
        ({"core/error.hpp": head + "struct O { double fraction; };\n",
          "core/log.hpp": head + '#include "dtrain/core/error.hpp"\n'
                          "auto t = std::to_string(static_cast<int>(options.fraction));\n"}, None),
        ({"core/log.hpp": head + '#include "error.hpp"\n'}, 'named from "dtrain/"'),
        ({"core/error.hpp": head + "\n" * 448}, "has 451 lines"),
        ({"net/socket_definitions.hpp": head}, "definitions stand at the end of their header"),
        # Folders: a and b of net include each other's headers, though no header is in a circle.
        ({"net/a/low.hpp": head, "net/a/high.hpp": head + '#include "dtrain/net/b/middle.hpp"\n',
          "net/b/middle.hpp": head + '#include "dtrain/net/a/low.hpp"\n'}, "net/a/, net/b/ include each other"),
        ({"net/a/high.hpp": head + '#include "dtrain/net/b/middle.hpp"\n', "net/low.hpp": head,
          "net/b/middle.hpp": head + '#include "dtrain/net/low.hpp"\n',
          "net/socket.hpp": good["net/socket.hpp"] + '#include "dtrain/net/a/high.hpp"\n'}, None),
        ({"net/b/middle.hpp": head + '#include "dtrain/net/low.hpp"\n', "net/b/other.hpp": head,
          "net/low.hpp": head + '#include "dtrain/net/b/other.hpp"\n'}, "net/b/, net/low.hpp include each other"),
        ({"core/error.hpp": "/// @file\n/// One thing.\n"}, "does not open with"),
        ({"core/error.hpp": "#pragma once\n// One thing.\n"}, "does not open with"),
        # Openings.
        ({"core/log.hpp": good["core/log.hpp"].replace("One thing.", "A word " * 20)}, None),
        ({"core/log.hpp": good["core/log.hpp"].replace("One thing.", "A word\n/// " * 20 + "more.")},
         "core/log.hpp has 41 words in its opening"),
        ({"core/log.hpp": good["core/log.hpp"].replace("thing.", "thing, for net/.")}, "core/log.hpp names net/ in its opening"),
        ({"core/log.hpp": good["core/log.hpp"].replace("thing.", "thing, for\n/// net/socket.hpp.")}, "names net/"),
        ({"core/log.hpp": good["core/log.hpp"].replace("thing.", "thing; error.hpp asks it.")}, "names error.hpp"),
        ({"core/log.hpp": good["core/log.hpp"].replace("thing.", "thing of /proc and /sys, 2n/m.") + "/// For net/.\n"}, None),
        ({"utils/misc.hpp": head}, "'utils' is no floor"),
        ({"misc.hpp": head}, "is none of the front's files"),
        ({"net/framing/frame.hpp": head}, "is not reached from dtrain.hpp"),
        ({"run.hpp": head + '#if A\n#include "dtrain/policy.hpp"\n#endif\n'}, "stands inside #if"),
        ({"run.hpp": head + '#include "dtrain/net/gone.hpp"\n'}, "does not exist"),
        # A component.
        (component, None),
        ({**component, "libtorch/lost.hpp": head}, "libtorch/lost.hpp is not reached from libtorch.hpp"),
        ({**component, "run.hpp": good["run.hpp"] + '#include "dtrain/libtorch.hpp"\n'}, "which is not on a lower floor"),
        # A header that only declares above its last lines, and what its definitions alone need.
        (section, None),
        ({**section, "net/socket.hpp": section["net/socket.hpp"].replace("core/config", "core/log")},
         "does not include dtrain/core/config.hpp"),
        ({**section, "net/socket.hpp": section["net/socket.hpp"].replace("#if", "#ifdef")}, "does not begin"),
        ({**section, "net/door.hpp": head + '#include "dtrain/net/socket.hpp"\n'}, "in a circle: net/door.hpp, net/socket.hpp, "
                                                                                  "net/socket.hpp (definitions)"),
        ({**section, "net/socket.hpp": section["net/socket.hpp"].replace("net/door", "ddp/x"), "ddp/x.hpp": head}, "lower floor"),
        ({"run.hpp": head + '#if DTRAIN_WITH_MPI\n#include "dtrain/policy.hpp"\n#endif\n'}, None),
        ({"run.hpp": head + "inline int f() {\n#if DTRAIN_WITH_MPI\n  return 1;\n#endif\n}\n"}, "within a function or class"),
        ({f"core/x{number}.hpp": head for number in range(14)}, "core/ has 16 headers"),
        ({"core/log.hpp": good["core/log.hpp"] + "class Line {};\n",
          "net/socket.hpp": good["net/socket.hpp"] + "struct A {\n  enum class Line : int { one };\n};\n"},
         "core/log.hpp and net/socket.hpp define a type Line"),
        ({"core/log.hpp": good["core/log.hpp"] + "class Line;\ntemplate <class T>\nstruct Line<T*> {};\n",
          "net/socket.hpp": good["net/socket.hpp"] + "struct Line {};\n"}, None),
        ({"core/log.hpp": good["core/log.hpp"] + "/// A Knock.\n"}, "has the name Knock"),
        ({"core/log.hpp": good["core/log.hpp"] + "/// A Knocked.\n"}, None),
        # Comments.
        ({"core/log.hpp": head + "\n  /// Of a bucket.\n"}, "core/log.hpp:5 has a sentence that begins with 'Of'"),
        ({"core/log.hpp": head + "\n/// What it is.\n"}, "begins with 'What'"),
        ({"core/log.hpp": head + "int n;  ///< Those of a rank\n"}, "core/log.hpp:4 has a sentence"),
        ({"core/log.hpp": "#pragma once\n/// @file\n/// That of a rank.\n"}, "core/log.hpp:2 has a sentence"),
        ({"core/log.hpp": head + "\n/// A rank:\n/// - Of a node.\n"}, "begins with 'Of'"),
        ({"core/log.hpp": head + "\n/// A bucket\n///\n/// That\n/// is zero.\n"}, "begins with 'That'"),
        ({"core/log.hpp": good["core/log.hpp"] + "/// Offices. Whatever\n/// That of a rank is.\n// Of course.\n"}, None),
        ({"core/log.hpp": head + "\n// It sends as\n// much.\n"}, "core/log.hpp:5 has 'as much' in a comment"),
        ({"core/log.hpp": good["core/log.hpp"] + "/// It sends as much\n/// as a ring.\n"}, None),
        ({"core/log.hpp": head + "int n;  // in a file of its own\n"}, "core/log.hpp:4 has 'of its own'"),
        ({"core/log.hpp": head + "int n;  ///< in files of their own\n"}, "has 'of their own'"),
        ({"core/log.hpp": head + "\n/// Ranks open theirs.\n"}, "has 'theirs'"),
        ({"core/log.hpp": good["core/log.hpp"] + 'auto a = "// of its own", b = R"(/// Of theirs)";  // a text\n'}, None),
        ({"core/log.hpp": head + "char c = '\"';  // of its own \"\n"}, "has 'of its own'"),
        # Comments after code.
        ({"core/log.hpp": head + "int n;  ///< of a rank\n"}, "core/log.hpp:4 has a comment after code that begins with 'of'"),
        ({"core/log.hpp": head + "int n;  ///< by rank\n"}, "that begins with 'by'"),
        ({"core/log.hpp": head + "int n;\n///< as Other::n\n"}, "core/log.hpp:5 has a comment after code"),
        ({"core/log.hpp": head + "  f();  // of a rank\n"}, "that begins with 'of'"),
        ({"core/log.hpp": good["core/log.hpp"] + "int n;  ///< the bytes\n        ///< of a rank\n"}, None),
        ({"core/log.hpp": good["core/log.hpp"] + "int n;  ///< at least 1\nint m;  ///< as many as ranks\n"}, None),
        ({"core/log.hpp": good["core/log.hpp"] + "  f();  // from here on, g() throws\n  // of a rank\n  in();  // in_ is set\n"},
         None),
    ]
    problems = []
    for changes, wanted in cases:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**good, **changes}.items():
                path = pathlib.Path(folder) / "include" / "dtrain" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            found = "\n".join(check(folder, frozenset({"Knock"})))
            if (wanted is None and found) or (wanted is not None and wanted not in found):
                problems.append(f"selftest {sorted(changes)}: wanted {wanted}, got: {found or 'nothing'}")
    return problems


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    if sys.argv[1] == "--selftest":
        problems = selftest()
    else:
        refused = pathlib.Path(__file__).with_name("refused_names.txt").read_text().split()
        problems = check(sys.argv[1], frozenset(refused))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
