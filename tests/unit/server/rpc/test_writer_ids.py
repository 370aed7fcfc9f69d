"""Writer ids that are never given out twice, and offsets that producers find again.

Every request goes over a socket to a coordinator with its metadata in a real file.
"""

from __future__ import annotations

import asyncio

import pytest

from fluss.errors import FlussError
from fluss.protocol import api as apis
from fluss.protocol.convert import pb_producer_offsets
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.server.coordinator.metadata.metadata_store import MetadataStore
from fluss.server.coordinator.producers import _BLOCK_SIZE, WriterIds
from fluss.server.rpc import writer_ids
from tests.unit.server.coordinator.support import NOW_MS

HOUR_MS = 3_600_000


async def _writer_id(cluster) -> int:
    return (await cluster.ask(apis.INIT_WRITER, pb.InitWriterRequest())).writer_id


def _offsets(table_id: int = 5, **more) -> list[pb.PbProducerTableOffsets]:
    bucket = pb.PbBucketOffset(bucket_id=1, log_end_offset=42, **more)
    return [pb.PbProducerTableOffsets(table_id=table_id, bucket_offsets=[bucket])]


async def _register(cluster, producer_id: str, offsets=(), ttl_ms: int | None = None) -> int:
    request = pb.RegisterProducerOffsetsRequest(producer_id=producer_id, table_offsets=offsets, ttl_ms=ttl_ms)
    return (await cluster.ask(apis.REGISTER_PRODUCER_OFFSETS, request)).result


async def _get(cluster, producer_id: str) -> pb.GetProducerOffsetsResponse:
    return await cluster.ask(apis.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest(producer_id=producer_id))


# Writer ids


async def test_ids_count_from_zero_and_go_on_after_a_restart(make_cluster):
    seen = []
    for _ in range(3):
        async with make_cluster() as cluster:
            seen.extend([await _writer_id(cluster) for _ in range(3)])
    assert seen == list(range(9))


async def test_ids_asked_for_at_once_are_different(make_cluster):
    async with make_cluster() as cluster:
        ids = await asyncio.gather(*(_writer_id(cluster) for _ in range(1500)))
        assert sorted(ids) == list(range(1500))


async def test_after_a_crash_ids_may_be_skipped_but_never_repeated(tmp_path):
    store = await MetadataStore.open(tmp_path / "metadata.sqlite")
    ids = [await (await WriterIds.open(store)).next() for _ in range(3)]
    assert ids == sorted(set(ids))
    last = await WriterIds.open(store)
    await last.next()
    await last.close()
    await last.close()
    assert await (await WriterIds.open(store)).next() == ids[-1] + _BLOCK_SIZE + 1
    await store.close()


# Offsets of producers


async def test_the_first_registration_wins(make_cluster):
    async with make_cluster() as cluster:
        assert await _register(cluster, "p", _offsets()) == 0
        assert await _register(cluster, "p", _offsets(table_id=6)) == 1
        response = await _get(cluster, "p")
        assert response.producer_id == "p"
        assert response.expiration_time == NOW_MS + 24 * HOUR_MS
        (table,) = response.table_offsets
        assert table.table_id == 5
        (bucket,) = table.bucket_offsets
        assert (bucket.bucket_id, bucket.log_end_offset) == (1, 42)
        assert not bucket.HasField("partition_id")


async def test_an_unknown_producer_has_no_offsets(make_cluster):
    async with make_cluster() as cluster:
        response = await _get(cluster, "nobody")
        assert not response.HasField("producer_id")
        assert not response.table_offsets
        await cluster.ask(apis.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest(producer_id="nobody"))


async def test_offsets_survive_a_restart_and_can_be_empty(make_cluster):
    async with make_cluster() as cluster:
        await _register(cluster, "p", _offsets(partition_id=9))
        await _register(cluster, "empty")
    async with make_cluster() as cluster:
        (table,) = (await _get(cluster, "p")).table_offsets
        assert table.bucket_offsets[0].partition_id == 9
        response = await _get(cluster, "empty")
        assert response.producer_id == "empty"
        assert not response.table_offsets


async def test_expired_offsets_are_replaced(make_cluster, clock):
    async with make_cluster() as cluster:
        await _register(cluster, "p", _offsets(), ttl_ms=1000)
        clock.now_ms += 999
        assert await _register(cluster, "p", _offsets(table_id=6)) == 1
        clock.now_ms += 1
        assert not (await _get(cluster, "p")).HasField("producer_id")
        assert await _register(cluster, "p", _offsets(table_id=6)) == 0
        assert (await _get(cluster, "p")).table_offsets[0].table_id == 6


