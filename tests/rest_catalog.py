"""A REST catalog of Iceberg in this process, over a directory: it wants a token, and can be away or lose answers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import CommitTableRequest, Table

from fluss.lake.directory_catalog import DirectoryCatalog

TOKEN = "token-of-the-catalog"
_IO = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}


class RestCatalogServer:
    """Answers the requests that pyiceberg makes for tables. A context manager."""

    def __init__(self, warehouse: Path) -> None:
        self._catalog = DirectoryCatalog("rest", warehouse=str(warehouse), **_IO)
        # How many of the next requests find nobody, and how many of the next commits are made and not answered.
        self.away_count = 0
        self.lost_commits = 0
        self.request_count = 0
        handler = type("Handler", (_Handler,), {"rest": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def properties(self) -> dict[str, str]:
        """What a client needs besides the token."""
        return {"type": "rest", "uri": f"http://127.0.0.1:{self._server.server_address[1]}"}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: list[str], body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer to a request."""
        self.request_count += 1
        if self.away_count > 0:
            self.away_count -= 1
            return 503, _error(503, "ServiceUnavailableException", "away")
        catalog = self._catalog
        try:
            match method, path:
                case "GET", ["config"]:
                    return 200, {"defaults": {}, "overrides": {}}
                case "POST", ["namespaces"]:
                    names = json.loads(body)["namespace"]
                    catalog.create_namespace(tuple(names))
                    return 200, {"namespace": names, "properties": {}}
                case (("GET" | "HEAD"), ["namespaces", name]):
                    return 200, {"namespace": [name], "properties": catalog.load_namespace_properties((name,))}
                case (("GET" | "HEAD"), ["namespaces", name, "tables", table]):
                    return 200, _loaded(catalog.load_table((name, table)))
                case "POST", ["namespaces", name, "tables"]:
                    wanted = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
                    made = catalog.create_table(
                        (name, wanted.name),
                        wanted.table_schema,
                        partition_spec=wanted.partition_spec,
                        sort_order=wanted.write_order,
                        properties=wanted.properties,
                    )
                    return 200, _loaded(made)
                case "POST", ["namespaces", name, "tables", table]:
                    change = CommitTableRequest.model_validate_json(body)
                    catalog.commit_table(catalog.load_table((name, table)), change.requirements, change.updates)
                    if self.lost_commits > 0:
                        self.lost_commits -= 1
                        return 500, _error(500, "CommitStateUnknownException", "the answer was lost")
                    return 200, _loaded(catalog.load_table((name, table)))
        except NoSuchTableError as error:
            return 404, _error(404, "NoSuchTableException", str(error))
        except NoSuchNamespaceError as error:
            return 404, _error(404, "NoSuchNamespaceException", str(error))
        except CommitFailedException as error:
            return 409, _error(409, "CommitFailedException", str(error))
        return 400, _error(400, "BadRequestException", f"{method} {'/'.join(path)}")


def _loaded(table: Table) -> dict[str, Any]:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _error(code: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}


class _Handler(BaseHTTPRequestHandler):
    rest: RestCatalogServer

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0].removeprefix("/v1/").split("/")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, answer = 401, _error(401, "NotAuthorizedException", "a token is needed")
        else:
            status, answer = self.rest.answer(self.command, path, body)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        return
