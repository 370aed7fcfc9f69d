"""Texts about listeners, security protocols and users become plans for listeners, or a refusal with the next step.
Shown text by text; what could leave a listener open by mistake is refused."""

from __future__ import annotations

import socket

import pytest

from fluss.errors import FlussError
from fluss.server.listener_parsing import Endpoint, SecurityProtocol, parse_endpoints, parse_jaas, parse_users
from fluss.server.listeners import ListenerPlan, SharedUsers, is_local, plan_listeners, warn_of_listeners
from fluss.server.options.server_options import ServerOptions


def plans(**properties: str) -> dict[str, ListenerPlan]:
    """Plan listeners with these options; unless they say otherwise, without asking who may reach them."""
    named = {key.replace("__", "-").replace("_", "."): value for key, value in properties.items()}
    options = ServerOptions({"security.insecure-listeners.allowed": "true", **named})
    return {plan.endpoint.name: plan for plan in plan_listeners(options)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FLUSS://localhost:9123", [("FLUSS", "localhost", 9123)]),
        ("A://127.0.0.1:0 , B-2://host.example.org:65535", [("A", "127.0.0.1", 0), ("B-2", "host.example.org", 65535)]),
        ("A://[::1]:1", [("A", "::1", 1)]),
        ("A://[fe80::1%eth0]:1", [("A", "fe80::1%eth0", 1)]),
        ("A://:9123", [("A", "0.0.0.0", 9123)]),
        ("", []),
    ],
)
def test_endpoints_are_read(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert list(parse_endpoints(text)) == [Endpoint(*parts) for parts in expected]


@pytest.mark.parametrize(
    "text",
    [
        "localhost:9123",
        "A://localhost",
        "A://localhost:",
        "A://localhost:x",
        "A://localhost:-1",
        "A://::1:5",
        "A B://h:1",
        "://h:1",
        "A://h:65536",
        "A://h:123456",
        "A://h:1/path",
        "A://h:1,A://h:2",
        "CLIENT://h:1,Client://h:2",
    ],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(FlussError):
        parse_endpoints(text)


def test_an_endpoint_is_written_as_it_is_read() -> None:
    for text in ("A://127.0.0.1:1", "A://[::1]:1"):
        assert str(parse_endpoints(text)[0]) == text


@pytest.mark.parametrize(
    ("text", "users"),
    [
        (
            'org.apache.fluss.PlainLoginModule required user_admin="admin-pass" user_alice="s";',
            {"admin": "admin-pass", "alice": "s"},
        ),
        (
            """M required\n  user_a='single "quoted"'\n  user_b="two words ; = '";\n""",
            {"a": 'single "quoted"', "b": "two words ; = '"},
        ),
        (r'M required user_a="quote \" and backslash \\";', {"a": 'quote " and backslash \\'}),
        ("M REQUIRED user_a=plain;", {"a": "plain"}),
        ('M required username="x" password="y" user_a="1";', {"a": "1"}),
        ("M required;", {}),
        ("", {}),
    ],
)
def test_users_are_read_from_jaas_texts(text: str, users: dict[str, str]) -> None:
    assert parse_jaas(text) == users


@pytest.mark.parametrize(
    "text",
    [
        'M required user_a="secret"',
        'M required user_a="secret;',
        "M user_a=secret;",
        "M required user_a secret;",
        "M required user_a=;",
        'M required user_a="";',
        'M required user_="secret";',
        "M required =secret;",
        "M",
        "required;",
        'M required user_a="secret" user_a="secret";',
        "M required user_a=secret; M required user_b=secret;",
        ";",
        "'M",
        'M required user_a="secret\\";',
        "M required user_a=secret\n",
    ],
)
def test_what_is_no_jaas_text_is_refused_without_showing_passwords(text: str) -> None:
    with pytest.raises(FlussError) as caught:
        parse_jaas(text)
    assert "secret" not in caught.value.message


def test_passwords_may_hold_colons_but_no_commas() -> None:
    assert parse_users("a:b:c, d : e f ") == {"a": "b:c", "d": "e f"}
    for text in ("a", "a:", ":b", "a:b,c", "a:b,a:c", "a:b\0c", "ANONYMOUS:b", "anonymous:b", "*:b"):
        with pytest.raises(FlussError):
            parse_users(text)


def test_a_listener_that_is_not_named_is_a_plaintext_one() -> None:
    found = plans(
        bind_listeners="OPEN://h:1,CLIENT://h:2",
        security_protocol_map="CLIENT:sasl",
        security_sasl_plain_credentials="alice:secret",
    )
    assert found["OPEN"].protocol is SecurityProtocol.PLAINTEXT
    assert found["CLIENT"].protocol is SecurityProtocol.SASL


def test_a_listener_with_users_of_its_own_has_those_only() -> None:
    found = plans(
        bind_listeners="A://h:1,B://h:2",
        security_protocol_map="A:SASL,B:SASL",
        security_sasl_listener_name_a_plain_jaas_config='M required user_own="secret";',
        security_sasl_plain_credentials="all:secret",
    )
    assert found["A"].own_users == {"own": "secret"}
    assert found["B"].own_users is None
    assert "secret" not in repr(found)


def test_users_of_all_listeners_can_be_replaced_while_those_of_the_jaas_text_stay() -> None:
    users = SharedUsers({"fixed": "1", "both": "2"}, "both:3,old:4")
    table, told = users.table, []
    assert [table("fixed", "1"), table("both", "3"), table("old", "4")] == [True, True, True]
    assert not table("both", "2")
    before = {name: users.version_of(name) for name in ("fixed", "both", "old", "new")}
    users.on_change.append(lambda: told.append(users.table))
    users.replace("new:5")
    table = users.table
    assert told == [table]
    assert [table("fixed", "1"), table("both", "2"), table("new", "5")] == [True, True, True]
    assert not table("old", "4")
    after = {name: users.version_of(name) for name in before}
    assert {name for name in before if before[name] == after[name]} == {"fixed"}
    assert before["new"] is None
    assert after["old"] is None


def test_replacing_users_is_refused_if_no_user_could_log_in_any_more() -> None:
    SharedUsers({"fixed": "1"}).check(None)
    SharedUsers({}, is_needed=False).check(None)
    users = SharedUsers({}, "a:b")
    for credentials in (None, "", "broken"):
        with pytest.raises(FlussError):
            users.check(credentials)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"security_protocol_map": "FLUSS:sasl"}, "set 'security.sasl.plain.credentials' to user:password"),
        ({"security_protocol_map": "FLUS:sasl"}, "no listener FLUS in 'bind.listeners'; did you mean 'FLUSS'?"),
        ({"security_protocol_map": "FLUSS:tls"}, "use PLAINTEXT, SASL, SSL, SASL_SSL"),
        ({"security_protocol_map": "FLUSS:ssl"}, "set 'security.ssl.certificate.file' to its file"),
        ({"security_protocol_map": "FLUSS"}, "NAME:protocol"),
        ({"security_protocol_map": "FLUSS:sasl,FLUSS:plaintext"}, "twice"),
        ({"advertised_listeners": "CLIENT://h:1"}, "no listener CLIENT"),
        ({"bind_listeners": ""}, "names no listener"),
        ({"security_sasl_listener_name_other_plain_jaas_config": "M required user_a=b;"}, "no listener of that name"),
        (
            {
                "security_protocol_map": "FLUSS:sasl",
                "security_sasl_plain_credentials": "a:b",
                "security_sasl_enabled_mechanisms": "PLAIN,SCRAM",
            },
            "name one or both of PLAIN, SCRAM-SHA-256",
        ),
    ],
)
def test_plans_that_cannot_work_are_refused_with_the_next_step(properties: dict[str, str], expected: str) -> None:
    with pytest.raises(FlussError) as caught:
        plans(**properties)
    assert expected in caught.value.message


