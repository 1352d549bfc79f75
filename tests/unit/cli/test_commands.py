"""The command `dalsegno` over real stores: healthy, locked, unknown, newer; help and terminals."""

from __future__ import annotations

import os
import pty
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.outside import another_process, flip, segment_of
from tests.unit.stores import LAYERS, SLICE_BYTES, Run, extents, open_store, start

import dalsegno
from dalsegno.cli import show
from dalsegno_bench import registry as benches

COMMANDS = [
    (),
    ("info",),
    ("ls",),
    ("verify",),
    ("inspect",),
    ("demo",),
    ("demo", "vllm"),
    ("bench",),
]


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, from its definition (RFC 3720): reflected polynomial 0x82F63B78."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_crc_of_these_tests_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283


# A healthy store.


def test_info_shows_the_facts_of_a_store(path: Path, run: Run) -> None:
    answer = run("info", path)
    assert (answer.code, answer.err) == (0, "")
    for words in ("on disk     1 MiB", "blocks      8 (39.3 KiB)", "namespaces  2", "1 open"):
        assert words in answer.out


def test_info_json_has_exact_numbers(path: Path, run: Run) -> None:
    result = run("info", path, "--json").json()
    block_bytes = 4 * LAYERS * SLICE_BYTES + 4 * 64
    assert (result["blocks"], result["block_bytes"], result["faults"]) == (8, block_bytes, [])
    assert result["path"] == str(path)


def test_ls_lists_namespaces_with_their_fields(path: Path, run: Run) -> None:
    answer = run("ls", path)
    assert answer.code == 0
    assert "model=m[red]" in answer.out
    assert "2 layers of 4.9 KiB" in answer.out
    assert "extents of namespace" not in answer.out


def test_stored_text_cannot_control_the_terminal(path: Path, run: Run) -> None:
    out = run("ls", path).out
    assert "\x1b" not in out
    assert r"salt=tab\tand \x1b[31mcolour" in out


def test_ls_extents_shows_where_blocks_are_stored(path: Path, run: Run) -> None:
    out = run("ls", path, "--extents").out
    for extent in extents(path):
        assert extent["lineage"][:12] in out
        assert str(extent["offset"]) in out


def test_ls_narrows_by_namespace_and_limit(path: Path, run: Run) -> None:
    names = [row["id"] for row in dalsegno.list_extents(str(path))]
    result = run("ls", path, "--namespace", names[1][:6], "--extents", "--json").json()
    assert [row["id"] for row in result["namespaces"]] == [names[1]]
    limited = run("ls", path, "--extents", "--limit", 2, "--json").json()["namespaces"]
    assert sum(len(row["extent_rows"]) for row in limited) == 2
    assert sum(row["extents"] for row in limited) == 3
    missing = run("ls", path, "--namespace", "zz")
    assert missing.code == 2
    assert "no blocks of a namespace zz" in missing.err


def test_ls_json_without_extents_leaves_them_out(path: Path, run: Run) -> None:
    result = run("ls", path, "--json").json()
    assert all("extent_rows" not in row for row in result["namespaces"])


def test_verify_of_a_healthy_store_is_clean(path: Path, run: Run) -> None:
    before = {one.name: one.stat().st_mtime_ns for one in path.iterdir()}
    answer = run("verify", path)
    assert (answer.code, answer.err) == (0, "")
    assert "8 blocks, 12 slices" in answer.out
    assert answer.out.endswith("clean\n")
    result = run("verify", path, "--json").json()
    assert result["clean"] is True
    assert result["findings"] == []
    after = {one.name: one.stat().st_mtime_ns for one in path.iterdir()}
    assert after == before


def test_an_empty_store_is_shown_as_empty(tmp_path: Path, run: Run) -> None:
    open_store(tmp_path / "store").close()
    assert run("ls", tmp_path / "store").out == "no blocks\n"
    assert run("info", tmp_path / "store").code == 0
    assert run("verify", tmp_path / "store").code == 0


# Paths that are not a readable store.


@pytest.mark.parametrize("command", ["info", "ls", "verify"])
def test_a_locked_store_names_its_owner(command: str, path: Path, run: Run) -> None:
    with open_store(path):
        answer = run(command, path)
    assert (answer.code, answer.out) == (2, "")
    assert f"pid {os.getpid()}" in answer.err
    assert answer.err.startswith("dalsegno: ")
    assert answer.err.count("\n") == 1


def test_the_owner_in_another_process_is_named(path: Path) -> None:
    with another_process(path) as (owner, _):
        _, err = (looker := start("verify", path)).communicate(timeout=120)
    assert looker.returncode == 2
    assert f"pid {owner.pid}" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["info", "ls", "verify"])
