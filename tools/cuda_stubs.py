#!/usr/bin/env python3
"""Makes the CUDA build of torch importable on a machine without CUDA.

PyPI's torch wheel for Linux is linked against CUDA libraries that live in other wheels, about 3 GB
of them. A machine without a GPU never calls a single function of theirs, yet the dynamic loader
insists that each library exists and exports every symbol and symbol version that torch names. This
tool builds empty libraries that satisfy the loader: every function returns an error code, so
`torch.cuda.is_available()` is `False` and the CPU side works.

1. A library that the loader can already find is never replaced: real CUDA wins.
2. A stub carries the SONAME, the symbol versions and the symbols that the objects beside it ask
   for, nothing else.
3. The stubs of one folder are listed in its `cuda-stubs.txt`; building again removes exactly those
   first.
4. The folder is changed only after every stub has been compiled.

Usage: `python3 tools/cuda_stubs.py ENV/lib/python3.11/site-packages/torch/lib`
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LISTING = "cuda-stubs.txt"
REQUIRED_TOOLS = ("gcc", "ldd", "nm", "readelf")

# cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE; the other libraries only need "not zero".
NO_DEVICE = 100

_C_NAME = re.compile(r"[A-Za-z_]\w*")
_TEXT_FUNCTION = re.compile(r"(String|ErrorName|StatusName|strerror)$")
# Imported by an extension module because the interpreter itself exports them.
_FROM_PYTHON = re.compile(r"_?Py")
_RESOLVED = re.compile(r"^\s*(\S+) => (not found|/\S+)", flags=re.MULTILINE)


class StubError(RuntimeError):
    """A stub could not be built; the message says what to install or report."""


@dataclass(frozen=True)
class SharedObject:
    """What one ELF file asks of the loader and what it offers.

    Attributes:
        path: The file.
        needed: SONAMEs it is linked against (DT_NEEDED).
        version_owner: Symbol version it requires -> SONAME that has to provide it.
        undefined: (symbol, version) pairs it imports; the version is empty for an unversioned
            symbol.
        defined: Symbols it exports.
    """

    path: Path
    needed: frozenset[str]
    version_owner: Mapping[str, str]
    undefined: frozenset[tuple[str, str]]
    defined: frozenset[str]


@dataclass
class Stub:
    """One library to build: symbol version (empty: none) -> symbols."""

    soname: str
    symbols: dict[str, set[str]] = field(default_factory=dict)

    def add(self, symbol: str, version: str) -> None:
        """Adds one symbol under one version."""
        self.symbols.setdefault(version, set()).add(symbol)

    @property
    def symbol_count(self) -> int:
        """How many functions the library will export."""
        return sum(len(names) for names in self.symbols.values())


def run(*command: str | Path) -> str:
    """Runs a command and returns what it printed.

    Raises:
        StubError: The command failed; the message carries the end of its error output.
    """
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise StubError(f"`{command[0]}` failed on {command[-1]}: {done.stderr.strip()[-600:]}")
    return done.stdout


def check_tools() -> None:
    """Checks that the compiler and binutils are there.

    Raises:
        StubError: One is missing.
    """
    missing = [tool for tool in REQUIRED_TOOLS if shutil.which(tool) is None]
    if missing:
        raise StubError(
            f"cannot build the CUDA stubs: {', '.join(missing)} not found on PATH. "
            "Install gcc and binutils (Debian and Ubuntu: apt-get install gcc binutils)."
        )


def inspect(path: Path) -> SharedObject:
    """Reads the dynamic section, the version needs and the dynamic symbols of one file."""
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-W", "-d", path))
    undefined: set[tuple[str, str]] = set()
    defined: set[str] = set()
    for line in run("nm", "-D", path).splitlines():
        *_, kind, versioned = line.split()
        symbol, _, version = versioned.replace("@@", "@").partition("@")
        if kind == "U":
            undefined.add((symbol, version))
        elif kind not in "wv":  # A weak reference may stay unresolved.
            defined.add(symbol)
    versions = version_owners(run("readelf", "-W", "-V", path))
    return SharedObject(path, frozenset(needed), versions, frozenset(undefined), frozenset(defined))


def version_owners(text: str) -> dict[str, str]:
    """Parses `readelf -V`: which SONAME has to provide which symbol version."""
    owners: dict[str, str] = {}
    in_needs, owner = False, ""
    for line in text.splitlines():
        if line.startswith("Version"):
            in_needs = line.startswith("Version needs")
        if not in_needs:
            continue
        if file := re.search(r"\bFile: (\S+)", line):
            owner = file.group(1)
        if name := re.search(r"\bName: (\S+)\s+Flags", line):
            owners.setdefault(name.group(1), owner)
    return owners


def resolve(paths: Iterable[Path]) -> tuple[frozenset[str], frozenset[Path]]:
    """Asks the loader which libraries these files lead to.

    Returns:
        The SONAMEs that it cannot find, and the files that it finds.
    """
    missing: set[str] = set()
    found: set[Path] = set()
    for path in paths:
        for soname, where in _RESOLVED.findall(run("ldd", path)):
            if where == "not found":
                missing.add(soname)
            else:
                found.add(Path(where).resolve())
    return frozenset(missing), frozenset(found)


def plan(
    objects: Sequence[SharedObject], missing: frozenset[str], provided: frozenset[str]
) -> list[Stub]:
    """Decides which stub exports which symbol.

    A versioned symbol belongs to the library that its version names. An unversioned one may come
    from any library that is loaded with the object, so it goes to the first missing one that the
    object needs, if there is one.

    Args:
        objects: Every object of the folder.
        missing: SONAMEs that the loader cannot find.
        provided: Symbols that some library exports already; a stub of one of them would take its
            place.

    Returns:
        One stub per missing SONAME, in alphabetical order; also for those that need no symbol.
    """
    stubs = {soname: Stub(soname) for soname in sorted(missing)}
    versioned = {owner for item in objects for owner in item.version_owner.values()}
    for item in objects:
        homes = sorted(item.needed & missing, key=lambda soname: (soname in versioned, soname))
        for symbol, version in item.undefined:
            if symbol in provided or not _C_NAME.fullmatch(symbol) or _FROM_PYTHON.match(symbol):
                continue
            owner = item.version_owner.get(version, "") if version else next(iter(homes), "")
            if owner in stubs:
                stubs[owner].add(symbol, version)
    return list(stubs.values())


def source_of(stub: Stub) -> str:
    """Writes the C source of one stub."""
    names = sorted(set().union(*stub.symbols.values()))
    lines = [f"int dalsegno_stub_of_{re.sub(r'[^A-Za-z0-9]', '_', stub.soname)};"]
    for name in names:
        if _TEXT_FUNCTION.search(name):
            lines.append(
                f'const char *{name}(void) {{ return "no CUDA: this library is a stub"; }}'
            )
        else:
            lines.append(f"long {name}(void) {{ return {NO_DEVICE}; }}")
    return "\n".join(lines) + "\n"


def version_script_of(stub: Stub) -> str:
    """Writes the linker's version script; empty when no symbol carries a version."""
    scripts = (
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};"
        for version, names in sorted(stub.symbols.items())
        if version
    )
    return "\n".join(scripts)


