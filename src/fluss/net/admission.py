"""Who gets a place: connections counted by address, the limits, and refusals that cost next to nothing."""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from fluss.errors import ErrorCode, FlussError

# One network of a provider's customer: a client with one of its addresses has all of them.
_IPV6_PREFIX_BITS: Final = 64
# Unless an option says otherwise, the part of the places that other addresses than one have for themselves. On the
# machine itself run many clients of one owner: programs, executors, proxies.
_PLACES_OF_OTHERS: Final = 1 / 2
_PLACES_OF_OTHERS_THAN_LOOPBACK: Final = 1 / 10
# Refused clients that are told why at a time. A flood of them is cut off without a word: each needs a descriptor until
# it has read its answer.
_REFUSALS_MAX: Final = 64


def address_key(host: str) -> str:
    """Return what limits count by: the address, or the network of an IPv6 address; what is no address as it is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))


def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine alone; what is no address is not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(slots=True)
class Places:
    """The connections of all listeners of a server together: no more than there are descriptors for."""

    count_max: int
    taken_count: int = 0


@dataclass(slots=True)
class Admission:
    """The places of one listener. Belongs to its event loop.

    ``admit`` before anything is allocated for a connection, ``release`` when it is gone. A refusal is a sentence for
    the client; ``may_tell`` says whether there is room for telling it, and is given back with ``told``.
    """

    count_max: int
    # None: half of the places, and nine of ten for clients on the machine itself.
    per_address_max: int | None = None
    places: Places = field(default_factory=lambda: Places(2**31))
    _by_address: Counter[str] = field(default_factory=Counter)
    _count: int = 0
    _telling_count: int = 0
    refused_total: int = 0

    @property
    def address_count(self) -> int:
        return len(self._by_address)

    def admit(self, host: str) -> FlussError | None:
        """Take a place for a connection of this address, or return why there is none."""
        refusal = self._refusal(host)
        if refusal is not None:
            self.refused_total += 1
            return refusal
        self._count += 1
        self.places.taken_count += 1
        self._by_address[address_key(host)] += 1
        return None

    def release(self, host: str) -> None:
        """Give the place back. Once for every ``admit`` that returned None."""
        key = address_key(host)
        self._count -= 1
        self.places.taken_count -= 1
        self._by_address[key] -= 1
        if not self._by_address[key]:
            del self._by_address[key]

    def may_tell(self) -> bool:
        """Whether a refused client can be told so; until ``told`` it has one of a few places for that."""
        if self._telling_count >= _REFUSALS_MAX:
            return False
        self._telling_count += 1
        return True

    def told(self) -> None:
        self._telling_count -= 1

    def limit_of(self, host: str) -> int:
        """Return the most connections of one address."""
        if self.per_address_max is not None:
            return self.per_address_max
        total = min(self.count_max, self.places.count_max)
        kept = _PLACES_OF_OTHERS_THAN_LOOPBACK if is_loopback(host) else _PLACES_OF_OTHERS
        return max(1, total - int(total * kept))

    def _refusal(self, host: str) -> FlussError | None:
        for taken, most in ((self._count, self.count_max), (self.places.taken_count, self.places.count_max)):
            if taken >= most:
                return _refused(f"the server has its limit of {most} connections; try later")
        most = self.limit_of(host)
        if self._by_address[address_key(host)] >= most:
            return _refused(
                f"your address has its limit of {most} connections to this server; close some, or have "
                "'server.max-connections-per-address' raised"
            )
        return None


def _refused(message: str) -> FlussError:
    return FlussError(message, ErrorCode.NETWORK_EXCEPTION)
