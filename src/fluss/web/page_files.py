"""The files that the page is made of: read once, from the package, and the same for all users."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final

from aiohttp import web

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX: Final = "index.html"
_ICON: Final = "icon.svg"


class PageFiles:
    """The files by name, with what browsers keep them by."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        for file in (resources.files("fluss.web") / "static").iterdir():
            content_type = _TYPES.get(f".{file.name.rpartition('.')[2]}")
            if content_type is not None:
                body = file.read_bytes()
                self._files[file.name] = body, content_type, f'"{hashlib.sha256(body).hexdigest()[:24]}"'

    async def index(self, request: web.Request) -> web.Response:
        return self._answer(request, _INDEX)

    async def icon(self, request: web.Request) -> web.Response:
        return self._answer(request, _ICON)

    async def file(self, request: web.Request) -> web.Response:
        return self._answer(request, request.match_info["name"])

    def _answer(self, request: web.Request, name: str) -> web.Response:
        if name not in self._files:
            raise web.HTTPNotFound(reason="there is no such file")
        body, content_type, tag = self._files[name]
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, headers={**headers, "Content-Type": content_type})
