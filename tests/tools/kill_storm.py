#!/usr/bin/env python3
"""Runs many rounds of the kill storm at low priority, in batches, and sums them up; exit code 1 where one failed.

  kill_storm.py [--rounds=1000] [--seed=1] [--minutes=60] [--patience=3] PROGRAM [ARGUMENT...]
  kill_storm.py --selftest

PROGRAM is `build/test/tests/integration --source-file=*/kill_storm_test.cpp`, or where sources are not joined
build/test/tests/integration_kill_storm. What a failed round said is printed;
`DTRAIN_TEST_STORM_SEED=N DTRAIN_TEST_STORM_ROUNDS=1 PROGRAM` repeats it. --patience multiplies the bounds in time: others may be using the machine.
"""

import argparse
import collections
import os
import re
import subprocess
import sys
import time

BATCH = 25
LINE = re.compile(r"^seed (?P<seed>\d+): .*?; (?P<before>SIGKILL to rank \d+, then )?(?P<phase>[a-z ]+) \+ \d+ us: "
                  r"(?P<blow>SIG[A-Z]+)(, \d+ us later SIGKILL)? to (?P<victim>the grandchild|the launcher|rank).*"
                  r" -> exit codes (?P<codes>[-\d ]+) after (?P<ms>\d+) ms: (?P<missed>over before, )?(?P<end>ok|FAILED)$")


class Summary:
    """Counts what rounds came to."""

    def __init__(self):
        self.rounds = 0
        self.hit = 0
        self.failed = []
        self.counts = collections.defaultdict(collections.Counter)
        self.seen = set()

    def add(self, line):
        match = LINE.match(line)
        if not match or match["seed"] in self.seen:  # a failed round's line comes twice
            return
        self.seen.add(match["seed"])
        self.rounds += 1
        self.hit += match["missed"] is None
        self.counts["phase"][match["phase"]] += 1
        self.counts["victim"][match["victim"].removeprefix("the ")] += 1
        self.counts["blow"][match["blow"]] += 1
        self.counts["exit codes"][match["codes"]] += 1
        if match["end"] == "FAILED":
            self.failed.append(int(match["seed"]))

    def text(self):
        lines = [f"{self.rounds} rounds, {self.hit} hit something, {len(self.failed)} failed"]
        for name, counter in self.counts.items():
            lines.append(f"  {name}: " + ", ".join(f"{value} {count}" for value, count in counter.most_common()))
        if self.failed:
            lines.append(f"  failed seeds: {self.failed}")
        return "\n".join(lines)


def selftest():
    summary = Summary()
    good = "seed 3: 1+2 ranks, restarts 0; steady + 7 us: SIGSTOP, 5 us later SIGKILL to rank 2 -> exit codes 137 137"
    bad = "seed 4: 2 ranks; SIGKILL to rank 1, then between + 7 us: SIGTERM to the launcher of node 0 -> exit codes -1"
    for line in (good + " after 9 ms: ok", bad + " after 9 ms: over before, FAILED", bad + " after 9 ms: FAILED", "x"):
        summary.add(line)
    text = summary.text()
    for expected in ("2 rounds, 1 hit something, 1 failed", "phase: steady 1, between 1", "victim: rank 1, launcher 1",
                     "blow: SIGSTOP 1, SIGTERM 1", "exit codes: 137 137 1, -1 1", "failed seeds: [4]"):
        assert expected in text, (expected, text)


def storm(arguments):
    summary = Summary()
    began = time.monotonic()
    crashed = False
    last = arguments.seed + arguments.rounds
    for seed in range(arguments.seed, last, BATCH):
        if time.monotonic() - began > 60 * arguments.minutes:
            print(f"the time is over before seed {seed}")
            break
        rounds = min(BATCH, last - seed)
        variables = {"DTRAIN_TEST_STORM_ROUNDS": rounds, "DTRAIN_TEST_STORM_SEED": seed,
                     "DTRAIN_TEST_STORM_PATIENCE": arguments.patience}
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        batch = subprocess.run(["nice", "-n", "19", *arguments.program], env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", timeout=3600)
        before = summary.rounds
        for line in batch.stdout.splitlines():
            summary.add(line)
        incomplete = summary.rounds != before + rounds
        crashed = crashed or incomplete
        if batch.returncode != 0 or incomplete:
            print(f"batch from seed {seed}: exit code {batch.returncode}\n{batch.stdout}", flush=True)
        print(f"{summary.rounds} rounds, {len(summary.failed)} failed, {time.monotonic() - began:.0f} s", flush=True)
    print(summary.text())
    return 1 if summary.failed or crashed or not summary.rounds else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--selftest", action="store_true")
    arguments = parser.parse_args()
    if arguments.selftest:
        return selftest()
    if not arguments.program:
        parser.error("name the program")
    return storm(arguments)


if __name__ == "__main__":
    sys.exit(main())
