"""Short-lived credentials for clients, which read remote storage themselves.

Stores like S3 issue them by their security token service (STS): a session of the server's own key, or of a role that
may do less, which is the better choice. The server's key itself is never given away. Other file systems have no such
service that could be asked here: the token is empty, and clients use what their machine has.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from xml.etree import ElementTree

from fluss.errors import ErrorCode, FlussError
from fluss.storage.remote.file_systems import S3_SCHEMES, FileSystemOptions, check_location, scheme_of

# How long an answer is given to others, too.
_CACHED_S: Final = 60.0
_SESSION_SECONDS: Final = 3600
_REQUEST_TIMEOUT_S: Final = 15.0
_ANSWER_BYTES_MAX: Final = 64 * 1024
_REGION_DEFAULT: Final = "us-east-1"
_SERVICE: Final = "sts"


@dataclass(frozen=True, slots=True)
class SecurityToken:
    """What a client needs to read remote storage. The credentials are never shown."""

    scheme: str
    # JSON, or empty if none are needed.
    credentials: bytes = field(default=b"", repr=False)
    expires_ms: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


class SecurityTokens:
    """Asks for tokens and gives each to all clients for a while. Belongs to an event loop."""

    def __init__(
        self, location: str | None, options: FileSystemOptions, *, now: Callable[[], datetime] | None = None
    ) -> None:
        """``location`` is remote storage, None if there is none."""
        self._scheme = "file" if location is None else scheme_of(check_location(location))
        self._options = options
        self._now = now or (lambda: datetime.now(UTC))
        self._token: SecurityToken | None = None
        self._asked_s = 0.0
        self._lock = asyncio.Lock()

    async def current(self) -> SecurityToken:
        """Return a token that is good for a while. Code 30 says why there is none."""
        if self._scheme not in S3_SCHEMES:
            return SecurityToken(self._scheme)
        async with self._lock:
            loop = asyncio.get_running_loop()
            if self._token is None or loop.time() - self._asked_s > _CACHED_S:
                self._token = await asyncio.to_thread(request_s3_token, self._scheme, self._options, self._now())
                self._asked_s = loop.time()
            return self._token


def request_s3_token(scheme: str, options: FileSystemOptions, now: datetime) -> SecurityToken:
    """Ask the security token service for credentials. Blocking; raises code 30."""
    access_key = options.get("s3.access-key") or os.environ.get("AWS_ACCESS_KEY_ID")
    secret_key = options.get("s3.secret-key") or os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key:
        raise _refused("the server has no access key of which it could make one; set s3.access-key and s3.secret-key")
    region = options.get("s3.region") or os.environ.get("AWS_DEFAULT_REGION") or _REGION_DEFAULT
    endpoint = (
        options.get("s3.assumed.role.sts.endpoint", "s3.endpoint") or f"https://{_SERVICE}.{region}.amazonaws.com"
    )
    role = options.get("s3.assumed.role.arn")
    fields = {"Version": "2011-06-15", "DurationSeconds": str(_SESSION_SECONDS)}
    if role is None:
        fields["Action"] = "GetSessionToken"
    else:
        fields |= {"Action": "AssumeRole", "RoleArn": role, "RoleSessionName": "fluss"}
    request = _signed(endpoint, fields, access_key, secret_key, region, now)
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:
            document = ElementTree.fromstring(answer.read(_ANSWER_BYTES_MAX))
        found = {element.tag.rpartition("}")[2]: element.text or "" for element in document.iter()}
        expires = datetime.fromisoformat(found["Expiration"].replace("Z", "+00:00"))
        credentials = {
            "version": 1,
            "access_key_id": found["AccessKeyId"],
            "access_key_secret": found["SecretAccessKey"],
            "security_token": found["SessionToken"],
        }
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(f"{endpoint} answers with status {error.code}") from None
    except (OSError, ElementTree.ParseError, KeyError, ValueError) as error:
        raise _refused(f"{endpoint} gives no answer that makes sense ({type(error).__name__})") from error
    settings = {
        "fs.s3a.endpoint": options.get("s3.endpoint") or "",
        "fs.s3a.endpoint.region": region,
        "fs.s3a.path.style.access": _path_style(options),
    }
    return SecurityToken(
        scheme,
        json.dumps(credentials, separators=(",", ":")).encode(),
        int(expires.timestamp() * 1000),
        {key: value for key, value in settings.items() if value},
    )


def _path_style(options: FileSystemOptions) -> str:
    chosen = options.get("s3.path.style.access")
    if chosen is not None:
        return chosen.strip().lower()
    return "true" if options.get("s3.endpoint") else ""


def _signed(
    endpoint: str, fields: Mapping[str, str], access_key: str, secret_key: str, region: str, now: datetime
) -> urllib.request.Request:
    """Return a request of the query API with the signature (version 4) that AWS and its kin ask for."""
    url = urllib.parse.urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    body = urllib.parse.urlencode(sorted(fields.items())).encode()
    time_text, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "host": url.netloc,
        "x-amz-date": time_text,
    }
    session = os.environ.get("AWS_SESSION_TOKEN") if access_key == os.environ.get("AWS_ACCESS_KEY_ID") else None
    if session:
        headers["x-amz-security-token"] = session
    names = ";".join(sorted(headers))
    header_lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join(("POST", url.path or "/", "", header_lines, names, hashlib.sha256(body).hexdigest()))
    scope = f"{day}/{region}/{_SERVICE}/aws4_request"
    to_sign = "\n".join(("AWS4-HMAC-SHA256", time_text, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, _SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    authorization = f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    address = urllib.parse.urlunsplit((url.scheme, url.netloc, url.path or "/", "", ""))
    return urllib.request.Request(address, body, {**headers, "authorization": authorization}, method="POST")


def _refused(reason: str) -> FlussError:
    return FlussError(f"there is no token for remote storage: {reason}", ErrorCode.SECURITY_TOKEN_EXCEPTION)
