"""Builds the fuzz targets with libFuzzer and runs them: `make fuzz`.

Stable Rust has no switch for the coverage that libFuzzer follows, but its compiler has the pass:
the flags below ask for it. A C++ compiler builds libFuzzer itself. What is found is kept in
`fuzz/artifacts/TARGET/`, what reaches new code in `fuzz/found/TARGET/`, both outside of git; a
finding becomes a test named `regression_…` and, if it is small, a seed in `fuzz/corpus/TARGET/`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FUZZ = ROOT / "fuzz"
COVERAGE = (
    "-Cpasses=sancov-module "
    "-Cllvm-args=-sanitizer-coverage-level=4 "
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters "
    "-Cllvm-args=-sanitizer-coverage-pc-table "
    "-Cllvm-args=-sanitizer-coverage-trace-compares "
    "-Ccodegen-units=1"
)
# An input that takes longer than this hangs; memory is bounded by the targets themselves.
HANG_SECONDS = 10
MEMORY_MIB = 2048
LONGEST_INPUT = 65536


def host() -> str:
    """Returns the machine's triple: with it named, build scripts are built without coverage."""
    result = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return next(line.split()[1] for line in result.splitlines() if line.startswith("host:"))


def build() -> Path:
    """Builds the one program that holds all targets."""
    command = ["cargo", "build", "--quiet", "--locked", "--profile", "fuzz", "-p", "dalsegno-fuzz"]
    command += ["--bin", "guided", "--features", "guided", "--target", host()]
    command += ["--message-format", "json-render-diagnostics"]
    environment = {**os.environ, "RUSTFLAGS": COVERAGE}
    built = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    result = [json.loads(line) for line in built.stdout.splitlines()]
    return Path(next(m["executable"] for m in reversed(result) if m.get("executable")))


def run(program: Path, target: str, seconds: int) -> bool:
    """Runs a target, and says in one line how far it came; returns whether it found nothing."""
    artifacts, found = FUZZ / "artifacts" / target, FUZZ / "found" / target
    for folder in (artifacts, found):
        folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(str(program), str(found), str(FUZZ / "corpus" / target)),
        *(f"-max_total_time={seconds}", f"-timeout={HANG_SECONDS}"),
        *(f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={LONGEST_INPUT}"),
        *(f"-artifact_prefix={artifacts}/", "-print_final_stats=1"),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "FUZZ_TARGET": target},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    units = re.findall(r"number_of_executed_units: +(\d+)", done.stderr)
    cover = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", done.stderr)
    edges, features, inputs = cover[-1] if cover else ("?", "?", "?")
    executed = units[-1] if units else "?"
    print(f"{target}: {executed} inputs, {edges} edges, {features} features, {inputs} kept")
    if done.returncode:
        print("\n".join(done.stderr.splitlines()[-40:]), file=sys.stderr)
    return done.returncode == 0


def main() -> int:
    """Runs the targets that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = sorted(path.name for path in (FUZZ / "corpus").iterdir())
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of: {' '.join(known)}")
    parser.add_argument("--seconds", type=int, default=20, help="for each target")
    wanted = parser.parse_args()
    for target in wanted.targets:
        if target not in known:
            parser.error(f"{target} is no target; these are: {' '.join(known)}")
    program = build()
    failed = [name for name in wanted.targets or known if not run(program, name, wanted.seconds)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
