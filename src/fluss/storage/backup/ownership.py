"""Which server ships to a directory of remote storage: one at a time, the one that has claimed it last.

A claim is an object ``backup/owners/{epoch}-{owner id}.json``; the highest epoch counts. Nothing is ever overwritten,
so that nothing but reading one's own writes, and listing what is there, is asked of a store: a directory and S3 both
promise that. A server that is to have the directory writes a claim with the next epoch, and lists: if there is another
one as high, it tries again with a higher one.

What a server does there it does after it has looked whether its claim is still the highest: before each point, before
each round of copying, and between the listing and the removal of objects. So the older of two servers may still finish
what it was about when the newer one came. That does no harm: points of an older epoch do not count, segments and
manifests have names of their own, and what it removes is named by none of the points that are kept, of which the newer
server has begun with one.

A server that was replaced may go on with another directory. What it has left in the first one is named by its metadata,
and belongs to its successor: a data directory remembers all claims that it ever had, and where one of them is not the
highest any more nothing is written or removed (``check_place``), whether there are backups or not.
"""

from __future__ import annotations

import random
import re
import time
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from fluss.errors import ErrorCode, FlussError
from fluss.json_object import write_json
from fluss.storage.backup.points import ROOT
from fluss.storage.log.file_names import json_file
from fluss.storage.remote.store import RemoteStore
from fluss.storage.vfs import Files

OWNERS: Final = f"{ROOT}/owners"
IDENTITY_FILE: Final = "backup-owner.json"
_VERSION: Final = 1
_CLAIM: Final = re.compile(r"([0-9]{20})-([0-9a-f-]{36})\.json")
_ATTEMPTS_MAX: Final = 8
_PAUSE_S: Final = 0.2


class FencedError(FlussError):
    """Another server has taken the remote directory over: this one takes no more writes."""

    default_code = ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION


class Claim(NamedTuple):
    """A claim on a directory: the higher epoch counts."""

    epoch: int
    owner_id: str

    @property
    def path(self) -> str:
        return f"{OWNERS}/{self.epoch:020d}-{self.owner_id}.json"


def highest_claim(store: RemoteStore) -> Claim | None:
    """Return the claim that counts; None if the directory belongs to no server."""
    return max(_claims(store), default=None)


def claim(store: RemoteStore, files: Files, data_dir: Path, host: str, time_ms: int) -> Claim:
    """Take a directory over for a data directory, from whichever server has it. Blocking."""
    owner_id = str(uuid.uuid4())
    for _ in range(_ATTEMPTS_MAX):
        highest = highest_claim(store)
        own = Claim(1 if highest is None else highest.epoch + 1, owner_id)
        # Noted first: a server that is interrupted here has to recognise its own claim.
        _save_claim(files, data_dir, store.location, own, is_confirmed=False)
        store.put(own.path, write_json({"version": _VERSION, "host": host, "time_ms": time_ms}))
        others = [found for found in _claims(store) if found.owner_id != owner_id]
        if all(other.epoch < own.epoch for other in others):
            _save_claim(files, data_dir, store.location, own, is_confirmed=True)
            return own
        time.sleep(random.uniform(0, _PAUSE_S))
    raise FlussError(f"several servers try to take over {store.location} at the same time; start one of them")


def _claims(store: RemoteStore) -> list[Claim]:
    matches = map(_CLAIM.fullmatch, store.names(OWNERS))
    return [Claim(int(match[1]), match[2]) for match in matches if match]


def check_claim(store: RemoteStore, own: Claim) -> None:
    """Raise FencedError if a claim is not the highest any more. Blocking.

    No claims at all are a FlussError: more likely than not the directory is not mounted, and nothing may be written.
    """
    highest = highest_claim(store)
    if highest is None:
        raise FlussError(
            f"the claim of this server is not in {store.location}; see that the directory is mounted and was not "
            f"emptied. If it is to begin anew, stop the server and remove {IDENTITY_FILE} from its data directory",
            ErrorCode.LOG_STORAGE_EXCEPTION,
        )
    if highest > own:
        raise FencedError(
            f"this server takes no more writes: {describe(store, highest)} has taken over its remote directory "
            f"{store.location}; let clients use that server, and start this one again with another remote.data.dir if "
            "its data are still needed"
        )
    if highest < own:
        raise FencedError(
            f"this server takes no more writes: its claim {store.location}/{own.path} is gone, so that another server "
            "could ship to the same place; see who has removed it, and start this server again"
        )


def check_place(store: RemoteStore, known: KnownClaim | None) -> None:
    """Raise FencedError if a directory that this server does not ship to now is another server's. Blocking.

    ``known`` is the claim that it has had there.
    """
    highest = highest_claim(store)
    if highest is not None and (known is None or known.claim != highest):
        raise FencedError(
            f"{store.location} is that of {describe(store, highest)}: nothing there is changed, and what this server "
            "has there may go at any time"
        )


def describe(store: RemoteStore, found: Claim) -> str:
    """Say whose claim it is, as far as that is known."""
    try:
        with json_file(store.get(found.path), "claim", found.path, version=_VERSION) as fields:
            time_ms = fields.integer("time_ms", lowest=0)
            since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ms / 1000))
            return f"the server on {fields.string('host')} (since {since})"
    except (FlussError, OSError):
        return f"another server ({found.owner_id})"


# What a data directory knows of its claim


class KnownClaim(NamedTuple):
    """The claim of a data directory, and whether it is known to have been written."""

    claim: Claim
    is_confirmed: bool


def load_claim(files: Files, data_dir: Path, location: str) -> KnownClaim | None:
    """Return the claim that a data directory has on a location; None if it has none there. Blocking."""
    return load_claims(files, data_dir).get(location)


def load_claims(files: Files, data_dir: Path) -> dict[str, KnownClaim]:
    """Return the claims that a data directory has ever had, by their locations, the newest first. Blocking."""
    path = data_dir / IDENTITY_FILE
    if not files.exists(path):
        return {}
    with json_file(files.read(path, 0, files.size(path)), "claim", str(path), version=_VERSION) as fields:
        return {
            found.string("location"): KnownClaim(
                Claim(found.integer("epoch", lowest=1), found.string("owner_id")), found.boolean("is_confirmed", True)
            )
            for found in (fields, *(fields.objects("earlier") if fields.has("earlier") else ()))
        }


def _save_claim(files: Files, data_dir: Path, location: str, own: Claim, *, is_confirmed: bool) -> None:
    earlier = {place: known for place, known in load_claims(files, data_dir).items() if place != location}
    fields = {
        "version": _VERSION,
        **_claim_fields(location, KnownClaim(own, is_confirmed)),
        "earlier": [_claim_fields(place, known) for place, known in earlier.items()],
    }
    files.replace(data_dir / IDENTITY_FILE, write_json(fields))


def _claim_fields(location: str, known: KnownClaim) -> dict[str, str | int | bool]:
    own = known.claim
    return {
        "location": location,
        "epoch": own.epoch,
        "owner_id": own.owner_id,
        "is_confirmed": known.is_confirmed,
    }
