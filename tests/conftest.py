"""What all tests share: how hypothesis runs."""

from __future__ import annotations

import os

from hypothesis import settings

# A loaded machine is no bug, so there is no deadline per example; the timeout per test stands. In CI the examples are
# always the same: what a change is judged by must not depend on luck. Elsewhere every run looks at new ones.
settings.register_profile("flussbett", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("flussbett")
