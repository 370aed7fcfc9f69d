"""``/api`` about the server itself: overview, health, connections, options, log lines. For operators.

Where there are rights, all of it needs the one to describe the cluster.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from aiohttp import web

from fluss._version import __version__
from fluss.server.operator_view import OperatorView
from fluss.web.load_history import LoadHistory
from fluss.web.log_lines import LogLines
from fluss.web.sessions import Session

UserHandler: TypeAlias = Callable[[web.Request, Session], Awaitable[Any]]

_CONNECTIONS_MAX: Final = 1000
_LINES_MAX: Final = 500


class ServerApi:
    """Answers about the server. Belongs to the loop of HTTP."""

    def __init__(self, view: OperatorView, history: LoadHistory, lines: LogLines) -> None:
        self._view = view
        self._history = history
        self._lines = lines
        self._started_s = time.time()

    def routes(self) -> Mapping[str, UserHandler]:
        answers: dict[str, UserHandler] = {
            "overview": self._overview,
            "connections": self._connections,
            "config": self._config,
            "logs": self._logs,
        }
        return {path: self._for_operators(answer) for path, answer in answers.items()}

    def _for_operators(self, answer: UserHandler) -> UserHandler:
        async def checked(request: web.Request, session: Session) -> Any:
            await self._view.check_operator(session.guest)
            return await answer(request, session)

        return checked

    async def _overview(self, request: web.Request, session: Session) -> Any:
        health = await self._view.health()
        databases, tables, partitions = await self._view.table_count()
        options = self._view.options
        return {
            "version": __version__,
            "process_id": os.getpid(),
            "started_ms": int(self._started_s * 1000),
            "data_dir": options.data_dir,
            "durability": str(options.durability),
            "health": {"status": health.status, "ready": health.is_ready, "reasons": list(health.reasons)},
            "backup_age_s": await self._view.backup_age_s(),
            "databases": databases,
            "tables": tables,
            "partitions": partitions,
            "series": self._history.series(),
            "apis": self._history.apis(),
        }

    async def _connections(self, request: web.Request, session: Session) -> Any:
        found = await self._view.connections()
        found.sort(key=lambda facts: -facts.request_count)
        return {
            "total": len(found),
            "connections": [
                {
                    "listener": facts.listener_name,
                    "address": facts.peer_address,
                    "user": None if facts.principal is None else facts.principal.name,
                    "connected_s": facts.connected_s,
                    "idle_s": facts.idle_s,
                    "requests": facts.request_count,
                    "in_flight": facts.in_flight_count,
                    "received_bytes": facts.received_bytes,
                    "sent_bytes": facts.sent_bytes,
                }
                for facts in found[:_CONNECTIONS_MAX]
            ],
        }

    async def _config(self, request: web.Request, session: Session) -> Any:
        rows = await self._view.configuration()
        return {"options": [{"key": key, "value": text, "origin": origin} for key, text, origin in rows]}

    async def _logs(self, request: web.Request, session: Session) -> Any:
        query = request.query
        lines = self._lines.lines(level=query.get("level", "info"), search=query.get("search", ""), count=_LINES_MAX)
        return {
            "lines": [
                {"time_ms": int(line.time_s * 1000), "level": line.level, "logger": line.logger, "text": line.text}
                for line in lines
            ]
        }
