"""The settings of a new session, and what is said about a session that runs already. No session is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fluss.errors import FlussError
from fluss.memory import machine_memory_bytes
from fluss.spark.session import check_pyspark, running
from fluss.spark.session.noise import without_noise
from fluss.spark.session.start import (
    format_settings,
    is_local,
    local_master,
    new_session_settings,
)

GIB = 1024**3


def settings(tmp_path: Path, master: str | None = "local[3,4]", **config: str) -> dict[str, str]:
    config = {key.replace("_", "."): value for key, value in config.items()}
    return new_session_settings("test", master, config, directory=tmp_path, memory_bytes=16 * GIB)


def test_tasks_of_a_local_session_are_tried_again(tmp_path: Path) -> None:
    assert local_master(3) == "local[3,4]"
    assert local_master(None).endswith(",4]")


@pytest.mark.parametrize(("version", "is_enough"), [("4.0.5", False), ("4.1.0", True), ("4.10.0.dev1", True)])
def test_a_version_of_spark_that_is_too_old_is_named(
    version: str, is_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    if is_enough:
        check_pyspark()
        return
    with pytest.raises(ImportError, match=rf"need PySpark 4\.1 or newer, and this is {version}"):
        check_pyspark()


@pytest.mark.parametrize("cores", [0, -1])
def test_a_session_needs_a_core(cores: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        local_master(cores)


def test_workers_talk_through_unix_sockets(tmp_path: Path) -> None:
    assert settings(tmp_path)["spark.python.unix.domain.socket.enabled"] == "true"


def test_batches_are_bounded_by_rows_since_counting_bytes_takes_spark_longer_than_writing(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    # Only with this very number does Spark not look at the bytes.
    assert chosen["spark.sql.execution.arrow.maxBytesPerBatch"] == "2147483647"
    assert chosen["spark.sql.execution.arrow.maxRecordsPerBatch"] == "16384"
    own = {"spark.sql.execution.arrow.maxBytesPerBatch": "64m"}
    given = new_session_settings("test", "local[1,4]", own, directory=tmp_path, memory_bytes=GIB)
    assert given["spark.sql.execution.arrow.maxBytesPerBatch"] == "64m"


def test_nothing_is_put_into_the_current_directory(tmp_path: Path) -> None:
    assert settings(tmp_path)["spark.sql.warehouse.dir"] == str(tmp_path / "warehouse")


def test_there_are_as_many_shuffle_tasks_as_cores(tmp_path: Path) -> None:
    assert settings(tmp_path)["spark.sql.shuffle.partitions"] == "3"
    assert settings(tmp_path, "local")["spark.sql.shuffle.partitions"] == "1"
    assert settings(tmp_path, "local-cluster[2,3,1024]")["spark.sql.shuffle.partitions"] == "6"
    assert int(settings(tmp_path, "local[*,4]")["spark.sql.shuffle.partitions"]) >= 1


def test_a_local_cluster_must_say_how_large_it_is(tmp_path: Path) -> None:
    with pytest.raises(FlussError, match="executors, cores of each"):
        settings(tmp_path, "local-cluster[2]")


@pytest.mark.parametrize(("memory_gib", "driver"), [(2, "1g"), (8, "2g"), (64, "4g")])
def test_the_driver_gets_a_fourth_of_the_memory(tmp_path: Path, memory_gib: int, driver: str) -> None:
    chosen = new_session_settings("test", "local[1,4]", {}, directory=tmp_path, memory_bytes=memory_gib * GIB)
    assert chosen["spark.driver.memory"] == driver


def test_the_machine_has_some_memory() -> None:
    assert machine_memory_bytes() > GIB // 4


def test_a_cluster_decides_about_its_own_network_and_memory(tmp_path: Path) -> None:
    chosen = settings(tmp_path, "spark://host:7077")
    assert not is_local("spark://host:7077")
    assert not {"spark.driver.host", "spark.driver.memory", "spark.sql.warehouse.dir"} & chosen.keys()


def test_under_spark_submit_the_master_and_the_log_stay_as_they_are(tmp_path: Path) -> None:
    assert not {"spark.master", "spark.driver.extraJavaOptions"} & settings(tmp_path, None).keys()


def test_what_the_user_says_wins(tmp_path: Path) -> None:
    assert settings(tmp_path, spark_ui_enabled="true")["spark.ui.enabled"] == "true"


def test_the_log_has_errors_only(tmp_path: Path) -> None:
    option = settings(tmp_path)["spark.driver.extraJavaOptions"]
    file = Path(option.rpartition("-Dlog4j2.configurationFile=file://")[2])
    assert "rootLogger.level = error" in file.read_text(encoding="utf-8")


def test_java_options_of_the_user_are_kept_and_log_settings_of_the_user_replace_ours(tmp_path: Path) -> None:
    both = settings(tmp_path, **{"spark.driver.extraJavaOptions": "-Xss4m"})["spark.driver.extraJavaOptions"]
    assert both.startswith("-Xss4m ")
    assert " -Dlog4j2.configurationFile=" in both
    own = "-Dlog4j2.configurationFile=file:/mine"
    assert settings(tmp_path, **{"spark.driver.extraJavaOptions": own})["spark.driver.extraJavaOptions"] == own


def test_settings_become_text() -> None:
    assert format_settings({"a": True, "b": 3, "c": "x"}) == {"a": "true", "b": "3", "c": "x"}
    with pytest.raises(TypeError, match="'a': list"):
        format_settings({"a": []})


def test_this_interpreter_can_be_a_worker() -> None:
    assert running._problem_of(sys.executable) is None


def test_an_interpreter_has_several_names_in_its_environment(tmp_path: Path) -> None:
    for environment in ("one", "other"):
        (tmp_path / environment).mkdir()
        for name in ("python", "python3"):
            (tmp_path / environment / name).symlink_to(sys.executable)
    one, other = tmp_path / "one", tmp_path / "other"
    assert running._is_same_interpreter(str(one / "python3"), str(one / "python"))
    assert not running._is_same_interpreter(str(other / "python"), str(one / "python"))
    assert not running._is_same_interpreter("no-such-python", str(one / "python"))


def test_an_interpreter_that_is_missing_or_lacks_this_package_is_found_out(tmp_path: Path) -> None:
    assert running._problem_of(str(tmp_path / "python")) == "which does not exist"
    bare = tmp_path / "python"
    # Without site packages: as an interpreter in which nothing is installed.
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n', encoding="ascii")
    bare.chmod(0o755)
    problem = running._problem_of(str(bare))
    assert problem is not None
    assert "cannot be imported (ModuleNotFoundError" in problem


def run_python(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_does_not_import_pyspark() -> None:
    program = "import sys, fluss.spark; print('pyspark' in sys.modules, callable(fluss.spark.session))"
    assert run_python(program).split() == ["False", "True"]


def test_without_pyspark_there_is_a_word_about_how_to_install_it() -> None:
    program = """
