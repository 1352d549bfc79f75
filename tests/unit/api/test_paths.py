"""Paths as people type them: what is meant is opened, and what is no path is refused."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dalsegno
from dalsegno.demo import model
from dalsegno.integrations.common.cache_folder import cache_directory
from dalsegno.integrations.lmcache.settings import AdapterSettings
from dalsegno.integrations.sglang.settings import HiCacheSettings
from dalsegno.integrations.vllm.settings import TierSettings
from dalsegno.paths import local_path, store_path

WRONG = [
    ("nfs://host/kv", "an address; give a directory here"),
    ("fs://host/kv", "an address"),
    ("tcp://localhost:5555", "an address"),
    ("http://x/kv", "an address"),
    ("s3:/bucket", "an address"),
    ("nas.local:/export/kv", "mount what is there"),
    ("file:///mnt/kv", "did you mean '/mnt/kv'"),
    ("FILE:/mnt/kv", "did you mean '/mnt/kv'"),
    ("UNIX:/run/kv", "did you mean 'unix:/run/kv'"),
    ("unix:", "the path of the server's socket after it"),
    ("unix://run/kv", "did you mean 'unix:/run/kv'"),
    ("unix:$KV/socket", r"does not replace '\$KV'"),
    ("$HOME/kv", r"does not replace '\$HOME'"),
    ("${KV_DIR}", r"does not replace '\$\{KV_DIR\}'"),
    ("$(pwd)/kv", "does not replace"),
    ("/kv/{{ .Values.path }}", "does not replace"),
    ("/kv/{rank}", "does not replace"),
    ("/kv/%(user)s", "does not replace"),
    ("%USERPROFILE%/kv", "does not replace"),
    ("/<your directory>", "does not replace"),
    ("~nobody-of-that-name/kv", "has no user 'nobody-of-that-name'"),
    ("kv ", "did you mean 'kv'"),
    (" kv", "did you mean 'kv'"),
    ("kv\n", "did you mean 'kv'"),
    ("  ", "only space"),
    ("k\tv", "control characters"),
    ("a\0b", "zero byte"),
]
RIGHT = ["./kv", "kv", "./s3:/kv", "/kv: a", "Schlüssel-日本-🎼", "a$", "50%", "a<b", "unix:/kv"]


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_what_is_no_path_is_refused_with_what_was_meant(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = pytest.raises(dalsegno.InvalidError, match=says)
    with refused:
        dalsegno.open(text)
    for settings in (TierSettings, HiCacheSettings, AdapterSettings):
        with refused:
            settings.parse({"path": text, "weights_fingerprint": "w"})
    if not text.lower().startswith("unix:"):
        with refused:
            dalsegno.open("kv", capacity="64MiB", far=text)
        with refused:
            TierSettings.parse({"path": "/kv", "far": text})
        with refused:
            AdapterSettings.parse({"path": "/kv", "model": text})
    assert not list(tmp_path.iterdir())


def test_a_bucket_is_a_far_location_and_no_directory(tmp_path: Path) -> None:
    url = "s3://bucket/kv"
    with pytest.raises(dalsegno.InvalidError, match="an address; give a directory here"):
        dalsegno.open(url)
    with pytest.raises(dalsegno.InvalidError, match="an address; give a directory here"):
        TierSettings.parse({"path": url})
    assert TierSettings.parse({"path": "/kv", "far": url}).far == url
    for wrong in ("s3://", "s3://KEY:SECRET@bucket/kv", "az://kv/x?sig=SECRET"):
        with pytest.raises(dalsegno.InvalidError, match="URL of an object store") as refused:
            dalsegno.open(tmp_path / "kv", capacity="64MiB", far=wrong)
        assert "SECRET" not in str(refused.value)
    given = {"secret_access_key": "SECRET"}
    with pytest.raises(dalsegno.InvalidError, match="far_options") as refused:
        dalsegno.open(tmp_path / "kv", capacity="64MiB", far=url, far_options=given)
    assert "SECRET" not in str(refused.value) + str(refused.value.__cause__)
    assert not list(tmp_path.iterdir())


def test_an_empty_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dalsegno.InvalidError, match="the path is empty"):
        dalsegno.open("")
    with pytest.raises(dalsegno.InvalidError, match="far is empty"):
        dalsegno.open("kv", far="")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", RIGHT)
def test_other_paths_are_kept_as_they_are(text: str) -> None:
    prefix = "unix:" if text.startswith("unix:") else ""
    assert store_path(text) == prefix + str(Path(text.removeprefix(prefix)).absolute())


def test_a_later_change_of_the_directory_changes_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "else" / "where").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    config = '{"capacity": "24MiB", "segment": "1MiB", "staging": "16MiB", "far": "far"}'
    chain = [bytes(31) + bytes([one]) for one in range(2)]
    with dalsegno._native.Store("kv", config) as store:
        client = dalsegno.open("unix:serve/socket")
        monkeypatch.chdir("else/where")
        assert store.path == str(tmp_path / "kv")
        assert client.path == f"unix:{tmp_path}/serve/socket"
        client.close()
        space = store.namespace({"m": "1"}, layers=1, slice_bytes=4096)
        assert space.put_batch(chain, [bytes(4096)] * 2).stored == 2
        assert store.stats()["far"] is not None
    assert dalsegno.info(tmp_path / "kv")["blocks"] == 2
    assert not list((tmp_path / "else" / "where").iterdir())


def test_a_path_relative_to_a_directory_that_is_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(dalsegno.InvalidError, match="is gone"):
        dalsegno.open("kv")
    with pytest.raises(dalsegno.InvalidError, match="is gone"):
        dalsegno._native.Store("kv", "{}")


@pytest.mark.parametrize("text", ["unix:/run/kv", "unix:kv"])
def test_a_socket_in_the_place_of_a_directory_is_refused(text: str) -> None:
    for call in (dalsegno.info, dalsegno.verify, lambda one: dalsegno.Server(one, "{}")):
        with pytest.raises(dalsegno.InvalidError, match="give the directory that the server owns"):
            call(text)
    with pytest.raises(dalsegno.InvalidError, match="give the directory that it owns"):
        local_path(text)


def test_a_socket_is_no_directory() -> None:
    with pytest.raises(dalsegno.InvalidError, match="'unix:/run/kv', the socket of a"):
        local_path("unix:/run/kv", "far")


def test_names_that_are_not_text_are_paths() -> None:
    name = os.fsdecode(b"/kv/\xff")
    assert str(local_path(name)) == name
    with pytest.raises(dalsegno.InvalidError, match="no file system can store"):
        local_path("\ud800")
    with pytest.raises(dalsegno.InvalidError, match="salt is"):
        TierSettings.parse({"path": "/kv", "salt": "\ud800"})


@pytest.mark.parametrize("command", ["info", "ls", "verify", "serve"])
def test_the_command_line_refuses_an_address(command: str, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "dalsegno.cli", command, "nfs://host/kv"]
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "an address" in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_a_home_only_paths_that_name_it_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container whose user id has no entry in the password database, and no HOME."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert cache_directory() is None
    for settings in (TierSettings, HiCacheSettings, AdapterSettings):
        given = {"path": "/kv", "weights_fingerprint": "w"}
        assert settings.parse(given).path == Path("/kv")
        with pytest.raises(dalsegno.InvalidError, match="home directory is unknown"):
            settings.parse({**given, "path": "~/kv"})
    with pytest.raises(dalsegno.InvalidError, match="home directory is unknown"):
        dalsegno.open("~/kv")
    with pytest.raises(model.ModelError, match="name a folder"):
        model.default_folder()


@pytest.mark.parametrize(
    "settings",
    [{"capacity": 0}, {"capacity": "64MiB", "far": "missing"}, {"capacity": "64MiB", "index": "x"}],
)
def test_a_refused_store_leaves_no_directory(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dalsegno.DalsegnoError):
        dalsegno.open("a/b/kv", **settings)
    assert not list(tmp_path.iterdir())
    (tmp_path / "kept").mkdir()
    with pytest.raises(dalsegno.DalsegnoError):
        dalsegno.open("kept/kv", **settings)
    assert not list((tmp_path / "kept").iterdir())
