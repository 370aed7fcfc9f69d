"""A tiering service without Spark that dies after a chosen step, for ``chaos_tiering``."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import get_args

from fluss.errors import FlussError
from fluss.tiering.round_commit import Step
from fluss.tiering.rounds import tier
from fluss.tiering.upkeep import UpkeepOptions, after_round
from tests.unit.tiering.lakes import LakeCluster


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap_servers")
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--die-after", choices=get_args(Step))
    parser.add_argument("--rounds-before", type=int, default=0)
    given = parser.parse_args()
    rounds = 0

    def on_step(step: Step) -> None:
        if step == given.die_after and rounds >= given.rounds_before:
            os.kill(os.getpid(), signal.SIGKILL)

    with LakeCluster(given.bootstrap_servers) as cluster:
        while True:
            for name in given.tables:
                try:
                    tier(cluster.table(name), on_step=on_step)
                    after_round(cluster.table(name), UpkeepOptions())
                except FlussError as error:
                    print(error, flush=True)
                rounds += 1
            time.sleep(0.05)


if __name__ == "__main__":
    main()
