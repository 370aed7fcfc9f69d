"""The test's side of ``peer_driver``: objects of a client that lives elsewhere, used as if they were here.

    fluss = api.fluss                                 # the client's module
    connection = api.connect(address)
    table = connection.get_table(fluss.TablePath("fluss", "events"))
    table.new_append().create_writer().append({"id": 1})

There is nothing to await: a call returns when the client's awaitable has its result. Failures of the client arrive as
``RemoteFlussError`` with its code and message; built-in exceptions as what they are.
"""

from __future__ import annotations

import asyncio
import builtins
import pickle
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from tests.interop import peer_driver
from tests.interop.peer_driver import MODULE_ID, TOOLS_ID

CALL_TIMEOUT_S = 300.0


class RemoteFlussError(Exception):
    """A ``FlussError`` that a client raised."""

    def __init__(self, message: str, error_code: int, is_retriable: bool | None) -> None:
        super().__init__(f"{message} (code {error_code})")
        self.message = message
        self.error_code = error_code
        # None in the generation that does not know it.
        self.is_retriable = is_retriable


class RemoteFaultError(Exception):
    """Anything else that went wrong in the driver, with its traceback."""


class Transport(Protocol):
    """Takes one request to a driver and brings the answer back."""

    def exchange(self, request: tuple[Any, ...]) -> tuple[Any, ...]: ...

    def close(self) -> None: ...


class ProcessTransport:
    """A driver in a process of its own. One call at a time; a call that takes too long ends the process."""

    def __init__(self, python: Path) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [str(python), "-I", peer_driver.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        self._lock = threading.Lock()

    def exchange(self, request: tuple[Any, ...]) -> tuple[Any, ...]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            watchdog = threading.Timer(CALL_TIMEOUT_S, self._process.kill)
            watchdog.start()
            try:
                pickle.dump(request, self._process.stdin)
                self._process.stdin.flush()
                answer: tuple[Any, ...] = pickle.load(self._process.stdout)
            except (EOFError, OSError) as error:
                raise RemoteFaultError(
                    f"the driver died, or did not answer {request[:3]} in {CALL_TIMEOUT_S} s:\n{self._last_words()}"
                ) from error
            finally:
                watchdog.cancel()
        return answer

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:].decode(errors="replace")


class LocalTransport:
    """A driver in this process, on an event loop in a thread of its own: how this project's client is driven."""

    is_alive = True

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="interop driver", daemon=True)
        self._thread.start()
        self._driver = peer_driver.Driver()

    def exchange(self, request: tuple[Any, ...]) -> tuple[Any, ...]:
        return asyncio.run_coroutine_threadsafe(self._driver.answer(request), self._loop).result(CALL_TIMEOUT_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Remote:
    """An object of the client. Attributes, calls, indexing, length, membership, iteration and operators reach it."""

    def __init__(self, api: Api, number: int) -> None:
        self._api = api
        self._number = number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = self._api.request("get", self._number, name)
        if found == ("callable",):
            return lambda *args, **kwargs: self._api.request("call", self._number, name, args, kwargs)
        return found[0]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self._api.request("set", self._number, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._api.request("call", self._number, "__call__", args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self._api.request("call", self._number, "__getitem__", (key,))

    def __len__(self) -> int:
        return int(self._api.request("call", self._number, "__len__"))

    def __contains__(self, value: Any) -> bool:
        return bool(self._api.request("call", self._number, "__contains__", (value,)))

    # The operators that build predicates. ``==`` stays what it is here; predicates have ``equal`` for it.

    def __lt__(self, other: Any) -> Any:
        return self._api.request("call", self._number, "__lt__", (other,))

    def __le__(self, other: Any) -> Any:
        return self._api.request("call", self._number, "__le__", (other,))

    def __gt__(self, other: Any) -> Any:
        return self._api.request("call", self._number, "__gt__", (other,))

    def __ge__(self, other: Any) -> Any:
        return self._api.request("call", self._number, "__ge__", (other,))

    def __and__(self, other: Any) -> Any:
        return self._api.request("call", self._number, "__and__", (other,))

    def __or__(self, other: Any) -> Any:
        return self._api.request("call", self._number, "__or__", (other,))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._api.request("list", self._number))

    def __repr__(self) -> str:
        return f"<{self._api.name} object {self._number}>"


class Api:
    """One client library, driven through a transport."""

    def __init__(self, name: str, transport: Transport) -> None:
        self.name = name
        self._transport = transport
        self._codec = peer_driver.Codec(self._number_of, lambda number: Remote(self, number))
        self.fluss = Remote(self, MODULE_ID)
        self.tools = Remote(self, TOOLS_ID)

    def connect(self, bootstrap_servers: str, **options: str) -> Any:
        """Connect; an option ``writer_acks`` is the key of the same property."""
        config = self.fluss.Config({"bootstrap.servers": bootstrap_servers})
        for name, value in options.items():
            setattr(config, name, value)
        return self.fluss.FlussConnection.create(config)

    def release(self, remote: Remote) -> None:
        """Let the client forget one object now, as ``del`` does."""
        self.request("release", remote._number)

    def reset(self) -> None:
        """Close this client's connections and forget all objects."""
        self.request("reset", MODULE_ID)

    def request(self, operation: str, number: int, name: str = "", args: Any = (), kwargs: Any = None) -> Any:
        encoded_args = self._codec.encode(args)
        encoded_kwargs = self._codec.encode(kwargs or {})
        answer = self._transport.exchange((operation, number, name, encoded_args, encoded_kwargs))
        if answer[0] == "value":
            return self._codec.decode(answer[1])
        _, class_name, text, code, is_retriable, trace = answer
        if code is not None:
            raise RemoteFlussError(text, code, is_retriable)
        known = getattr(builtins, class_name, None)
        if isinstance(known, type) and issubclass(known, Exception) and class_name != "AssertionError":
            raise known(text)
        raise RemoteFaultError(f"{class_name}: {text}\n{trace}")

    @staticmethod
    def _number_of(value: Any) -> int:
        if not isinstance(value, Remote):
            raise TypeError(f"{type(value).__name__} cannot travel to a driver")
        return value._number
