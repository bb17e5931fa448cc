#!/usr/bin/env python3
"""Runs bench/cuda/ten_minutes with programs that only print what the real ones print, on one GPU and on two that are none.

  ten_minutes.py REPOSITORY

The first figures are written before second 120, one step's failure leaves the others, all steps fit into the time, at most
8 files are left, and two ranks get a GPU each where there are two.
"""

import json
import lzma
import os
import pathlib
import re
import subprocess
import sys
import tempfile

FIGURES_BEFORE = 120  # seconds: a machine may be lent for so short a time that later ones are lost
MOST_FILES = 8
MOST_SECONDS = 240  # of a run here

BENCH = """#!/bin/bash
for argument; do [[ $argument == --json=* ]] && json=${argument#--json=}; done
echo 'dtrain   host time of a step  1  0.035 ms  note "no communication"'
echo '         goal: host time at most 1/5 of PyTorch: met'
cat >"$json" <<'END'
[{"system": "dtrain", "what": "host time of a step", "ranks": 1, "median_seconds": 0.00003, "samples": 5}]
END
"""
PROBE = """#!/bin/bash
echo "share=${NCCL_MULTI_RANK_GPU_ENABLE:-no}"
case ${@: -1} in
  hello) echo 'libraries: libcudart.so, libnccl.so'; echo 'rank 0 of 2 on device 0: sum 1, half 1, average 0.5' ;;
  graph) echo 'rank 0 of 2: bound, 1 steps before it: 0 wrong, planned 1 times again' ;;
  early) echo 'rank 0: sum 2' ;;
  race) echo 'no race' ;;
  *) echo 'phase steady'; echo 'dtrain: rank 1 failed first'; exit 1 ;;
esac
"""
PROGRAMS = {
    "unit_cuda": "#!/bin/bash\necho '[doctest] test cases: 3 | 3 passed'\n"
                 "[[ $* != *kernels* || $* == *exclude* ]] || { echo 'ERROR: wrong bits'; exit 1; }\n",
    "nccl_probe": PROBE,
    "elastic_nccl_probe": "#!/bin/bash\necho 'elastic: 5 kills, 5 restarts, sums right'\n",
    "cuda_probe": "#!/bin/bash\necho 'sharded: 0 wrong'\n",
    "ddp_step_bench": BENCH,
    "kernel_rates_bench": BENCH,
    "overlap_bench": BENCH,
}
TOOLS = {
    "nvidia-cuda-mps-control": "#!/bin/bash\n",
    "compute-sanitizer": "#!/bin/bash\necho '===== ERROR SUMMARY: 0 errors'; echo '===== RACECHECK SUMMARY: 0 hazards'\n",
    # Its query of processes prints nothing.
    "nvidia-smi": "#!/bin/bash\n[[ $1 == -L || $1 == --list-gpus ]] && seq -f 'GPU %g: none' 0 {}\nexit 0\n",
}


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def run(repository, folder, gpus):
    """The steps of a run by name, what was printed, and the seconds at which steps began."""
    carry, tools, out = folder / "carry", folder / "tools", folder / "out"
    for made in (carry, tools):
        made.mkdir()
    for name, text in PROGRAMS.items():
        write_program(carry / name, text)
    for name, text in TOOLS.items():
        write_program(tools / name, text.replace("{}", str(gpus - 1)))
    (carry / "SOURCE").write_text(str(repository))
    (carry / "nccl.xz").write_bytes(lzma.compress(b"a library"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DTRAIN_", "NCCL_", "CUDA_"))}
    environment |= {"DTRAIN_CARRY": str(carry), "PATH": f"{tools}:{environment['PATH']}", "TMPDIR": str(folder)}
    done = subprocess.run(
        ["bash", repository / "bench/cuda/ten_minutes", out], env=environment, cwd=folder, text=True, timeout=MOST_SECONDS,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    left = sorted(path.name for path in out.iterdir())
    log = (out / "all.log").read_text(errors="replace")
    began = {name: int(second) for name, second in re.findall(r"^######## (\w+) \(second (\d+)\): ", log, re.MULTILINE)}
    figures = json.loads((out / "figures.json").read_text())
    return figures, done.stdout, began, left, log


def problems(repository, gpus):
    found = []

    def require(holds, what):
        if not holds:
            found.append(f"with {gpus} GPUs {what}")

    with tempfile.TemporaryDirectory() as name:
        figures, printed, began, left, log = run(repository, pathlib.Path(name), gpus)
    results = {step["step"]: step["result"] for step in figures["steps"]}
    require(len(left) <= MOST_FILES and {"all.log", "figures.json"} <= set(left), f"it leaves {left}")
    with_rows = {row["step"] for row in figures["rows"]}
    require({"pytorch_1", "kernel_rates", "step_loaded", "overlap"} <= with_rows, f"only these steps have figures: {sorted(with_rows)}")
    # The step behind the first figures begins once they are written.
    require(began.get("kernels", MOST_SECONDS) < FIGURES_BEFORE, f"the first figures come late: {began}")
    require(list(began)[:4] == ["machine", "hello_1", "pytorch_1", "kernel_rates"], f"the first steps are {list(began)[:4]}")
    failed = [step for step, result in results.items() if result != "ok"]
    require(failed == ["kernels"], f"these steps fail, and not only kernels: {failed}")
    require("wrong bits" in printed, "the reason of a failure is not in the table")
    several = {"hello_all", "step_all", "killed_all", "hang_all", "fail_leave", "early", "CUDA_LAUNCH_BLOCKING"}
    require(several <= set(began) if gpus > 1 else not several & set(began), f"it runs {sorted(began)}")
    require({"elastic", "hang_ahead", "race", "libtorch_nccl"} <= set(began), f"it leaves out what has never run: {sorted(began)}")
    require(("hello_mps" in began) == (gpus == 1), "MPS is for one GPU alone")
    shares = set(re.findall(r"^share=(\w+)$", log, re.MULTILINE))
    require(shares == ({"no"} if gpus > 1 else {"no", "1"}), f"ranks are told to share a GPU: {shares}")
    for what in found:
        print(printed)
        print(what)
    return len(found)


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    repository = pathlib.Path(sys.argv[1]).resolve()
    return 1 if sum(problems(repository, gpus) for gpus in (1, 2)) else 0


if __name__ == "__main__":
    sys.exit(main())
