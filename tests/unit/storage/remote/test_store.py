"""Remote storage in a directory: objects appear whole and stay, failures are retried within limits, rates hold.
The same against a server that speaks S3 is in tests/integration/test_object_stores.py."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fluss.buffers import BytesLike
from fluss.errors import FlussError
from fluss.storage.remote.file_systems import FileSystemOptions, check_location, open_objects, scheme_of
from fluss.storage.remote.objects import ArrowObjects, DirectoryObjects
from fluss.storage.remote.store import CHUNK_BYTES, RemoteStoppedError, RemoteStore, RemoteTraffic
from fluss.storage.vfs import OsFiles
from fluss.testing.faultfs import FaultFiles

ROOT = Path("/remote")


def store_in(files: FaultFiles | OsFiles, root: Path = ROOT, traffic: RemoteTraffic | None = None) -> RemoteStore:
    return RemoteStore(DirectoryObjects(root, files), traffic or RemoteTraffic())


class FlakyObjects:
    """A store that fails as it is told to, and otherwise keeps objects in memory."""

    location = "flaky://bucket"

    def __init__(self, *failures: OSError | int) -> None:
        # An error is raised; a number is how many bytes of the object arrive.
        self.failures = list(failures)
        self.objects: dict[str, bytes] = {}
        self.put_count = 0

    def put(self, path: str, parts: Iterable[BytesLike]) -> None:
        self.put_count += 1
        data = b"".join(map(bytes, parts))
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, OSError):
            raise failure
        self.objects[path] = data if failure is None else data[:failure]

    def size(self, path: str) -> int:
        return len(self.objects[path])

    def is_retriable(self, error: OSError) -> bool:
        return ArrowObjects(None, "", "").is_retriable(error)


def flaky_store(objects: FlakyObjects, pauses: list[float]) -> RemoteStore:
    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    return RemoteStore(objects, RemoteTraffic(wait=wait), rng=random.Random(1))  # type: ignore[arg-type]


def test_an_object_is_written_read_listed_and_removed(tmp_path: Path) -> None:
    store = store_in(OsFiles(), tmp_path)
    store.put("log/a/0/one", b"hello")
    store.put("log/a/1/two", b"")
    assert bytes(store.get("log/a/0/one")) == b"hello"
    assert bytes(store.read("log/a/0/one", 1, 100)) == b"ello"
    assert store.size("log/a/1/two") == 0
    assert sorted(store.names("log/a")) == ["0", "1"]
    assert store.names("log/b") == []
    with pytest.raises(FileNotFoundError):
        store.get("log/a/0/none")
    store.remove("log/a/0/none")
    store.remove_all("log/a/0")
    assert sorted(store.names("log/a")) == ["1"]
    store.remove_all("log/a/1")
    assert store.names("") == [], "directories of which nothing is left are gone, too"
    store.remove_all("log/a/1")


def test_a_file_is_copied_in_pieces(tmp_path: Path) -> None:
    files = OsFiles()
    source = tmp_path / "source"
    data = random.Random(3).randbytes(2 * CHUNK_BYTES + 17)
    source.write_bytes(data + b"not yet part of it")
    traffic = RemoteTraffic()
    store = store_in(files, tmp_path / "remote", traffic)
    store.put_file("x/y.log", files, source, len(data))
    assert bytes(store.get("x/y.log")) == data
    assert (traffic.sent_bytes, traffic.sent_objects, traffic.failures) == (len(data), 1, 0)
    with pytest.raises(FlussError, match="has less than the 99999999 bytes"):
        store.put_file("x/z.log", files, source, 99_999_999)
    assert sorted(store.names("x")) == ["y.log", "z.log.tmp"]


def test_whenever_power_is_lost_an_object_is_whole_or_not_there() -> None:
    for stop_at in range(1, 30):
        files = FaultFiles(seed=stop_at)
        files.stop_after(stop_at)
        is_stored = False
        try:
            store_in(files).put("log/a/object", b"x" * 5000)
            is_stored = True
        except FlussError:
            pass
        files.crash(is_power_lost=True)
        names = store_in(files).names("log/a")
        if is_stored or "object" in names:
            assert bytes(store_in(files).get("log/a/object")) == b"x" * 5000
        if is_stored:
            return
    raise AssertionError("it never succeeded")


def test_what_may_pass_is_tried_again_with_longer_and_longer_pauses() -> None:
    pauses: list[float] = []
    objects = FlakyObjects(OSError("HTTP status 500"), OSError("timeout"), OSError("connection reset"))
    flaky_store(objects, pauses).put("a", b"data")
    assert objects.objects == {"a": b"data"}
    assert len(pauses) == 3
    assert pauses == sorted(pauses)


def test_an_object_that_arrived_cut_off_is_sent_again() -> None:
    objects = FlakyObjects(3)
    flaky_store(objects, []).put("a", b"data")
    assert (objects.put_count, objects.objects["a"]) == (2, b"data")


def test_what_a_failed_attempt_has_sent_does_not_come_after_the_next_one() -> None:
    """File systems of pyarrow complete an object when its stream goes, whatever has happened before."""
    written: list[bytes] = []

    class Stream:
        def __init__(self) -> None:
            self.data = b""

        def write(self, part: bytes) -> None:
            self.data += part

        def close(self) -> None:
            """What there is to do is done when it goes."""

        def __del__(self) -> None:
            written.append(self.data)

    class System:
        def open_output_stream(self, path: str, compression: None) -> Stream:
            return Stream()

        def get_file_info(self, path: str) -> SimpleNamespace:
            return SimpleNamespace(is_file=True, size=len(written[-1]))

    attempts: list[int] = []

    def parts() -> Iterator[bytes]:
        attempts.append(1)
        yield b"one"
        if len(attempts) == 1:
            raise OSError(errno.EIO, "the disk fails")
        yield b"two"

    traffic = RemoteTraffic(wait=lambda _: False)
    RemoteStore(ArrowObjects(System(), "bucket", "s3://bucket"), traffic).put_parts("object", parts, 6)
    assert written == [b"one", b"onetwo"]


def test_retries_have_a_limit_and_the_error_says_what_to_look_at() -> None:
    objects = FlakyObjects(*[OSError("HTTP status 503")] * 100)
    with pytest.raises(FlussError, match=r"cannot write flaky://bucket/a after 4 attempts: .*503; check"):
        flaky_store(objects, []).put("a", b"data")
    assert objects.put_count == 4


@pytest.mark.parametrize("text", ["AWS Error ACCESS_DENIED during PutObject", "NO_SUCH_BUCKET", "HTTP status 403"])
def test_what_a_store_refuses_is_not_tried_again(text: str) -> None:
    objects = FlakyObjects(OSError(text))
    with pytest.raises(FlussError, match=text):
        flaky_store(objects, []).put("a", b"data")
    assert objects.put_count == 1


def test_uploads_keep_to_their_rate_and_end_when_the_server_stops() -> None:
    pauses: list[float] = []
    traffic = RemoteTraffic(1000, wait=lambda seconds: bool(pauses.append(seconds)))
    store = RemoteStore(FlakyObjects(), traffic)  # type: ignore[arg-type]
    for _ in range(5):
        store.put("a", b"x" * 1000)
    # The first one finds the line free; the pauses here take no time, so each waits for all before it.
    assert [round(pause) for pause in pauses] == [1, 2, 3, 4]
    traffic.stop()
    with pytest.raises(RemoteStoppedError):
        store.put("a", b"x")


@pytest.mark.parametrize(
    ("location", "told", "scheme"),
    [
        ("/data/remote/", "/data/remote", "file"),
        ("file:///data/my%20remote", "/data/my remote", "file"),
        ("s3://bucket/path/", "s3://bucket/path", "s3"),
        ("s3a://bucket", "s3a://bucket", "s3a"),
        ("gs://bucket/a", "gs://bucket/a", "gs"),
        ("abfs://c@account.dfs.core.windows.net/a", "abfs://c@account.dfs.core.windows.net/a", "abfs"),
        ("hdfs://name:8020/a", "hdfs://name:8020/a", "hdfs"),
        ("oss://bucket/a", "oss://bucket/a", "oss"),
    ],
)
def test_locations_have_one_form_that_clients_understand(location: str, told: str, scheme: str) -> None:
    assert (check_location(location), scheme_of(told)) == (told, scheme)


@pytest.mark.parametrize(
    "location", ["data/remote", "ftp://host/x", "s3:///x", "file:relative", "s3://user:pw@bucket/x"]
)
def test_other_locations_are_refused(location: str) -> None:
    with pytest.raises(FlussError) as refused:
        check_location(location)
    assert "pw" not in refused.value.message


def test_options_become_those_of_pyarrow_and_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    pafs = pytest.importorskip("pyarrow.fs")
    given: dict[str, object] = {}
    monkeypatch.setattr(pafs, "S3FileSystem", lambda **options: given.update(options))
    options = FileSystemOptions(
        {
            "s3.endpoint": "http://localhost:9000",
            "s3.region": "eu-1",
            "s3.access-key": "id",
            "s3.secret-key": "hush",
            "s3.path.style.access": "false",
        }
    )
    objects = open_objects("s3://bucket/some/where/", options, OsFiles())
    assert objects.location == "s3://bucket/some/where"
    wanted = {
        "access_key": "id",
        "secret_key": "hush",
        "region": "eu-1",
        "endpoint_override": "http://localhost:9000",
        "scheme": "http",
        "force_virtual_addressing": True,
    }
    assert wanted.items() <= given.items()
    assert "hush" not in repr(options)
    open_objects("s3a://bucket", FileSystemOptions({"s3.path.style.access": "true"}), OsFiles())
    assert given["force_virtual_addressing"] is False
    monkeypatch.setattr(pafs, "AzureFileSystem", lambda *account, **options: given.update(options, account=account))
    azure = {
        "fs.azure.account.key": "k",
        "fs.azure.account.oauth2.client.id": "c",
        "fs.azure.account.oauth2.client.secret": "s",
    }
    open_objects("abfs://box@mine.dfs.core.windows.net/a", FileSystemOptions(azure), OsFiles())
    assert {"account": ("mine",), "account_key": "k", "client_id": "c", "client_secret": "s"}.items() <= given.items()


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ossfs", None)
    options = FileSystemOptions(
        {"fs.oss.endpoint": "oss-cn-1", "fs.oss.accessKeyId": "id", "fs.oss.accessKeySecret": "hush"}
    )
    with pytest.raises(FlussError, match="pip install ossfs"):
        open_objects("oss://bucket/a", options, OsFiles())