def test_clients_are_told_the_address_that_is_listened_on_unless_another_is_advertised() -> None:
    found = plans(
        bind_listeners="A://h:0,B://h:2,C://h:3", advertised_listeners="B://outside.example.org:99,C://outside:0"
    )
    assert found["A"].advertised_address(4711) == ("h", 4711)
    assert found["B"].advertised_address(2) == ("outside.example.org", 99)
    assert found["C"].advertised_address(3) == ("outside", 3)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_instead_of_all_addresses_clients_are_told_a_name_they_can_use(host: str) -> None:
    advertised, port = plans(bind_listeners=f"A://{host}:9123")["A"].advertised_address(9123)
    assert advertised in (socket.gethostname(), "127.0.0.1")
    assert socket.getaddrinfo(advertised, port)


# Who may reach what


ALLOWED = "security.insecure-listeners.allowed"


@pytest.mark.parametrize(
    ("host", "is_this_machine_only"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("127.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("fe80::1%1", False),
        ("no-such-host.invalid", False),
    ],
)
def test_it_is_known_which_addresses_are_this_machine_only(host: str, is_this_machine_only: bool) -> None:
    assert is_local(host) is is_this_machine_only


@pytest.mark.parametrize("host", ["0.0.0.0", "", "[::]", "10.0.0.1"])
def test_without_passwords_other_machines_are_let_in_only_if_the_word_is_said(host: str) -> None:
    listeners = {"bind_listeners": f"OPEN://{host}:1,CLIENT://0.0.0.0:2"}
    users = {"security_protocol_map": "CLIENT:SASL", "security_sasl_plain_credentials": "alice:secret"}
    with pytest.raises(FlussError) as caught:
        plans(**listeners, **users, security_insecure__listeners_allowed="false")
    assert caught.value.error_code == 39
    assert "OPEN://" in caught.value.message
    for way_out in ("127.0.0.1", "'OPEN:SASL'", "--insecure", ALLOWED):
        assert way_out in caught.value.message
    assert plans(**listeners, **users, security_insecure__listeners_allowed="true")
    everybody_asked = {**users, "security_protocol_map": "CLIENT:SASL,OPEN:SASL"}
    assert plans(**listeners, **everybody_asked, security_insecure__listeners_allowed="false")


INTERNAL_REFUSED = {
    "the only one": ({"bind_listeners": "IN://127.0.0.1:1"}, "would have no effect"),
    "the only one, with passwords": (
        {"bind_listeners": "IN://127.0.0.1:1", "security_protocol_map": "IN:SASL"},
        "add a listener for clients",
    ),
    "open to everybody": (
        {"bind_listeners": "IN://0.0.0.0:1,CLIENT://127.0.0.1:2", "security_protocol_map": "CLIENT:SASL"},
        "bind it to 127.0.0.1, or add IN:SASL",
    ),
}


@pytest.mark.parametrize(("properties", "expected"), INTERNAL_REFUSED.values(), ids=INTERNAL_REFUSED.keys())
def test_an_internal_listener_that_would_make_rights_useless_is_refused(
    properties: dict[str, str], expected: str
) -> None:
    common = {"internal_listener_name": "IN", "security_sasl_plain_credentials": "alice:secret"}
    assert plans(**common, **properties), "without an authorizer it has no meaning"
    with pytest.raises(FlussError) as caught:
        plans(**common, **properties, authorizer_enabled="true")
    assert caught.value.error_code == 39
    assert expected in caught.value.message


def test_an_internal_listener_may_be_this_machine_only_or_ask_for_passwords() -> None:
    common = {
        "internal_listener_name": "IN",
        "authorizer_enabled": "true",
        "security_sasl_plain_credentials": "alice:secret",
        "security_insecure__listeners_allowed": "false",
    }
    plans(bind_listeners="IN://127.0.0.1:1,CLIENT://0.0.0.0:2", security_protocol_map="CLIENT:SASL", **common)
    plans(bind_listeners="IN://0.0.0.0:1,CLIENT://0.0.0.0:2", security_protocol_map="IN:SASL,CLIENT:SASL", **common)


def test_the_log_warns_of_what_an_operator_may_not_have_meant(caplog: pytest.LogCaptureFixture) -> None:
    def warned(**properties: str) -> str:
        options = ServerOptions({key.replace("_", "."): value for key, value in properties.items()})
        caplog.clear()
        warn_of_listeners(options, plan_listeners(options))
        return caplog.text

    assert warned() == ""
    assert "'super.users' has no effect" in warned(super_users="User:admin")
    misspelt = {"bind_listeners": "IN://127.0.0.1:1,CLIENT://127.0.0.1:2", "internal_listener_name": "INN"}
    text = warned(**misspelt, authorizer_enabled="true")
    assert "did you mean 'IN'?" in text
    assert "no user can be given rights" in text
    assert "no user can be given rights" not in warned(authorizer_enabled="true", super_users="User:admin")
