"""Catalogs from properties: those that the options ``datalake.iceberg.*`` of a server have behind their prefix."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ServerError, ServiceUnavailableError
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import Timeout

from fluss.errors import ErrorCode, FlussError
from fluss.lake.directory_catalog import DirectoryCatalog
from fluss.options import without_passwords
from fluss.retry import LAKE_CATALOGS
from fluss.schema.table_options import LAKE_PREFIX

_T = TypeVar("_T")

_NAME: Final = "fluss"
# With a table, servers tell the options ``datalake.iceberg.*`` under this prefix.
_TABLE_PREFIX: Final = f"{LAKE_PREFIX}iceberg."
_TYPE: Final = "type"
_WAREHOUSE: Final = "warehouse"
_DIRECTORY_TYPES: Final = ("hadoop", "directory")
# Everything here lists and writes files through pyarrow, which has all common file systems built in.
_IO: Final = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}


def catalog_properties(table_properties: Mapping[str, str], own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the properties of the catalog of a Fluss table: those that the server tells, then one's own.

    Servers tell no passwords, secrets and keys; those are ``own``, named as pyiceberg names them.
    """
    told = {
        key.removeprefix(_TABLE_PREFIX): value
        for key, value in table_properties.items()
        if key.startswith(_TABLE_PREFIX)
    }
    return {**told, **(own or {})}


def open_catalog(properties: Mapping[str, str]) -> Catalog:
    """Open the catalog of a lake.

    ``type`` is ``hadoop`` for a directory, the default where there is a ``warehouse`` and no ``uri``; otherwise it is a
    type that pyiceberg knows: ``sql``, ``rest``, ``glue``, ``hive``, ``dynamodb``. The other properties are those of
    that catalog and its files. Raises code 40 if they do not make up a catalog, or its service does not answer.
    """
    kind = properties.get(_TYPE, "").lower()
    is_directory = kind in _DIRECTORY_TYPES or (
        not kind and "uri" not in properties and "py-catalog-impl" not in properties
    )
    if is_directory:
        if not properties.get(_WAREHOUSE):
            raise _no_catalog(
                "it has no 'warehouse'; set it to a directory, or 'type' and 'uri' to those of a catalog service"
            )
        return DirectoryCatalog(_NAME, **{**_IO, **properties})
    try:
        return retried(lambda: load_catalog(_NAME, **{**_IO, **properties}))
    except FlussError:
        raise
    except Exception as error:
        raise _no_catalog(without_passwords(f"{type(error).__name__}: {error}")) from None


def retried(call: Callable[[], _T]) -> _T:
    """Ask a catalog what changes nothing, again for some seconds while it is away."""
    for pause_s in LAKE_CATALOGS.pauses_s():
        try:
            return call()
        except (RequestsConnectionError, Timeout, ServerError, ServiceUnavailableError):
            time.sleep(pause_s)
    return call()


def _no_catalog(why: str) -> FlussError:
    return FlussError(
        f"The catalog of the lake cannot be opened: {why}", ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION
    )
