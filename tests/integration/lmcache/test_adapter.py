"""What LMCache gets from our adapter when all is well."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("lmcache")

from lmcache.v1.distributed import api
from lmcache.v1.distributed.internal_api import L2AdapterListener
from tests.integration.lmcache.objects import (
    OBJECT_BYTES,
    Driver,
    content,
    filled,
    key,
    keys,
    layout,
    memory,
)

from dalsegno.integrations.lmcache import adapter

if TYPE_CHECKING:
    from dalsegno.integrations.lmcache import DalsegnoL2Adapter

pytestmark = pytest.mark.engine

Make = Callable[..., "DalsegnoL2Adapter"]


class Listener(L2AdapterListener):  # type: ignore[misc]
    """What LMCache's controllers would hear."""

    def __init__(self) -> None:
        self.stored: list[tuple[Any, int]] = []
        self.accessed: list[Any] = []
        self.deleted: list[Any] = []

    def on_l2_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
        self.stored += zip(keys, sizes, strict=True)

    def on_l2_keys_accessed(self, keys: list[Any]) -> None:
        self.accessed += keys

    def on_l2_keys_deleted(self, keys: list[Any]) -> None:
        self.deleted += keys


def test_importing_the_integration_imports_no_engine() -> None:
    code = (
        "import sys, dalsegno.integrations.lmcache as l\n"
        "assert not {'lmcache', 'torch'} & set(sys.modules)\n"
        "sys.modules['lmcache'] = None\n"
        "try:\n    l.DalsegnoL2Adapter\n"
        "except ImportError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "DalsegnoL2Adapter needs LMCache 0.5.6" in said.stdout


@pytest.mark.skipif(not hasattr(api, "MemoryTags"), reason="this LMCache asks for no memory tags")
def test_objects_are_in_storage_which_is_remote_with_a_far_location(
    make_adapter: Make, tmp_path: Path
) -> None:
    (tmp_path / "far").mkdir()
    for settings, residency in (({}, "LOCAL"), ({"far": str(tmp_path / "far")}, "REMOTE")):
        adapter = make_adapter(**settings)
        tags = adapter.get_memory_tags()
        assert tags.segment is api.MemorySegment.STORAGE
        assert tags.residency is api.MemoryResidency[residency]
        adapter.close()


def test_stored_objects_are_found_and_loaded_also_after_a_restart(make_adapter: Make) -> None:
    ours = keys(9)
    adapter = make_adapter()
    driver = Driver(adapter)
    assert driver.lookup(ours) == [False] * 9
    result = driver.store(ours, filled(ours))
    assert (result.is_successful(), result.bytes_transferred()) == (True, 9 * OBJECT_BYTES)
    assert driver.holds(ours) == [True] * 9
    adapter.close()
    # LMCache's bench and its older controllers look up without saying how large objects are.
    for described in (layout(), None):
        driver = Driver(make_adapter())
        assert driver.lookup(ours, described) == [True] * 9
        assert driver.holds([*ours[4:], *keys(2, "b")]) == [True] * 5 + [False] * 2
        driver.adapter.close()


def test_each_task_is_reported_once(make_adapter: Make) -> None:
    ours, driver = keys(2), Driver(make_adapter())
    adapter = driver.adapter
    events = {
        adapter.get_store_event_fd(),
        adapter.get_lookup_and_lock_event_fd(),
        adapter.get_load_event_fd(),
    }
    assert len(events) == 3
    numbers = [adapter.submit_store_task([one], filled([one])) for one in ours]
    results: dict[int, Any] = {}
    while len(results) < 2:
        more = adapter.pop_completed_store_tasks()
        assert not set(more) & set(results)
        results |= more
    assert set(results) == set(numbers)
    number = adapter.submit_load_task(ours, [memory(), memory()])
    assert driver.loaded(number, 2) == [True, True]
    assert adapter.query_load_result(number) is None
    number = adapter.submit_lookup_and_lock_task(ours, {})
    assert adapter.query_lookup_and_lock_result(number).popcount() == 2
    assert adapter.query_lookup_and_lock_result(number) is None
    assert adapter.query_load_result(12345) is None


@pytest.mark.parametrize(
    "change",
    [
        {"model_name": "org/other"},
        {"kv_rank": 0x02010201},
        {"object_group_id": 1},
        {"cache_salt": "tenant"},
    ],
)
def test_a_key_that_differs_in_any_field_is_another_object(
    make_adapter: Make, change: dict[str, Any]
) -> None:
    ours, others, driver = keys(3), keys(3, **change), Driver(make_adapter())
    driver.store(ours, filled(ours))
    assert driver.lookup(others) == [False] * 3
    assert driver.load(others, [memory() for _ in others]) == [False] * 3
    driver.store(others, [memory(content=b"\1" * OBJECT_BYTES) for _ in others])
    assert driver.holds(ours) == [True] * 3


def test_hashes_of_any_length_are_distinguished(make_adapter: Make) -> None:
    driver = Driver(make_adapter())
    # The second and third would be one if fields were joined without their lengths.
    names = [key(b"\1"), key(b"\1\0"), key(b"1\1", cache_salt=""), key(b"\1", cache_salt="1")]
    for number, one in enumerate(names):
        assert driver.store([one], [memory(content=bytes([number]) * OBJECT_BYTES)])
    objects = [memory() for _ in names]
    assert driver.load(names, objects) == [True] * 4
    assert [bytes(one.byte_array)[7] for one in objects] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "other", [{"dtype": "float16"}, {"shape": (2, 4, 16, 32)}, {"shape": (2, 1, 16, 64)}]
)
def test_objects_of_another_layout_are_never_loaded(
    make_adapter: Make, other: dict[str, Any]
) -> None:
    ours, driver = keys(3), Driver(make_adapter())
    driver.store(ours, filled(ours))
    assert driver.load(ours, [memory(**other) for _ in ours]) == [False] * 3
    assert driver.holds(ours) == [True] * 3