import sys
sys.modules["pyspark"] = None  # as if it were not installed
import fluss.spark
for use in (fluss.spark.session, lambda: fluss.spark.FlussSpark):
    try:
        use()
    except ImportError as error:
        print(error)
"""
    assert run_python(program).count('pip install "flussbett[spark]"') == 2


def test_the_function_is_not_hidden_by_the_module_of_its_name() -> None:
    program = "import fluss.spark.session; from fluss.spark import session; print(callable(session))"
    assert run_python(program).strip() == "True"


DAEMON = b'  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager\n'
TRACEBACK = b"Traceback (most recent call last):\n"
BROKEN_PIPE = b"BrokenPipeError: [Errno 32] Broken pipe\n"


def test_noise_is_left_out_of_what_spark_says() -> None:
    said = [
        b"WARNING: Using incubator modules: jdk.incubator.vector\n",
        b"one\n",
        TRACEBACK,
        DAEMON,
        BROKEN_PIPE,
        b"two",
    ]
    assert list(without_noise(said)) == [b"one\n", b"two"]


def test_tracebacks_that_mean_something_are_passed_on_whole() -> None:
    frame = b'  File "/x/user.py", line 1, in f\n'
    for said in (
        [TRACEBACK, DAEMON, b"ValueError: x\n", b"after\n"],
        [TRACEBACK, frame, BROKEN_PIPE, b"after\n"],
        [b"  indented\n", b"plain\n"],
        [TRACEBACK, DAEMON],
    ):
        assert list(without_noise(said)) == said


def test_the_traceback_of_a_stream_that_was_stopped_is_left_out_and_what_follows_is_not() -> None:
    said = b"""one
Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.py", line 265, in main
  File "/x/pyspark.zip/pyspark/serializers.py", line 604, in read_int
EOFError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/worker_util.py", line 253, in get_sock_file_to_executor
  File "/y/python3.11/socket.py", line 724, in write
    return self._sock.send(b)
BrokenPipeError: [Errno 32] Broken pipe

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
BrokenPipeError: [Errno 32] Broken pipe
two
"""
    assert list(without_noise(said.splitlines(keepends=True))) == [b"one\n", b"two\n"]
    own = b"""Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/worker.py", line 1, in main
EOFError

Traceback (most recent call last):
  File "/home/me/job.py", line 3, in send
BrokenPipeError: [Errno 32] Broken pipe
"""
    assert list(without_noise(own.splitlines(keepends=True))) == own.splitlines(keepends=True)