def compile_stub(stub: Stub, folder: Path) -> Path:
    """Compiles one stub into a folder and returns the library's path."""
    source, script, library = (folder / f"{stub.soname}{end}" for end in (".c", ".map", ""))
    source.write_text(source_of(stub))
    flags = ["-shared", "-fPIC", "-O1", "-fno-builtin", "-w", f"-Wl,-soname,{stub.soname}"]
    if text := version_script_of(stub):
        script.write_text(text)
        flags.append(f"-Wl,--version-script={script}")
    run("gcc", *flags, "-o", library, source)
    return library


def remove_stubs(folder: Path) -> None:
    """Removes the stubs that an earlier build listed in the folder."""
    listing = folder / LISTING
    if listing.exists():
        for name in listing.read_text().split():
            (folder / name).unlink(missing_ok=True)
        listing.unlink()


def build(folder: Path, users: Sequence[Path] = ()) -> list[Stub]:
    """Builds the stubs that shared objects need, into a folder.

    Args:
        folder: Where these objects search, such as torch's `lib` folder (RUNPATH `$ORIGIN`).
        users: The objects; those of the folder if not given.

    Returns:
        The stubs now in the folder; empty when the loader finds everything already.

    Raises:
        StubError: A tool is missing or failed, or the folder holds no shared object.
    """
    check_tools()
    remove_stubs(folder)
    paths = list(users) or sorted(folder.glob("*.so*"))
    if not paths:
        raise StubError(f"{folder} holds no shared objects; expected torch's lib folder.")
    missing, found = resolve(paths)
    objects = {path.resolve(): inspect(path) for path in paths}
    outside = (inspect(path) for path in found - objects.keys())
    provided = frozenset[str]().union(*(item.defined for item in (*objects.values(), *outside)))
    stubs = plan(list(objects.values()), missing, provided)
    with tempfile.TemporaryDirectory(prefix="cuda-stubs-") as scratch:
        libraries = [compile_stub(stub, Path(scratch)) for stub in stubs]
        if there := [one.name for one in libraries if (folder / one.name).exists()]:
            raise StubError(
                f"{folder} has {', '.join(there)}, which the loader does not find there."
            )
        (folder / LISTING).write_text("".join(f"{stub.soname}\n" for stub in stubs))
        for library in libraries:
            shutil.copy2(library, folder / library.name)
    return stubs


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    if len(arguments) != 1:
        print("usage: cuda_stubs.py TORCH_LIB_FOLDER", file=sys.stderr)
        return 2
    try:
        stubs = build(Path(arguments[0]))
    except StubError as error:
        print(f"cuda_stubs: {error}", file=sys.stderr)
        return 1
    for stub in stubs:
        print(f"{stub.soname}: {stub.symbol_count} symbols")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
