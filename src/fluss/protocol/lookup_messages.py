"""Requests and answers of lookups, which hold thousands of small keys and values.

The protobuf runtime makes an object of each, and of values two. Here they are written, and found again, without a step
for each of them; a few values are written one by one, which is faster then. All of it runs in any thread, so that
nothing is left to do where a message is sent. The entry of a bucket in a request:

    1 partition_id   2 bucket_id   3 one field per key

and in an answer, the same for keys and for prefixes but for what stands in field 5:

    1 partition_id   2 bucket_id   3 error_code   4 error_message   5 one PbValue per key, or PbValueList per prefix

A PbValue has the value in field 1, or nothing at all if there is none. A PbValueList has all of its values in field 1.

All layouts say the same as fluss.proto, and tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from fluss.buffers import BytesLike, Int64Array, byte_view
from fluss.errors import CorruptMessageError
from fluss.protocol.codec import EncodedMessage, MessageCodec, Parts
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.protowire import BYTES, VARINT, length_prefix, tag, varint
from fluss.record.framing import concat_rows
from fluss.row.encoded import EncodedRows, offsets_of, pieces_of, side_by_side
from fluss.row.varint import WORD_BYTES, read_varints, varint_lengths, write_varints

# Numbers of fields; all of them are below 16, so that their tags are single bytes.
_ENTRY_FIELD: Final = 1
_PARTITION_FIELD: Final = 1
_BUCKET_FIELD: Final = 2
_KEY_FIELD: Final = 3
_LIST_FIELD: Final = 5
_VALUE_FIELD: Final = 1
_BUCKETS_REQ_FIELD: Final = 2
_VALUE_TAG: Final = tag(_VALUE_FIELD, BYTES)[0]
_NO_VALUE: Final = length_prefix(_LIST_FIELD, 0)
# Up to so many keys, or values, of a message the runtime is faster: operations on arrays cost as much for a few.
_FEW_MAX: Final = 64
# What stands before a value depends on its size only. Those of sizes below this are made once.
_REMEMBERED_BYTES_MAX: Final = 4096
# Of so many buckets it is remembered how an entry says which bucket it is about.
_REMEMBERED_BUCKETS_MAX: Final = 16_384

_FieldProto: Final = descriptor_pb2.FieldDescriptorProto


# Requests


def lookup_request(
    table_id: int, keys: Mapping[tuple[int | None, int], EncodedRows], *, few_max: int = _FEW_MAX
) -> EncodedMessage:
    """Return a LookupRequest for keys of some buckets, each known by the id of its partition, if any, and its own."""
    parts: Parts = [pb.LookupRequest(table_id=table_id).SerializeToString()]
    counts = list(map(len, keys.values()))
    if sum(counts) <= few_max:
        for (partition_id, bucket_id), wanted in keys.items():
            entry = pb.PbLookupReqForBucket(partition_id=partition_id, bucket_id=bucket_id, keys=wanted.to_list())
            encoded = entry.SerializeToString()
            parts.append(length_prefix(_BUCKETS_REQ_FIELD, len(encoded)) + encoded)
        return EncodedMessage(pb.LookupRequest, parts)
    # The keys of all buckets at once, and then the pieces of each.
    all_keys = side_by_side(list(keys.values()))
    fields = concat_rows(_prefixes(_KEY_FIELD, all_keys.lengths), all_keys)
    view = byte_view(fields.data)
    ends = np.append(0, fields.ends)[np.cumsum(np.array(counts, np.int64))].tolist()
    for bucket_key, (start, end) in zip(keys, pairwise([0, *ends]), strict=True):
        header = _bucket_fields(*bucket_key)
        parts += (length_prefix(_BUCKETS_REQ_FIELD, len(header) + end - start), header, view[start:end])
    return EncodedMessage(pb.LookupRequest, [b"".join(parts)])


@lru_cache(_REMEMBERED_BUCKETS_MAX)
def _bucket_fields(partition_id: int | None, bucket_id: int) -> bytes:
    """Return the first two fields of an entry, in a request or in an answer."""
    partition = b"" if partition_id is None else tag(_PARTITION_FIELD, VARINT) + varint(partition_id)
    return partition + tag(_BUCKET_FIELD, VARINT) + varint(bucket_id)


# Answers


@dataclass(slots=True)
class LookupAnswer:
    """What was found in one bucket, or why nothing was."""

    bucket_id: int
    partition_id: int | None = None
    error_code: int | None = None
    error_message: str | None = None
    # As ``encode_values``, ``encode_value_columns`` or ``encode_value_lists`` returned it.
    encoded: BytesLike = field(default=b"", repr=False)


def lookup_response(answers: Sequence[LookupAnswer]) -> EncodedMessage:
    """Return a LookupResponse whose answers hold values."""
    return _response(pb.LookupResponse, pb.PbLookupRespForBucket, answers)


def prefix_lookup_response(answers: Sequence[LookupAnswer]) -> EncodedMessage:
    """Return a PrefixLookupResponse whose answers hold lists of values."""
    return _response(pb.PrefixLookupResponse, pb.PbPrefixLookupRespForBucket, answers)


def encode_values(values: Sequence[bytes | None]) -> bytes:
    """Encode what was found under each key of one bucket; None is a key that was not found. Runs in any thread."""
    prefixes = _VALUE_PREFIXES
    return b"".join([_NO_VALUE if value is None else prefixes[len(value)] + value for value in values])


def encode_value_columns(*parts: EncodedRows) -> EncodedRows:
    """Do the same for many values at once: value ``i`` is row ``i`` of every part, one after the other.

    A value without bytes stands for a key that was not found. Row ``i`` of the result is what is sent for key ``i``;
    the rows lie back to back.
    """
    lengths: Int64Array = np.sum([part.lengths for part in parts], axis=0)
    is_found = lengths > 0
    inner_lengths = np.where(is_found, 1 + varint_lengths(lengths.astype(np.uint32)), 0)
    outer = _prefixes(_LIST_FIELD, inner_lengths + lengths)
    inner = _prefixes(_VALUE_FIELD, lengths[is_found])
    ends = np.cumsum(inner_lengths)
    return concat_rows(outer, EncodedRows(inner.data, ends - inner_lengths, ends), *parts)


def encode_value_lists(lists: Sequence[Sequence[bytes]]) -> bytes:
    """Encode what was found under each key prefix of one bucket. Runs in any thread."""
    prefixes = _LIST_ITEM_PREFIXES
    encoded: list[bytes] = []
    for values in lists:
        content = b"".join([prefixes[len(value)] + value for value in values])
        encoded += (length_prefix(_LIST_FIELD, len(content)), content)
    return b"".join(encoded)


class _ValuePrefixes(dict[int, bytes]):
    """By the size of a value: what stands before it in a list of PbValues."""

    def __missing__(self, size: int) -> bytes:
        prefix = self._made(size)
        if size < _REMEMBERED_BYTES_MAX:
            self[size] = prefix
        return prefix

    def _made(self, size: int) -> bytes:
        inner = length_prefix(_VALUE_FIELD, size)
        return length_prefix(_LIST_FIELD, len(inner) + size) + inner


class _ListItemPrefixes(_ValuePrefixes):
    """By the size of a value: what stands before it in a PbValueList."""

    def _made(self, size: int) -> bytes:
        return length_prefix(_VALUE_FIELD, size)


_VALUE_PREFIXES: Final = _ValuePrefixes()
_LIST_ITEM_PREFIXES: Final = _ListItemPrefixes()


def _response(
    message_type: type[Message],
    entry_type: type[pb.PbLookupRespForBucket] | type[pb.PbPrefixLookupRespForBucket],
    answers: Sequence[LookupAnswer],
) -> EncodedMessage:
    parts: Parts = []
    for answer in answers:
        if answer.error_code is None and answer.error_message is None:
            header = _bucket_fields(answer.partition_id, answer.bucket_id)
        else:
            header = entry_type(
                bucket_id=answer.bucket_id,
                partition_id=answer.partition_id,
                error_code=answer.error_code,
                error_message=answer.error_message,
            ).SerializeToString()
        parts += (length_prefix(_ENTRY_FIELD, len(header) + len(answer.encoded)) + header, answer.encoded)
    return EncodedMessage(message_type, parts)


def _prefixes(number: int, lengths: Int64Array) -> EncodedRows:
    """Return what stands before the content of each field of a number, by the length of the content."""
    sizes = varint_lengths(lengths.astype(np.uint32))
    offsets = offsets_of(1 + sizes)
    data = np.empty(int(offsets[-1]), np.uint8)
    data[offsets[:-1]] = tag(number, BYTES)[0]
    write_varints(data, offsets[:-1] + 1, lengths.astype(np.uint32), sizes)
    return EncodedRows.from_offsets(data, offsets)


def _with_undecoded_values() -> type[Message]:
    """Describe LookupResponse once more, with values that are bytes: the runtime then leaves each PbValue encoded.

    A message is written in the same way as bytes, and a list of bytes is read four times as fast.
    """
    described = descriptor_pb2.FileDescriptorProto(name="undecoded_values.proto", package="undecoded", syntax="proto2")
    for message_type in (pb.LookupResponse, pb.PbLookupRespForBucket):
        message_type.DESCRIPTOR.CopyToProto(described.message_type.add())
    answer, entry = described.message_type
    answer.field[0].type_name = f".undecoded.{entry.name}"
    (values,) = (item for item in entry.field if item.number == _LIST_FIELD)
    values.type = _FieldProto.TYPE_BYTES
    values.ClearField("type_name")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"undecoded.{answer.name}"))


# A LookupResponse like any other, except that ``values_of`` has to find the values of its entries.
UNDECODED_VALUES: Final[MessageCodec[Any]] = MessageCodec(_with_undecoded_values())


def values_of(entries: Sequence[Any], *, few_max: int = _FEW_MAX) -> list[EncodedRows]:
    """Return the value of each key of some entries of such an answer; one without bytes is one that was not found."""
    lists = [list(entry.values) for entry in entries]
    rows = _values_of(list(chain.from_iterable(lists)), few_max)
    return pieces_of(rows, list(map(len, lists)))


def _values_of(messages: list[bytes], few_max: int) -> EncodedRows:
    """Return the values of PbValues."""
    if len(messages) <= few_max:
        return _decoded(messages)
    rows = EncodedRows.from_list(messages)
    data, starts, ends = rows.data, rows.starts, rows.ends
    is_found = ends > starts
    if not is_found.any():
        return rows
    if len(data) < WORD_BYTES:
        data = np.concatenate((data, np.zeros(WORD_BYTES, np.uint8)))
    tags_at = starts[is_found]
    lengths, length_bytes = read_varints(data, tags_at + 1, bits=32)
    starts = starts.copy()
    starts[is_found] = tags_at + 1 + length_bytes
    is_plain = (data[tags_at] == _VALUE_TAG) & (length_bytes > 0)
    is_plain &= starts[is_found] + lengths.astype(np.int64) == ends[is_found]
    if is_plain.all():
        return EncodedRows(data, starts, ends)
    # Something else is in there, which the runtime knows how to read.
    return _decoded(messages)


def _decoded(messages: Sequence[bytes]) -> EncodedRows:
    """Return the values of PbValues, decoded one by one."""
    try:
        return EncodedRows.from_list([pb.PbValue.FromString(message).values for message in messages])
    except DecodeError as error:
        raise CorruptMessageError(f"undecodable PbValue: {error}") from error
