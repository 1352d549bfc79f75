"""The programs, commands and tables of the guides match the code."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.checkout import ROOT
from tests.unit.project.documents import table_rows

import dalsegno
from dalsegno.cli import app as application
from dalsegno.integrations.lmcache import settings as lmcache_settings
from dalsegno.integrations.sglang import settings as sglang_settings
from dalsegno.integrations.vllm import settings as vllm_settings
from dalsegno_bench.index import index as index_bench
from dalsegno_bench.sglang import sglang as sglang_bench

GUIDES = ROOT / "docs" / "guides"
QUICKSTART = ROOT / "examples" / "quickstart.py"
LIMIT_S = 60.0
COMMANDS = ("info", "ls", "verify", "inspect", "serve")


def blocks(page: str | Path, language: str) -> list[str]:
    text = (GUIDES / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def rows(page: str, first: str) -> dict[str, str]:
    return table_rows(GUIDES / page, first)


def shell(command: str, folder: Path) -> str:
    """What a command prints in a shell that finds `dalsegno`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path}
    listed = subprocess.run(
        command, shell=True, cwd=folder, env=settings, capture_output=True, text=True, check=False
    )
    assert listed.stderr == ""
    return listed.stdout


def test_the_quickstart_loads_what_it_stored(tmp_path: Path) -> None:
    command = f"{sys.executable} {QUICKSTART} kv"
    first = "0 blocks loaded, 75 computed\n62 blocks loaded, 6 computed\n"
    assert shell(command, tmp_path) == first
    again = "75 blocks loaded, 0 computed\n68 blocks loaded, 0 computed\n"
    assert shell(command, tmp_path) == again


def test_regression_the_quickstart_explains_itself(tmp_path: Path) -> None:
    listed = shell(f"{sys.executable} {QUICKSTART} --help", tmp_path)
    for words in ("usage:", "64 MiB", "rm -r", "DIR"):
        assert words in listed
    assert list(tmp_path.iterdir()) == []


def test_the_program_of_the_python_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks("python.md", "python")):
        exec(compile(block, f"python.md, block {number}", "exec"), names)
    listed = capsys.readouterr().out
    assert re.fullmatch(r"8 blocks, \d+ read from disk\nlost on the way: \{\}\n", listed)


def test_the_program_of_the_readme_runs(tmp_path: Path) -> None:
    (program,) = blocks(ROOT / "README.md", "python")
    assert program.count('"/tmp/kv"') == 1
    exec(program.replace('"/tmp/kv"', repr(str(tmp_path / "kv"))), {})


def test_the_program_of_the_guide_of_serve_runs(tmp_path: Path) -> None:
    program = "\n".join(blocks("serve.md", "python"))
    assert program.count("unix:/var/cache/kv/serve/socket") == 1
    settings = {"capacity": "64MiB", "dram": "64MiB", "dram_admission": "put"}
    server = dalsegno.Server(tmp_path / "kv", json.dumps(settings), socket=tmp_path / "s")
    try:
        names: dict[str, Any] = {}
        exec(program.replace("/var/cache/kv/serve/socket", server.socket), names)
        names["store"].close()
    finally:
        server.close()


def test_the_configurations_of_the_guide_of_serve_name_its_socket() -> None:
    configurations = [json.loads(text) for text in blocks("serve.md", "json")]
    inner = ("kv_connector_extra_config", None, "adapter_params")
    for name, configuration in zip(inner, configurations, strict=True):
        settings = configuration[name] if name else configuration
        assert settings["path"] == "unix:/var/cache/kv/serve/socket"


