"""One process of the fuzzer: limits on memory and time around the loop."""

from __future__ import annotations

import faulthandler
import resource
import sys

from tests.fuzz.engine import Report, run
from tests.fuzz.targets import all_targets

# A decoder that follows a lying length into a huge allocation hits this wall and is found out.
ADDRESS_SPACE_BYTES_MAX = 6 << 30
HANG_SECONDS = 60


def run_share(names: list[str], count: int, seed: int, first_case: int, show: bool, jobs: int) -> Report:
    """Run a share of the cases; ``show`` prints how far it is, as if all jobs were equally far."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES_MAX, ADDRESS_SPACE_BYTES_MAX))
    targets = [target for target in all_targets() if target.name in set(names)]

    def on_progress(report: Report) -> None:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        if show:
            rate = report.cases / report.seconds
            print(f"\r  {report.cases * jobs:,} of {count * jobs:,} ({rate * jobs:,.0f}/s)", end="", file=sys.stderr)

    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    report = run(targets, count, seed, first_case=first_case, on_progress=on_progress)
    faulthandler.cancel_dump_traceback_later()
    if show:
        print(file=sys.stderr)
    return report
