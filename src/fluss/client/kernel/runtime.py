"""The library's own event loop, and the ways to wait for what it does.

One background thread per process does all network work of the client. Because of it the synchronous calls of the API
work inside a running event loop, in notebooks and from any thread, and objects may be used on another loop than the
one they were made on.

    await runtime.bridge(...)    for a coroutine on any other loop
    run_blocking(...)            for a thread that blocks, and runs the coroutine of an ``_async`` method itself
    run_as_called(...)           the same for ``x = f()``, while ``x = await f()`` waits on the caller's loop
    wait_for(...)                for a thread that blocks while the library's loop runs anything awaitable
    AwaitsItself, StartedCall    results for which ``x = f()`` and ``x = await f()`` mean the same

An error that comes from the loop and is meant for the caller is raised without the way it took there: its traceback is
that of the caller. The way is logged at DEBUG. IPython and pytest leave functions with ``__tracebackhide__`` out of
tracebacks.
"""

from __future__ import annotations

import asyncio
import atexit
import dis
import inspect
import logging
import os
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from opcode import opmap
from types import CodeType, FrameType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar, cast

from fluss.errors import FlussError
from fluss.net.transport import new_event_loop

T = TypeVar("T")
P = ParamSpec("P")
ErrorT = TypeVar("ErrorT", bound=Exception)

# What may be wrong with a call, and is the caller's business.
CALLERS_ERRORS: Final = (FlussError, TypeError, ValueError)

# How long the end of the program waits for open connections to send what was written.
EXIT_DRAIN_S: Final = 5.0
# How long a loop that was told to stop may take.
_STOP_TIMEOUT_S: Final = 2.0
# Places in programs at which something is polled or read, and of which it is remembered whether they await it.
_CALLS_REMEMBERED: Final = 512
# Conversions and compression that would hold up the loop; numpy, pyarrow and zlib release the lock, so threads help.
_WORKERS_MAX: Final = 4

logger = logging.getLogger(__name__)


class Runtime:
    """One event loop on a daemon thread. Get the one of this process from ``runtime()``."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._drains: dict[object, Callable[[float], Awaitable[None]]] = {}
        self._workers: ThreadPoolExecutor | None = None
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="fluss-client", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine and return at once. Any thread may call this."""
        try:
            self.check_process()
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except FlussError:
            coroutine.close()
            raise
        except RuntimeError as error:
            coroutine.close()
            raise FlussError("the client cannot be used any more: the interpreter is shutting down") from error

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and block the calling thread until it is done; other threads go on.

        When the wait is interrupted, for instance by Ctrl-C, the coroutine is cancelled.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking call was made on the event loop of the library, which would wait for itself")
        __tracebackhide__ = True
        future = self.submit(coroutine)
        try:
            return future.result()
        except CALLERS_ERRORS as error:
            raise without_journey(error) from cause_of(error)
        except BaseException:
            # Does nothing if the coroutine itself has failed.
            future.cancel()
            raise

    async def bridge(self, coroutine: Coroutine[Any, Any, T], *, cancels: bool = False) -> T:
        """Await a coroutine of the library's loop from any loop, or from ``run_blocking``.

        The coroutine starts when this is first awaited. When the caller is cancelled, the coroutine goes on unless
        ``cancels`` says otherwise.
        """
        __tracebackhide__ = True
        if is_blocking():
            return self.run(coroutine)
        if asyncio.get_running_loop() is self.loop:
            return await coroutine
        try:
            return await outcome(self.submit(coroutine), cancels=cancels)
        except CALLERS_ERRORS as error:
            raise as_from_here(error) from cause_of(error)

    async def offload(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on a worker thread, so that the loop stays free.

        While the interpreter shuts down there are no worker threads any more, and the function is called in place.
        """
        try:
            if self._workers is None:
                count = min(_WORKERS_MAX, os.cpu_count() or 1)
                self._workers = ThreadPoolExecutor(count, thread_name_prefix="fluss-client-worker")
            work = self.loop.run_in_executor(self._workers, partial(function, *args, **kwargs))
        except RuntimeError:
            return function(*args, **kwargs)
        return await work

    async def on_worker(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that would hold up the caller's loop on a worker thread; in ``run_blocking``, in place."""
        if is_blocking():
            return function(*args, **kwargs)
        return await self.bridge(self.offload(function, *args, **kwargs))

    def drain_at_exit(self, drain: Callable[[float], Awaitable[None]]) -> Callable[[], None]:
        """Have something done on the loop before the interpreter ends; return "not any more".

        It is called with the seconds that it may take.
        """
        key = object()
        self._drains[key] = drain

        def forget() -> None:
            self._drains.pop(key, None)

        return forget

    def shut_down(self, drain_timeout_s: float) -> None:
        """Do what is left to be done, for at most ``drain_timeout_s``, and end the thread."""
        self.run(self._wind_up(drain_timeout_s))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            # Programs may end without closing their connections. If a warning of that is an error, as by `-W error`,
            # uvloop would leave the socket open and wait for it for ever.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                self.loop.close()

    async def _wind_up(self, drain_timeout_s: float) -> None:
        drains = [asyncio.ensure_future(drain(drain_timeout_s)) for drain in self._drains.values()]
        if drains:
            # A drain that keeps to the time gets a moment more to close its sockets.
            done, unfinished = await asyncio.wait(drains, timeout=drain_timeout_s + _STOP_TIMEOUT_S)
            for failure in filter(None, (drain.exception() for drain in done)):
                logger.warning("a connection was not closed cleanly at exit: %s", failure)
            if unfinished:
                logger.warning("%d connections had unsent data at exit; it is lost", len(unfinished))
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_TIMEOUT_S)

    def check_process(self) -> None:
        """Raise if this is a forked process, in which the thread of the loop does not exist."""
        if self._process_id != os.getpid():
            raise FlussError(
                "this object was made before the process forked and cannot be used in the child; "
                "create a new connection here"
            )