@pytest.mark.parametrize(("disk", "removed"), [("kv", 1), ("new", 0)])
def test_the_program_that_removes_a_tenant_removes_no_other(
    disk: str, removed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store with a new disk knows the tenant from the far directory only."""
    (tmp_path / "far").mkdir()
    far = str(tmp_path / "far")

    def namespaces(store: dalsegno.Store) -> list[dalsegno.Namespace]:
        fields = ({"model": "m", "salt": salt} for salt in ("tenant-a", "tenant-b"))
        return [store.namespace(one, layers=1, slice_bytes=4096) for one in fields]

    with dalsegno.open(tmp_path / "kv", capacity="64MiB", far=far) as store:
        for namespace in namespaces(store):
            namespace.put_batch([bytes(32)], [bytes(4096)])
    (program,) = blocks("operations.md", "python")
    program = program.replace('"/var/cache/kv", capacity="200GiB"', 'path, capacity="64MiB"')
    program = program.replace('"/mnt/shared/kv"', "far")
    exec(program, {"dalsegno": dalsegno, "path": tmp_path / disk, "far": far})
    assert capsys.readouterr().out == f"{removed} blocks removed\n"
    with dalsegno.open(tmp_path / "kv", capacity="64MiB", far=far) as store:
        theirs, kept = namespaces(store)
        end = time.monotonic() + LIMIT_S
        while theirs.probe([bytes(32)]) and time.monotonic() < end:
            time.sleep(0.05)
        assert [theirs.probe([bytes(32)]), kept.probe([bytes(32)])] == [0, 1]


def test_the_commands_of_the_guide_print_the_output_it_shows(tmp_path: Path) -> None:
    shell(f"{sys.executable} {QUICKSTART} kv", tmp_path)
    said, listed = "", ""
    for block in blocks("command-line.md", "console"):
        said += block
        for line in block.splitlines():
            if line.startswith("$ "):
                listed += f"{line}\n{shell(line[2:], tmp_path)}"
    # The store's id is random, and in every header.
    mask = re.compile(
        r"^store       [0-9a-f]{32}$|(?<=   )(?:[0-9a-f]{2} )+ +(?:store_id|crc)\b.*$",
        re.MULTILINE,
    )
    assert mask.sub("", listed) == mask.sub("", said)


def test_the_guide_names_every_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (GUIDES / "command-line.md").read_text(encoding="utf-8")
    for command in (*COMMANDS, "demo vllm", "bench", "faultbench"):
        assert f"## `dalsegno {command}" in guide
        with pytest.raises(SystemExit):
            application.main([*command.split(), "--help"])
        options = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
        assert [option for option in options if option not in guide] == []


def test_regression_the_guide_names_the_packages_that_the_index_bench_asks_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_bench, "LIBRARY", Path("/nowhere"))
    assert index_bench.main([]) == 1
    command = capsys.readouterr().err.partition("apt-get install ")[2].strip()
    assert command == "librocksdb-dev libclang-dev"
    assert f"`apt-get install {command}`" in rows("benches.md", "bench")["index"]


def test_regression_the_bench_of_sglang_takes_less_than_ten_minutes() -> None:
    """Half of that at the speeds of the slowest backend that the guide has, which leaves the rest
    to what is not timed and to slower machines."""
    given = sglang_bench.parse([])
    token_bytes = given.layers * given.heads * given.head_dim * 2 * 2
    gib = given.sequences * given.tokens * token_bytes / (1 << 30)
    # The warm-up and the backup write, then all is read from memory, then from disk.
    seconds_per_gib = 2 / 0.20 + 1 / 0.54 + 1 / 0.28
    backends = ("dalsegno", "file", "v1file")
    assert len(given.pages) * given.rounds * len(backends) * gib * seconds_per_gib < 300


def test_the_guide_of_sglang_names_every_setting_and_its_default() -> None:
    listed = rows("sglang.md", "key")
    fields = dataclasses.fields(sglang_settings.HiCacheSettings)
    settings = {item.name: item.default for item in fields}
    assert listed.keys() == settings.keys()
    for name, default in settings.items():
        if isinstance(default, float):
            assert listed[name].split("|")[2].strip() == f"{default:g}"
        if name == "codec":
            assert f'`"{default}"`' in listed[name]
    text = (GUIDES / "sglang.md").read_text(encoding="utf-8")
    assert [name for name in sglang_settings.ENGINE_KEYS if f"`{name}`" not in text] == []


def test_the_guide_of_vllm_names_every_setting_and_its_default() -> None:
    text = (GUIDES / "vllm.md").read_text(encoding="utf-8")
    listed = rows("vllm.md", "key")
    of_connector = {"cpu_bytes_to_use"}
    of_tier = {"options_fingerprint", "locality"}
    # The connector sets it.
    hidden = {"identity"}
    # The first is vLLM's own, the second `cpu_bytes_to_use`.
    hidden |= {"offload_prompt_only", "pool_bytes"}
    fields = {
        item.name: item.default for item in dataclasses.fields(vllm_settings.ConnectorSettings)
    }
    assert listed.keys() == fields.keys() - of_tier - hidden | of_connector
    for name in of_tier | set(vllm_settings.ENGINE_KEYS):
        assert f"`{name}`" in text
    for name, row in listed.items():
        default = fields.get(name)
        # A bool is an int, and written as JSON has it.
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert row.split("|")[2].strip() == f"{default:.9g}", name


def test_the_guide_of_lmcache_names_every_setting_and_its_default() -> None:
    listed = rows("lmcache.md", "key")
    fields = dataclasses.fields(lmcache_settings.AdapterSettings)
    settings = {item.name: item.default for item in fields}
    assert listed.keys() == settings.keys()
    for name, default in settings.items():
        # A bool is an int, and written as JSON has it.
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert listed[name].split("|")[2].strip() == f"{default:g}", name
