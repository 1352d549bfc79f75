"""`dalsegno.open` and `Store`: settings, ownership, files, namespaces, closing."""

from __future__ import annotations

import contextlib
import gc
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.outside import another_process
from tests.unit.stores import chain, open_store

import dalsegno


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DALSEGNO_CONFIG", raising=False)


# Settings.


def test_an_unknown_setting_names_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(dalsegno.InvalidError, match=r'"capacty".*"capacity"'):
        dalsegno.open(tmp_path / "store", capacty="1GiB")


def test_byte_counts_are_numbers_or_text(tmp_path: Path) -> None:
    for number, capacity in enumerate((32 << 20, "32MiB", "32 mib", str(32 << 20))):
        with dalsegno.open(tmp_path / str(number), capacity=capacity, staging="16MiB") as store:
            assert store.limits()["capacity_bytes"] == 32 << 20


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("capacity", "lots"),
        ("capacity", "1MiB"),
        ("capacity", 1.5e9),
        ("dram", -1),
        ("io_depth", 0),
        ("io_depth", "many"),
        ("segment", "3MiB"),
        ("durability", "maybe"),
    ],
)
def test_regression_a_wrong_value_names_its_setting(
    setting: str, value: object, tmp_path: Path
) -> None:
    settings = {"capacity": "16MiB", setting: value}
    with pytest.raises(dalsegno.InvalidError, match=setting) as raised:
        dalsegno.open(tmp_path / "store", **settings)
    assert "untagged enum" not in str(raised.value)


def test_a_setting_that_is_not_text_or_a_number_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(dalsegno.InvalidError, match=r"^capacity must be a finite number or text"):
        dalsegno.open(tmp_path / "store", capacity=object())


def test_a_setting_of_none_means_the_default(tmp_path: Path) -> None:
    with dalsegno.open(tmp_path / "store", capacity="16MiB", dram=None) as store:
        assert store.limits()["dram_bytes"] == 256 << 20


def test_the_default_capacity_is_logged_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with dalsegno.open(tmp_path / "store") as store:
        limits = store.limits()
    result = capsys.readouterr()
    assert result.out == ""
    assert f"{limits['capacity_bytes'] / (1 << 30):.1f} GiB" in result.err
    assert limits["capacity_is_default"] is True
    open_store(tmp_path / "other").close()
    assert capsys.readouterr() == ("", "")


