"""Clients that are too old for the keys of a table."""

from __future__ import annotations

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table_options import KV_FORMAT_VERSION, LAKE_FORMAT
from fluss.server.model import Table

_OWN_KEY_ENCODING_VERSION = 2


def check_key_version(table: Table, api_version: int) -> None:
    """Refuse (code 2) a PutKv, Lookup or PrefixLookup of a client that would encode keys of this table wrongly.

    Version 0 of these requests comes from clients that know one encoding for the keys of lake tables. Tables of key
    format version 2 whose bucket key is not their whole primary key have another one.
    """
    if api_version > 0:
        return
    descriptor = table.descriptor
    properties = descriptor.properties
    if (
        LAKE_FORMAT.of(properties) is not None
        and KV_FORMAT_VERSION.of(properties) == _OWN_KEY_ENCODING_VERSION
        and descriptor.bucket_keys != descriptor.physical_primary_keys
    ):
        raise FlussError(
            f"Table {table.path} has keys of format version {_OWN_KEY_ENCODING_VERSION}, which this client does not "
            "know; use a newer client",
            ErrorCode.UNSUPPORTED_VERSION,
        )