class _ThisThread(threading.local):
    """Whether the thread is inside ``run_blocking``."""

    is_blocking = False


_this_thread = _ThisThread()


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the calling thread, without an event loop: where the coroutine waits, the thread blocks.

    So a method and its ``_async`` twin are one piece of code, and the blocking one costs no change of threads. This is
    for coroutines that ask ``is_blocking`` before they wait, as ``bridge`` and ``on_worker`` do. Others need
    ``wait_for``.
    """
    __tracebackhide__ = True
    was_blocking, _this_thread.is_blocking = _this_thread.is_blocking, True
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    except CALLERS_ERRORS as error:
        raise without_journey(error) from cause_of(error)
    finally:
        _this_thread.is_blocking = was_blocking
    coroutine.close()
    raise AssertionError("a coroutine waits for an event loop where there is none")


def run_as_called(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, blocking; but return it if the method that calls this is itself called as ``await f()``.

    Tables of pyarrow cannot be awaited, so no object could be the result of both. This is how methods that return them
    serve programs of both generations: those that call ``scanner.to_arrow()``, and those that await it.
    """
    __tracebackhide__ = True
    if _is_awaited_by(sys._getframe(2)):
        return cast(T, coroutine)
    return run_blocking(coroutine)


def _is_awaited_by(caller: FrameType) -> bool:
    """Whether the call that a function is in the middle of is awaited by it: ``await f()``, with nothing in between."""
    code = caller.f_code
    return bool(code.co_flags & _CODE_THAT_AWAITS) and _is_awaited_at(code, caller.f_lasti)


_CODE_THAT_AWAITS: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@lru_cache(_CALLS_REMEMBERED)
def _is_awaited_at(code: CodeType, call_offset: int) -> bool:
    # What is executed next, whether the offset is that of the call or of the cache behind it, as up to Python 3.12.
    following = next((each for each in dis.get_instructions(code) if each.offset > call_offset), None)
    return following is not None and following.opname == "GET_AWAITABLE"


