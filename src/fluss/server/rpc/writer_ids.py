"""Requests of writers: their ids, and offsets to which they return after a failure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.codec import EncodedMessage
from fluss.protocol.convert import bucket_offsets, pb_producer_offsets, table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.table import TableBucket
from fluss.server.authorizer import CLUSTER, Authorizer, Operation, Resource
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.metadata.metadata_store import RegisteredOffsets
from fluss.server.coordinator.producers import ProducerRegistry, WriterIds, check_producer_id
from fluss.server.rpc.handler_group import ChangeHandler, check_table_id, resource_of_table_id

_CREATED: Final = 0
_ALREADY_EXISTS: Final = 1
# Answers with offsets that are kept.
_ANSWERS_MAX: Final = 8


@dataclass(slots=True)
class _KeptAnswer:
    """The offsets of a producer in those tables that the user may read who asked last, encoded."""

    producer: RegisteredOffsets
    table_ids: frozenset[int]
    readable_ids: frozenset[int] | None = None
    encoded: EncodedMessage | None = None


class WriterHandlers:
    """Gives out writer ids and keeps the offsets of producers."""

    def __init__(
        self, catalog: Catalog, authorizer: Authorizer, writer_ids: WriterIds, producers: ProducerRegistry
    ) -> None:
        self._catalog = catalog
        self._authorizer = authorizer
        self._writer_ids = writer_ids
        self._producers = producers
        # There can be a hundred thousand offsets. They are asked for with a few bytes, and take long to encode.
        self._answers: OrderedDict[str, _KeptAnswer] = OrderedDict()

    def readers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.GET_PRODUCER_OFFSETS: self._get_offsets}

    def changers(self) -> Mapping[ApiKey, ChangeHandler]:
        return {
            ApiKey.INIT_WRITER: self._init_writer,
            ApiKey.REGISTER_PRODUCER_OFFSETS: self._register_offsets,
            ApiKey.DELETE_PRODUCER_OFFSETS: self._delete_offsets,
        }

    async def _init_writer(self, context: RequestContext, request: pb.InitWriterRequest) -> pb.InitWriterResponse:
        paths = [table_path(message) for message in request.table_path]
        resources = [CLUSTER, *map(Resource.table, paths)]
        if not any(self._authorizer.allows(context, Operation.WRITE, resource) for resource in resources):
            tables = ", ".join(map(str, paths)) or "no table"
            raise FlussError(
                f"Principal {context.principal} has no authorization to write to one of the tables named: {tables}",
                ErrorCode.AUTHORIZATION_EXCEPTION,
            )
        return pb.InitWriterResponse(writer_id=await self._writer_ids.next())

    # Offsets of producers

    async def _register_offsets(
        self, context: RequestContext, request: pb.RegisterProducerOffsetsRequest
    ) -> pb.RegisterProducerOffsetsResponse:
        check_producer_id(request.producer_id)
        offsets = tuple(bucket_offsets(request.table_offsets))
        self._check_may_write(context, offsets)
        ttl_ms = request.ttl_ms if request.HasField("ttl_ms") else None
        producer, is_new = await self._producers.register(request.producer_id, str(context.principal), offsets, ttl_ms)
        if not is_new and not self._is_shown(context, producer):
            raise FlussError(
                f"The producer id '{request.producer_id}' belongs to another user; choose another one",
                ErrorCode.AUTHORIZATION_EXCEPTION,
            )
        return pb.RegisterProducerOffsetsResponse(result=_CREATED if is_new else _ALREADY_EXISTS)

    def _get_offsets(
        self, context: RequestContext, request: pb.GetProducerOffsetsRequest
    ) -> pb.GetProducerOffsetsResponse | EncodedMessage:
        check_producer_id(request.producer_id)
        producer = self._producers.get(request.producer_id)
        if producer is None or not self._is_shown(context, producer):
            return pb.GetProducerOffsetsResponse()
        kept = self._kept_answer(producer)
        readable_ids = frozenset(
            table_id
            for table_id in kept.table_ids
            if self._authorizer.allows(context, Operation.READ, resource_of_table_id(self._catalog, table_id))
        )
        if kept.encoded is None or kept.readable_ids != readable_ids:
            kept.readable_ids, kept.encoded = readable_ids, _encoded(producer, readable_ids)
        return kept.encoded

    def _kept_answer(self, producer: RegisteredOffsets) -> _KeptAnswer:
        kept = self._answers.pop(producer.producer_id, None)
        if kept is None or kept.producer is not producer:
            kept = _KeptAnswer(producer, frozenset(bucket.table_id for bucket, _ in producer.offsets))
        self._answers[producer.producer_id] = kept
        if len(self._answers) > _ANSWERS_MAX:
            self._answers.popitem(last=False)
        return kept

    async def _delete_offsets(
        self, context: RequestContext, request: pb.DeleteProducerOffsetsRequest
    ) -> pb.DeleteProducerOffsetsResponse:
        check_producer_id(request.producer_id)
        producer = self._producers.get(request.producer_id)
        if producer is not None and self._is_shown(context, producer):
            existing = [entry for entry in producer.offsets if self._catalog.table_by_id(entry[0].table_id) is not None]
            if existing or not producer.owner:
                self._check_may_write(context, existing)
            await self._producers.delete(request.producer_id)
        return pb.DeleteProducerOffsetsResponse()

    def _is_shown(self, context: RequestContext, producer: RegisteredOffsets) -> bool:
        """Whether the sender registered it, or may change the cluster. Others are told that there is no such producer.

        Of those that were registered before owners were recorded, the rights to the tables decide alone.
        """
        return producer.owner in ("", str(context.principal)) or self._authorizer.allows(
            context, Operation.ALTER, CLUSTER
        )

    def _check_may_write(self, context: RequestContext, offsets: Iterable[tuple[TableBucket, int | None]]) -> None:
        """Refuse senders who may not write to all these tables; where there are none, to the whole cluster."""
        table_ids = {bucket.table_id for bucket, _ in offsets}
        if not table_ids:
            self._authorizer.check(context, Operation.WRITE, CLUSTER)
        for table_id in table_ids:
            check_table_id(self._authorizer, self._catalog, context, Operation.WRITE, table_id)


def _encoded(producer: RegisteredOffsets, readable_ids: frozenset[int]) -> EncodedMessage:
    shown = [entry for entry in producer.offsets if entry[0].table_id in readable_ids]
    answer = pb.GetProducerOffsetsResponse(
        producer_id=producer.producer_id,
        expiration_time=producer.expires_ms,
        table_offsets=pb_producer_offsets(shown),
    )
    return EncodedMessage(pb.GetProducerOffsetsResponse, [answer.SerializeToString()])
