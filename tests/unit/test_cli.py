"""The command `dalsegno` over real stores: healthy, damaged, locked, foreign, newer."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dalsegno
from dalsegno import bench as benches
from dalsegno.cli import main, show

LAYERS, SLICE_BYTES, BLOCKS = 2, 5000, 3
SECTOR = 4096
COMMANDS = [(), ("info",), ("ls",), ("verify",), ("demo",), ("demo", "vllm"), ("bench",)]


@dataclass
class Answer:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process."""

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(one) for one in arguments])
        told = capsys.readouterr()
        return Answer(int(stopped.value.code or 0), told.out, told.err)

    return call


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dalsegno.cli", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **options)


def chain(count: int, prompt: str = "a") -> list[bytes]:
    return [hashlib.sha256(f"{prompt}{index}".encode()).digest() for index in range(count)]


def open_store(path: Path) -> dalsegno.Store:
    return dalsegno.open(path, capacity="16MiB", segment="1MiB", staging="16MiB")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "store"
    with open_store(path) as store:
        fields = {"model": "m[red]", "salt": "tab\tand \x1b[31mcolour"}
        one = store.namespace(fields, layers=LAYERS, slice_bytes=SLICE_BYTES)
        one.put_batch(chain(BLOCKS), [os.urandom(one.block_bytes) for _ in range(BLOCKS)])
        one.put_batch(chain(1, "b"), [os.urandom(one.block_bytes)])
        two = store.namespace({"model": "n"}, layers=1, slice_bytes=64)
        two.put_batch(chain(4), [os.urandom(64) for _ in range(4)])
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "store"))


def extents(path: Path) -> list[dict[str, Any]]:
    """The extents of the larger namespace, first the one of three blocks."""
    rows = [row for row in dalsegno.list_extents(str(path)) if row["layers"] == LAYERS]
    return sorted(rows[0]["extent_rows"], key=lambda extent: -extent["blocks"])


def segment_of(path: Path, extent: dict[str, Any]) -> Path:
    return path / f"segment-{extent['segment']:016x}.log"


def flip(file: Path, offset: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 0x10]))


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


def test_info_tells_the_facts(path: Path, run: Run) -> None:
    answer = run("info", path)
    assert (answer.code, answer.err) == (0, "")
    for words in ("on disk     1 MiB", "blocks      8 (39.3 KiB)", "namespaces  2", "1 open"):
        assert words in answer.out


def test_info_json_has_exact_numbers(path: Path, run: Run) -> None:
    told = run("info", path, "--json").json()
    block_bytes = 4 * LAYERS * SLICE_BYTES + 4 * 64
    assert (told["blocks"], told["block_bytes"], told["faults"]) == (8, block_bytes, [])
    assert told["path"] == str(path)


def test_ls_lists_namespaces_with_their_fields(path: Path, run: Run) -> None:
    answer = run("ls", path)
    assert answer.code == 0
    assert "model=m[red]" in answer.out
    assert "2 layers of 4.9 KiB" in answer.out
    assert "extents of namespace" not in answer.out


def test_stored_text_cannot_steer_the_terminal(path: Path, run: Run) -> None:
    out = run("ls", path).out
    assert "\x1b" not in out
    assert r"salt=tab\tand \x1b[31mcolour" in out


def test_ls_extents_tells_where_blocks_lie(path: Path, run: Run) -> None:
    out = run("ls", path, "--extents").out
    for extent in extents(path):
        assert extent["lineage"][:12] in out
        assert str(extent["offset"]) in out


def test_ls_narrows_by_namespace_and_limit(path: Path, run: Run) -> None:
    names = [row["id"] for row in dalsegno.list_extents(str(path))]
    told = run("ls", path, "--namespace", names[1][:6], "--extents", "--json").json()
    assert [row["id"] for row in told["namespaces"]] == [names[1]]
    limited = run("ls", path, "--extents", "--limit", 2, "--json").json()["namespaces"]
    assert sum(len(row["extent_rows"]) for row in limited) == 2
    assert sum(row["extents"] for row in limited) == 3
    missing = run("ls", path, "--namespace", "zz")
    assert missing.code == 2
    assert "no blocks of a namespace zz" in missing.err


