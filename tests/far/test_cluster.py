"""Everything that belongs to a cluster ends with it, also if the tests are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.skipping import skip_if_missing

from dalsegno_bench.shared_fs.cluster import ClusterError, opened, sweep
from dalsegno_bench.shared_fs.kinds import KINDS, MORE_KINDS, missing
from dalsegno_bench.shared_fs.mounts import mounts_env
from dalsegno_bench.shared_fs.processes import mounts_in, paused, processes_of, until

# A server that detaches a child, as glusterd does with its bricks.
DETACHING = "setsid --fork sleep 1000; exec sleep 1000"

# Opens a cluster or mounts a file system, says where, and waits to be killed.
OWNER = """
import sys
from dalsegno_bench.shared_fs.cluster import opened
from tests.far.shared_fs import mounted

if sys.argv[1] == "servers":
    with opened("test") as cluster:
        cluster.start("one", "sh", "-c", sys.argv[2])
        print(cluster.folder, flush=True)
        sys.stdin.read()
else:
    with mounted(sys.argv[1]) as fs:
        fs.storage[0].pause()
        print(fs.cluster.folder, flush=True)
        sys.stdin.read()
"""


@contextmanager
def another_owner(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a cluster, and the folder of the cluster."""
    command = [sys.executable, "-c", OWNER, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as owner:
        assert owner.stdout is not None
        try:
            folder = Path(owner.stdout.readline().strip())
            assert folder.is_absolute(), "the owner failed"
            yield owner, folder
        finally:
            owner.kill()


def test_processes_that_a_server_detached_end_with_the_cluster() -> None:
    with opened("test") as cluster:
        server = cluster.start("one", "sh", "-c", DETACHING)
        until("both run", lambda: len(processes_of(cluster.folder)) == 2)
        server.pause()
    assert processes_of(cluster.folder) == []
    assert not cluster.folder.exists()


def test_a_cluster_ends_when_its_block_fails() -> None:
    folders = []

    def fail() -> None:
        with opened("test") as cluster:
            folders.append(cluster.folder)
            cluster.start("one", "sleep", "1000")
            cluster.run("false")

    with pytest.raises(ClusterError):
        fail()
    assert processes_of(folders[0]) == []
    assert not folders[0].exists()


def test_a_paused_server_is_running_and_a_killed_one_is_not() -> None:
    with opened("test") as cluster:
        server = cluster.start("one", "sleep", "1000")
        status = Path(f"/proc/{server.pid}/stat")
        with paused(server):
            assert server.is_running()
            assert " T " in status.read_text()
        until("it goes on", lambda: " T " not in status.read_text())
        server.kill()
        assert not server.is_running()
        server.kill()


def test_a_server_that_fails_is_named_with_its_log() -> None:
    with opened("test") as cluster:
        cluster.start("one", "sh", "-c", "echo no such volume; exit 3")
        with pytest.raises(ClusterError, match=r"one ended before: it listens[^$]*such volume"):
            cluster.wait("it listens", lambda: False)
        with pytest.raises(ClusterError, match="`sh -c echo wrong; exit 1` failed: wrong"):
            cluster.run("sh", "-c", "echo wrong; exit 1")


def test_a_sweep_leaves_the_clusters_of_living_owners_alone() -> None:
    with opened("test") as cluster, another_owner("servers", DETACHING) as (_, folder):
        server = cluster.start("one", "sleep", "1000")
        assert not {folder, cluster.folder} & set(sweep())
        assert folder.exists()
        assert server.is_running()


def test_what_a_killed_owner_left_is_removed_by_the_next_sweep() -> None:
    with another_owner("servers", DETACHING) as (owner, folder):
        until("both run", lambda: len(processes_of(folder)) == 2)
        owner.kill()
        owner.wait()
        # The detached one is left.
        until("its child ends with it", lambda: len(processes_of(folder)) == 1)
        sweep()
    assert processes_of(folder) == []
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gluster_default", "seaweed", *MORE_KINDS])
def test_a_mounted_file_system_of_a_killed_owner_is_removed_with_a_paused_server(kind: str) -> None:
    skip_if_missing(missing(kind), "shared-fs")
    with another_owner(kind) as (owner, folder):
        assert len(mounts_in(folder)) == 2
        owner.kill()
        owner.wait()
        sweep()
    assert processes_of(folder) == []
    assert mounts_in(folder) == []
    assert not folder.exists()


def test_what_is_missing_comes_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name == "setpriv" else None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for kind in KINDS:
        assert missing(kind) is not None or kind == "seaweed"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for kind in KINDS:
        assert missing(kind) == "only root with CAP_SYS_ADMIN may mount a file system"


def test_mounts_are_passed_on_as_pairs() -> None:
    one, two = (Path("/m/a"), Path("/m/b")), (Path("/n/a"), Path("/n/b"))
    assert mounts_env([one]) == {"DALSEGNO_FAR_MOUNTS": "/m/a:/m/b"}
    assert mounts_env([one, two]) == {"DALSEGNO_FAR_MOUNTS": "/m/a:/m/b,/n/a:/n/b"}
    for wrong in ([], [(Path("/m:a"), Path("/m/b"))], [(Path("/m,a"), Path("/m/b"))]):
        with pytest.raises(ValueError, match="expected pairs of paths"):
            mounts_env(wrong)
