#!/usr/bin/env python3
"""Prints `SKIPPED name: reason` for each test that ctest skipped, and for each part that a passed test left out.

  report_skips.py JUNIT_FILE    ctest runs it after the tests (see CTestCustom.cmake.in)
  report_skips.py --selftest
"""

import pathlib
import sys
import tempfile
import xml.etree.ElementTree

MARK = "SKIPPED: "


def skips(path):
    """The lines to print, from ctest's JUnit file; a test says its reasons in lines `SKIPPED: reason`."""
    lines = []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = case.get("name")
        output = (case.findtext("system-out") or "").splitlines()
        reasons = [line.strip().removeprefix(MARK) for line in output if line.strip().startswith(MARK)]
        if case.get("status") in ("notrun", "disabled") and not reasons:
            skipped = case.find("skipped")
            reasons = [skipped.get("message", "") if skipped is not None else "it was not run"]
        lines += [f"SKIPPED {name}: {reason or 'no reason given'}" for reason in reasons]
    return lines


def selftest():
    text = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="x">
<testcase name="passed" status="run"><system-out>fine
</system-out></testcase>
<testcase name="skipped" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>one
  SKIPPED: no compiler &lt;here&gt;
</system-out></testcase>
<testcase name="silent" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out></system-out></testcase>
<testcase name="partly" status="run"><system-out>SKIPPED: needs four cores
</system-out></testcase>
</testsuite>
"""
    wanted = ["SKIPPED skipped: no compiler <here>", "SKIPPED silent: SKIP_RETURN_CODE=77",
              "SKIPPED partly: needs four cores"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "junit.xml"
        path.write_text(text)
        found = skips(path)
    if found != wanted:
        print(f"wanted {wanted}, got {found}")
        return 1
    return 0


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    if sys.argv[1] == "--selftest":
        return selftest()
    path = pathlib.Path(sys.argv[1])
    if path.is_file():
        for line in skips(path):
            print(line)
        # A later ctest that writes no such file must not report this one's skips.
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
