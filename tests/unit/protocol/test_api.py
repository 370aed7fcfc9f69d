"""The table of APIs says what the protocol says, and versions are chosen in one place.

Keys, pairings, roles and versions are compared with facts written down once more; negotiation is tried at its edges.
"""

from __future__ import annotations

import pytest

from fluss.errors import UnsupportedVersionError
from fluss.protocol import api as apis
from fluss.protocol.api import APIS, ApiKey, ServerRole, VersionRange, negotiate

COORDINATOR_ONLY = (
    {1001, 1002, 1005, 1006, 1020, 1022, 1027, 1030, 1036, 1037, 1039, 1041, 1042, 1043, 1044, 1046}
    | set(range(1047, 1059))
    | {1060, 1063, 1064}
)
TABLET_ONLY = {1013, 1014, 1015, 1016, 1017, 1018, 1019, 1021, 1026, 1028, 1029, 1031, 1033, 1034, 1059, 1061}
INTERNAL = {1013, 1018, 1019, 1020, 1022, 1027, 1028, 1029, 1030, 1031, 1042, 1043, 1052}
UNUSUAL_NAMES = {"GET_METADATA": "Metadata", "GET_FILESYSTEM_SECURITY_TOKEN": "GetFileSystemSecurityToken"}


def test_there_is_one_api_for_every_key_from_1000_to_1064():
    assert [int(key) for key in APIS] == list(range(1000, 1065))
    assert [int(key) for key in ApiKey] == list(range(1000, 1065))
    assert all(getattr(apis, key.name) is APIS[key] for key in ApiKey)


def test_requests_and_responses_are_named_after_their_api():
    for api in APIS.values():
        name = UNUSUAL_NAMES.get(api.name) or api.name.title().replace("_", "")
        assert (api.request.message_name, api.response.message_name) == (f"{name}Request", f"{name}Response")


def test_roles_and_visibility_are_those_of_the_protocol():
    coordinator, tablet = frozenset((ServerRole.COORDINATOR,)), frozenset((ServerRole.TABLET_SERVER,))
    assert {key for key, api in APIS.items() if api.served_by == coordinator} == COORDINATOR_ONLY
    assert {key for key, api in APIS.items() if api.served_by == tablet} == TABLET_ONLY
    assert {key for key, api in APIS.items() if not api.is_public} == INTERNAL


def test_only_three_apis_have_more_than_version_0():
    newer = {api.name: api.versions.highest for api in APIS.values() if api.versions != (0, 0)}
    assert newer == {"PUT_KV": 2, "LOOKUP": 1, "PREFIX_LOOKUP": 1}


def test_each_role_serves_its_own_and_the_common_apis():
    coordinator = {api.key for api in APIS.values() if ServerRole.COORDINATOR in api.served_by}
    tablet = {api.key for api in APIS.values() if ServerRole.TABLET_SERVER in api.served_by}
    assert coordinator == set(APIS) - TABLET_ONLY
    assert tablet == set(APIS) - COORDINATOR_ONLY
    assert coordinator | tablet == set(APIS)


@pytest.mark.parametrize(
    ("server_versions", "chosen"),
    [((0, 0), 0), ((0, 1), 1), ((0, 2), 2), ((0, 9), 2), ((1, 1), 1), ((2, 5), 2)],
)
def test_the_newest_common_version_is_chosen(server_versions, chosen):
    assert negotiate(apis.PUT_KV, VersionRange(*server_versions)) == chosen


def test_no_common_version_names_both_ranges():
    with pytest.raises(UnsupportedVersionError, match="PUT_KV: this side speaks 0 to 2, the server 3 to 4"):
        negotiate(apis.PUT_KV, VersionRange(3, 4))


def test_an_api_the_server_lacks_is_refused_by_name():
    with pytest.raises(UnsupportedVersionError, match=r"does not serve SCAN_KV \(1061\)") as raised:
        negotiate(apis.SCAN_KV, None)
    assert raised.value.error_code == 2