def test_arguments_of_open_override_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('capacity = "32MiB"\nio_depth = 3\nstaging = "16MiB"\n')
    monkeypatch.setenv("DALSEGNO_CONFIG", str(settings))
    with dalsegno.open(tmp_path / "store", io_depth=5) as store:
        limits = store.limits()
    assert (limits["capacity_bytes"], limits["io_depth"]) == (32 << 20, 5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", [None, "capacity = ", 'capacty = "1GiB"', "capacity = 1979-05-27"])
def test_a_bad_settings_file_is_invalid(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.toml"
    if text is not None:
        settings.write_text(text)
    monkeypatch.setenv("DALSEGNO_CONFIG", str(settings))
    with pytest.raises(dalsegno.InvalidError):
        dalsegno.open(tmp_path / "store")


def test_a_store_lists_the_namespaces_that_have_blocks(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        assert store.namespaces() == []
        full = store.namespace({"model": "a"}, layers=2, slice_bytes=4)
        store.namespace({"model": "b"}, layers=1, slice_bytes=8)
        full.put_batch(chain(1), [b"12345678"])
        assert {one.fields["model"] for one in store.namespaces()} == {"a", "b"}
    with open_store(tmp_path / "store") as store:
        (found,) = store.namespaces()
        assert (found.fields, found.layers, found.slice_bytes) == ({"model": "a"}, 2, 4)
        assert (found.id, found.probe(chain(1))) == (full.id, 1)
    with pytest.raises(dalsegno.ClosedError):
        store.namespaces()


# Directories and owners.


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_store(tmp_path / "a" / "store") as store:
            namespace = store.namespace({"a": "b"}, layers=1, slice_bytes=8)
            namespace.put_batch(chain(1), [b"12345678"])
    finally:
        os.umask(before)
    directory = tmp_path / "a" / "store"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in directory.iterdir()}
    assert len(modes) == 5
    assert set(modes.values()) == {0o600}, modes


def test_a_second_open_is_refused_and_names_the_owner(tmp_path: Path) -> None:
    with open_store(tmp_path / "store"):
        with another_process(tmp_path / "store") as (_, result):
            assert f"pid {os.getpid()} " in result
        with pytest.raises(dalsegno.UnavailableError, match=f"pid {os.getpid()} "):
            open_store(tmp_path / "store")
    open_store(tmp_path / "store").close()


def test_a_store_can_be_opened_after_its_owner_was_killed(tmp_path: Path) -> None:
    with another_process(tmp_path / "store") as (owner, result):
        assert result == "opened\n"
        with pytest.raises(dalsegno.UnavailableError, match=f"pid {owner.pid} "):
            open_store(tmp_path / "store")
        owner.kill()
        owner.wait()
        open_store(tmp_path / "store").close()


def test_regression_an_error_states_its_cause_once(tmp_path: Path) -> None:
    with open_store(tmp_path / "store"), pytest.raises(dalsegno.UnavailableError) as raised:
        open_store(tmp_path / "store")
    assert str(raised.value).count(f"pid {os.getpid()} ") == 1
    with pytest.raises(dalsegno.UnavailableError) as raised:
        dalsegno.info(str(tmp_path / "missing"))
    assert str(raised.value).count("No such file") == 1


def test_a_directory_that_holds_no_store_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(dalsegno.InvalidError, match=r"notes\.txt"):
        open_store(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_regression_an_empty_path_is_refused_and_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dalsegno.InvalidError):
        dalsegno.open("", capacity="16MiB")
    assert list(tmp_path.iterdir()) == []


def test_a_store_keeps_its_id_and_segment_size(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        first = store.id
        assert store.path == str(tmp_path / "store")
    with dalsegno.open(str(tmp_path / "store"), capacity="64MiB", staging="16MiB") as store:
        assert (store.id, store.limits()["segment_bytes"]) == (first, 1 << 20)
    with pytest.raises(dalsegno.InvalidError, match="created with segments of 1 MiB"):
        dalsegno.open(tmp_path / "store", capacity="64MiB", segment="2MiB")


# Namespaces.


def test_a_namespace_is_its_fields_and_shape(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        one = store.namespace({"model": "m", "dtype": "f16"}, layers=2, slice_bytes=100)
        assert (one.layers, one.slice_bytes, one.block_bytes) == (2, 100, 200)
        assert one.fields == {"model": "m", "dtype": "f16"}
        assert len(bytes.fromhex(one.id)) == 16
        same = store.namespace({"dtype": "f16", "model": "m"}, layers=2, slice_bytes=100)
        assert same.id == one.id
        others = [
            store.namespace({"model": "m", "dtype": "f32"}, layers=2, slice_bytes=100),
            store.namespace({"model": "mdtype", "f": "16"}, layers=2, slice_bytes=100),
            store.namespace({"model": "m", "dtype": "f16"}, layers=1, slice_bytes=200),
            store.namespace({}, layers=2, slice_bytes=100),
        ]
        assert len({one.id, *(other.id for other in others)}) == 5


@pytest.mark.parametrize(
    ("fields", "layers", "slice_bytes"),
    [
        ({}, 0, 1),
        ({}, 1, 0),
        ({}, 1025, 1),
        ({}, 1, 1 << 20),
        ({}, 1, 1 << 30),
        ({"": "x"}, 1, 1),
        ({"tag": "x" * 1025}, 1, 1),
        ({f"tag{number}": "" for number in range(65)}, 1, 1),
    ],
)
def test_a_namespace_with_bad_fields_or_shape_is_invalid(
    fields: dict[str, str], layers: int, slice_bytes: int, tmp_path: Path
) -> None:
    with open_store(tmp_path / "store") as store, pytest.raises(dalsegno.InvalidError):
        store.namespace(fields, layers=layers, slice_bytes=slice_bytes)


def test_namespaces_are_bounded(tmp_path: Path) -> None:
    with dalsegno.open(tmp_path / "store", capacity="16MiB", namespaces=2) as store:
        for name in ("a", "b", "a"):
            store.namespace({"name": name}, layers=1, slice_bytes=1)
        with pytest.raises(dalsegno.InvalidError, match='"namespaces"'):
            store.namespace({"name": "c"}, layers=1, slice_bytes=1)


# Closing.


def calls(store: dalsegno.Store, namespace: dalsegno.Namespace) -> dict[str, Any]:
    one, out = chain(1), [bytearray(8)]
    return {
        "namespace": lambda: store.namespace({}, layers=1, slice_bytes=8),
        "put_batch": lambda: namespace.put_batch(one, [b"12345678"]),
        "probe": lambda: namespace.probe(one),
        "contains": lambda: namespace.contains(one),
        "get_batch": lambda: namespace.get_batch(one, out),
        "get_each": lambda: namespace.get_each(one, out),
        "load": lambda: namespace.load(one, out),
        "layer_writer": lambda: namespace.layer_writer(one),
        "remove": lambda: namespace.remove(one),
        "remove all": namespace.remove,
    }


def test_calls_of_a_closed_store_raise_closed_error(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        namespace = store.namespace({}, layers=1, slice_bytes=8)
        assert namespace.put_batch(chain(1), [b"12345678"]).stored == 1
        before = store.closed
    assert (before, store.closed) == (False, True)
    store.close()
    for name, call in calls(store, namespace).items():
        with pytest.raises(dalsegno.ClosedError):
            pytest.fail(f"{name} of a closed store returned {call()}")
    late = namespace.submit_get(chain(1), [bytearray(8)])
    assert late.done()
    with pytest.raises(dalsegno.ClosedError):
        late.result()
    # Its counters stay readable.
    assert store.stats()["put_stored_blocks"] == 1
    assert store.limits()["capacity_bytes"] == 16 << 20


def test_the_context_manager_closes_and_propagates_errors(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_store(tmp_path / "store") as store:
        _ = 1 / 0
    assert store.closed
    open_store(tmp_path / "store").close()


def test_an_unreferenced_store_releases_its_directory(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    namespace = store.namespace({}, layers=1, slice_bytes=8)
    del store
    gc.collect()
    with pytest.raises(dalsegno.UnavailableError):
        open_store(tmp_path / "store")
    del namespace
    gc.collect()
    open_store(tmp_path / "store").close()


def test_a_process_may_exit_with_transfers_in_flight(tmp_path: Path) -> None:
    text = """
import dalsegno, os, sys
store = dalsegno.open(sys.argv[1], capacity="128MiB", staging="16MiB")
namespace = store.namespace({}, layers=1, slice_bytes=1 << 20)
for i in range(8):
    namespace.submit_put([os.urandom(32) for _ in range(4)], [bytes(1 << 20)] * 4)
"""
    command = [sys.executable, "-c", text, str(tmp_path / "store")]
    ended = subprocess.run(command, capture_output=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert dalsegno.verify(str(tmp_path / "store"))["findings"] == []


def our_threads() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().startswith("dalsegno"):
                found.add(task.name)
    return found


def test_regression_closing_releases_files_and_threads(tmp_path: Path) -> None:
    """Not only after the last reference is dropped: the file system may be unmounted now."""
    before = our_threads()
    store = open_store(tmp_path / "store")
    namespace = store.namespace({}, layers=1, slice_bytes=8)
    namespace.put_batch(chain(1), [b"12345678"])
    # Threads of stores that earlier tests dropped may end meanwhile.
    assert our_threads() - before
    store.close()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert [link for link in links if link.readlink().is_relative_to(tmp_path)] == []
    # The system lists a thread for a moment after it was joined.
    until = time.monotonic() + 60
    while not our_threads() <= before:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert namespace.layers == 1


def test_regression_closing_waits_for_calls_in_flight(tmp_path: Path) -> None:
    """After `close`, no thread writes to the directory, so another process may open it."""
    store = dalsegno.open(tmp_path / "store", capacity="512MiB", staging="16MiB", dram=0)
    namespace = store.namespace({}, layers=1, slice_bytes=1 << 20)
    blocks = [bytes(1 << 20)] * 128
    thread = threading.Thread(target=lambda: namespace.put_batch(chain(128), blocks))
    thread.start()
    while store.stats()["log"]["written_bytes"] == 0:
        time.sleep(0.0005)
    store.close()
    at_close = store.stats()["log"]["written_bytes"]
    thread.join()
    assert store.stats()["log"]["written_bytes"] == at_close


def test_the_log_is_printed_at_the_level_of_dalsegno_log(tmp_path: Path) -> None:
    code = f"import dalsegno; dalsegno.open({str(tmp_path / 'store')!r}, capacity='16MiB').close()"
    shown = {}
    for level in ("info", "off", "loud"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "DALSEGNO_LOG": level},
            capture_output=True,
            text=True,
            check=False,
        )
        shown[level] = (done.returncode, done.stderr)
    assert shown["off"] == (0, "")
    assert shown["info"][0] == 0
    assert "capacity_bytes=16777216" in shown["info"][1]
    # regression: a typo was an error of the import, which ended an engine's start.
    assert shown["loud"][0] == 0
    text = shown["loud"][1]
    assert text.count("DALSEGNO_LOG is") == 1
    assert "WARN" in text
    assert "expected error, warn" in text
    assert "uses at most" not in text