def test_a_path_that_is_not_a_store_is_a_one_line_error(
    command: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    for path in (tmp_path / "missing", tmp_path / "foreign", tmp_path / "foreign" / "notes.txt"):
        answer = run(command, path)
        assert (answer.code, answer.out) == (2, "")
        assert str(path) in answer.err
        assert answer.err.count("\n") == 1
    assert not (tmp_path / "missing").exists()
    assert [one.name for one in (tmp_path / "foreign").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("command", ["info", "ls", "verify"])
def test_a_store_of_a_newer_version_is_refused_and_not_changed(
    command: str, path: Path, run: Run
) -> None:
    sector = bytearray((path / "store.meta").read_bytes())
    assert struct.unpack_from("<I", sector, 4092)[0] == crc32c(bytes(sector[:4092]))
    struct.pack_into("<I", sector, 8, 3)
    struct.pack_into("<I", sector, 4092, crc32c(bytes(sector[:4092])))
    (path / "store.meta").write_bytes(sector)
    before = {one.name: one.read_bytes() for one in path.iterdir()}
    answer = run(command, path)
    assert (answer.code, answer.out) == (2, "")
    assert "newer Dalsegno" in answer.err
    with pytest.raises(dalsegno.IncompatibleError, match="newer"):
        open_store(path)
    after = {one.name: one.read_bytes() for one in path.iterdir()}
    assert after == before


def test_wrong_arguments_exit_with_2(run: Run) -> None:
    for arguments in (("ls",), ("ls", "x", "--limit", "-1"), ("nonsense",), ("info", "a", "b")):
        answer = run(*arguments)
        assert answer.code == 2
        assert "Error" in answer.err


# Help, terminals, interruption.


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...], run: Run) -> None:
    answer = run(*command, "--help")
    assert answer.code == 0
    assert "\b" not in answer.out
    if command not in {(), ("demo",)}:
        assert "Example:\n    dalsegno " in answer.out
        assert "Exit codes: 0 " in answer.out
    # A summary in the list of commands is a whole sentence, not truncated.
    assert "..." not in answer.out.replace("[ARGS]...", "")


def test_the_installed_command_and_the_module_print_the_version() -> None:
    installed = Path(sys.executable).with_name("dalsegno")
    for command in ([str(installed)], [sys.executable, "-m", "dalsegno.cli"]):
        result = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert result.stdout == f"dalsegno {dalsegno.__version__}\n"


def in_a_terminal(path: Path) -> str:
    """What `verify` writes when both its streams are a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dalsegno.cli", "verify", str(path)]
    settings = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    settings.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=settings)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 4096):
            written += part
    except OSError:  # Linux reports the end of a terminal as an error.
        pass
    os.close(ours)
    assert process.wait(timeout=120) == 1
    return written.decode()


def test_colours_and_progress_only_in_a_terminal(path: Path) -> None:
    extent = extents(path)[0]
    flip(segment_of(path, extent), extent["offset"] + extent["bytes"] - 1)
    out, err = (plain := start("verify", path)).communicate(timeout=120)
    assert plain.returncode == 1
    assert "\x1b" not in out + err
    assert err == ""
    shown = in_a_terminal(path)
    assert "checking" in shown
    assert "\x1b[" in shown


def test_ctrl_c_ends_a_check_immediately() -> None:
    slow = (
        # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import dalsegno, time; dalsegno.verify = lambda *_: (print(flush=True), time.sleep(60));"
        "from dalsegno.cli import main; main(['verify', '.'])"
    )
    process = subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (200 << 30, "200 GiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_byte_counts_have_human_units(count: int, text: str) -> None:
    assert show.byte_count(count) == text


# Benches and the demonstration.


def test_bench_without_or_with_a_wrong_name_lists_all(run: Run) -> None:
    listed, refused = run("bench"), run("bench", "no-such-bench")
    assert (listed.code, refused.code) == (0, 2)
    assert "no-such-bench" in refused.err
    for name, summary in benches.summaries().items():
        assert name in listed.out
        assert summary in listed.out
        assert summary in refused.err


def replace_module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Puts a module in the place of another, or of none."""
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def test_arguments_after_the_name_of_a_bench_are_passed_to_the_bench(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def fake_main(argv: list[str]) -> int:
        seen.append(argv)
        return 7

    replace_module(monkeypatch, "dalsegno_bench.fake", main=fake_main)
    monkeypatch.setattr(benches, "_benches", lambda: {"fake": ("dalsegno_bench.fake", "A bench.")})
    assert run("bench", "fake", "--help", "-x", "1").code == 7
    assert seen == [["--help", "-x", "1"]]


@pytest.mark.parametrize("name", list(benches.summaries()))
def test_every_bench_explains_its_arguments(name: str, run: Run) -> None:
    answer = run("bench", name, "--help")
    assert answer.code == 0
    assert "usage" in answer.out.lower()


def test_the_demo_gets_its_options(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []

    def fake_run(**options: Any) -> int:
        seen.append(options)
        return 1

    replace_module(monkeypatch, "dalsegno.demo.vllm", run=fake_run)
    text = tmp_path / "text"
    text.write_text("hello")
    assert run("demo", "vllm", "--doc", text, "--keep", "--json").code == 1
    assert run("demo", "vllm").code == 1
    assert seen == [
        {"doc": text, "model_dir": None, "keep": True, "json_only": True},
        {"doc": None, "model_dir": None, "keep": False, "json_only": False},
    ]


def test_a_missing_engine_is_a_one_line_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dalsegno.demo.vllm", None)
    answer = run("demo", "vllm")
    assert answer.code == 2
    assert "make demo" in answer.err
