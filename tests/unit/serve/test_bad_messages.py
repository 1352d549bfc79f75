"""A client that sends what it should not: the server ends its connection, and serves the others."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.contract.subjects import chain, contents
from tests.served import ServerProcess
from tests.unit.serve import raw
from tests.unit.serve.blocks import BLOCK_BYTES, COUNT, HASHES, LIMIT_S, Blocks, wait_until

WINDOW_BYTES = 4 * BLOCK_BYTES


@pytest.fixture(autouse=True)
def _others_are_served(server: ServerProcess, blocks: Blocks) -> Iterator[None]:
    """Whatever a test sends: the server lives on, and holds nothing for bad connections."""
    yield
    assert server.process.poll() is None
    assert blocks.hits() == COUNT
    wait_until(lambda: server.tenant()["sessions"] == 1, "bad connections are forgotten")
    wait_until(lambda: server.tenant()["leases"] == 0, "leases end")


def malformed(server: ServerProcess) -> int:
    return int(server.tenant()["malformed_sessions"])


def frame(message: bytes, descriptors: int = 0) -> bytes:
    return struct.pack("<IB", len(message), descriptors) + message


FIRST = {
    "garbage": random.Random(1).randbytes(100_000),
    "a frame that is too long": struct.pack("<IB", raw.MOST_BYTES + 1, 0),
    "the longest length": b"\xff" * 5,
    "no hello": frame(raw.STATS),
    "an empty message": frame(b""),
    "an unknown request": frame(raw.varint(99)),
    "a number without end": frame(b"\xff" * 40),
    "descriptors that did not come": frame(raw.hello(), descriptors=1),
}


@pytest.mark.parametrize("sent", FIRST.values(), ids=FIRST)
def test_a_bad_first_message_ends_the_connection(sent: bytes, server: ServerProcess) -> None:
    with raw.Raw(server.path) as bad:
        bad.send_bytes(sent)
        assert bad.has_ended()
    assert malformed(server) == 1


# What a client may not send after its hello; each needs a namespace.
LATER: dict[str, Callable[[bytes], bytes]] = {
    "a second hello": lambda _: raw.hello(),
    "an unknown request": lambda _: raw.varint(14),
    "too many hashes": lambda id_: raw.look(id_, [bytes(32)] * (raw.MOST_HASHES + 1)),
    "a part of a hash": lambda id_: raw.look(id_, [bytes(31)]),
    "a part of a hash to locate": lambda id_: raw.locate(id_, [bytes(33)]),
    "a part of a namespace": lambda id_: raw.look(id_[:9], []),
    "a window without a descriptor": lambda _: raw.WINDOW,
    "a put without a window": lambda id_: raw.put(id_, HASHES[:1]),
    "removals without a watch": lambda _: raw.varint(13),
    "more leases than bytes": lambda _: raw.varint(6) + raw.varint(1 << 62),
}


@pytest.mark.parametrize("case", LATER)
def test_a_bad_message_ends_the_connection(
    case: str, server: ServerProcess, blocks: Blocks
) -> None:
    with raw.greeted(server.path) as bad:
        bad.send(LATER[case](blocks.id))
        assert bad.has_ended()
    assert malformed(server) == 1


def test_random_messages_end_only_their_connection(server: ServerProcess) -> None:
    dice = random.Random(2)
    for _ in range(300):
        with raw.greeted(server.path) as bad:
            request = raw.varint(dice.randrange(14))
            bad.send(request + dice.randbytes(dice.choice([0, 1, 16, 17, 50, 5000])))
            bad.send(raw.hello())
            # An answer or two may come before the end.
            while not bad.has_ended():
                pass
    assert malformed(server) == 300


def test_more_descriptors_than_a_frame_may_have_end_the_connection(server: ServerProcess) -> None:
    with raw.memory_file(WINDOW_BYTES) as file, raw.greeted(server.path) as bad:
        for _ in range(20):
            bad.send(raw.WINDOW, [file] * 5)
        while not bad.has_ended():
            pass
    assert malformed(server) == 1


def test_an_old_version_is_refused_in_words(server: ServerProcess) -> None:
    with raw.Raw(server.path) as old:
        kind, text = old.failure(raw.hello(0))
        assert kind == raw.INCOMPATIBLE
        assert "version 0" in text
        assert "update the client" in text
        # It may say hello again.
        assert old.ask(raw.hello(1))[0] == raw.WELCOME
    with raw.Raw(server.path) as new:
        number, rest = new.ask(raw.hello(1 << 31))
        assert (number, rest[0]) == (raw.WELCOME, 1)
    assert malformed(server) == 0


def test_only_sealed_memory_can_be_a_window(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(WINDOW_BYTES))
    reader, writer = os.pipe()
    plain = [os.open(name, os.O_RDONLY) for name in (tmp_path / "file", "/dev/zero", tmp_path)]
    with (
        raw.memory_file(WINDOW_BYTES, sealed=False) as unsealed,
        raw.greeted(server.path) as bad,
    ):
        for file in (*plain, reader, writer, unsealed, bad.socket.fileno()):
            kind, text = bad.failure(raw.WINDOW, [file])
            assert kind == raw.INVALID
            assert "cannot be read" in text
    for file in (*plain, reader, writer):
        os.close(file)
    assert malformed(server) == 0


@pytest.mark.parametrize(
    "offset", [WINDOW_BYTES, WINDOW_BYTES - BLOCK_BYTES + 1, (1 << 64) - 1, 1 << 63]
)
def test_a_put_behind_the_end_of_its_window_ends_the_connection(
    offset: int, server: ServerProcess, blocks: Blocks
) -> None:
    with raw.memory_file(WINDOW_BYTES) as file, raw.greeted(server.path) as bad:
        assert bad.ask(raw.WINDOW, [file])[0] == raw.DONE
        # What was appended later does not count.
        os.ftruncate(file, 2 * WINDOW_BYTES)
        bad.send(raw.put(blocks.id, chain(1, "bad"), offset=offset))
        assert bad.has_ended()
    assert malformed(server) == 1
    assert blocks.space.contains(chain(1, "bad")) == [False]


def test_a_window_that_is_truncated_during_a_put_keeps_its_bytes(
    server: ServerProcess, blocks: Blocks
) -> None:
    hashes = chain(4, "raw")
    with raw.memory_file(WINDOW_BYTES) as file, raw.greeted(server.path) as client:
        os.pwrite(file, b"".join(contents(hashes, BLOCK_BYTES)), raw.HEADER_BYTES)
        assert client.ask(raw.WINDOW, [file])[0] == raw.DONE
        client.send(raw.put(blocks.id, hashes, count=4))
        # Without the seal the server would read behind the end.
        with pytest.raises(PermissionError):
            os.ftruncate(file, 0)
        assert client.reply() == (raw.PUT, bytes(4))
    out = [bytearray(BLOCK_BYTES) for _ in hashes]
    assert blocks.space.get_batch(hashes, out) == 4
    assert out == contents(hashes, BLOCK_BYTES)


def test_a_put_that_was_given_up_stores_nothing(server: ServerProcess, blocks: Blocks) -> None:
    hashes = chain(2, "late")
    with raw.memory_file(WINDOW_BYTES) as file, raw.greeted(server.path) as client:
        os.pwrite(file, (1).to_bytes(8, "little"), 0)
        assert client.ask(raw.WINDOW, [file])[0] == raw.DONE
        assert client.ask(raw.put(blocks.id, hashes, count=2)) == (raw.PUT, bytes([4, 4]))
        assert blocks.space.contains(hashes) == [False, False]
        assert client.ask(raw.put(blocks.id, hashes, count=2, ticket=1)) == (raw.PUT, bytes(2))


RELEASE = """
import sys
from pathlib import Path
from tests.unit.serve import raw
with raw.greeted(Path(sys.argv[1])) as other:
    other.send(raw.release([*range(100), 1 << 40, (1 << 64) - 1]))
    assert other.ask(raw.look(bytes.fromhex(sys.argv[2]), [])) == (raw.COUNT, b"\\0")
