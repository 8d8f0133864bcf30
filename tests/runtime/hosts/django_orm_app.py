"""A process with Django and PostgreSQL: calls before and after the server has ended all connections, as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any, cast

import django
import psycopg
from asgiref.sync import sync_to_async
from django.conf import settings

from callgate import Gate, Hook, InvokeContext, Options, Provide, Scoped, configure_logging, tool
from tests.providers.stores.backends import POSTGRES

NAME = "callgate-test-django"
with psycopg.connect(POSTGRES) as _server:
    _info = _server.info
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": _info.dbname,
                "HOST": _info.host,
                "PORT": str(_info.port),
                "USER": _info.user,
                "PASSWORD": _info.password,
                "CONN_MAX_AGE": None,
                "CONN_HEALTH_CHECKS": "healthy" in sys.argv,
                "OPTIONS": {"application_name": f"{NAME}-{sys.argv[1]}"},
            }
        }
    )

django.setup()
from django.db import connection, transaction  # noqa: E402  (needs the settings)


def asked() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


class Server(int):
    """The process of PostgreSQL that a provider has used."""


@contextmanager
def atomically() -> Generator[Server]:
    with cast("Any", transaction).atomic():
        yield Server(asked())


@tool(effect="read", max_threads=1)
def plain() -> int:
    """Ask the database."""
    return asked()


@tool(effect="read", max_threads=1)
def provided(server: Annotated[Server, Provide[Server]]) -> bool:
    """Ask the database in the transaction of a provider."""
    return server == asked() and connection.in_atomic_block


@tool(effect="read")
async def unwrapped() -> int:
    """Ask the database on the event loop."""
    return asked()


class Plain(Hook):
    """Asks on the event loop."""

    def will_execute(self, ctx: InvokeContext) -> None:
        asked()


class Wrapped(Hook):
    """Asks in a thread of Django."""

    async def will_execute(self, ctx: InvokeContext) -> None:
        await sync_to_async(asked)()


def end_connections() -> None:
    with psycopg.connect(POSTGRES, autocommit=True) as server:
        server.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s",
            [f"{NAME}-{sys.argv[1]}"],
        )


def outcomes(tools: Any, called: Any, number: int) -> list[str]:
    return [str(tools.call(called, {}).outcome) for _ in range(number)]


def main() -> None:
    """Print what was logged and how the calls ended."""
    logged: list[Any] = []
    configure_logging(logged.append)
    options = Options(around_threads=None) if "unmanaged" in sys.argv else Options()

    def gate(*hooks: Any) -> Any:
        return Gate(
            [plain, provided, unwrapped],
            list(hooks),
            allow_unguarded=True,
            provide={Server: Scoped("execution", atomically)},
            options=options,
        ).sync()

    with gate() as tools:
        found = {"before": outcomes(tools, plain, 2) + outcomes(tools, provided, 1)}
        end_connections()
        found["after"] = outcomes(tools, plain, 3)
        end_connections()
        found["provided after"] = outcomes(tools, provided, 3)
        found["on the loop"] = outcomes(tools, unwrapped, 1)
    for hook in (Wrapped(), Plain()):
        with gate(hook) as tools:
            found[type(hook).__name__] = outcomes(tools, plain, 2)  # the first may find its connection ended
    reasons = [str(event["exception"]).splitlines()[-1] for event in logged if "exception" in event]
    print(json.dumps({"outcomes": found, "reasons": reasons}))


main()
