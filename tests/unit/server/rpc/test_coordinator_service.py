"""Changes run to their end when their client has gone, within a bound, and bugs in them are not lost.

Handlers without a network: what is cancelled here is what a connection cancels.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from fluss.errors import FlussError
from fluss.server.rpc.coordinator_service import RunningChanges


async def test_a_change_goes_on_when_its_client_has_gone():
    may_end, ended = asyncio.Event(), []

    async def change(context, request):
        await may_end.wait()
        ended.append(request)

    changes = RunningChanges()
    answer = changes.uninterrupted(change)(None, "x")
    await asyncio.sleep(0)
    answer.cancel()
    finishing = asyncio.create_task(changes.finish())
    await asyncio.sleep(0)
    assert not finishing.done()
    may_end.set()
    await finishing
    assert ended == ["x"]


async def test_too_many_changes_are_sent_away():
    may_end = asyncio.Event()

    async def change(context, request):
        await may_end.wait()
        return request

    changes = RunningChanges(count_max=2)
    handler = changes.uninterrupted(change)
    answers = [handler(None, number) for number in range(2)]
    with pytest.raises(FlussError) as failure:
        handler(None, 2)
    assert failure.value.error_code == 25
    may_end.set()
    assert await asyncio.gather(*answers) == [0, 1]
    await changes.finish()
    assert await handler(None, 3) == 3


@pytest.mark.parametrize(("error", "is_logged"), [(RuntimeError("a bug"), True), (FlussError("no"), False)])
async def test_a_bug_that_no_client_is_told_of_is_logged(caplog, error, is_logged):
    with caplog.at_level(logging.ERROR):

        async def change(context, request):
            await asyncio.sleep(0)
            raise error

        changes = RunningChanges()
        answer = changes.uninterrupted(change)(None, None)
        await asyncio.sleep(0)
        answer.cancel()
        await changes.finish()
    assert ("a change failed whose client had gone" in caplog.text) is is_logged
