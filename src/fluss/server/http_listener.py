"""HTTP on a port of its own: what the options say about it, and how the page is started, which is made of the client.

The page (``fluss.web``) is above the server and loaded by its name, when an option asks for it: it reads tables as any
client does, through a connection that its user may have, and needs a library for HTTP that is not part of the base
install.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from fluss.errors import ErrorCode, FlussError
from fluss.memory import set_aside
from fluss.net.tls import ClientAuth, ServerCertificate, ServerTls
from fluss.server.listener_parsing import address_text
from fluss.server.listeners import HTTP_LISTENER_NAME, ListenerPlan, is_local, tls_of
from fluss.server.operator_view import OperatorView
from fluss.server.options.http_options import HttpAddress
from fluss.server.options.server_options import ServerOptions

_SITE_MODULE: Final = "fluss.web.site"


class Site(Protocol):
    """The page while it runs."""

    @property
    def url(self) -> str: ...

    def stop(self) -> None:
        """End its thread. Blocking."""
        ...


@dataclass(frozen=True, slots=True)
class HttpPlan:
    """What the options say about HTTP."""

    address: HttpAddress
    needs_login: bool
    # The listener whose own users log in; None for those of all listeners.
    users_of: ListenerPlan | None
    tls: ServerTls | None


def plan_http(options: ServerOptions, plans: Sequence[ListenerPlan]) -> HttpPlan | None:
    """Check what the options say about HTTP; None if it is off. Everything that is wrong has code 39."""
    address = options.http_address
    if address is None:
        return None
    needs_login = any(plan.is_authenticated for plan in plans)
    users_of = None
    if needs_login:
        shared = options.sasl_users or options.sasl_users_file or options.sasl_jaas_users
        internal = options.internal_listener_name
        users_of = next((plan for plan in plans if plan.own_users and plan.endpoint.name != internal), None)
        if shared:
            users_of = None
        elif users_of is None:
            raise _invalid(
                "clients show certificates here, and nobody has a password to log in to the page with; set "
                f"'{ServerOptions.sasl_users.key}' or '{ServerOptions.sasl_users_file.key}', or turn it off"
            )
    if not is_local(address.host) and not options.insecure_listeners_allowed:
        _check_reach(address, needs_login=needs_login)
    tls = None
    if address.is_tls:
        # Users of the page have names and passwords, whatever clients have.
        tls = replace(tls_of(options, HTTP_LISTENER_NAME), client_auth=ClientAuth.NONE, client_ca_file=None)
    return HttpPlan(address, needs_login, users_of, tls)


def _check_reach(address: HttpAddress, *, needs_login: bool) -> None:
    if not needs_login:
        raise _invalid(
            f"{address.url} would show everything to everybody who can reach this machine; take 127.0.0.1, ask for "
            f"passwords with '{ServerOptions.security_protocols.key}', or say --insecure if that is what you want"
        )
    if not address.is_tls:
        raise _invalid(
            f"passwords would travel to {address.url} for everybody to read; write https:// instead, take 127.0.0.1 "
            "behind a proxy that speaks TLS, or say --insecure if that is what you want"
        )


def _invalid(reason: str) -> FlussError:
    return FlussError(f"'{ServerOptions.http_address.key}': {reason}", ErrorCode.INVALID_CONFIG_EXCEPTION)


async def start_site(plan: HttpPlan, view: OperatorView, certificate: ServerCertificate | None) -> Site:
    """Bind and answer, on a thread of its own. Raises FlussError if the port is taken or a library is missing."""
    site: Site = await asyncio.to_thread(_start, plan, view, certificate)
    return site


def _start(plan: HttpPlan, view: OperatorView, certificate: ServerCertificate | None) -> Site:
    try:
        module = importlib.import_module(_SITE_MODULE)
    except ModuleNotFoundError as error:
        raise FlussError(
            f"'{ServerOptions.http_address.key}' needs {error.name}, which is not installed: "
            'pip install "flussbett[server]"'
        ) from error
    # Otherwise every collection would look at these modules, while clients wait.
    set_aside()
    site: Site = module.start(view, plan.address, certificate)
    return site


def page_sentence(options: ServerOptions) -> str:
    """Say where the page is, to those who look for one on the port of a listener."""
    if options.http_address is not None:
        return f"The page of this server is at {options.http_address.url}"
    if options.metrics_port:
        return f"Metrics are at http://{address_text(options.metrics_host, options.metrics_port)}/metrics"
    return "There is a page to look at: start the server with --http"
