"""Scan sessions: buckets pinned as they were, each read piece by piece by the client that opened it.

A pinned bucket keeps memory and files from being freed. So there are limits to how many there are, and a session that
its client has not used for a while expires. Its id is remembered for some time longer, so that the client can be told
what has happened.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import RequestContext
from fluss.protocol.sasl import Principal
from fluss.schema.table import TableBucket
from fluss.server.model import Clock, format_bucket
from fluss.server.periodic import Periodic
from fluss.server.tablet.buckets import HostedBucket
from fluss.storage.kv.store import KvSnapshot, KvStore

_ID_BYTES: Final = 16
# Ids of expired sessions that are remembered; of more the oldest are forgotten early.
_REMEMBERED_IDS_MAX: Final = 10_000
# Rows that a scan without a limit may still return.
NO_LIMIT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """How long a session may be silent, how often that is looked at, and how much there may be of what."""

    ttl_ms: int = 600_000
    expiration_interval_ms: int = 30_000
    sessions_per_bucket_max: int = 8
    sessions_max: int = 200
    # What one answer may hold.
    answer_bytes_max: int = 10 * 1024 * 1024


@dataclass(slots=True, eq=False)
class ScanSession:
    """One scan of one bucket."""

    session_id: bytes
    # Only the user that has opened it may use it.
    principal: Principal
    hosted: HostedBucket
    store: KvStore
    snapshot: KvSnapshot
    # What the limit of the scan leaves.
    rows_left: int
    used_at_ms: int
    # Whether the client that used it last has gone without closing it.
    is_orphaned: Callable[[], bool]
    # The number of the call that is carried out, or of the last one.
    call_seq_id: int = 0
    # Whether a call is carried out at this moment.
    is_busy: bool = True
    is_closed: bool = False


class ScanSessions:
    """The sessions of a server. Belongs to the event loop; snapshots are let go of by ``readers``."""

    def __init__(
        self,
        settings: ScanSettings,
        readers: Executor,
        *,
        clock: Clock,
        new_id: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._settings = settings
        self._readers = readers
        self._clock = clock
        self._new_id = new_id
        self._sessions: dict[bytes, ScanSession] = {}
        # How many sessions each bucket has, those that are being opened included.
        self._counts: Counter[TableBucket] = Counter()
        # Ids of expired sessions in the order in which they expired, and until when they are remembered.
        self._expired: dict[bytes, int] = {}
        self._sweeping = Periodic("scan session expiry", settings.expiration_interval_ms, self.expire)

    def start(self) -> None:
        """Begin to look for sessions that have expired."""
        self._sweeping.start()

    async def stop(self) -> None:
        """Close every session. May be called again."""
        await self._sweeping.stop()
        for session in list(self._sessions.values()):
            self.close(session)

    def __len__(self) -> int:
        return len(self._sessions)

    # Opening

    def claim(self, bucket: TableBucket) -> None:
        """Take a place for a session that is being opened; where there is none left, code 69 is raised.

        Before that, sessions are ended that have expired, and those of clients that have gone.
        """
        if self._why_full(bucket) is not None:
            for session in list(self._sessions.values()):
                if self._is_over(session) or (not session.is_busy and session.is_orphaned()):
                    self.abandon(session)
        failure = self._why_full(bucket)
        if failure is not None:
            raise failure
        self._counts[bucket] += 1

    def _why_full(self, bucket: TableBucket) -> FlussError | None:
        settings = self._settings
        if self._counts[bucket] >= settings.sessions_per_bucket_max:
            return _too_many(f"{format_bucket(bucket)} has", settings.sessions_per_bucket_max)
        if self._counts.total() >= settings.sessions_max:
            return _too_many("this server has", settings.sessions_max)
        return None

    def give_up_claim(self, bucket: TableBucket) -> None:
        """Give a place back, because nothing came of the session or because it has ended."""
        self._counts[bucket] -= 1
        if not self._counts[bucket]:
            del self._counts[bucket]

    def add(
        self, hosted: HostedBucket, context: RequestContext, store: KvStore, snapshot: KvSnapshot, rows_left: int
    ) -> ScanSession:
        """Open a session in a place that was claimed. It is busy until its first call has ended."""
        session = ScanSession(
            *(self._new_id(_ID_BYTES), context.principal, hosted, store, snapshot, rows_left, self._clock()),
            is_orphaned=context.is_gone,
        )
        self._sessions[session.session_id] = session
        return session

    # Using

    def find(self, session_id: bytes, context: RequestContext) -> ScanSession:
        """Return a session. One that has expired, or whose bucket is gone, raises code 66, any other code 67."""
        session = self._sessions.get(session_id)
        if session is not None and self._is_over(session):
            self.abandon(session)
            session = None
        if session is None or session.principal != context.principal:
            raise self.why_gone(session_id)
        session.is_orphaned = context.is_gone
        return session

    def why_gone(self, session_id: bytes) -> FlussError:
        """Build the error for a session that is not there (any more)."""
        if self._expired.get(session_id, 0) > self._clock():
            return FlussError(
                f"The scan session {session_id.hex()} was not used for {self._settings.ttl_ms} ms, or its "
                "bucket was closed; scan again from the start",
                ErrorCode.SCANNER_EXPIRED,
            )
        return FlussError(
            f"There is no scan session {session_id[:_ID_BYTES].hex()}: it has ended, or was never opened; scan again "
            "from the start",
            ErrorCode.UNKNOWN_SCANNER_ID,
        )

    def close(self, session: ScanSession) -> None:
        """End a session. What reads from it at this moment may finish. May be called again."""
        if session.is_closed:
            return
        session.is_closed = True
        del self._sessions[session.session_id]
        self.give_up_claim(session.hosted.bucket)
        if not session.is_busy:
            self._let_go(session)

    def abandon(self, session: ScanSession) -> None:
        """End a session that cannot go on; for some time its client is told that it has expired."""
        self.close(session)
        self._expired[session.session_id] = self._clock() + 2 * self._settings.ttl_ms

    def call_ended(self, session: ScanSession) -> None:
        """Note that the call which read from a session is over."""
        session.is_busy = False
        session.used_at_ms = self._clock()
        if session.is_closed:
            self._let_go(session)

    def _let_go(self, session: ScanSession) -> None:
        # In a thread: it may be what kept many files from being deleted.
        self._readers.submit(session.snapshot.close)

    # Expiring

    async def expire(self) -> None:
        """Close the sessions that were not used for too long, and forget ids that were remembered long enough."""
        for session in list(self._sessions.values()):
            if self._is_over(session):
                self.abandon(session)
        now_ms = self._clock()
        for session_id, until_ms in list(self._expired.items()):
            if until_ms > now_ms and len(self._expired) <= _REMEMBERED_IDS_MAX:
                break
            del self._expired[session_id]

    def _is_over(self, session: ScanSession) -> bool:
        if session.hosted.tablet is None:
            return True
        return not session.is_busy and self._clock() - session.used_at_ms > self._settings.ttl_ms


def _too_many(who: str, count_max: int) -> FlussError:
    return FlussError(
        f"{who} its limit of {count_max} scan sessions; close some, or try again when others have ended",
        ErrorCode.TOO_MANY_SCANNERS,
    )