"""


def test_no_process_releases_leases_of_another(server: ServerProcess, blocks: Blocks) -> None:
    with raw.greeted(server.path) as one, raw.greeted(server.path) as other:
        number, rest = one.ask(raw.lease(blocks.id, HASHES))
        assert number == raw.LEASED
        command = [sys.executable, "-c", RELEASE, str(server.path), blocks.space.id]
        subprocess.run(command, cwd=ROOT, check=True, timeout=LIMIT_S)
        assert server.tenant()["leases"] == 1
        # Connections of one process share their leases.
        mine, _ = raw.read_varint(rest)
        other.send(raw.release([mine, mine]))
        assert other.ask(raw.look(blocks.id, HASHES)) == (raw.COUNT, raw.varint(COUNT))
        assert server.tenant()["leases"] == 0
        number, runs = other.ask(raw.locate(blocks.id, HASHES))
        assert (number, len(runs) % 33) == (raw.LOCATED, 0)
        assert sum(runs[at + 1] for at in range(0, len(runs), 33)) == COUNT
    assert malformed(server) == 0


def test_an_unknown_namespace_is_an_error(server: ServerProcess) -> None:
    nobody = bytes(16)
    with raw.memory_file(WINDOW_BYTES) as file, raw.greeted(server.path) as bad:
        assert bad.ask(raw.WINDOW, [file])[0] == raw.DONE
        for message in (
            raw.put(nobody, HASHES[:1]),
            raw.lease(nobody, HASHES),
            raw.acquire(nobody, HASHES),
            raw.locate(nobody, HASHES),
        ):
            assert bad.failure(message)[0] == raw.INVALID
    assert malformed(server) == 0
