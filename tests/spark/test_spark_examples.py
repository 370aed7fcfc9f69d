"""The examples with Spark run to their ends, the notebook too, and find everything right.

Each is a process of its own, as a user would start it; it checks its own results and exits with an error otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[2] / "examples" / "spark"
EXAMPLES = sorted(DIRECTORY.glob("*.py"))
NOTEBOOKS = sorted(DIRECTORY.glob("*.ipynb"))


def test_there_are_examples() -> None:
    assert EXAMPLES
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path) -> None:
    done = _run(str(example))
    assert "right: " in done.stdout
    assert "WRONG" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    program = tmp_path / f"{notebook.stem}.py"
    program.write_text("\n".join(_code_cells(notebook)), encoding="utf-8")
    assert _run(str(program)).stdout.strip()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(notebook: Path) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    for cell in content["cells"]:
        assert cell["cell_type"] != "code" or (cell["outputs"], cell["execution_count"]) == ([], None)


def _code_cells(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def _run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done
