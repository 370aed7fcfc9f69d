"""The clients that take part in a benchmark: ours and the official ones, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.interop.peers import VERSIONS, peer_python

PROGRAM = Path(__file__).with_name("client_program.py")
TIMEOUT_S = 60
ATTEMPTS = 4


def pythons_of_clients() -> dict[str, str]:
    """Return the interpreter of each client, ours first; the official ones are installed if need be."""
    return {"ours": sys.executable} | {f"pyfluss {name}": str(peer_python(name)) for name in VERSIONS}


def best_of_turns(pythons: dict[str, str], task: dict[str, Any], turns: int) -> dict[str, dict[str, float]]:
    """Let every client run the program, in turns, and keep its fastest figure of each part.

    In turns, because the first one to run finds a server and a machine that have everything still to do.
    """
    best: dict[str, dict[str, float]] = {who: {} for who in pythons}
    for _ in range(turns):
        for who, python in pythons.items():
            for what, seconds in run_client(python, task, who).items():
                best[who][what] = min(seconds, best[who].get(what, seconds))
    return best


def run_client(python: str, task: dict[str, Any], who: str) -> dict[str, float]:
    """Run the program in a process of its own. One of the clients now and then waits for ever; it is tried again."""
    arguments = json.dumps({**task, "table": f"bench_{task['task']}_{who.replace(' ', '_').replace('.', '_')}"})
    for _ in range(ATTEMPTS):
        try:
            done = subprocess.run(
                [python, str(PROGRAM), arguments], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            continue
        # One of them now and then dies of a signal at the very end, when it has said everything.
        if done.returncode > 0 or not done.stdout:
            raise RuntimeError(f"{who} failed with {done.returncode}:\n{done.stderr}")
        seconds: dict[str, float] = json.loads(done.stdout)
        return seconds
    where = f"{task['task']} at {task.get('bootstrap', 'its server')}"
    raise RuntimeError(f"{who} did not finish {where} within {TIMEOUT_S} s, {ATTEMPTS} times")


def ratio(ours: float, theirs: float, who: str) -> str:
    """Say how the seconds of another client compare with ours."""
    return "" if who == "ours" else f"ours is {theirs / ours:.1f} times as fast"
