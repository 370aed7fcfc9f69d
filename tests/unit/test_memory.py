"""Memory that nothing uses goes back to the system: soon, not often, and only when there is some."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from fluss import memory
from fluss.buffers import byte_view, new_memory
from fluss.memory import LongLived, MemoryWatch, Trimmer, loop_gives_back, resident_bytes, trim
from fluss.testing.waiting import eventually_async

MIB = 1024 * 1024


def test_many_requests_are_one_trim_and_a_later_one_is_another():
    began, may_end = threading.Event(), threading.Event()
    count = 0

    def action() -> None:
        nonlocal count
        count += 1
        began.set()
        may_end.wait(100)

    trimmer = Trimmer(action, quiet_s=0.05, interval_s=0)
    for _ in range(100):
        trimmer.ask()
    assert began.wait(100)
    began.clear()
    # While one is under way, any number of requests are one more.
    for _ in range(100):
        trimmer.ask()
    may_end.set()
    assert began.wait(100)
    thread = trimmer._thread
    if thread is not None:
        thread.join(100)
    assert count == 2
    assert trimmer._thread is None


def _watch(sizes: list[int], *, is_busy: bool = False) -> tuple[MemoryWatch, list[int]]:
    """A watch that sees one size after the other, and the numbers of the looks at which it wanted memory given back."""
    asked: list[int] = []
    looks = -1
    time_s = processor_s = 0.0

    def resident() -> int:
        nonlocal looks
        looks += 1
        return sizes[min(looks, len(sizes) - 1)] * MIB

    def clock() -> float:
        nonlocal time_s
        time_s += 5
        return time_s

    def processor_clock() -> float:
        nonlocal processor_s
        processor_s += 5 if is_busy else 0.1
        return processor_s

    watch = MemoryWatch(lambda: asked.append(looks), resident=resident, clock=clock, processor_clock=processor_clock)
    return watch, asked


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([100, 110, 120, 130, 140], []),  # Too little to be worth it.
        ([100, 600, 120, 130, 140], [1]),  # It helped; what is left is the new measure.
        ([100, 600, 120, 600, 120], [1, 3]),
        ([100, 50, 120, 60], [2]),
        ([100, 600, 300, 120, 120], [1, 2]),  # It helped, and there is more: the flood was not over yet.
        ([100, 600, 300, 290, 290], [1, 2, 4]),  # The rest is in use.
        # The memory is in use: it is tried ever less often.
        ([100, *([600] * 20)], [1, 3, 6, 11, 20]),
        ([100, 600, 600, 600, 120, 600, 120], [1, 3, 5]),
    ],
)
def test_memory_is_given_back_when_it_has_grown(sizes, expected):
    watch, asked = _watch(sizes)
    for _ in sizes[1:]:
        watch.check()
    assert asked == expected


def test_a_busy_process_keeps_its_memory_for_a_while():
    watch, asked = _watch([100, 600], is_busy=True)
    for _ in range(13):
        watch.check()
    assert asked == [13]


def test_a_system_that_does_not_say_is_left_alone():
    watch = MemoryWatch(lambda: pytest.fail("nothing is known"), resident=lambda: None)
    watch.check()


@pytest.mark.skipif(resident_bytes() is None, reason="the system does not say how large a process is")
async def test_the_memory_of_a_loop_is_given_back():
    stop = loop_gives_back(asyncio.get_running_loop())
    try:
        # What other tests have left behind is not given back while this one measures.
        await asyncio.to_thread(trim)
        before_bytes = resident_bytes()
        blocks = [byte_view(new_memory(MIB)) for _ in range(300)]
        for block in blocks:
            block[:] = bytes(MIB)
        assert resident_bytes() - before_bytes > 250 * MIB
        del blocks, block
        await asyncio.to_thread(trim)
        await eventually_async(lambda: resident_bytes() - before_bytes < 100 * MIB)
    finally:
        stop()
    assert asyncio.get_running_loop() not in memory._loops


ARENAS = """
import ctypes, sys, threading
from fluss.server.process import prepare_process
from fluss.server.options.server_options import ServerOptions

if sys.argv[2] == "limited":
    prepare_process(ServerOptions())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
barrier = threading.Barrier(33)

def allocate():
    for _ in range(100):
        libc.malloc(2000)
    barrier.wait()
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(32)]
for thread in threads:
    thread.start()
barrier.wait()
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
barrier.wait()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="another C library")
def test_the_threads_of_a_server_share_a_few_heaps(tmp_path: Path) -> None:
    counts = {}
    for kind in ("limited", "plain"):
        path = tmp_path / kind
        subprocess.run([sys.executable, "-c", ARENAS, str(path), kind], check=True, timeout=300)
        counts[kind] = path.read_text().count("<heap nr=")
    # One of them may have been made before.
    assert counts["limited"] <= 5 < counts["plain"]


class Circle:
    """Garbage that only a collection finds, once nothing else refers to it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def nothing_aside():
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_stays_is_kept_out_of_collections_until_most_of_it_is_gone(nothing_aside):
    long_lived = LongLived(is_alone=lambda: True)
    circle = Circle()
    garbage = weakref.ref(circle)
    for _ in range(10_000):
        long_lived.added()
    del circle
    assert long_lived.aside_count == 8192
    for count in (10_000, 4096):
        long_lived.counted(count)
        gc.collect()
        assert garbage() is not None, "it is not looked at"
    long_lived.counted(2000)
    assert garbage() is None
    assert long_lived.aside_count == 0
    # Those that are left count when there are more of them again.
    for _ in range(48):
        long_lived.added()
    assert long_lived.aside_count == 2048


def test_objects_of_other_programs_are_left_to_the_collector():
    # In a process of its own: this one may have been made a server's by another test.
    program = """
import gc
from fluss.memory import LongLived

long_lived = LongLived()
for _ in range(10_000):
    long_lived.added()
assert gc.get_freeze_count() == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_a_server_that_is_alone_looks_for_cycles_less_often():
    program = """
import gc
from fluss.memory import serve_alone

usual = gc.get_threshold()
serve_alone()
assert gc.get_threshold()[0] >= 10 * usual[0], gc.get_threshold()
assert gc.get_threshold()[1:] == usual[1:]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