def is_blocking() -> bool:
    """Whether the running coroutine has to block instead of waiting on an event loop."""
    return _this_thread.is_blocking


async def outcome(future: Future[T], *, cancels: bool = False) -> T:
    """Wait on any event loop for something that another thread finishes.

    When the caller is cancelled, the future stays as it is unless ``cancels`` says that it is to be cancelled, too.
    """
    __tracebackhide__ = True
    if not future.done():
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(partial(_wake, loop, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if cancels:
                future.cancel()
            raise
    try:
        return future.result()
    except CALLERS_ERRORS as error:
        raise without_journey(error) from cause_of(error)


def is_told(error: Exception) -> bool:
    """Whether the library has raised an error to tell its caller something.

    A TypeError or ValueError that no statement has raised is a mistake of the library, and where it was made is all
    that helps to find it.
    """
    if isinstance(error, FlussError):
        return True
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    if frames is None:
        return True
    is_ours = frames.tb_frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]
    return is_ours and frames.tb_frame.f_code.co_code[frames.tb_lasti] == opmap["RAISE_VARARGS"]


def as_from_here(error: ErrorT) -> ErrorT:
    """Forget the functions that an error has come through; unless it is a mistake of the library. Return it."""
    return error.with_traceback(None) if is_told(error) else error


def cause_of(error: Exception) -> BaseException | None:
    """Return what to raise an error from that is raised again; of a mistake of the library also what it followed."""
    if error.__suppress_context__ or is_told(error):
        return error.__cause__
    return error.__context__


def without_journey(error: ErrorT) -> ErrorT:
    """Forget through which functions, threads and loops an error and its causes have come; return it.

    A mistake of the library is left as it is.
    """
    if not is_told(error):
        return error
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("an error on its way to the caller: %s", error, exc_info=error)
    forgotten: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in forgotten:
        forgotten.add(id(cause))
        cause.__traceback__ = None
        cause = cause.__cause__
    return error


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None], _future: Future[Any]) -> None:
    try:
        loop.call_soon_threadsafe(_settle, waiter)
    except RuntimeError:
        # The loop that waited is closed, so there is nothing left to wake.
        logger.debug("the event loop of a caller was closed before its call was finished")


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_lock = threading.Lock()
_current: Runtime | None = None
# Runtimes of the parent process: their threads do not exist here. They are kept so that nothing tries to close
# their loops, which would disturb the parent.
_inherited: list[Runtime] = []


def runtime() -> Runtime:
    """Return the runtime of this process, and start it first if need be."""
    global _current
    with _lock:
        if _current is None:
            _current = Runtime()
        return _current


def wait_for(awaitable: Awaitable[T]) -> T:
    """Block the calling thread until something of the library is done, on its loop. Ctrl-C ends the wait."""
    __tracebackhide__ = True
    try:
        return runtime().run(_awaited(awaitable))
    except CALLERS_ERRORS as error:
        raise as_from_here(error) from cause_of(error)


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _forget_parents_runtime() -> None:
    global _current, _lock
    # The parent may have held the lock in a thread that does not exist here.
    _lock = threading.Lock()
    if _current is not None:
        _inherited.append(_current)
        _current = None


def _shut_down_at_exit() -> None:
    global _current
    with _lock:
        ending, _current = _current, None
    if ending is not None:
        ending.shut_down(EXIT_DRAIN_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_runtime)
atexit.register(_shut_down_at_exit)


class AwaitsItself:
    """Base of results that are complete when they are returned; awaiting one returns the same object.

    ``asyncio.gather`` and ``asyncio.wait_for`` take such objects, ``asyncio.create_task`` does not.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Self]:
        # An await needs an iterator; this one is over at once.
        yield from ()
        return self


class StartedCall(Generic[T]):
    """Something that began when it was called. It may be awaited any number of times, on any loop, or not at all."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, Any, T]:
        return outcome(self._future).__await__()

    def wait(self) -> T:
        """Block the calling thread until it is done."""
        return self._future.result()

    def done(self) -> bool:
        return self._future.done()
