"""Certificates to test TLS with: a CA that exists for the length of a test, and what it has signed.

    ca = ThrowawayCa(tmp_path)
    server = ca.issue("server", names=["localhost", "127.0.0.1"])
    embedded.start({"security.protocol.map": "FLUSS:SSL", **server.server_options})

They are made by the program ``openssl``, which has to be installed. They protect nothing: the keys lie beside them.
"""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fluss.errors import FlussError

_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate and its key, as files."""

    certificate_file: Path
    key_file: Path

    @property
    def server_options(self) -> dict[str, str]:
        """The options of a server whose listeners show this certificate."""
        return {
            "security.ssl.certificate.file": str(self.certificate_file),
            "security.ssl.key.file": str(self.key_file),
        }

    @property
    def client_options(self) -> dict[str, str]:
        """The options of a client that shows this certificate."""
        return {
            "security.ssl.certificate": str(self.certificate_file),
            "security.ssl.key": str(self.key_file),
        }


class ThrowawayCa:
    """A CA in a directory. ``certificate_file`` is what the other side has to trust."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self.certificate_file = directory / f"{name}.pem"
        self._key_file = directory / f"{name}.key"
        self._openssl(
            *("req", "-x509", *_NEW_KEY, "-nodes", "-days", "2", "-subj", f"/CN=Throwaway {name}"),
            *("-keyout", str(self._key_file), "-out", str(self.certificate_file)),
        )

    def issue(
        self,
        common_name: str,
        *,
        names: Iterable[str] = (),
        subject: str = "",
        days: int = 1,
        key_password: str = "",
        rsa: bool = False,
    ) -> IssuedCertificate:
        """Sign a certificate for a common name, or a whole subject such as ``/O=Example/CN=alice``.

        ``names`` are host names, addresses and URIs that it is for. One of -1 days has expired. The files are replaced
        if there are some of that common name.
        """
        # Names of hosts have dots, and differ behind the last of them, too.
        request, extensions, certificate, key = (
            self.directory / f"{common_name}{suffix}" for suffix in (".csr", ".ext", ".pem", ".key")
        )
        issued = IssuedCertificate(certificate, key)
        new_key = ("-newkey", "rsa:2048") if rsa else _NEW_KEY
        protection = ("-passout", f"pass:{key_password}") if key_password else ("-nodes",)
        self._openssl(
            *("req", *new_key, *protection, "-subj", subject or f"/CN={common_name}"),
            *("-keyout", str(issued.key_file), "-out", str(request)),
        )
        entries = [_alternative_name(name) for name in names]
        extensions.write_text(f"subjectAltName={','.join(entries)}\n" if entries else "")
        self._openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate_file), "-CAkey", str(self._key_file)),
            *("-set_serial", str(int.from_bytes(common_name.encode()[:8]) + days + 2)),
            *("-days", str(days), "-extfile", str(extensions), "-out", str(issued.certificate_file)),
        )
        return issued

    def _openssl(self, *arguments: str) -> None:
        try:
            subprocess.run(["openssl", *arguments], check=True, capture_output=True)
        except FileNotFoundError:
            raise FlussError("making certificates needs the program openssl; install it") from None
        except subprocess.CalledProcessError as error:
            raise FlussError(f"openssl {arguments[0]} failed: {error.stderr.decode().strip()}") from None


def _alternative_name(name: str) -> str:
    if "://" in name:
        return f"URI:{name}"
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"
