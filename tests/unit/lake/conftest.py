"""Tests of the lake need pyiceberg, which is optional; without it there is nothing to collect."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("pyiceberg") else ["test_*.py"]
