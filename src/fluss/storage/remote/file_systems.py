"""Which file system a location belongs to, and how the options of Apache Fluss's servers become those of pyarrow's.

| location                                   | file system                                       | keys         |
|--------------------------------------------|---------------------------------------------------|--------------|
| ``/path``, ``file:///path``                  | a directory of the machine                        |              |
| ``s3://bucket/path``, ``s3a://...``          | pyarrow's, for Amazon S3 and what is like it      | ``s3.``        |
| ``gs://bucket/path``                         | pyarrow's, for Google Cloud Storage               | of the machine |
| ``abfs://container@account.../path``, ``abfss`` | pyarrow's, for Azure                              | ``fs.azure.``  |
| ``hdfs://host:port/path``                    | pyarrow's, with the Hadoop libraries of the machine |              |
| ``oss://bucket/path``                        | ``ossfs``, by fsspec                               | ``fs.oss.``    |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from fluss.errors import ErrorCode, FlussError
from fluss.options import without_passwords
from fluss.storage.remote.objects import ArrowObjects, DirectoryObjects, Objects
from fluss.storage.vfs import Files

S3_SCHEMES: Final = ("s3", "s3a")
_AZURE_SCHEMES: Final = ("abfs", "abfss")
SCHEMES: Final = ("file", *S3_SCHEMES, "gs", *_AZURE_SCHEMES, "hdfs", "oss")
_REGION_DEFAULT: Final = "us-east-1"
_S3_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class FileSystemOptions:
    """What is configured about file systems, as texts by key. Some of them are secrets: none is ever shown."""

    def __init__(
        self, properties: Mapping[str, str], *, connect_timeout_s: float = 10.0, request_timeout_s: float = 60.0
    ) -> None:
        self._properties = properties
        self.connect_timeout_s = connect_timeout_s
        self.request_timeout_s = request_timeout_s

    def __repr__(self) -> str:
        return f"FileSystemOptions({', '.join(sorted(key for key, text in self._properties.items() if text))})"

    def get(self, *keys: str) -> str | None:
        """Return the value of the first of these keys that has one."""
        return next((text for key in keys if (text := self._properties.get(key))), None)

    def is_true(self, *keys: str) -> bool:
        return (self.get(*keys) or "").strip().lower() == "true"


def scheme_of(location: str) -> str:
    """Return the scheme of a location: ``file`` for a path."""
    return "file" if location.startswith("/") else urlsplit(location).scheme.lower()


def local_path(location: str) -> Path | None:
    """Return the path of an absolute path or a ``file:`` URI of this machine; None for everything else."""
    if location.startswith("/"):
        return Path(location)
    url = urlsplit(location)
    if url.scheme.lower() == "file" and url.netloc in ("", "localhost") and url.path.startswith("/"):
        return Path(unquote(url.path))
    return None


def check_location(location: str) -> str:
    """Return a location in the form that clients are told: without a slash at the end, and a path for ``file:``.

    Anything that cannot be one is a FlussError that says what can.
    """
    path = local_path(location)
    if path is not None:
        return str(path)
    url = urlsplit(location)
    if url.scheme.lower() not in SCHEMES or url.scheme.lower() == "file":
        raise _invalid(
            f"remote storage cannot be at '{without_passwords(location)}': give an absolute path, or a URI of "
            f"{', '.join(SCHEMES[1:])}"
        )
    if url.password is not None:
        raise _invalid("the URI of remote storage has a password in it, which clients would be told; use the options")
    if not url.netloc and url.scheme.lower() != "hdfs":
        raise _invalid(f"remote storage cannot be at '{location}': the name of a bucket or container is missing")
    return location.rstrip("/")


def open_objects(location: str, options: FileSystemOptions, files: Files) -> Objects:
    """Return the objects at a location, to which nothing is sent yet. ``files`` are for directories of the machine."""
    location = check_location(location)
    if location.startswith("/"):
        return DirectoryObjects(Path(location), files)
    is_written_in_place = scheme_of(location) == "hdfs"
    return ArrowObjects(
        arrow_file_system(location, options), path_of(location), location, is_written_in_place=is_written_in_place
    )


def path_of(location: str) -> str:
    """Return what the file system of a location calls it."""
    url = urlsplit(location)
    scheme = url.scheme.lower()
    if scheme == "hdfs":
        return url.path
    container = url.netloc.partition("@")[0] if scheme in _AZURE_SCHEMES else url.netloc
    return f"{container}{url.path}"


def arrow_file_system(location: str, options: FileSystemOptions) -> Any:
    """Return the file system, as pyarrow has them, of a location that is not a directory of the machine."""
    location = check_location(location)
    url = urlsplit(location)
    scheme = url.scheme.lower()
    if scheme in S3_SCHEMES:
        return _s3(options)
    if scheme in _AZURE_SCHEMES:
        return _azure(url, options)
    if scheme == "oss":
        return _oss(options)
    from pyarrow import fs

    return fs.GcsFileSystem() if scheme == "gs" else fs.HadoopFileSystem.from_uri(location)


def _s3(options: FileSystemOptions) -> Any:
    from pyarrow import fs

    # The variables are those that tools for S3 agree on.
    endpoint = options.get("s3.endpoint") or next(filter(None, map(os.environ.get, _S3_ENDPOINT_VARIABLES)), None)
    scheme = urlsplit(endpoint).scheme if endpoint and "://" in endpoint else "https"
    # With an endpoint of one's own the bucket is part of the path, unless that is switched off; without, of the host.
    path_style = options.get("s3.path.style.access")
    return fs.S3FileSystem(
        access_key=options.get("s3.access-key"),
        secret_key=options.get("s3.secret-key"),
        session_token=options.get("s3.session-token"),
        region=options.get("s3.region") or (_REGION_DEFAULT if endpoint else None),
        endpoint_override=endpoint,
        scheme=scheme,
        force_virtual_addressing=path_style is not None and path_style.strip().lower() == "false",
        connect_timeout=options.connect_timeout_s,
        request_timeout=options.request_timeout_s,
        # Small objects are one request.
        allow_delayed_open=True,
        # All retries are ours: they are counted, and end when the server stops.
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )


def _azure(url: SplitResult, options: FileSystemOptions) -> Any:
    from pyarrow import fs

    account = url.netloc.partition("@")[2].partition(".")[0]
    if not account:
        raise _invalid(
            f"remote storage at '{url.geturl()}' names no account: write abfs://container@account.dfs.core.windows.net/"
        )
    return fs.AzureFileSystem(
        account,
        account_key=options.get("fs.azure.account.key"),
        client_id=options.get("fs.azure.account.oauth2.client.id"),
        client_secret=options.get("fs.azure.account.oauth2.client.secret"),
    )


def _oss(options: FileSystemOptions) -> Any:
    from pyarrow import fs

    try:
        import ossfs
    except ImportError:
        raise _invalid("remote storage at oss:// needs a library that is not installed: pip install ossfs") from None
    file_system = ossfs.OSSFileSystem(
        endpoint=options.get("fs.oss.endpoint"),
        key=options.get("fs.oss.accessKeyId"),
        secret=options.get("fs.oss.accessKeySecret"),
        token=options.get("fs.oss.securityToken"),
    )
    return fs.PyFileSystem(fs.FSSpecHandler(file_system))


def _invalid(message: str) -> FlussError:
    return FlussError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)