def test_objects_of_several_sizes_go_in_one_task(make_adapter: Make) -> None:
    ours, groups = keys(4), [0, 1, 0, 1]
    names = [
        key(one.chunk_hash, object_group_id=group) for one, group in zip(ours, groups, strict=True)
    ]
    objects = [
        memory((4, 8), "float32", bytes([n]) * 128) if n % 2 else filled([ours[n]])[0]
        for n in range(4)
    ]
    driver = Driver(make_adapter())
    assert driver.store(names, objects).bytes_transferred() == 2 * OBJECT_BYTES + 2 * 128
    assert driver.lookup(names) == [True] * 4
    back = [memory((4, 8), "float32") if n % 2 else memory() for n in range(4)]
    assert driver.load(names, back) == [True] * 4
    assert [bytes(one.byte_array) for one in back] == [bytes(one.byte_array) for one in objects]
    assert driver.adapter.report_status()["namespaces"] == 2


def test_stored_objects_are_not_written_again(make_adapter: Make) -> None:
    ours, driver, heard = keys(6), Driver(make_adapter()), Listener()
    driver.store(ours[:4], filled(ours[:4]))
    driver.adapter.register_listener(heard)
    result = driver.store(ours[2:], filled(ours[2:]))
    assert (result.is_successful(), result.bytes_transferred()) == (True, 2 * OBJECT_BYTES)
    assert sorted(size for _, size in heard.stored) == [0, 0, OBJECT_BYTES, OBJECT_BYTES]
    assert driver.store(ours, filled(ours)).bytes_transferred() == 0
    assert driver.adapter.report_status()["store"]["put_stored_blocks"] == 6


def test_a_key_named_twice_in_a_task_is_stored_once(make_adapter: Make) -> None:
    ours, driver = keys(2), Driver(make_adapter())
    twice = [ours[0], ours[1], ours[0]]
    assert driver.store(twice, filled(twice)).is_successful()
    assert driver.holds(twice) == [True] * 3


def test_objects_stay_alive_while_they_move(make_adapter: Make) -> None:
    """regression: LMCache's view of an object does not own its memory, which was freed."""
    ours, driver = keys(64), Driver(make_adapter())
    for _ in range(3):
        number = driver.adapter.submit_store_task(ours, filled(ours))
        assert driver.stored(number).is_successful()
        number = driver.adapter.submit_load_task(ours, [memory() for _ in ours])
        assert driver.loaded(number, 64) == [True] * 64
        driver.forget_all()


def test_deleted_objects_stay_deleted(make_adapter: Make) -> None:
    ours, heard = keys(5), Listener()
    driver = Driver(make_adapter())
    driver.store(ours, filled(ours))
    driver.adapter.register_listener(heard)
    driver.adapter.delete([ours[1], ours[3], *keys(2, "never stored")])
    assert set(heard.deleted) == {ours[1], ours[3]}
    driver.adapter.close()
    driver = Driver(make_adapter())
    assert driver.holds(ours) == [True, False, True, False, True]


def test_usage_counts_what_earlier_processes_stored(make_adapter: Make) -> None:
    ours, salted = keys(4), keys(2, cache_salt="tenant")
    driver = Driver(make_adapter())
    driver.store(ours, filled(ours))
    driver.store(salted, filled(salted))
    usage = driver.adapter.get_usage()
    assert usage.total_bytes_used == 6 * OBJECT_BYTES
    assert usage.bytes_by_cache_salt == {"": 4 * OBJECT_BYTES, "tenant": 2 * OBJECT_BYTES}
    assert usage.total_capacity_bytes == 64 << 20
    driver.adapter.close()
    driver = Driver(make_adapter())
    assert driver.adapter.get_usage().total_bytes_used == 6 * OBJECT_BYTES
    # LMCache's account of this process knows nothing of them and must not fall below zero.
    driver.adapter.delete(ours[:1])
    usage = driver.adapter.get_usage()
    assert usage.total_bytes_used == 5 * OBJECT_BYTES
    assert usage.bytes_by_cache_salt == {}


