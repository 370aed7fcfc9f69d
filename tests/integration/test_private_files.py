"""What a server keeps is for the user that it runs as: no file or directory can be read by others unless told so.
Shown with servers that are processes, over every file that they have made, and with directories of looser rights."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.errors import FlussError
from fluss.server.data_dir import DataDirectory
from fluss.testing.cluster import ServerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write_rows(address: str) -> None:
    """Fill a log table and a primary-key table, so that there are files of every kind."""
    with blocking.FlussConnection.create(fluss.Config({"bootstrap.servers": address})) as connection:
        admin = connection.get_admin()
        for name, keys in (("log", []), ("keyed", ["id"])):
            path = fluss.TablePath("fluss", name)
            admin.create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA, primary_keys=keys), bucket_count=2))
            table = connection.get_table(path)
            writing = table.new_upsert() if keys else table.new_append()
            with writing.create_writer() as writer:
                for number in range(2000):
                    (writer.upsert if keys else writer.append)([number, "x" * 100])


def entries(directory: Path) -> tuple[set[int], set[int]]:
    """Return the modes of all directories and of all files."""
    directories, files = {mode_of(directory)}, set()
    for path in directory.rglob("*"):
        (directories if path.is_dir() else files).add(mode_of(path))
    return directories, files


@pytest.fixture(autouse=True)
def loose_umask():
    """Others may read what this process makes, unless it says otherwise."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_nothing_that_a_server_makes_can_be_read_by_others(tmp_path: Path) -> None:
    data_dir = tmp_path / "new" / "data"
    with ServerProcess(data_dir, "-D", "durability=os") as server:
        write_rows(server.bootstrap_servers)
        assert entries(data_dir) == ({0o700}, {0o600})
        server.restart()
        assert server.stop() == 0
        assert entries(data_dir) == ({0o700}, {0o600})
        server.start()


@pytest.mark.parametrize("process", [False, True], ids=["thread", "child"])
def test_the_directory_of_an_embedded_server_is_closed_to_others(tmp_path: Path, process: bool) -> None:
    data_dir = tmp_path / "data"
    with embedded.start({"durability": "os"}, data_dir=data_dir, process=process) as server:
        write_rows(server.address())
        directories, files = entries(data_dir)
        assert mode_of(data_dir) == 0o700
        if process:
            assert (directories, files) == ({0o700}, {0o600})
    assert os.umask(0o022) == 0o022, "the program's own files are none of the server's business"


def test_the_group_may_read_if_the_option_says_so(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with ServerProcess(data_dir, "-D", "durability=os", "-D", "data.dir.mode=0750") as server:
        write_rows(server.bootstrap_servers)
        directories, files = entries(data_dir)
    assert directories == {0o750}
    assert files == {0o640, 0o600}, "the metadata, which may hold passwords, is for its owner in any case"
    assert mode_of(data_dir / "metadata.sqlite") == 0o600


def test_a_directory_that_lets_others_in_is_closed(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o755)
    with ServerProcess(data_dir) as server:
        assert mode_of(data_dir) == 0o700
        assert "had mode 0755 and has 0700 now" in server.log_text
        server.stop()
        # A stricter one is left alone.
        data_dir.chmod(0o700)
        server.start()
        assert server.log_text.count("had mode") == 1


@pytest.mark.parametrize("text", ["0600", "0077", "rwx", "0o700", "17777"])
def test_permissions_that_lock_the_server_out_or_are_none_are_refused(text: str) -> None:
    with pytest.raises(FlussError, match="permissions in octal"):
        embedded.EmbeddedServer({"data.dir.mode": text}).start()


@pytest.mark.parametrize("name", [".lock", "flussbett-format.tmp"])
def test_links_that_others_have_put_there_are_not_followed(tmp_path: Path, name: str) -> None:
    victim, data_dir = tmp_path / "victim", tmp_path / "data"
    victim.write_text("precious")
    data_dir.mkdir()
    (data_dir / name).symlink_to(victim)
    with pytest.raises(FlussError):
        DataDirectory.acquire(data_dir)
    assert victim.read_text() == "precious"
