"""Settings of hosts that could not work are refused where they are given, and not at a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("mcp", reason="NO MCP: the extra 'mcp' is not installed")
pytest.importorskip("a2a", reason="NO A2A: the extra 'a2a' is not installed")

import callgate
import callgate.mcp
from callgate import Gate, RegistrationError, User
from callgate.runtime.hosts.a2a import agent
from tests.runtime.hosts.making import who


def a2a(gate: Gate, **options: Any) -> Any:
    known: dict[str, Any] = {"name": "desk", "description": "A desk.", "url": "http://desk.test", **options}
    return agent(gate, **known)


HOSTS: dict[str, Callable[..., Any]] = {
    "asgi": callgate.asgi,
    "bound": callgate.bound,
    "mcp": callgate.mcp.server,
    "a2a": a2a,
}
NAN = float("nan")
ANY_HOST: list[tuple[dict[str, Any], str]] = [
    ({"authenticate": "who"}, "authenticate is of type str; give a function of"),
    ({"authenticate": lambda: None}, "authenticate takes (), and is called with"),
    ({"authenticate": User("ann")}, "authenticate is of type User"),
    ({"challenge": 5}, "challenge is of type int; give text or None"),
    ({"challenge": "Bearer\r\nset-cookie: a=b"}, "challenge has characters that no header has"),
    ({"challenge": "Größe"}, "challenge has characters that no header has"),
]
SETTINGS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "asgi": [
        *[
            ({name: value}, name)
            for name in ("read_timeout", "write_timeout", "ping")
            for value in (0, -1, NAN, "5", None)
        ],
    ],
    "bound": [],
    "mcp": [
        *[({"read_timeout": value}, "read_timeout") for value in (0, -1, NAN, "5", None)],
        *[({"page": value}, "page") for value in (0, "5", 1.5)],
        ({"allowed_hosts": "desk.example"}, "allowed_hosts has names of hosts"),
        ({"user": "ann"}, "user is of type str; give User or None"),
        ({"resumption": True}, "resumption is of type bool"),
        ({"large_results": 5}, "large_results is of type int"),
    ],
    "a2a": [
        *[({"deadline": value}, "deadline") for value in (0, -1, NAN, "5", None)],
        ({"security": [("a", {})]}, "security is of type list"),
    ],
}
CASES = [(host, *case) for host, own in SETTINGS.items() for case in (*ANY_HOST, *own)]


@pytest.mark.parametrize(("host", "options", "text"), CASES, ids=lambda one: str(one)[:30])
def test_a_setting_that_could_not_work_is_refused(host: str, options: dict[str, Any], text: str) -> None:
    """A ping of 0 seconds sent comments without a pause, and a text of hosts was a host for each letter."""
    with pytest.raises(RegistrationError) as refused:
        HOSTS[host](Gate(signing_keys=["k" * 32]), **{"authenticate": who, **options})
    assert text in str(refused.value)


@pytest.mark.parametrize("host", HOSTS)
def test_what_works_is_accepted(host: str) -> None:
    """The control: the settings of the pages, also an async function, a method and an object that is called."""

    async def who_later(request: Any) -> User | None:
        return who(request)

    class Directory:
        def find(self, request: Any) -> User | None:
            return who(request)

        def __call__(self, request: Any) -> User | None:
            return who(request)

    for authenticate in (who, who_later, Directory().find, Directory()):
        for challenge in ("Bearer", 'Basic realm="desk"', None):
            HOSTS[host](Gate(signing_keys=["k" * 32]), authenticate=authenticate, challenge=challenge)
