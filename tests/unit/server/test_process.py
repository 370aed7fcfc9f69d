"""A process that is nothing but a server lets its event loop come to its turn soon, and may open many files.
A process of its own with a low limit, which says what it has after it was prepared."""

from __future__ import annotations

import json
import subprocess
import sys

_PROGRAM = """
import json, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
from fluss.server.process import prepare_process
from fluss.server.options.server_options import ServerOptions
prepare_process(ServerOptions())
prepare_process(ServerOptions())
print(json.dumps([sys.getswitchinterval(), *resource.getrlimit(resource.RLIMIT_NOFILE), hard]))
"""


def test_a_process_is_prepared_to_be_a_server():
    output = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, timeout=600).stdout
    switch_interval_s, soft, hard, hard_before = json.loads(output)
    assert switch_interval_s < 0.001
    assert soft == min(hard, 65_536)
    assert hard == hard_before
