"""Questions to the leaders of buckets find them also when they are missing or move while they are asked.
Shown with two scripted servers that lead what the test says; elections happen during pauses, which take no time."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from fluss.client.kernel import leaders
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import ask_leaders
from fluss.client.kernel.table_calls import leader_offsets
from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import TableBucket, TablePath
from tests.fakes.scripted_server import ScriptedServer

PATH = TablePath("fluss", "events")
BUCKETS = [TableBucket(7, 0), TableBucket(7, 1), TableBucket(7, 2)]


class _Leader(ScriptedServer):
    """Answers with its own id as the offset, or with what it was told to answer."""

    def __init__(self, server_id: int) -> None:
        super().__init__(server_id, handlers={ApiKey.LIST_OFFSETS: self._offsets})
        self.error_code: int | None = None
        self.unanswered = 0
        self.asked: list[list[int]] = []

    def _offsets(self, context: RequestContext, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        self.asked.append(list(request.bucket_id))
        response = pb.ListOffsetsResponse()
        for bucket_id in request.bucket_id[self.unanswered :]:
            if self.error_code is None:
                response.buckets_resp.add(bucket_id=bucket_id, offset=self.server_id)
            else:
                response.buckets_resp.add(bucket_id=bucket_id, error_code=self.error_code, error_message="as told")
        return response


class _Pair:
    """Two servers of one cluster, and a client of it."""

    def __init__(self, **options: int) -> None:
        self.first, self.second = _Leader(1), _Leader(2)
        self.options = options
        self.pauses: list[float] = []

    def lead(self, *leaders: int | None) -> None:
        for server in (self.first, self.second):
            server.add_table(PATH, 7, leaders=list(leaders))

    async def __aenter__(self) -> _Pair:
        for server in (self.first, self.second):
            await server.start()
        for server in (self.first, self.second):
            server.peers = {1: self.first.port, 2: self.second.port}
        self.cluster = await Cluster.connect(self.first.config(**self.options), sleep=self.sleep)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.cluster.close()
        for server in (self.first, self.second):
            await server.stop()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def ask(self) -> list[int]:
        ask = partial(leader_offsets, self.cluster, spec=OffsetSpec.latest())
        answers = await ask_leaders(self.cluster, PATH, BUCKETS, ask, sleep=self.sleep)
        return [answers[bucket] for bucket in BUCKETS]


async def test_every_leader_is_asked_once_about_all_its_buckets() -> None:
    async with _Pair() as pair:
        pair.lead(1, 2, 1)
        assert await pair.ask() == [1, 2, 1]
        assert (pair.first.asked, pair.second.asked) == ([[0, 2]], [[1]])


async def test_a_leader_that_has_moved_is_asked_where_it_is_now() -> None:
    async with _Pair() as pair:
        pair.lead(1, 1, 1)
        assert await pair.ask() == [1, 1, 1]
        pair.lead(2, 2, 2)
        pair.first.error_code = 12
        assert await pair.ask() == [2, 2, 2]


async def test_a_leader_that_is_elected_meanwhile_is_found() -> None:
    """However long that takes, up to the timeout: a busy cluster needs many seconds for those of a new table."""
    async with _Pair() as pair:
        pair.lead(1, None, 1)

        async def elect(seconds: float) -> None:
            pair.pauses.append(seconds)
            if len(pair.pauses) > 20:
                pair.lead(1, 2, 1)

        pair.sleep = elect  # type: ignore[method-assign]  # an election during a pause
        assert await pair.ask() == [1, 2, 1]


async def test_a_leader_that_does_not_know_yet_that_it_is_one_is_asked_again() -> None:
    async with _Pair() as pair:
        pair.lead(1, 1, 1)
        pair.first.error_code = 12

        async def learn(seconds: float) -> None:
            pair.pauses.append(seconds)
            if len(pair.pauses) > 20:
                pair.first.error_code = None

        pair.sleep = learn  # type: ignore[method-assign]  # it hears from the coordinator during a pause
        assert await pair.ask() == [1, 1, 1]


async def test_a_bucket_without_a_leader_is_given_up_after_the_request_timeout(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaders, "LEADERLESS_S_MAX", 0.05)
    async with _Pair(request__timeout=300) as pair:
        pair.lead(1, None, 1)
        began_s = time.monotonic()
        with pytest.raises(FlussError, match="No leader found for table bucket") as caught:
            await pair.ask()
        assert time.monotonic() - began_s >= 0.3
        assert caught.value.error_code == ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION
        assert pair.first.asked == []
    (told,) = (record.getMessage() for record in caplog.records if record.name == leaders.__name__)
    assert "a question about fluss.events has waited" in told
    assert "TableBucket(table_id=7, bucket=1)" in told
    assert "the cluster names none" in told


async def test_a_bucket_that_the_table_does_not_have_is_not_waited_for() -> None:
    async with _Pair() as pair:
        pair.lead(1, 1)
        with pytest.raises(FlussError, match=r"No leader found .*: fluss.events has the buckets 0 to 1") as caught:
            await pair.ask()
        assert caught.value.error_code == ErrorCode.CLIENT_ERROR


async def test_a_table_that_was_created_again_is_not_waited_for() -> None:
    async with _Pair() as pair:
        for server in (pair.first, pair.second):
            server.add_table(PATH, 8, leaders=[1, 1, 1])
        with pytest.raises(FlussError, match="was dropped and created again") as caught:
            await pair.ask()
        assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST


async def test_an_error_that_no_refresh_can_cure_is_raised_at_once() -> None:
    async with _Pair() as pair:
        pair.lead(1, 1, 1)
        pair.first.error_code = 38
        with pytest.raises(FlussError, match="as told") as caught:
            await pair.ask()
        assert caught.value.error_code == 38
        assert len(pair.first.asked) == 1


async def test_an_error_that_stays_is_raised_with_its_code() -> None:
    async with _Pair(request__timeout=300) as pair:
        pair.lead(1, 1, 1)
        pair.first.error_code = 21
        with pytest.raises(FlussError, match="as told") as caught:
            await pair.ask()
        assert caught.value.error_code == 21
        assert len(pair.first.asked) > 1


async def test_a_server_that_leaves_a_bucket_out_is_not_believed() -> None:
    async with _Pair() as pair:
        pair.lead(1, 1, 1)
        pair.first.unanswered = 1
        with pytest.raises(FlussError, match="did not answer about TableBucket") as caught:
            await pair.ask()
        assert caught.value.error_code == -1


async def test_a_leader_that_died_is_replaced() -> None:
    async with _Pair() as pair:
        pair.lead(2, 2, 2)
        assert await pair.ask() == [2, 2, 2]
        await pair.second.stop()
        pair.lead(1, 1, 1)
        assert await asyncio.wait_for(pair.ask(), 120) == [1, 1, 1]
