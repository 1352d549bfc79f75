"""Plants bugs in the store, one at a time, and sees whether the tests find them.

Each file of `crates/sim/mutations` is a patch with a reason in its first line. It is applied to a
copy of the tracked files, which is built and explored as `make sim` does, up to the first
violation. A bug that nobody finds is missed: then the exploration must get stronger. Standard
library only.

1. The working tree is never touched; copy and build stay in `target/mutations`.
2. Only a test that ran and failed has found something: a patch that does not apply or does not
   build is an error, and so is a suite, or a history, that fails without a bug. An error of one
   patch does not keep the others from being tried.
3. What the simulation by its nature cannot see names another test in a line `suite: COMMAND`, a
   command of `cargo`, or of `pytest`, with `--engine` in the environment of vLLM. The latter uses
   the extension that the working tree has built.
4. A line `seeds: 17 3` names histories that find the bug, so that they are tried first. When they
   do not, all the others are.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("crates/sim/mutations")
WORK = ROOT / "target" / "mutations"
PYTEST = "pytest"
VLLM = ROOT / ".envs" / "vllm" / "bin" / "python"
DEV = ROOT / ".envs" / "dev" / "bin" / "python"
EXTENSION = ROOT / "python" / "dalsegno" / "_native.abi3.so"
FAKE_CUDA = ROOT / "target" / "debug" / "libfake_cuda.so"
EXPLORE = "cargo run --release -p dalsegno-sim --bin explore -- --first"
# Every bug is a build, so building counts as much as speed.
QUICK_BUILD = {"CARGO_PROFILE_RELEASE_LTO": "off"}
# A small dose of what is random could miss a bug that the tests are there to find.
FULL_DOSE = {"DALSEGNO_DOSE": "long"}
LONGEST_S = 1800.0
SUITE = "suite:"
SEEDS = "seeds:"


class MutationError(RuntimeError):
    """A patch cannot be tried; the message says why and what to do."""


@dataclass(frozen=True)
class Mutation:
    """One planted bug."""

    patch: Path
    reason: str
    suite: str
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """Its name without the ending."""
        return self.patch.stem

    @property
    def commands(self) -> list[list[str]]:
        """What may find it, in this order; all of it is built by the first."""
        return [*(history(seed) for seed in self.seeds), shlex.split(self.suite)]


@dataclass(frozen=True)
class Outcome:
    """The result of a mutation.

    Attributes:
        caught_by: What found it; None if nothing did.
        seconds: How long that took.
        problem: Why it could not be tried; empty if it was.
    """

    caught_by: str | None
    seconds: float
    problem: str = ""


def read(patch: Path) -> Mutation:
    """Reads the lines in front of a patch.

    Raises:
        MutationError: The first line gives no reason.
    """
    head = patch.read_text(encoding="utf-8").partition("diff --git ")[0].splitlines()
    if not head or not head[0].strip():
        raise MutationError(f"{patch.name}: the first line must say what is wrong with the code")
    suites = [line.removeprefix(SUITE).strip() for line in head if line.startswith(SUITE)]
    seeds = [line.removeprefix(SEEDS).split() for line in head if line.startswith(SEEDS)]
    numbers = tuple(int(seed) for line in seeds for seed in line)
    return Mutation(patch, head[0].strip(), suites[0] if suites else EXPLORE, numbers)


def history(seed: int) -> list[str]:
    """Returns the command that explores one history."""
    return [*shlex.split(EXPLORE), "--seed", str(seed)]


def mutations(root: Path) -> list[Mutation]:
    """Returns all mutations of a tree, by name."""
    return [read(patch) for patch in sorted((root / FOLDER).glob("*.patch"))]


def copy_tracked(root: Path, tree: Path) -> None:
    """Makes `tree` a copy of the tracked files as they are now; what is the same keeps its time."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True
    )
    wanted = {Path(name) for name in listed.stdout.split("\0") if name and (root / name).is_file()}
    for path in [path for path in tree.rglob("*") if path.is_file()]:
        if path.relative_to(tree) not in wanted:
            path.unlink()
    for name in wanted:
        source, target = root / name, tree / name
        if not target.is_file() or not filecmp.cmp(source, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def apply(patch: Path, tree: Path, *options: str) -> None:
    """Applies a patch to a tree that is no repository.

    Raises:
        MutationError: It does not apply.
    """
    # Otherwise git takes the repository around the copy for the one that is meant.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
    command = ["git", "apply", *options, str(patch)]
    done = subprocess.run(
        command, cwd=tree, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise MutationError(
            f"{patch.name} does not apply any more:\n{done.stderr}"
            "Rewrite it: plant the same bug by hand, and replace the part behind the first lines "
            "by what `git diff` says"
        )


def built(command: list[str]) -> list[str]:
    """Returns the command that builds what another one runs."""
    if command[1] == "run":
        return ["cargo", "build", *command[2 : command.index("--")]]
    return [*command, "--no-run"]


def run(command: list[str], tree: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in a tree, with the build folder that all mutations share."""
    if command[0] == PYTEST:
        return run_pytest(command, tree)
    place = {"CARGO_TARGET_DIR": str(WORK / "build")}
    environment = os.environ | QUICK_BUILD | FULL_DOSE | place
    return subprocess.run(
        [command[0], command[1], "--quiet", "--locked", *command[2:]],
        cwd=tree,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )


def run_pytest(command: list[str], tree: Path) -> subprocess.CompletedProcess[str]:
    """Runs tests in a tree: those of engines in the environment of vLLM, others in the usual one.

    Raises:
        MutationError: They did not run.
    """
    python = str(VLLM if "--engine" in command else DEV)
    paths = os.pathsep.join(str(tree / name) for name in ("python", "bench", "."))
    done = subprocess.run(
        [python, "-m", "pytest", "-xq", "-W", "ignore", "-p", "no:cacheprovider", *command[1:]],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": paths, "DALSEGNO_FAKE_CUDA": str(FAKE_CUDA)},
        check=False,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    if done.returncode and not (done.returncode == 1 and "\nFAILED " in done.stdout):
        raise MutationError(f"the tests did not run:\n{done.stdout}{done.stderr}")
    return done


def prepare_pytest(tree: Path) -> None:
    """Gives a tree the extension of the working tree.

    Raises:
        MutationError: It, or the environment of vLLM, is missing.
    """
    if not (VLLM.is_file() and EXTENSION.is_file()):
        raise MutationError("the environment of vLLM is missing: run `make env-vllm` first")
    shutil.copyfile(EXTENSION, tree / EXTENSION.relative_to(ROOT))


def finding(said: str) -> str:
    """Returns the line of a failed run that says what it found."""
    marks = ("violation: ", "test result: FAILED", "FAILED ")
    lines = [line for line in said.splitlines() if line.startswith(marks)]
    return lines[0] if lines else "no words"


def build(command: list[str], tree: Path) -> None:
    """Builds what a command runs.

    Raises:
        MutationError: It does not build.
    """
    if command[0] == PYTEST:
        prepare_pytest(tree)
        return
    try:
        done = run(built(command), tree)
    except subprocess.TimeoutExpired as error:
        raise MutationError(f"it was not built within {LONGEST_S:.0f} s") from error
    if done.returncode:
        raise MutationError(f"it does not build:\n{done.stderr}")


def attempt(commands: list[list[str]], tree: Path) -> str | None:
    """Builds and runs commands up to the first that finds something; returns what it found.

    Raises:
        MutationError: They do not build.
    """
    build(commands[0], tree)
    for command in commands:
        try:
            done = run(command, tree)
        except subprocess.TimeoutExpired:
            # Slow or stuck: nobody knows, so nothing was found.
            print(f"  it did not end within {LONGEST_S:.0f} s", flush=True)
            continue
        if done.returncode:
            return finding(done.stdout)
    return None


def attempt_mutation(mutation: Mutation, tree: Path) -> Outcome:
    """Plants a bug, sees who finds it, and takes it out again."""
    started, problem, found = time.monotonic(), "", None
    apply(mutation.patch, tree)
    try:
        found = attempt(mutation.commands, tree)
    except MutationError as error:
        problem = str(error)
    finally:
        apply(mutation.patch, tree, "--reverse")
    seconds = time.monotonic() - started
    if problem:
        print(f"  {problem}", flush=True)
        return Outcome(None, seconds, problem)
    print(f"  {seconds:.0f} s: {found or 'nobody finds it'}", flush=True)
    suite = "sim" if mutation.suite == EXPLORE else mutation.suite
    return Outcome(found and f"{suite}{seed_of(found)}", seconds)


def seed_of(found: str) -> str:
    """Returns the seed of the history that found something, in words."""
    seed = re.match(r"violation: (seed \d+),", found)
    return f", {seed[1]}" if seed else ""


def check_without(chosen: list[Mutation], tree: Path) -> None:
    """Runs every suite, and every history that a mutation names, without a bug.

    Raises:
        MutationError: One of them fails.
    """
    seeds = {seed for mutation in chosen for seed in mutation.seeds}
    others = {mutation.suite for mutation in chosen if mutation.suite != EXPLORE}
    commands = [history(seed) for seed in sorted(seeds)] + [shlex.split(s) for s in sorted(others)]
    for command in commands:
        print(f"without a bug: {shlex.join(command)}", flush=True)
        if found := attempt([command], tree):
            raise MutationError(f"`{shlex.join(command)}` fails without a planted bug: {found}")


def attempt_all(chosen: list[Mutation], tree: Path) -> dict[str, Outcome]:
    """Tries every mutation, and before that what is to find them without one.

    Raises:
        MutationError: Something fails although no bug is planted.
    """
    for mutation in chosen:
        apply(mutation.patch, tree, "--check")
    check_without(chosen, tree)
    outcomes = {}
    for number, mutation in enumerate(chosen, 1):
        print(f"{number} of {len(chosen)}: {mutation.name}: {mutation.reason}", flush=True)
        outcomes[mutation.name] = attempt_mutation(mutation, tree)
    return outcomes


def report(outcomes: dict[str, Outcome]) -> int:
    """Prints the table and the last line; returns the exit code."""
    width = max(map(len, outcomes), default=0)
    print(f"\n{'mutation':{width}}  {'seconds':>7}  caught by")
    for name, outcome in outcomes.items():
        by = "ERROR" if outcome.problem else outcome.caught_by or "NOBODY"
        print(f"{name:{width}}  {outcome.seconds:7.0f}  {by}")
    broken = [name for name, outcome in outcomes.items() if outcome.problem]
    missed = [
        name for name, outcome in outcomes.items() if not (outcome.caught_by or outcome.problem)
    ]
    caught = len(outcomes) - len(missed) - len(broken)
    counts = {"mutations": len(outcomes), "caught": caught, "missed": missed, "broken": broken}
    print(json.dumps(counts))
    return 2 if broken else 1 if missed else 0


def main() -> int:
    """Runs the program; returns its exit code."""
    text = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=text[0], epilog=text[2])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", help="beginnings of names; all without any")
    arguments = parser.parse_args()
    try:
        chosen = mutations(ROOT)
        if arguments.names:
            chosen = [one for one in chosen if one.name.startswith(tuple(arguments.names))]
        tree = WORK / "tree"
        tree.mkdir(parents=True, exist_ok=True)
        copy_tracked(ROOT, tree)
        return report(attempt_all(chosen, tree))
    except (MutationError, subprocess.CalledProcessError) as error:
        print(f"mutations: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
