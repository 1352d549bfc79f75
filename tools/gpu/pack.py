"""Packs what a GPU machine without network needs: our wheel, these programs, and real vLLM.

    python tools/gpu/pack.py --part all --out DIR [--cache DIR]

It writes the folders `DIR/scripts` and `DIR/engine`, each with a manifest. `DIR/scripts/gpu/run.py
unpack DIR` checks and installs both there. README.md next to this file says how to go on.

Needed here: the project's environment (`make dev`), Rust, the program zstd, and PyPI for vLLM.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu import engine_files
from gpu.pieces import PiecesError, pack, say, write_manifest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEV, UV = ROOT / ".envs" / "dev" / "bin", ROOT / ".envs" / "uv" / "bin" / "uv"
MIB = 1 << 20
# For a machine without the program zstd.
ZSTANDARD = "zstandard==0.25.0"
# Programs that run here only.
NOT_CARRIED = {"pack.py", "ptx.py", "fatbin.py", "engine_files.py"}


def build_wheel(folder: Path) -> Path:
    """Builds the wheel of dalsegno into a folder, with the settings of `make wheel`.

    Raises:
        PiecesError: The environment or Rust is missing, or the build failed.
    """
    if not (DEV / "maturin").exists():
        raise PiecesError("maturin is missing: run `make dev`")
    if shutil.which("cargo") is None:
        raise PiecesError("Rust is missing; see https://rustup.rs")
    say("pack: building the wheel of dalsegno")
    command = [str(DEV / "maturin"), "build", "--profile", "release", "--locked"]
    command += ["--interpreter", str(DEV / "python"), "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PiecesError(f"the wheel cannot be built:\n{done.stderr.strip()[-2000:]}")
    return next(folder.glob("dalsegno-*.whl"))


def fetch_zstandard(folder: Path) -> None:
    """Fetches the wheel of the Python module zstandard for the Python of the machine."""
    python = engine_files.python_with_pip()
    command = [python, "-m", "pip", "download", ZSTANDARD, "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", engine_files.PYTHON]
    command += ["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"]
    engine_files.run([*command, "--dest", str(folder)])


def pack_scripts(out: Path, wheel: Path | None) -> dict[str, Any]:
    """Writes the folder with these programs and our wheel; returns its manifest.

    Args:
        out: The folder; what was there is removed.
        wheel: A wheel that was built already, or None to build it.
    """
    shutil.rmtree(out, ignore_errors=True)
    wheels, programs = out / "wheels", out / "gpu"
    wheels.mkdir(parents=True)
    programs.mkdir()
    if wheel is None:
        build_wheel(wheels)
    else:
        shutil.copy(wheel, wheels)
    fetch_zstandard(wheels)
    for path in sorted(HERE.glob("*.py")):
        if path.name not in NOT_CARRIED:
            shutil.copy(path, programs)
    shutil.copy(HERE / "README.md", programs)
    return write_manifest(out, part="scripts")


def pack_engine(out: Path, cache: Path, piece_mib: int, level: int) -> dict[str, Any]:
    """Writes the folder with vLLM and the packages that the machine lacks; returns its manifest.

    Args:
        out: The folder; what was there is removed.
        cache: Where vLLM's wheel is, or is fetched to.
        piece_mib: Most MiB of a piece.
        level: Of the compression.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    source = engine_files.wheel(cache)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        tree = Path(folder) / "site"
        tree.mkdir()
        say("pack: installing the packages that vLLM imports")
        pins = list(engine_files.requirements())
        engine_files.put_packages("\n".join(pins), tree)
        say("pack: unpacking vLLM, and zeroing the machine code of other GPUs")
        stripped = engine_files.put_vllm(source, tree)
        unpacked = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
        say(f"pack: compressing {unpacked / MIB:.0f} MiB; this takes minutes")
        pieces = pack(tree, out, "engine.tar.zst", piece_mib * MIB, level)
    return write_manifest(
        out,
        pieces,
        part="engine",
        vllm=engine_files.VERSION,
        python=engine_files.PYTHON,
        unpacked_bytes=unpacked,
        packages=[pin.partition(" ")[0] for pin in pins],
        stripped={name: {"kept": kept, "zeroed": zero} for name, (kept, zero) in stripped.items()},
    )


def show(manifests: Sequence[dict[str, Any]]) -> None:
    """Prints which files are to be carried, and how large they are."""
    print(f"{'part':<9}{'file':<72}{'MiB':>8}")
    total = 0
    for manifest in manifests:
        programs = 0
        for file in manifest["files"]:
            total += file["bytes"]
            if file["name"].startswith("gpu/"):
                programs += file["bytes"]
                continue
            name = file["name"].rpartition("/")[2][:70]
            print(f"{manifest['part']:<9}{name:<72}{file['bytes'] / MIB:>8.2f}")
        if programs:
            print(f"{manifest['part']:<9}{'gpu/*':<72}{programs / MIB:>8.2f}")
    print(f"{'':<9}{'together':<72}{total / MIB:>8.2f}")


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Pack what a GPU machine without network needs.")
    parser.add_argument("--part", choices=("scripts", "engine", "all"), default="all")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="for vLLM's wheel, 330 MB")
    parser.add_argument("--wheel", type=Path, help="a built wheel of dalsegno")
    parser.add_argument("--piece-mib", type=int, default=60, metavar="MIB", help="default: 60")
    parser.add_argument("--level", type=int, default=19, help="of the compression; default: 19")
    parser.add_argument("--json", action="store_true", help="print the manifests")
    given = parser.parse_args(arguments)
    out: Path = given.out.absolute()
    manifests = []
    try:
        if given.part in ("scripts", "all"):
            manifests.append(pack_scripts(out / "scripts", given.wheel))
        if given.part in ("engine", "all"):
            cache = given.cache or out / "cache"
            manifests.append(pack_engine(out / "engine", cache, given.piece_mib, given.level))
    except PiecesError as error:
        print(f"pack: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(manifests, indent=1))
    else:
        show(manifests)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
