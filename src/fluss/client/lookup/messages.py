"""The two methods of lookups, by key and by the beginning of a key: their requests, answers and results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, Generic, TypeVar

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import BucketKey
from fluss.errors import ErrorCode, FlussError, error_for_code
from fluss.protocol import api as apis
from fluss.protocol.api import Api
from fluss.protocol.convert import partition_id
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.table import TableBucket, TableInfo

AnswerT = TypeVar("AnswerT")


class LookupMethod(ABC, Generic[AnswerT]):
    """How rows are looked up. Every key has one answer, which holds stored values."""

    api: Api[Any, Any]

    async def ask(
        self,
        cluster: Cluster,
        server_id: int,
        info: TableInfo,
        keys: Mapping[BucketKey, Sequence[bytes]],
        timeout_s: float,
    ) -> dict[BucketKey, list[AnswerT] | FlussError]:
        """Ask a server for keys of buckets that it leads; every bucket has its answers in the order of its keys.

        Raises what the request failed with as a whole.
        """
        request = self._request(info.table_id, keys)
        response = await cluster.request(server_id, self.api, request, timeout_s=timeout_s)
        entries = {(partition_id(entry), entry.bucket_id): entry for entry in response.buckets_resp}
        return {
            bucket_key: self._checked(info, bucket_key, len(wanted), entries.get(bucket_key))
            for bucket_key, wanted in keys.items()
        }

    def _checked(
        self, info: TableInfo, bucket_key: BucketKey, key_count: int, entry: Any
    ) -> list[AnswerT] | FlussError:
        bucket = TableBucket.new_with_partition(info.table_id, *bucket_key)
        if entry is None:
            return _confused(f"did not answer about {bucket} of {info.table_path}")
        if entry.error_code:
            return error_for_code(entry.error_code, entry.error_message)
        answers = self._answers(entry)
        if len(answers) != key_count:
            return _confused(f"answered {len(answers)} of {key_count} lookups in {bucket} of {info.table_path}")
        return answers

    @abstractmethod
    def stored_values(self, answers: Sequence[AnswerT]) -> list[bytes]:
        """Return all stored values of some answers."""

    @abstractmethod
    def results(self, answers: Sequence[AnswerT], rows: Iterable[Any]) -> list[Any]:
        """Return what the callers get: the rows that were made of ``stored_values``, one result for each answer."""

    @abstractmethod
    def nothing(self) -> Any:
        """Return the result for a key that nothing was found for."""

    @abstractmethod
    def _request(self, table_id: int, keys: Mapping[BucketKey, Sequence[bytes]]) -> Any: ...

    @abstractmethod
    def _answers(self, entry: Any) -> list[AnswerT]: ...


class _ByKey(LookupMethod[bytes]):
    """An answer is a stored value, or no bytes at all if there is no such key. The result is a row, or None."""

    api = apis.LOOKUP

    def stored_values(self, answers: Sequence[bytes]) -> list[bytes]:
        return list(filter(None, answers))

    def results(self, answers: Sequence[bytes], rows: Iterable[Any]) -> list[Any]:
        found = iter(rows)
        return [next(found) if answer else None for answer in answers]

    def nothing(self) -> None:
        return None

    def _request(self, table_id: int, keys: Mapping[BucketKey, Sequence[bytes]]) -> pb.LookupRequest:
        entries = [
            pb.PbLookupReqForBucket(partition_id=partition, bucket_id=bucket_id, keys=wanted)
            for (partition, bucket_id), wanted in keys.items()
        ]
        return pb.LookupRequest(table_id=table_id, buckets_req=entries)

    def _answers(self, entry: pb.PbLookupRespForBucket) -> list[bytes]:
        # A value begins with its schema id, so one without bytes is one that is not there.
        return [value.values for value in entry.values]


class _ByPrefix(LookupMethod[Sequence[bytes]]):
    """An answer has the stored values of all keys that begin so, in the order of their keys. The result is a list."""

    api = apis.PREFIX_LOOKUP

    def stored_values(self, answers: Sequence[Sequence[bytes]]) -> list[bytes]:
        return list(chain.from_iterable(answers))

    def results(self, answers: Sequence[Sequence[bytes]], rows: Iterable[Any]) -> list[Any]:
        found = iter(rows)
        return [list(islice(found, len(answer))) for answer in answers]

    def nothing(self) -> list[Any]:
        return []

    def _request(self, table_id: int, keys: Mapping[BucketKey, Sequence[bytes]]) -> pb.PrefixLookupRequest:
        entries = [
            pb.PbPrefixLookupReqForBucket(partition_id=partition, bucket_id=bucket_id, keys=wanted)
            for (partition, bucket_id), wanted in keys.items()
        ]
        return pb.PrefixLookupRequest(table_id=table_id, buckets_req=entries)

    def _answers(self, entry: pb.PbPrefixLookupRespForBucket) -> list[Sequence[bytes]]:
        return [list(found.values) for found in entry.value_lists]


BY_KEY: Final = _ByKey()
BY_PREFIX: Final = _ByPrefix()


def _confused(what: str) -> FlussError:
    return FlussError(f"the server {what}", ErrorCode.UNKNOWN_SERVER_ERROR)
