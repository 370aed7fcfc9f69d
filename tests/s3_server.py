"""A server that speaks S3, for tests: that of moto, in an environment of its own, and a proxy that makes it fail.

    make test-remote        makes the environment, and runs the tests that need it

Without it, and without FLUSS_TEST_S3_ENDPOINT, these tests are skipped with a sentence.
"""

from __future__ import annotations

import http.client
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from urllib.parse import urlsplit

import pytest

from tests.pages import ROOT

ENVIRONMENT = ROOT / ".moto" / "bin" / "python"
# What concerns one connection and not the request.
_OWN_HEADERS = frozenset({"connection", "content-length", "expect", "transfer-encoding"})
KEYS = {"s3.access-key": "testing", "s3.secret-key": "testing", "s3.region": "us-east-1"}


def _python() -> str:
    if ENVIRONMENT.exists():
        return str(ENVIRONMENT)
    if find_spec("moto") is not None:
        return sys.executable
    pytest.skip("there is no server here that speaks S3: make test-remote installs one")


@contextmanager
def s3_server() -> Iterator[str]:
    """Run the server, and yield its address."""
    if "FLUSS_TEST_S3_ENDPOINT" in os.environ:
        yield os.environ["FLUSS_TEST_S3_ENDPOINT"]
        return
    command = [_python(), "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stderr)))
            # It says something for every request.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield address.group()
        finally:
            process.kill()


def new_bucket(endpoint: str) -> str:
    """Create a bucket and return its name. The first request may take a while."""
    from pyarrow import fs

    name = f"test-{secrets.token_hex(6)}"
    store = fs.S3FileSystem(
        access_key=KEYS["s3.access-key"],
        secret_key=KEYS["s3.secret-key"],
        region=KEYS["s3.region"],
        endpoint_override=endpoint,
        allow_bucket_creation=True,
        request_timeout=120,
    )
    store.create_dir(name)
    return name


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on, unless it was told to let the next one fail.

    A fault is a status; ``hang``, which answers after the client has given up; ``close``, which hangs up; or
    ``truncate``, which sends half of the answer. ``faults`` are used up, one by each request whose method is in
    ``methods``.
    """

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        self.target = urlsplit(endpoint).netloc
        self.faults: list[int | str] = []
        self.methods = "PUT POST GET HEAD"
        self.request_count = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has hung up is what some tests want."""


class _ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _pass_on(self) -> None:
        body = self._body()
        self.server.request_count += 1
        is_meant = self.command in self.server.methods.split()
        fault = self.server.faults.pop(0) if is_meant and self.server.faults else None
        if isinstance(fault, int):
            self.send_response(fault)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        if fault in ("close", "hang"):
            time.sleep(4 if fault == "hang" else 0)
            self.close_connection = True
            return
        connection = http.client.HTTPConnection(self.server.target, timeout=120)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN_HEADERS}
        headers["content-length"] = str(len(body))
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "server", "date"):
                self.send_header(name, value)
        length = answer.getheader("content-length") if self.command == "HEAD" else str(len(data))
        self.send_header("content-length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if fault == "truncate" else data)
        if fault == "truncate":
            self.close_connection = True

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815 - the names that the base class looks for

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def faulty_proxy(endpoint: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(endpoint) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
