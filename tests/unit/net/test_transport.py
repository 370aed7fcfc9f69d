"""Unsent bytes keep their order, are counted exactly, and are handed over without a copy.

A transport without a socket records what it is given and is paused and resumed by hand.
"""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from fluss.net.transport import Outbox

MIB = 1024 * 1024


def _outbox(transport, on_progress=lambda: None) -> Outbox:
    return Outbox(asyncio.get_running_loop(), transport, on_progress)


async def test_a_large_part_is_handed_over_as_views_of_itself(scripted_transport):
    transport = scripted_transport()
    outbox = _outbox(transport)
    payload = bytes(range(256)) * (2 * MIB // 256)
    outbox.write([b"head", payload, b"tail"])
    turns = 0
    while outbox.unsent_bytes > 0:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 4, "others get their turn in between"
    views = [piece for piece in transport.written if isinstance(piece, memoryview)]
    assert all(view.obj is payload for view in views)
    assert sum(map(len, views)) > 2 * MIB - 100, "only a short rest is joined with its neighbours"
    assert b"".join(transport.written) == b"head" + payload + b"tail"


async def test_small_parts_of_one_turn_leave_together(scripted_transport):
    transport = scripted_transport()
    outbox = _outbox(transport)
    for n in range(1000):
        outbox.write([b"%d," % n])
    assert transport.written == []
    await asyncio.sleep(0)
    assert transport.written == [b"".join(b"%d," % n for n in range(1000))]


async def test_a_paused_transport_gets_nothing_until_it_has_sent_what_it_has(scripted_transport):
    transport = scripted_transport()
    progress = []
    outbox = _outbox(transport, lambda: progress.append(outbox.unsent_bytes))
    outbox.write([b"first"])
    await asyncio.sleep(0)
    outbox.pause()
    transport.unsent_bytes = 5
    outbox.write([b"second"])
    await asyncio.sleep(0)
    assert transport.written == [b"first"]
    assert (outbox.unsent_bytes, outbox.sent_bytes) == (11, 0)
    transport.unsent_bytes = 0
    outbox.resume()
    assert transport.written == [b"first", b"second"]
    assert (outbox.unsent_bytes, outbox.sent_bytes) == (0, 11)
    assert progress == [0, 0]


async def test_the_empty_callback_comes_once_and_after_everything(scripted_transport):
    transport = scripted_transport()
    outbox = _outbox(transport)
    calls = []
    outbox.write([b"last word"])
    outbox.when_empty(lambda: calls.append(list(transport.written)))
    assert calls == []
    await asyncio.sleep(0)
    assert calls == [[b"last word"]]
    outbox.write([b"more"])
    await asyncio.sleep(0)
    assert len(calls) == 1
    outbox.when_empty(lambda: calls.append([]))
    outbox.clear()
    await asyncio.sleep(0)
    assert len(calls) == 1


async def test_the_writer_is_told_when_the_bytes_have_left(scripted_transport):
    transport = scripted_transport()
    outbox = _outbox(transport)
    told = []
    outbox.write([b"first"], lambda: told.append("first"))
    outbox.write([b"second"], lambda: told.append("second"))
    assert told == []
    transport.unsent_bytes = 3  # Of "second".
    await asyncio.sleep(0)
    assert told == ["first"]
    outbox.pause()
    transport.unsent_bytes = 0
    outbox.resume()
    assert told == ["first", "second"]


async def test_the_writer_is_told_when_the_connection_is_gone(scripted_transport):
    outbox = _outbox(scripted_transport())
    told = []
    outbox.write([b"never sent"], lambda: told.append(1))
    outbox.write([], lambda: told.append(2))
    outbox.clear()
    await asyncio.sleep(0)
    assert told == [1, 2]


@given(
    writes=st.lists(
        st.lists(st.integers(0, 3).flatmap(lambda scale: st.binary(max_size=20).map(lambda b: b * 10**scale)))
    )
)
def test_nothing_is_lost_or_reordered(scripted_transport, writes):
    async def main(transport):
        outbox = _outbox(transport)
        for index, parts in enumerate(writes):
            outbox.write(parts)
            if index % 3 == 1:
                outbox.pause()
            if index % 3 == 2:
                outbox.resume()
            await asyncio.sleep(0)
        outbox.resume()
        while outbox.unsent_bytes > 0:
            await asyncio.sleep(0)

    transport = scripted_transport()
    asyncio.run(main(transport))
    assert b"".join(transport.written) == b"".join(part for parts in writes for part in parts)
