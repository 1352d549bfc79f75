"""Compiles the kernel of `crates/cuda` to the PTX that the crate ships.

    python tools/gpu/ptx.py build   # write copy.ptx
    python tools/gpu/ptx.py check   # exit with 1 and a diff if copy.ptx differs from copy.cu

NVRTC compiles it: one wheel of PyPI with one library, which needs neither a GPU nor a host
compiler. The wheel of nvcc 12 has `ptxas` but no front end. Other versions emit another PTX:

1. A driver accepts PTX up to its own version of CUDA. NVRTC 12.2 emits PTX 8.2, which drivers from
   535 on accept. The target sm_80 runs on every later GPU, as the driver compiles PTX when it loads
   the module.
2. The same source gives the same bytes: PTX has no paths, times or line numbers.
3. The first line of copy.ptx has a hash of the code in copy.cu, without comments. So a test without
   the compiler notices that copy.ptx is older than copy.cu.

Exit status: 0 done or equal, 1 different or not compiled, 3 compiler not installed.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import hashlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

PACKAGE, VERSION = "nvidia-cuda-nvrtc-cu12", "12.2.140"
LIBRARY = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
# Under later standards NVRTC adds variables of its own header <nv/target> to every module.
OPTIONS = ("--gpu-architecture=compute_80", "--std=c++03")

FOLDER = Path(__file__).resolve().parents[2] / "crates" / "cuda" / "kernel"
SOURCE, PTX = FOLDER / "copy.cu", FOLDER / "copy.ptx"

DIFFERENT, NOT_INSTALLED = 1, 3
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class NotInstalledError(RuntimeError):
    """This Python has no compiler of the pinned version; the message says how to install it."""


class CompileError(RuntimeError):
    """NVRTC refused the source; the message is its log."""


def library() -> Path:
    """Returns the path of NVRTC.

    Raises:
        NotInstalledError: It is not installed, or in another version.
    """
    # The project's own environments have no pip.
    has_pip = importlib.util.find_spec("pip") is not None
    python = f"{sys.executable} -m" if has_pip else ".envs/uv/bin/uv"
    install = f"{python} pip install {PACKAGE}=={VERSION}"
    if not has_pip:
        install += f" --python {sys.executable}"
    try:
        found = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise NotInstalledError(f"{PACKAGE} is not installed; run `{install}`") from None
    if found.version != VERSION:
        raise NotInstalledError(
            f"{PACKAGE} {found.version} is installed, expected {VERSION}; run `{install}`"
        )
    return Path(str(found.locate_file(LIBRARY)))


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> str:
    """Returns the log (`ProgramLog`) or the result (`PTX`) of a program."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()


def compiled(source: str) -> str:
    """Compiles CUDA C++ to PTX.

    Raises:
        NotInstalledError: The compiler is not installed.
        CompileError: The source does not compile.
    """
    nvrtc = ctypes.CDLL(str(library()))
    program = ctypes.c_void_p()
    name, options = SOURCE.name.encode(), [option.encode() for option in OPTIONS]
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name, 0, None, None):
        raise CompileError("NVRTC could not create a program")
    try:
        arguments = (ctypes.c_char_p * len(options))(*options)
        if nvrtc.nvrtcCompileProgram(program, len(options), arguments):
            raise CompileError(_text(nvrtc, "ProgramLog", program).strip())
        return _text(nvrtc, "PTX", program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def header(source: str) -> str:
    """Returns the first line of copy.ptx: the hash of the source without comments and spaces."""
    code = " ".join(_COMMENT.sub(" ", source).split())
    digest = hashlib.sha256(code.encode()).hexdigest()
    return f"// Built by tools/gpu/ptx.py from copy.cu. SHA-256 of its code: {digest}"


def built() -> str:
    """Returns what copy.ptx has to contain."""
    source = SOURCE.read_text(encoding="utf-8")
    return f"{header(source)}\n{compiled(source).strip()}\n"


def check() -> int:
    """Compares copy.ptx with a fresh build, and prints how they differ."""
    present = PTX.read_text(encoding="utf-8") if PTX.exists() else ""
    wanted = built()
    if present == wanted:
        return 0
    lines = (present.splitlines(), wanted.splitlines())
    for line in difflib.unified_diff(*lines, str(PTX), f"built from {SOURCE.name}", lineterm=""):
        print(line)
    print("ptx: copy.ptx differs from copy.cu; run `python tools/gpu/ptx.py build`")
    return DIFFERENT


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Compile the kernel of crates/cuda to PTX.")
    parser.add_argument("command", choices=("build", "check"))
    command = parser.parse_args(arguments).command
    try:
        if command == "check":
            return check()
        PTX.write_text(built(), encoding="utf-8")
    except NotInstalledError as error:
        print(f"ptx: {error}", file=sys.stderr)
        return NOT_INSTALLED
    except CompileError as error:
        print(f"ptx: {SOURCE.name} does not compile\n{error}", file=sys.stderr)
        return DIFFERENT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