async def test_expired_offsets_disappear_from_the_disk(make_cluster, clock):
    async with make_cluster(settings={"producer_offsets_cleanup_interval_ms": 1}) as cluster:
        await _register(cluster, "short", ttl_ms=1000)
        await _register(cluster, "long")
        clock.now_ms += 1000
        while len(await cluster.coordinator.store.load_producer_offsets()) > 1:
            await asyncio.sleep(0.001)
        assert (await _get(cluster, "long")).producer_id == "long"


async def test_a_deleted_producer_can_register_again(make_cluster):
    async with make_cluster() as cluster:
        await _register(cluster, "p")
        await cluster.ask(apis.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest(producer_id="p"))
        assert await _register(cluster, "p") == 0


@pytest.mark.parametrize(
    ("ttl_ms_max", "lives_ms"), [(7 * 24 * HOUR_MS, 7 * 24 * HOUR_MS), (HOUR_MS, 24 * HOUR_MS)], ids=["max", "default"]
)
async def test_no_producer_lives_longer_than_it_may_ask_for_or_the_default(make_cluster, ttl_ms_max, lives_ms):
    async with make_cluster(settings={"producer_offsets_ttl_ms_max": ttl_ms_max}) as cluster:
        await _register(cluster, "p", ttl_ms=2**63 - 1)
        assert (await _get(cluster, "p")).expiration_time == NOW_MS + lives_ms


async def _refused(cluster, producer_id: str, **fields) -> FlussError:
    message = pb.RegisterProducerOffsetsRequest(producer_id=producer_id, **fields)
    return await cluster.refused(apis.REGISTER_PRODUCER_OFFSETS, message)


async def test_a_user_has_so_many_producers_and_no_more(make_cluster, clock):
    limit = {"producers_per_user_max": 2}
    async with make_cluster(settings=limit) as cluster:
        await _register(cluster, "a", ttl_ms=1000)
        await _register(cluster, "b")
        refusal = await _refused(cluster, "c")
        assert refusal.error_code == 63
        assert "limit of 2 registered producers" in refusal.message
        # Registering again is no further one, and expired ones do not count.
        assert await _register(cluster, "b") == 1
        clock.now_ms += 1000
        assert await _register(cluster, "c") == 0
        await _refused(cluster, "d")
    async with make_cluster(settings=limit) as cluster:
        await _refused(cluster, "d")
        await cluster.ask(apis.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest(producer_id="b"))
        assert await _register(cluster, "d") == 0


async def test_offsets_are_encoded_once_however_often_they_are_asked_for(make_cluster, monkeypatch):
    """A hundred thousand of them take the server a third of a second, and a client twenty bytes to ask for."""
    encoded = []

    def counted(offsets):
        encoded.append(len(offsets))
        return pb_producer_offsets(offsets)

    monkeypatch.setattr(writer_ids, "pb_producer_offsets", counted)
    async with make_cluster() as cluster:
        bucket = pb.PbProducerTableOffsets(table_id=5, bucket_offsets=[pb.PbBucketOffset(bucket_id=1)])
        await _register(cluster, "many", [bucket] * 1000)
        answers = [await _get(cluster, "many") for _ in range(5)]
        assert encoded == [1000]
        assert all(answer == answers[0] for answer in answers)
        assert len(answers[0].table_offsets[0].bucket_offsets) == 1000
        await cluster.ask(apis.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest(producer_id="many"))
        assert not (await _get(cluster, "many")).HasField("producer_id")
        await _register(cluster, "many", _offsets())
        assert (await _get(cluster, "many")).table_offsets == _offsets(), "those of the new registration"
        for number in range(20):
            await _register(cluster, f"p{number}", _offsets(number))
        for number in range(20):
            assert (await _get(cluster, f"p{number}")).table_offsets == _offsets(number)


async def test_so_many_offsets_are_kept_and_no_more(make_cluster):
    async with make_cluster(settings={"producer_offsets_count_max": 4}) as cluster:
        await _register(cluster, "a", _offsets())
        await _register(cluster, "b")
        refusal = await _refused(cluster, "c", table_offsets=_offsets())
        assert refusal.error_code == 63
        assert "at most 4 offsets" in refusal.message
        assert await _register(cluster, "c") == 0
        await _refused(cluster, "d")


@pytest.mark.parametrize("producer_id", ["", "a b", "x" * 201, "a/b"])
async def test_ids_that_no_producer_can_have_are_refused(make_cluster, producer_id):
    async with make_cluster() as cluster:
        for api, message in (
            (apis.REGISTER_PRODUCER_OFFSETS, pb.RegisterProducerOffsetsRequest(producer_id=producer_id)),
            (apis.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest(producer_id=producer_id)),
            (apis.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest(producer_id=producer_id)),
        ):
            assert await cluster.code(api, message) == 63


async def test_producers_may_use_the_system_s_prefix(make_cluster):
    async with make_cluster() as cluster:
        assert await _register(cluster, "__p") == 0
