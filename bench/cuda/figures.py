"""Gathers what bench/cuda/ten_minutes has measured: figures.py FOLDER figures.json

FOLDER has `steps` (a line each: name, expected, result, seen, seconds, exit code, separated by tabs) and the rows of the
benchmarks, NAME.json. Prints the rows in short, at most 30, without the rates of kernels, which all.log has as a table.
"""

import glob
import json
import os
import sys

MOST_ROWS = 30


def main():
    folder, output = sys.argv[1:]
    steps = []
    with open(os.path.join(folder, "steps"), encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, expected, result, seen, seconds, code = line.rstrip("\n").split("\t")
            steps.append(
                {"step": name, "expected": expected, "result": result, "seen": seen, "seconds": int(seconds), "exit_code": code}
            )
    rows = []
    for path in sorted(glob.glob(os.path.join(folder, "*.json")), key=os.path.getmtime):
        step = os.path.basename(path)[: -len(".json")]
        try:
            with open(path, encoding="utf-8") as file:
                rows += [{"step": step, **row} for row in json.load(file)]
        except ValueError as error:
            print(f"{os.path.basename(path)} is no JSON: {error}")
    with open(output, "w", encoding="utf-8") as file:
        json.dump({"steps": steps, "rows": rows}, file, indent=1)
        file.write("\n")
    printed = [row for row in rows if "gb_per_second" not in row]
    for row in printed[:MOST_ROWS]:
        ratio = next((f"{name} {row[name]}" for name in ("ratio", "times_limit", "times_the_longer") if name in row), "")
        print(
            f"{row['step']:<13} {row['system']:<8} {row['what']:<26} {row.get('model', ''):<9} {row['ranks']} ranks "
            f"{row['median_seconds'] * 1e6:10.1f} us  {ratio:<20} {row.get('note', '')}"
        )
    if len(printed) > MOST_ROWS:
        print(f"and {len(printed) - MOST_ROWS} rows more in {os.path.basename(output)}")


if __name__ == "__main__":
    main()
