"""Every way to a store: processes that die, own the directory, or find no place for one."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.contract.places import Place, fill, holds, right_or_missing
from tests.contract.routes import Session
from tests.contract.subjects import chain
from tests.outside import another_process

import dalsegno

# Prints each prompt that is kept, until it is killed.
CHILD = """
import sys
from pathlib import Path
from tests.contract.places import Place, fill
from tests.contract.routes import routes
from tests.contract.subjects import chain
route = next(one for one in routes(sys.argv[1]) if one.name == sys.argv[2])
session = Place(route, Path(sys.argv[3])).open()
for number in range(1_000_000):
    assert all(fill(session, chain(6, f"{number}.")))
    print("kept", number, flush=True)
"""


@pytest.mark.starts_engine
def test_a_killed_process_loses_no_acknowledged_block(place: Place) -> None:
    command = [sys.executable, "-c", CHILD, place.engine, place.route.name, str(place.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        result = 0
        # An engine may print lines of its own.
        for line in child.stdout:
            result += line.startswith("kept")
            if result == 20:
                break
        child.kill()
    assert result == 20, "the process ended by itself"
    with place.open() as session:
        for number in range(20):
            prompt = chain(6, f"{number}.")
            holds(session, prompt, prompt)
        for number in range(20, 300):
            right_or_missing(session, chain(6, f"{number}."))
        assert all(fill(session, chain(6)))
        holds(session, chain(6), chain(6))


@contextmanager
def said() -> Iterator[list[str]]:
    """What is logged meanwhile, by whatever logger and handled by whomever."""
    texts: list[str] = []
    before = logging.getLogRecordFactory()

    def note(*arguments: object, **more: object) -> logging.LogRecord:
        record: logging.LogRecord = before(*arguments, **more)
        texts.append(record.getMessage())
        return record

    logging.setLogRecordFactory(note)
    try:
        yield texts
    finally:
        logging.setLogRecordFactory(before)


def opened_or_logged(place: Place, texts: list[str]) -> Session | None:
    """A session that must do without a store, or the error instead of one."""
    try:
        return place.open()
    except dalsegno.UnavailableError as error:
        texts.append(str(error))
        return None


def has_nothing(session: Session, prompt: list[bytes]) -> None:
    """Asserts that a session without a store answers everything, with misses."""
    assert session.counters() == {}
    assert session.probe(prompt) == 0
    assert session.get(prompt) == [None] * len(prompt)
    assert fill(session, prompt) == [False] * len(prompt)
    assert session.interrupted_get(prompt) == [None] * len(prompt)
    session.clear()


def test_a_directory_that_another_process_owns_is_a_miss_and_the_log_names_the_owner(
    place: Place,
) -> None:
    prompt = chain(5)
    with place.open() as session:
        assert all(fill(session, prompt))
    with another_process(place.directory, capacity="24MiB") as (owner, result), said() as texts:
        assert result == "opened\n"
        command = Path(f"/proc/{owner.pid}/comm").read_text().strip()
        session_without = opened_or_logged(place, texts)
        if session_without is not None:
            with session_without:
                has_nothing(session_without, prompt)
        assert any(f"in use by pid {owner.pid} ({command}) on " in text for text in texts)
    with place.open() as session:
        holds(session, prompt, prompt)


def test_a_directory_that_cannot_be_created_is_a_miss_and_the_log_names_it(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    nowhere = Place(place.route, tmp_path / "file" / "store", place.engine)
    with said() as texts:
        session = opened_or_logged(nowhere, texts)
        if session is not None:
            with session:
                has_nothing(session, chain(3))
    assert any(str(nowhere.path) in text for text in texts)
