"""A server in the background: started, found, stopped."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request

import pytest

from tests.cli.runner import FlussCommand


def test_a_server_is_started_found_and_stopped(fluss: FlussCommand) -> None:
    del fluss.environment["FLUSS_BOOTSTRAP_SERVERS"]
    stopped = fluss.run("status", "--format", "json")
    assert (stopped.code, stopped.rows[0]["state"]) == (3, "stopped")
    assert fluss.run("stop").code == 3
    refused = fluss.run("serve", "--detach", "--port", "0", "-D", "log.segment.file-sice=1mb")
    assert (refused.code, "log.segment.file-size" in refused.err) == (1, True)
    serve = ("serve", "--detach", "--port", "0", "--http", "0", "-D", "durability=os")
    started = fluss(*serve, "--format", "json").rows[0]
    try:
        assert fluss("db", "ls", "--server", started["address"]).lines[1].startswith("fluss ")
        again = fluss.run("serve", "--detach", "--port", "0")
        assert (again.code, f"process {started['process']}" in again.err) == (1, True)
        shown = fluss("status", terminal=True).out
        assert "yes, with 1 database" in shown
        assert started["address"] in shown
        assert started["page"] in shown
        with urllib.request.urlopen(f"{started['page']}/health/live") as answer:
            assert answer.status == 200
    finally:
        assert str(started["process"]) in fluss("stop", terminal=True).out
    assert fluss.run("status").code == 3


def test_a_server_says_how_it_is_stopped(fluss: FlussCommand) -> None:
    shown = fluss("serve", "--detach", "--port", "0", "--data-dir", "other data", "-D", "durability=os").out
    line = re.search(r"`fluss (stop [^`]+)` ends it", shown)
    assert line is not None, shown
    fluss(*shlex.split(line[1]))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_server_in_the_foreground_ends_with_ctrl_c(fluss: FlussCommand, terminal: bool) -> None:
    serving = fluss.start("serve", "--port", "0", "--data-dir", "here", "-D", "durability=os", terminal=terminal)
    ready = re.search(r"ready on (\S+) ", serving.read_until(", durability os"))
    assert ready is not None
    assert fluss("db", "ls", "--server", ready[1]).lines[1].startswith("fluss ")
    if terminal:
        serving.send("\x03")
    else:
        serving.interrupt()
    ended = serving.wait().ok()
    assert "Traceback" not in ended.out + ended.err
    assert (ended.out + ended.err).rstrip().endswith("stopped")


def test_the_configuration_of_a_server_is_printed(fluss: FlussCommand) -> None:
    shown = fluss("serve", "--data-dir", "elsewhere", "--print-config", "--durability", "os").out
    assert "durability: os" in shown
    assert json.dumps(str(fluss.home / "elsewhere"))[1:-1] in shown
