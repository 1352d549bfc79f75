"""A forked child gets an error for every call, exits normally, and disturbs no other process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.forks import in_child
from tests.unit.stores import chain, open_store

import dalsegno

# Python warns of every fork beside threads; what that does to us is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

BLOCK = 8192
BLOCKS = [os.urandom(BLOCK) for _ in range(4)]
ENGINES = ("auto", "psync")


@dataclass
class Parts:
    """All kinds of objects that a child may inherit."""

    store: dalsegno.Store
    namespace: dalsegno.Namespace
    writer: dalsegno.LayerWriter
    put: dalsegno.Transfer[dalsegno.PutReport]
    get: dalsegno.Transfer[list[bool]]
    watch: dalsegno.RemovalWatch


@pytest.fixture(params=ENGINES)
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a store may live, with the settings for it: one I/O engine after the other."""
    settings = tmp_path / "settings.toml"
    settings.write_text(f'io_engine = "{request.param}"\ndram = 0\n')
    monkeypatch.setenv("DALSEGNO_CONFIG", str(settings))
    return tmp_path / "store"


@pytest.fixture
def parts(path: Path) -> Iterator[Parts]:
    with open_store(path) as store:
        namespace = store.namespace({"model": "m"}, layers=2, slice_bytes=BLOCK // 2)
        assert namespace.put_batch(chain(4), BLOCKS).stored == 4
        writer = namespace.layer_writer(chain(1, "by layer"))
        writer.store_layer(0, [BLOCKS[0][: BLOCK // 2]])
        put = namespace.submit_put(chain(4, "background"), BLOCKS)
        get = namespace.submit_get(chain(4), [bytearray(BLOCK) for _ in range(4)])
        # A thread that enters or leaves Python during a fork can make Python 3.11 hang there.
        assert put.wait(60)
        assert get.wait(60)
        yield Parts(store, namespace, writer, put, get, store.watch_removals())


def calls(parts: Parts) -> dict[str, Callable[[], Any]]:
    one, out = chain(1), [bytearray(BLOCK)]
    space, half = parts.namespace, [bytearray(BLOCK // 2)]
    return {
        "stats": parts.store.stats,
        "watch_removals": parts.store.watch_removals,
        "namespace": lambda: parts.store.namespace({}, layers=1, slice_bytes=8),
        "put_batch": lambda: space.put_batch(chain(1, "new"), BLOCKS[:1]),
        "probe": lambda: space.probe(one),
        "contains": lambda: space.contains(one),
        "get_batch": lambda: space.get_batch(one, out),
        "get_batch in time": lambda: space.get_batch(one, out, timeout_s=1.0),
        "get_each": lambda: space.get_each(one, out),
        "layer_writer": lambda: space.layer_writer(chain(1, "new")),
        "submit_put": lambda: space.submit_put(one, BLOCKS[:1]).result(),
        "submit_get": lambda: space.submit_get(one, out).result(),
        "load": lambda: space.load(one, out).result(),
        "submit_commit": lambda: parts.writer.submit_commit().result(),
        "submit_store_layer": lambda: parts.writer.submit_store_layer(1, half).result(),
        "remove": lambda: space.remove(one),
        "remove all": space.remove,
        "store_layer": lambda: parts.writer.store_layer(1, half),
        "commit": parts.writer.commit,
        "result of a put": parts.put.result,
        "result of a get": parts.get.result,
    }


def expect_refusals(parts: Parts, parent: int) -> None:
    for name, call in calls(parts).items():
        with pytest.raises(dalsegno.UnavailableError) as raised:
            pytest.fail(f"{name} in a forked child returned {call()}")
        for words in (f"opened by process {parent} ", "fork before you open it", "spawn"):
            assert words in str(raised.value), (name, raised.value)
    for transfer in (parts.put, parts.get):
        assert transfer.done()
        assert transfer.wait()
        transfer.cancel()
    assert (parts.watch.waiting, parts.watch.take(1)) == (0, ({}, False))
    assert parts.store.closed
    parts.store.close()
    parts.store.close()


def expect_blocks(parts: Parts) -> None:
    """The parent keeps all its objects, and transfers in flight at the fork end."""
    out = [bytearray(BLOCK) for _ in range(4)]
    assert parts.namespace.get_batch(chain(4), out) == 4
    assert out == BLOCKS
    assert parts.put.result().stored == 4
    assert parts.get.result() == [True] * 4
    parts.writer.store_layer(1, [BLOCKS[0][BLOCK // 2 :]])
    assert parts.writer.commit() == 1
    assert parts.namespace.get_batch(chain(1, "by layer"), out[:1]) == 1
    assert out[0] == BLOCKS[0]


def expect_sound(path: Path) -> None:
    """The files hold what the parent put and nothing else, and the store opens again."""
    assert dalsegno.verify(str(path))["findings"] == []
    with open_store(path) as store:
        namespace = store.namespace({"model": "m"}, layers=2, slice_bytes=BLOCK // 2)
        for name, count in (("a", 4), ("background", 4), ("by layer", 1)):
            out = [bytearray(BLOCK) for _ in range(count)]
            assert namespace.get_batch(chain(count, name), out) == count
            assert out == BLOCKS[:count]
        assert store.stats()["blocks"] == 9


def test_every_call_in_a_forked_child_is_refused(parts: Parts, path: Path) -> None:
    parent = os.getpid()
    in_child(lambda: expect_refusals(parts, parent))
    expect_blocks(parts)
    parts.store.close()
    expect_sound(path)


def test_objects_dropped_in_a_forked_child_stay_usable_in_the_parent(
    parts: Parts, path: Path
) -> None:
    def drop() -> None:
        parts.__dict__.clear()
        gc.collect()

    for _ in range(3):
        in_child(drop)
    # The parent still owns the directory.
    with pytest.raises(dalsegno.UnavailableError, match=f"pid {os.getpid()} "):
        dalsegno.info(str(path))
    expect_blocks(parts)
    parts.store.close()
    expect_sound(path)


def test_a_child_forked_while_a_store_is_open_can_open_none(parts: Parts, path: Path) -> None:
    """Its threads would wait in tables that the fork copied with the parent's threads in them."""
    parent, other = os.getpid(), path.with_name("other")

    def open_some() -> None:
        for attempt in (
            lambda: open_store(path),
            lambda: open_store(other),
            lambda: dalsegno.info(str(path)),
            lambda: dalsegno.verify(str(path)),
        ):
            with pytest.raises(dalsegno.UnavailableError, match=f"^process {parent} .*spawn"):
                attempt()

    in_child(open_some)
    assert not other.exists()
    expect_blocks(parts)


def test_a_transfer_in_flight_at_a_fork_ends_only_in_the_parent(path: Path) -> None:
    with dalsegno.open(path, capacity="256MiB", staging="16MiB") as store:
        namespace = store.namespace({"model": "m"}, layers=1, slice_bytes=1 << 20)
        blocks = [bytes(1 << 20)] * 64
        transfer = namespace.submit_put(chain(64), blocks)

        def use_and_drop() -> None:
            nonlocal transfer
            assert transfer.done()
            assert transfer.wait()
            with pytest.raises(dalsegno.UnavailableError, match="forked child"):
                transfer.result()
            del transfer
            gc.collect()

        in_child(use_and_drop)
        assert transfer.wait(60)
        assert transfer.result().stored == 64
    assert dalsegno.verify(str(path))["findings"] == []


def test_a_load_into_pages_ends_only_in_the_parent(tmp_path: Path) -> None:
    layers, size = 4, 1 << 17
    caches = [bytearray(8 * size) for _ in range(layers)]
    memory = dalsegno.PagedMemory(caches, pages=8, stride=size, parts=[(0, size)])
    with open_store(tmp_path / "store", dram="32MiB") as store:
        namespace = store.namespace({"model": "m"}, layers=layers, slice_bytes=size)
        blocks = [os.urandom(layers * size) for _ in range(8)]
        assert namespace.put_batch(chain(8), blocks).stored == 8
        lease = namespace.lease(chain(8))
        load = lease.load(memory.blocks(range(4)))

        def use_and_drop() -> None:
            nonlocal load, lease
            assert load.done()
            assert load.wait()
            load.cancel()
            calls: list[Callable[[], Any]] = [
                load.result,
                lambda: lease.load(memory.blocks(range(4, 8))),  # noqa: F821 - it is deleted below
                lambda: namespace.load(chain(8), memory.blocks(range(4, 8))),
            ]
            for call in calls:
                with pytest.raises(dalsegno.UnavailableError, match="forked"):
                    call()
            assert load.wait_layer(0, timeout_s=1.0) is False
            del load, lease
            gc.collect()

        in_child(use_and_drop)
        assert load.wait(60)
        assert load.result() == 4
        for layer, cache in enumerate(caches):
            at = layer * size
            assert [bytes(cache[page * size : (page + 1) * size]) for page in range(4)] == [
                block[at : at + size] for block in blocks[:4]
            ]
        lease.release()


def test_a_fork_during_calls_of_other_threads_hangs_no_child(parts: Parts, path: Path) -> None:
    """Locks that another thread holds at the fork stay locked in the child forever."""
    parent, ending = os.getpid(), threading.Event()

    def keep_busy(name: str) -> None:
        out = [bytearray(BLOCK) for _ in range(4)]
        while not ending.is_set():
            parts.namespace.put_batch(chain(4, name), BLOCKS)
            parts.namespace.get_batch(chain(4, name), out)
            parts.namespace.get_batch(chain(4, name), out, timeout_s=1.0)
            parts.namespace.remove(chain(4, name))
            parts.store.stats()

    threads = [threading.Thread(target=keep_busy, args=(f"busy {n}",)) for n in range(3)]
    for thread in threads:
        thread.start()

    def use_and_drop() -> None:
        expect_refusals(parts, parent)
        parts.__dict__.clear()
        gc.collect()

    try:
        for _ in range(20):
            in_child(use_and_drop)
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    expect_blocks(parts)
    parts.store.close()
    expect_sound(path)


COMMON = """
import os, sys, dalsegno

def opened(path):
    store = dalsegno.open(path, capacity="16MiB", segment="1MiB", staging="16MiB")
    return store, store.namespace({"model": "m"}, layers=2, slice_bytes=4096)

chain, block = [bytes([n]) * 32 for n in range(4)], bytes(8192)
store, namespace = opened(sys.argv[1])
namespace.put_batch(chain[:2], [block] * 2)
"""

ENDS_NORMALLY = """
writer = namespace.layer_writer(chain[2:3])
put = namespace.submit_put(chain[3:], [block])
assert put.wait()
child = os.fork()
if child == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert put.result().stored == 1
for layer in range(2):
    writer.store_layer(layer, [block[:4096]])
assert writer.commit() == 1
store.close()
store, namespace = opened(sys.argv[1])
assert namespace.contains(chain) == [True] * 4
"""

OPENS_ITS_OWN = """
store.close()
for number in range(20):
    child = os.fork()
    if child == 0:
        store, namespace = opened(sys.argv[1])
        assert namespace.probe(chain) == 2 + number % 2
        assert namespace.put_batch(chain[2:3], [block]).stored == 1 - number % 2
        assert namespace.get_batch(chain, [bytearray(8192) for _ in chain]) == 3
        if number % 2:
            namespace.remove(chain[2:3])
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store, namespace = opened(sys.argv[1])
    assert namespace.probe(chain) == 3 - number % 2
    store.close()
"""


@pytest.mark.parametrize("script", [ENDS_NORMALLY, OPENS_ITS_OWN], ids=["ends", "opens its own"])
def test_a_forked_child_exits_immediately_and_prints_nothing(script: str, path: Path) -> None:
    """Also one that was forked while no store was open, and opened the store itself."""
    command = [sys.executable, "-W", "ignore", "-c", COMMON + script, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert dalsegno.verify(str(path))["findings"] == []