def test_ls_json_without_extents_leaves_them_out(path: Path, run: Run) -> None:
    told = run("ls", path, "--json").json()
    assert all("extent_rows" not in row for row in told["namespaces"])


def test_verify_of_a_healthy_store_is_clean(path: Path, run: Run) -> None:
    before = {one.name: one.stat().st_mtime_ns for one in path.iterdir()}
    answer = run("verify", path)
    assert (answer.code, answer.err) == (0, "")
    assert "8 blocks, 12 slices" in answer.out
    assert answer.out.endswith("clean\n")
    told = run("verify", path, "--json").json()
    assert told["clean"] is True
    assert told["findings"] == []
    after = {one.name: one.stat().st_mtime_ns for one in path.iterdir()}
    assert after == before


def test_an_empty_store_is_told_as_empty(tmp_path: Path, run: Run) -> None:
    open_store(tmp_path / "store").close()
    assert run("ls", tmp_path / "store").out == "no blocks\n"
    assert run("info", tmp_path / "store").code == 0
    assert run("verify", tmp_path / "store").code == 0


# Planted faults.


def plant_in_payload(path: Path) -> tuple[str, int, str]:
    extent = extents(path)[0]
    file = segment_of(path, extent)
    header_bytes = int.from_bytes(file.read_bytes()[extent["offset"] + 12 :][:4], "little")
    stride = -(-BLOCKS * SLICE_BYTES // SECTOR) * SECTOR
    slice_at = extent["offset"] + header_bytes + stride + 2 * SLICE_BYTES
    flip(file, slice_at + 77)
    return file.name, slice_at, "layer 1 of block 2: checksum differs"


def plant_in_padding(path: Path) -> tuple[str, int, str]:
    extent = extents(path)[0]
    at = extent["offset"] + extent["bytes"] - 1
    flip(segment_of(path, extent), at)
    return segment_of(path, extent).name, at // SECTOR * SECTOR, "padding is not zero"


def plant_in_record_header(path: Path) -> tuple[str, int, str]:
    extent = extents(path)[0]
    flip(segment_of(path, extent), extent["offset"] + 130)
    return segment_of(path, extent).name, extent["offset"], ""


def plant_in_segment_header(path: Path) -> tuple[str, int, str]:
    file = segment_of(path, extents(path)[0])
    flip(file, 20)
    return file.name, 0, ""


def plant_in_store_meta(path: Path) -> tuple[str, int, str]:
    flip(path / "store.meta", 33)
    return "store.meta", 0, ""


def plant_in_namespace(path: Path) -> tuple[str, int, str]:
    file = min(path.glob("namespace-*.meta"))
    flip(file, 40)
    return file.name, 0, ""


def cut_a_segment(path: Path) -> tuple[str, int, str]:
    extent = extents(path)[0]
    file = segment_of(path, extent)
    cut = extent["offset"] + SECTOR
    os.truncate(file, cut)
    return file.name, cut, "bytes, expected 1048576"


def cut_store_meta(path: Path) -> tuple[str, int, str]:
    os.truncate(path / "store.meta", 100)
    return "store.meta", 0, ""


FAULTS = [
    plant_in_payload,
    plant_in_padding,
    plant_in_record_header,
    plant_in_segment_header,
    plant_in_store_meta,
    plant_in_namespace,
    cut_a_segment,
    cut_store_meta,
]


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_verify_finds_a_planted_fault_and_names_its_place(
    plant: Callable[[Path], tuple[str, int, str]], path: Path, run: Run
) -> None:
    file, offset, words = plant(path)
    answer = run("verify", path)
    assert answer.code == 1
    assert file in answer.out
    told = run("verify", path, "--json")
    assert told.code == 1
    found = told.json()
    assert found["clean"] is False
    same_file = [one for one in found["findings"] if one["file"] == file]
    assert [one for one in same_file if offset <= one["offset"] < offset + SECTOR], found
    assert any(words in one["what"] for one in same_file)


def test_info_tells_of_damaged_headers(path: Path, run: Run) -> None:
    file, offset, _ = plant_in_record_header(path)
    answer = run("info", path)
    assert answer.code == 0
    assert "1 place in headers" in answer.out
    assert run("info", path, "--json").json()["faults"][0]["file"] == file
    assert run("info", path, "--json").json()["faults"][0]["offset"] == offset


# Stores that cannot be looked at.


@pytest.mark.parametrize("command", ["info", "ls", "verify"])
def test_a_locked_store_names_its_owner(command: str, path: Path, run: Run) -> None:
    with open_store(path):
        answer = run(command, path)
    assert (answer.code, answer.out) == (2, "")
    assert f"pid {os.getpid()}" in answer.err
    assert answer.err.startswith("dalsegno: ")
    assert answer.err.count("\n") == 1


def test_the_owner_in_another_process_is_named(path: Path) -> None:
    text = "import dalsegno, sys; s = dalsegno.open(sys.argv[1], capacity='16MiB'); print(flush=1);"
    owner = subprocess.Popen(
        [sys.executable, "-c", text + "input()", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        _, err = (looker := start("verify", path)).communicate(timeout=30)
        owner.communicate(b"\n", timeout=30)
    assert looker.returncode == 2
    assert f"pid {owner.pid}" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["info", "ls", "verify"])
def test_what_is_no_store_is_told_in_a_line(command: str, tmp_path: Path, run: Run) -> None:
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
def test_a_store_of_a_newer_version_is_refused_and_left_alone(
    command: str, path: Path, run: Run
) -> None:
    sector = bytearray((path / "store.meta").read_bytes())
    assert struct.unpack_from("<I", sector, 4092)[0] == crc32c(bytes(sector[:4092]))
    struct.pack_into("<I", sector, 8, 2)
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
    # A summary in the list of commands is a whole sentence, not cut.
    assert "..." not in answer.out.replace("[ARGS]...", "")


def test_the_installed_command_and_the_module_tell_the_version() -> None:
    installed = Path(sys.executable).with_name("dalsegno")
    for command in ([str(installed)], [sys.executable, "-m", "dalsegno.cli"]):
        told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert told.stdout == f"dalsegno {dalsegno.__version__}\n"


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
    except OSError:  # Linux tells the end of a terminal as an error.
        pass
    os.close(ours)
    assert process.wait(timeout=30) == 1
    return written.decode()


def test_colours_and_progress_only_in_a_terminal(path: Path) -> None:
    plant_in_payload(path)
    out, err = (plain := start("verify", path)).communicate(timeout=30)
    assert plain.returncode == 1
    assert "\x1b" not in out + err
    assert err == ""
    shown = in_a_terminal(path)
    assert "checking" in shown
    assert "\x1b[" in shown


def test_ctrl_c_ends_a_check_at_once() -> None:
    slow = (
        "import dalsegno, time; dalsegno.verify = lambda *_: (print(flush=True), time.sleep(60));"
        "from dalsegno.cli import main; main(['verify', '.'])"
    )
    process = subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert time.monotonic() - started < 5


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


def test_what_follows_a_bench_is_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    fake = ModuleType("dalsegno.bench.fake")
    fake.main = lambda argv: seen.append(argv) or 7  # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, "dalsegno.bench.fake", fake)
    monkeypatch.setattr(benches, "summaries", lambda: {"fake": "A bench."})
    assert run("bench", "fake", "--help", "-x", "1").code == 7
    assert seen == [["--help", "-x", "1"]]


@pytest.mark.parametrize("name", list(benches.summaries()))
def test_every_bench_explains_its_arguments(name: str, run: Run) -> None:
    answer = run("bench", name, "--help")
    assert answer.code == 0
    assert "usage" in answer.out.lower()


def test_the_demonstration_gets_its_options(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []
    fake = ModuleType("dalsegno.demo.vllm")
    fake.run = lambda **options: seen.append(options) or 1  # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, "dalsegno.demo.vllm", fake)
    text = tmp_path / "text"
    text.write_text("hello")
    assert run("demo", "vllm", "--doc", text, "--keep", "--json").code == 1
    assert run("demo", "vllm").code == 1
    assert seen == [
        {"doc": text, "model_dir": None, "keep": True, "json_only": True},
        {"doc": None, "model_dir": None, "keep": False, "json_only": False},
    ]


def test_a_missing_engine_is_told_in_a_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dalsegno.demo.vllm", None)
    answer = run("demo", "vllm")
    assert answer.code == 2
    assert "dalsegno[vllm]" in answer.err
