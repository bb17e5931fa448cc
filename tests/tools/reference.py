#!/usr/bin/env python3
"""Makes the reference of the public interface with doxygen: OUT/html/index.html.

usage: reference.py ROOT OUT | reference.py --check ROOT | reference.py --filter HEADER | reference.py --selftest

A declaration is public if its comment has the line "@ingroup GROUP". examples/guide/reference.dox has the groups. Other
declarations, and those in detail, are not in the reference. The call fails if a public declaration is not on the page of
its group, or if the page of a group, class or concept has no text; if DTRAIN_WARNINGS_AS_ERRORS is ON in the environment,
also if doxygen warns. --check needs no doxygen: each public declaration has text and a group, and each group a declaration.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "single_include"))
import amalgamate  # noqa: E402  (the one list of floors is there)

GROUPS = "examples/guide/reference.dox"
SETTINGS = "examples/guide/Doxyfile"
PUBLIC = re.compile(r"/// @ingroup (\w+)")
LABEL = re.compile(r"(Blocking|Bounds|Buffers|Close|Collective(?:, blocking)?|Errors|Leaving|Lifetime|Order|Source|Threads): ")


def is_comment(line):
    return line.lstrip().startswith("///") and not line.lstrip().startswith("///<")


def comments(lines):
    """(begin, end) of each comment, in lines."""
    begin = 0
    while begin < len(lines):
        end = begin
        while end < len(lines) and is_comment(lines[end]):
            end += 1
        if end > begin:
            yield begin, end
        begin = end + 1


def groups_of(comment):
    return [match[1] for match in map(PUBLIC.fullmatch, comment) if match]


def in_doxygen(comment):
    """The comment with each label as a heading, lines that are indented below an empty one as code, and text below a list
    as a paragraph."""
    shown = comment[:1]
    code = False
    for before, line in zip(comment, comment[1:]):
        mark, text = re.fullmatch(r"( *///) ?(.*)", line).groups()
        label = LABEL.match(text)
        code = text.startswith("  ") and (code or before.lstrip() == "///")
        if code:
            shown.append(f"{mark}    {text}")
        elif label:
            title = label[1].replace(",", "\\,")
            shown.append(f"{mark} @label{{{title}:}} {text[label.end():]}")
        elif re.match(r"[^-@ ]", text) and re.match(r" *///( - |   ).*\.$", before):
            shown.append(f"{mark} @below {text}")
        else:
            shown.append(line)
    return shown


def filtered(text):
    """What doxygen reads of a header. Outside classes only the comments of public declarations are left. Every line keeps its
    number."""
    lines = text.split("\n")
    for begin, end in comments(lines):
        comment = lines[begin:end]
        is_hidden = comment[0].startswith("///") and not groups_of(comment)
        lines[begin:end] = ["//"] * len(comment) if is_hidden else in_doxygen(comment)
    return "\n".join(lines)


def public_headers(root):
    """Header: how many public declarations it has in each group. The top floor is first, as its declarations are on the pages
    of the groups."""
    include = root / "include" / "dtrain"
    names = sorted(str(path.relative_to(include)) for path in include.rglob("*.hpp"))
    found = {}
    for name in sorted(names, key=amalgamate.floor_of, reverse=True):
        groups = groups_of((include / name).read_text(encoding="utf-8").splitlines())
        if groups:
            found[pathlib.Path("include/dtrain") / name] = collections.Counter(groups)
    return found


def problems_of_comments(name, text, groups):
    """A sentence for each comment of a public declaration that lacks something. @param groups those in reference.dox"""
    lines = text.splitlines()
    for begin, end in comments(lines):
        given = groups_of(lines[begin:end])
        if given and len(given) == end - begin:
            yield f"{name}:{begin + 1}: the declaration in the group {given[0]} has no text"
        for group in sorted(set(given) - set(groups)):
            yield f"{name}:{begin + 1}: {GROUPS} has no group {group}; it has {', '.join(groups)}"


def check(root):
    groups = re.findall(r"^@defgroup (\w+)", (root / GROUPS).read_text(encoding="utf-8"), re.MULTILINE)
    headers = public_headers(root)
    for path in headers:
        yield from problems_of_comments(path, (root / path).read_text(encoding="utf-8"), groups)
    for group in groups:
        if not any(group in counts for counts in headers.values()):
            yield f"{GROUPS} has the group {group}, and no declaration has the line '/// @ingroup {group}'"


def text_of(page):
    """The page without its tags."""
    body = page.read_text(encoding="utf-8").partition('<div class="contents">')[2]
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def problems_of_pages(html, tags, wanted):
    """A sentence for each page that is missing or lacks something. @param wanted number of declarations of each group"""
    if not tags.is_file():
        yield f"doxygen made no {tags}"
        return
    listed = collections.Counter()
    for compound in xml.etree.ElementTree.parse(tags).getroot().iter("compound"):
        kind, name, page = compound.get("kind"), compound.findtext("name"), html / compound.findtext("filename")
        if kind == "group":
            listed[name] = sum(entry.tag in ("class", "concept", "member") for entry in compound)
        elif kind not in ("class", "struct", "concept"):
            continue
        if not page.is_file():
            yield f"{name} has no page {page}"
        elif len(text_of(page)) < 100:
            yield f"the page of {name} is empty: {page} has the text {text_of(page)!r}"
    for group in sorted(wanted.keys() | listed.keys()):
        if listed[group] != wanted[group]:
            yield f"the page of {group} lists {listed[group]} declarations, and {wanted[group]} have the line '/// @ingroup {group}'"


def settings(root, out, headers):
    version = (root / "include/dtrain/core/version.hpp").read_text(encoding="utf-8")
    as_errors = os.environ.get("DTRAIN_WARNINGS_AS_ERRORS") == "ON"
    return (root / SETTINGS).read_text(encoding="utf-8") + "\n".join([
        f'INPUT = {GROUPS} {" ".join(str(path) for path in headers)}',
        f'OUTPUT_DIRECTORY = "{out}"',
        f'GENERATE_TAGFILE = "{out}/tags.xml"',
        f"PROJECT_NUMBER = {'.'.join(re.findall(r'#define DTRAIN_VERSION_[A-Z]+ ([0-9]+)', version))}",
        f'FILTER_PATTERNS = "*.hpp=\\"{sys.executable}\\" -B \\"{pathlib.Path(__file__).resolve()}\\" --filter"',
        f"WARN_AS_ERROR = {'FAIL_ON_WARNINGS' if as_errors else 'NO'}",
        "",
    ])


def make(root, out):
    problems = list(check(root))
    headers = public_headers(root)
    out.mkdir(parents=True, exist_ok=True)
    for old in [*(out / "html").glob("*.html"), *out.glob("tags.xml")]:
        old.unlink()
    try:
        doxygen = subprocess.run(["doxygen", "-"], input=settings(root, out, headers), text=True, cwd=root, check=False)
    except FileNotFoundError:
        return [*problems, "doxygen is not installed; Debian has the package doxygen"]
    if doxygen.returncode != 0:
        problems.append(f"doxygen has the exit code {doxygen.returncode}")
    problems += problems_of_pages(out / "html", out / "tags.xml", sum(headers.values(), collections.Counter()))
    if not problems:
        print(f"the reference is {out / 'html' / 'index.html'}")
    return problems


def selftest():
    header = ["/// @file", "/// A.", "", "/// Hidden.", "class A {};", "/// Shown:", "///", "///   f();", "///", "/// - One,",
              "///   long.", "/// Text.", "/// Threads: any.", "/// Collective, blocking: f().", "/// @ingroup g", "class B {",
              "  /// Shown.", "  int x;  ///< Shown.", "};"]
    shown = ["//", "//", "", "//", "class A {};", "/// Shown:", "///", "///      f();", "///", "/// - One,",
             "///   long.", "/// @below Text.", "/// @label{Threads:} any.", "/// @label{Collective\\, blocking:} f().",
             "/// @ingroup g", "class B {", "  /// Shown.", "  int x;  ///< Shown.", "};"]
    found = filtered("\n".join(header)).split("\n")
    problems = [f"filtered: wanted {wanted!r}, got {got!r}" for wanted, got in zip(shown, found) if wanted != got]

    def expect(what, word, got):
        got = "; ".join(got)
        if word not in got or (not word and got):
            problems.append(f"{what}: wanted {word or 'nothing'}, got: {got or 'nothing'}")

    for text, word in [("/// A.\n/// @ingroup g\nclass A;", ""), ("/// @ingroup g\nclass A;", "has no text"),
                       ("/// A.\n/// @ingroup h\nclass A;", "has no group h")]:
        expect(repr(text), word, problems_of_comments("a.hpp", text, ["g"]))
    page = f'<div class="contents">{"word " * 40}</div>'
    tags = ('<tagfile><compound kind="group"><name>g</name><filename>group__g.html</filename><class kind="class">B</class>'
            '</compound><compound kind="class"><name>B</name><filename>B.html</filename></compound></tagfile>')
    for pages, wanted, word in [
            ({"tags.xml": tags, "group__g.html": page, "B.html": page}, {"g": 1}, ""),
            ({"group__g.html": page, "B.html": page}, {"g": 1}, "made no"),
            ({"tags.xml": tags, "group__g.html": page}, {"g": 1}, "B has no page"),
            ({"tags.xml": tags, "group__g.html": page, "B.html": '<div class="contents"><p></p></div>'}, {"g": 1}, "is empty"),
            ({"tags.xml": tags, "group__g.html": page, "B.html": page}, {"g": 2}, "lists 1 declarations, and 2 have"),
            ({"tags.xml": tags, "group__g.html": page, "B.html": page}, {}, "lists 1 declarations, and 0 have"),
            ({"tags.xml": tags, "group__g.html": page, "B.html": page}, {"g": 1, "h": 1}, "the page of h lists 0")]:
        with tempfile.TemporaryDirectory() as folder:
            html = pathlib.Path(folder)
            for name, text in pages.items():
                (html / name).write_text(text, encoding="utf-8")
            expect(f"{sorted(pages)} with {wanted}", word, problems_of_pages(html, html / "tags.xml", collections.Counter(wanted)))
    return problems


def main(arguments):
    if arguments == ["--selftest"]:
        problems = selftest()
    elif len(arguments) != 2:
        print(__doc__)
        return 2
    elif arguments[0] == "--filter":
        sys.stdout.write(filtered(pathlib.Path(arguments[1]).read_text(encoding="utf-8")))
        return 0
    elif arguments[0] == "--check":
        problems = check(pathlib.Path(arguments[1]))
    else:
        problems = make(*(pathlib.Path(argument).resolve() for argument in arguments))
    problems = list(problems)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
