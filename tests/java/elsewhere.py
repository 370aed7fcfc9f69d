"""Lets a program that starts its own server have a cluster that runs already: for the programs of guide and README.

``python -m tests.java.elsewhere ADDRESSES NAME`` reads a program from standard input. What it starts is this cluster,
emptied before; to stop or to kill it does nothing. A second server beside it is one of ours.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from typing import Any, Self

from fluss import Config, TablePath, blocking, embedded
from fluss.embedded import EmbeddedServer
from fluss.testing.waiting import eventually


class Elsewhere:
    """What programs do with a server of their own."""

    bootstrap_servers = ""
    # Whether the program has started it and not stopped it again.
    is_taken = False

    def __init__(self, *options: object, **more: object) -> None:
        self.data_dir = None

    def start(self, *_: object) -> Self:
        Elsewhere.is_taken = True
        self.empty()
        return self

    def stop(self, *_: object) -> None:
        """Leave it running."""
        Elsewhere.is_taken = False

    def kill(self) -> None:
        """Leave it running."""

    restart = kill

    @property
    def port(self) -> int:
        return int(self.bootstrap_servers.rpartition(":")[2])

    def config(self, **properties: Any) -> Config:
        config = Config({"bootstrap.servers": self.bootstrap_servers})
        for name, value in properties.items():
            setattr(config, name, value)
        return config

    def empty(self) -> None:
        """Drop everything that a program before has left."""
        with blocking.connect(self.config()) as connection:
            admin = connection.get_admin()
            for name in admin.list_databases():
                if name == "fluss":
                    for table in admin.list_tables(name):
                        path = TablePath(name, table)
                        admin.drop_table(path)
                        # Servers hear of it one after the other.
                        eventually(lambda path=path: not admin.table_exists(path), f"that {path} is gone")
                else:
                    admin.drop_database(name, cascade=True)

    __enter__ = start
    __exit__ = stop

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *exception: object) -> None:
        self.stop()


def stand_in(bootstrap_servers: str) -> None:
    """Let the programs of this process have this cluster."""
    Elsewhere.bootstrap_servers = bootstrap_servers
    Elsewhere.is_taken = False

    def start(*options: Any, **more: Any) -> Elsewhere | EmbeddedServer:
        return EmbeddedServer(*options, **more).start() if Elsewhere.is_taken else Elsewhere().start()

    module: Any = embedded
    module.EmbeddedServer = Elsewhere
    module.start = start


def main(bootstrap_servers: str, name: str) -> None:
    stand_in(bootstrap_servers)
    code = compile(sys.stdin.read(), name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, {"__name__": "__main__", "__file__": name})
    if inspect.iscoroutine(result):
        asyncio.run(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