def test_other_weights_and_salts_share_nothing(make_adapter: Make, tmp_path: Path) -> None:
    ours = keys(3)
    weights = tmp_path / "model"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"one")
    driver = Driver(make_adapter(model=str(weights)))
    driver.store(ours, filled(ours))
    driver.adapter.close()
    for settings in ({"weights_fingerprint": "x"}, {"model": str(weights), "salt": "t"}):
        driver = Driver(make_adapter(**settings))
        assert driver.lookup(ours, layout()) == [False] * 3
        driver.adapter.close()
    driver = Driver(make_adapter(model=str(weights)))
    assert driver.holds(ours) == [True] * 3
    driver.adapter.close()
    (weights / "model.safetensors").write_bytes(b"two")
    assert Driver(make_adapter(model=str(weights))).lookup(ours) == [False] * 3


def test_every_file_of_the_models_folder_separates_objects(
    make_adapter: Make, tmp_path: Path
) -> None:
    ours, folder = keys(2), tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    (folder / "README.md").write_text("one")
    for name in ("config.json", "preprocessor_config.json", "modeling_own.py"):
        (folder / name).write_text("one")
        driver = Driver(make_adapter(model=str(folder)))
        driver.store(ours, filled(ours))
        driver.adapter.close()
        (folder / "README.md").write_text(name)
        driver = Driver(make_adapter(model=str(folder)))
        assert driver.holds(ours) == [True] * 2
        driver.adapter.close()
        (folder / name).write_text("two")
        driver = Driver(make_adapter(model=str(folder)))
        assert driver.lookup(ours) == [False] * 2, name
        driver.adapter.close()


def test_the_log_names_the_files_that_separate_objects(
    make_adapter: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(adapter.logger, "info", lambda text, *of: said.append(text % of))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder := tmp_path / "model").mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    inputs = []
    for text in ("one", "two"):
        (folder / "processor_config.json").write_text(text)
        make_adapter(model=str(folder)).close()
        (file,) = (tmp_path / "cache" / "dalsegno" / "identities").iterdir()
        assert any(str(file) in line and "weights=" in line for line in said)
        inputs.append(set(file.read_text().splitlines()))
        file.unlink()
    differing = {line.split()[1] for line in inputs[0] ^ inputs[1]}
    assert differing == {"weights.processor_config.json"}


def test_objects_are_found_whatever_codec_stored_them(make_adapter: Make) -> None:
    ours = keys(8)
    for number, codec in enumerate(("zstd", "none")):
        driver = Driver(make_adapter(codec=codec))
        mine = ours[number * 4 :][:4]
        driver.store(mine, filled(mine))
        shrunk = driver.adapter.report_status()["store"]["log"]["codec"]["encoded_bytes"]
        assert (shrunk > 0) == (codec == "zstd")
        assert driver.holds(ours[: number * 4 + 4]) == [True] * (number * 4 + 4)
        driver.adapter.close()


def test_threads_share_an_adapter(make_adapter: Make) -> None:
    """LMCache stores and prefetches on two threads; here are six of each."""
    adapter = make_adapter(max_load_tasks=200, max_store_tasks=200)
    prompts = [keys(8, f"prompt {number}") for number in range(6)]
    numbers = [(adapter.submit_store_task(one, filled(one)), one) for one in prompts]
    driver = Driver(adapter)
    wrong: list[Any] = []

    def read(of: list[Any]) -> None:
        for _ in range(20):
            objects = [memory() for _ in of]
            number = adapter.submit_load_task(of, objects)
            while (bitmap := adapter.query_load_result(number)) is None:
                pass
            wrong.extend(
                name
                for place, name in enumerate(of)
                if bitmap.test(place) and bytes(objects[place].byte_array) != content(name)
            )

    threads = [threading.Thread(target=read, args=(one,)) for one in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(numbers) == 6
    assert all(driver.holds(one) == [True] * 8 for one in prompts)


def open_files() -> int:
    """How many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_closing_releases_event_fds_threads_and_the_directory(make_adapter: Make) -> None:
    make_adapter().close()
    before, threads = open_files(), threading.active_count()
    for _ in range(3):
        adapter = make_adapter()
        driver = Driver(adapter)
        driver.store(keys(2), filled(keys(2)))
        adapter.close()
        adapter.close()
        assert adapter.report_status()["is_healthy"] is False
    assert (open_files(), threading.active_count()) == (before, threads)
