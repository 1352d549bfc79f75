"""Models in the cache of the hub's client: what is certain of them by their names."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from tests.file_clock import now_ns

pytest.importorskip("vllm")

from dalsegno.integrations.common.model_files import ModelFiles

pytestmark = pytest.mark.engine
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER_NS = 1 << 62


class Hub:
    """A cache of the hub's client with one model."""

    def __init__(self, root: Path) -> None:
        self.model = root / "models--org--name"
        self.snapshot = self.model / "snapshots" / COMMIT
        for part in ("blobs", "refs", f"snapshots/{COMMIT}"):
            (self.model / part).mkdir(parents=True)
        (self.model / "refs" / "main").write_text(COMMIT)

    def add(self, name: str, data: bytes, blob: str = "") -> Path:
        """Adds a file as the client downloads it; returns the blob."""
        path = self.model / "blobs" / (blob or hashlib.sha256(data).hexdigest())
        path.write_bytes(data)
        (self.snapshot / name).symlink_to(Path("../../blobs") / path.name)
        return path

    def move(self, blob: Path) -> None:
        """Begins another revision, with the weights of the one before."""
        self.snapshot = self.snapshot.with_name(COMMIT[::-1])
        self.snapshot.mkdir()
        (self.snapshot / "model.safetensors").symlink_to(Path("../../blobs") / blob.name)

    def read(self, since_ns: int, revision: str | None = None) -> tuple[dict[str, str], list[str]]:
        """What is read of the model by its name, and the doubts."""
        files = ModelFiles(since_ns=since_ns)
        return files.of_name("org/name", revision, str(self.model.parent)), files.doubts


class Resolved(str):
    """A revision that the hub's client has looked up."""

    __slots__ = ()
    resolved = COMMIT[::-1]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return Hub(tmp_path / "hub")


def git_name(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def test_files_that_the_engine_downloaded_are_certain_by_their_names(hub: Hub) -> None:
    hub.add("model.safetensors", b"weights")
    hub.add("config.json", b"{}", git_name(b"{}"))
    found, why = hub.read(0)
    assert not why
    assert found["model.safetensors"] == hashlib.sha256(b"weights").hexdigest()


def test_a_blob_that_is_not_what_its_name_says_is_a_doubt_if_it_is_new(hub: Hub) -> None:
    hub.add("model.safetensors", b"weights").write_bytes(b"changed")
    hub.add("config.json", b"{}", git_name(b"{ }"))
    assert len(hub.read(0)[1]) == 2
    assert not hub.read(LATER_NS)[1]


def test_a_new_link_to_an_old_blob_is_a_doubt(hub: Hub) -> None:
    one, two = hub.add("model.safetensors", b"one"), hub.add("unused", b"two")
    began_ns = now_ns(hub.model)
    assert not hub.read(began_ns)[1]
    (hub.snapshot / "model.safetensors").unlink()
    (hub.snapshot / "model.safetensors").symlink_to(Path("../../blobs") / two.name)
    assert one.exists()
    assert "model.safetensors" in hub.read(began_ns)[1][0]


def test_a_new_link_in_an_old_revision_of_one_file_is_a_doubt(hub: Hub) -> None:
    hub.add("model.safetensors", b"one")
    two = hub.model / "blobs" / hashlib.sha256(b"two").hexdigest()
    two.write_bytes(b"two")
    began_ns = now_ns(hub.model)
    (hub.snapshot / "model.safetensors").unlink()
    (hub.snapshot / "model.safetensors").symlink_to(Path("../../blobs") / two.name)
    assert "model.safetensors" in hub.read(began_ns)[1][0]


def test_a_revision_that_was_downloaded_since_may_have_links_to_old_blobs(hub: Hub) -> None:
    blob = hub.add("model.safetensors", b"one")
    began_ns = now_ns(hub.model)
    hub.move(blob)
    hub.add("config.json", b"{}", git_name(b"{}"))
    assert not hub.read(began_ns, COMMIT[::-1])[1]
    # A blob that is not what its name says.
    blob.write_bytes(b"changed")
    assert "model.safetensors" in hub.read(began_ns, COMMIT[::-1])[1][0]


def test_a_branch_that_moved_to_a_revision_with_equal_files_is_certain(hub: Hub) -> None:
    blob = hub.add("model.safetensors", b"one")
    began_ns = now_ns(hub.model)
    hub.move(blob)
    hub.add("README.md", b"a new text")
    (hub.model / "refs" / "main").write_text(COMMIT[::-1])
    assert not hub.read(began_ns)[1]
    hub.add("config.json", b"{}", git_name(b"{}"))
    assert "refs/main" in hub.read(began_ns)[1][0]


def test_a_branch_that_moved_after_the_engine_began_is_a_doubt(hub: Hub) -> None:
    hub.add("model.safetensors", b"one")
    other = hub.snapshot.with_name(COMMIT[::-1])
    other.mkdir()
    began_ns = now_ns(hub.model)
    assert not hub.read(began_ns)[1]
    (hub.model / "refs" / "main").write_text(COMMIT)
    assert "refs/main" in hub.read(began_ns)[1][0]
    assert not hub.read(began_ns, COMMIT)[1]


def test_a_branch_whose_old_revision_was_deleted_is_a_doubt(hub: Hub) -> None:
    blob = hub.add("model.safetensors", b"one")
    began_ns = now_ns(hub.model)
    old = hub.snapshot
    hub.move(blob)
    (hub.model / "refs" / "main").write_text(COMMIT[::-1])
    shutil.rmtree(old)
    assert "refs/main" in hub.read(began_ns)[1][0]
    # The engine downloaded the model as a whole.
    assert not hub.read(0)[1]


def test_one_file_of_a_model_that_the_engine_downloaded_is_certain(hub: Hub) -> None:
    hub.add("model-q4.gguf", b"weights")
    hub.add("config.json", b"{}", git_name(b"{}"))
    files = ModelFiles(since_ns=0)
    found = files.of_path(hub.snapshot / "model-q4.gguf")
    assert set(found) == {"config.json", "model-q4.gguf"}
    assert not files.doubts


def test_a_revision_that_the_engine_has_looked_up_once_is_certain(hub: Hub) -> None:
    blob = hub.add("model.safetensors", b"one")
    began_ns = now_ns(hub.model)
    hub.move(blob)
    hub.add("config.json", b"{}", git_name(b"{}"))
    (hub.model / "refs" / "main").write_text(COMMIT[::-1])
    assert "refs/main" in hub.read(began_ns, "main")[1][0]
    assert not hub.read(began_ns, Resolved("main"))[1]


def test_code_of_the_own_repository_counts_at_its_revision(hub: Hub) -> None:
    hub.add("model.safetensors", b"one")
    files = ModelFiles(since_ns=LATER_NS)
    assert files.code("org/name", None, None) == ""
    hub.add("modeling.py", b"1", git_name(b"1"))
    one = files.code("org/name", None, COMMIT)
    assert one != ""
    (hub.model / "blobs" / git_name(b"1")).write_bytes(b"2")
    assert files.code("org/name", None, COMMIT) != one
    assert not files.doubts
    files.code("org/name", None, COMMIT[::-1])
    assert files.doubts


def test_a_replaced_blob_has_another_hash(hub: Hub) -> None:
    blob = hub.add("model.safetensors", b"one")
    before = hub.read(LATER_NS)[0]
    blob.write_bytes(b"two")
    assert hub.read(LATER_NS)[0] != before
