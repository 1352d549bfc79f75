"""Measures Dalsegno on a machine with a GPU and no network; README.md says how.

    python3 run.py unpack FOLDER            # what pack.py has written
    python3 run.py facts --out OUT          # or transfers, engines, decode: each under 5 minutes
    python3 run.py report OUT

A part writes one JSON file for each cell into OUT. Run it again to go on where it has stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu import pieces
from gpu.cells import Cell, Session, run_part
from gpu.pieces import say

PARTS = ("facts", "transfers", "engines", "decode", "ends")
DEFAULT_SITE = Path(__file__).resolve().parents[1] / "site"
LIMIT_S = 290.0


def unpack(folder: Path, target: Path) -> int:
    """Checks what was packed, and installs it; returns the exit status.

    Args:
        folder: It has a manifest, or folders with one.
        target: The folder that becomes an entry of `PYTHONPATH`.
    """
    found = sorted(folder.rglob(pieces.MANIFEST))
    if not found:
        raise pieces.PiecesError(f"{folder} has no {pieces.MANIFEST}: expected what pack.py wrote")
    packed = [(place.parent, pieces.check(place.parent)) for place in found]
    wheels = [wheel for place, _ in packed for wheel in sorted(place.glob("wheels/*.whl"))]
    for wheel in wheels:
        _install(wheel, target)
    # One of the wheels may be needed to unpack.
    sys.path.insert(0, str(target))
    for place, facts in packed:
        if facts["pieces"]:
            count = pieces.unpack([place / name for name in facts["pieces"]], target)
            say(f"run: unpacked {count} files of {facts.get('part', place.name)}")
    print(f"installed into {target}")
    return 0


def _install(wheel: Path, target: Path) -> None:
    """Installs a wheel into a folder, and nothing else."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-compile", "--upgrade", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--target", str(target), str(wheel)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise pieces.PiecesError(f"{wheel.name} cannot be installed:\n{done.stderr.strip()}")
    say(f"run: installed {wheel.name}")


def cells_of(part: str, *, small: bool, tiny: bool) -> Sequence[Cell]:
    """Returns the cells of a part, the most valuable first.

    Args:
        part: Its name.
        small: Whether sizes are those of a test.
        tiny: Whether the engines run a tiny model on the CPU.
    """
    if part == "facts":
        from gpu import facts

        return facts.CELLS
    if part == "transfers":
        from gpu import transfers

        return transfers.cells(small=small)
    if part == "engines":
        from gpu import engine_cells

        return engine_cells.cells(tiny=tiny)
    if part == "ends":
        from gpu import ends_cells

        return ends_cells.cells(tiny=tiny)
    from gpu import decode_cells

    return decode_cells.cells(tiny=tiny)


def measure(given: argparse.Namespace) -> int:
    """Runs a part; returns the exit status."""
    part: str = given.command
    scratch: Path = given.scratch or Path(tempfile.gettempdir()) / "dalsegno-gpu"
    session = Session(
        out=given.out.absolute(),
        scratch=scratch.absolute(),
        until=time.monotonic() + given.limit_s,
        is_small=given.quick,
        library=given.library.absolute() if given.library else None,
        options={"tiny": given.tiny},
    )
    if given.list:
        for cell in cells_of(part, small=given.quick, tiny=given.tiny):
            print(f"{cell.name:<28}{cell.expect_s:>6.0f} s")
        return 0
    cells = cells_of(part, small=given.quick, tiny=given.tiny)
    done = run_part(part, cells, session, only=given.only, again=given.again)
    if given.json:
        print(json.dumps(done, indent=1))
    else:
        for record in done:
            word = "ok" if record["ok"] else f"FAILED: {record.get('error', '')[:300]}"
            print(f"{part} {record['cell']}: {record['took_s']} s, {word}")
    return 0 if all(record["ok"] for record in done) else 1


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    top = argparse.ArgumentParser(description="Measure Dalsegno on a machine with a GPU.")
    top.add_argument(
        "--site", type=Path, default=DEFAULT_SITE, help=f"default: {DEFAULT_SITE.name} next to gpu"
    )
    commands = top.add_subparsers(dest="command", required=True)
    install = commands.add_parser("unpack", help="check and install what pack.py has written")
    install.add_argument("folder", type=Path)
    for part in PARTS:
        one = commands.add_parser(part, help=f"measure the part {part}")
        one.add_argument("--out", type=Path, required=True, help="folder of the results")
        one.add_argument("--scratch", type=Path, help="folder of stores; default: a temporary one")
        one.add_argument("--limit-s", type=float, default=LIMIT_S, help="stop before this time")
        one.add_argument("--only", default="", help="cells whose names contain this")
        one.add_argument("--again", action="store_true", help="run cells that have a file, too")
        one.add_argument("--quick", action="store_true", help="small sizes, to try the programs")
        one.add_argument("--tiny", action="store_true", help="engines on the CPU, a tiny model")
        one.add_argument("--library", type=Path, help="another library than the driver's")
        one.add_argument("--list", action="store_true", help="show the cells, measure nothing")
        one.add_argument("--json", action="store_true", help="print the records")
    report = commands.add_parser("report", help="show tables and verdicts")
    report.add_argument("out", type=Path)
    report.add_argument("--json", action="store_true", help="print them as JSON")
    return top


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    given = parser().parse_args(arguments)
    site: Path = given.site.absolute()
    try:
        if given.command == "unpack":
            return unpack(given.folder.absolute(), site)
        if given.command == "report":
            from gpu import report

            return report.show(given.out, as_json=given.json)
        if site.is_dir():
            sys.path.insert(0, str(site))
            # For servers and engines, which are processes of their own.
            others = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *([others] if others else [])])
        return measure(given)
    except pieces.PiecesError as error:
        print(f"run: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
