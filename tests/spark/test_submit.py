"""A program that is submitted with a packed environment finds this package on executors that have none.
Shown with spark-submit and executors of their own, whose only Python with the package is the one that was sent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from fluss import blocking
from tests.spark.sessions import make_home

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 1800
PROGRAM = """
import sys
from fluss.spark import FlussSpark, session

servers, database = sys.argv[1:]
spark = session()
fs = FlussSpark(spark, bootstrap_servers=servers)
fs.catalog.create_table(f"{database}.t", "id BIGINT", bucket_count=2)
fs.write(spark.range(0, 1000, 1, 4), f"{database}.t")


def where(rows):
    import fluss
    yield fluss.__file__, sum(1 for _ in rows)


print("read", fs.read(f"{database}.t").count())
print("files", {file for file, _ in spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).collect()})
spark.stop()
"""


@pytest.fixture
def packed_environment(tmp_path: Path) -> Path:
    """A directory with an environment that has the package, and the archive of it, as the guide makes them."""
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "environment"], cwd=tmp_path, check=True)
    # What is installed is a copy, as that of a user: the tree is not there on other machines.
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT), "pandas"]
    installed = subprocess.run([*install, "venv-pack", "setuptools<81"], capture_output=True, text=True)
    if installed.returncode != 0:
        pytest.skip(f"an environment cannot be made without a package index: {installed.stderr[-500:]}")
    pack = [str(python), "-m", "venv_pack", "-p", "environment", "-o", "environment.tar.gz"]
    subprocess.run(pack, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(_TIMEOUT_S)
def test_executors_use_the_environment_that_a_program_brings_along(
    packed_environment: Path,
    tmp_path_factory: pytest.TempPathFactory,
    connection: blocking.FlussConnection,
    bootstrap_servers: str,
    database: str,
) -> None:
    (packed_environment / "program.py").write_text(PROGRAM)
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "PYTHON", "SPARK"))}
    # A home of its own, because executors leave their directories in it.
    home = make_home(tmp_path_factory.mktemp("spark-home"))
    (home / "python").symlink_to(Path(pyspark.__file__).parent / "python")
    submit = str(home / "bin" / "spark-submit")
    options = ["--master", "local-cluster[2,1,1024]", "--driver-memory", "1g"]
    done = subprocess.run(
        [submit, *options, "--archives", "environment.tar.gz#environment", "program.py", bootstrap_servers, database],
        cwd=packed_environment,
        env={**variables, "SPARK_HOME": str(home), "PYSPARK_PYTHON": "./environment/bin/python"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    read, files = done.stdout.splitlines()[-2:]
    assert read == "read 1000"
    # Executors run in directories of their own, where the archive was unpacked.
    assert str(packed_environment) not in files
    assert "environment/lib" in files
    ids = connection.get_table(blocking.TablePath(database, "t")).to_arrow()["id"].to_pylist()
    assert Counter(ids) == Counter(range(1000))
