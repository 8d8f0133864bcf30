"""From an address to a store; nothing of an address is shown but what may be."""

from __future__ import annotations

import sqlite3
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import psycopg
import pytest
import redis as plain_redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import make_url

from callgate.errors import StoreError
from callgate.providers.stores.address import store_at
from callgate.providers.stores.base import Limit
from callgate.providers.stores.memory.store import MemoryStore
from callgate.providers.stores.redis import client as redis_client
from callgate.providers.stores.redis.client import pool_at
from callgate.providers.stores.redis.store import RedisStore
from callgate.providers.stores.sql.database import database as sql_database
from callgate.providers.stores.sql.store import SqlStore
from tests.providers.stores.backends import POSTGRES, REDIS, keyspace, place, schema

SECRET = "s3cret-canary"


# One row an address: what databases, platforms and people write, the store, and all that its repr shows.
TABLE: list[tuple[str | None, type, str, str]] = [
    (None, MemoryStore, "memory", ""),
    ("memory://", MemoryStore, "memory", ""),
    ("MEMORY://", MemoryStore, "memory", ""),
    ("sqlite:///file.db", SqlStore, "sqlite", "sqlite:///file.db"),
    ("sqlite:///file.db\n", SqlStore, "sqlite", "sqlite:///file.db"),
    ("SQLite:////folder/file.db", SqlStore, "sqlite", "sqlite:////folder/file.db"),
    ("sqlite:////folder/a@b.db", SqlStore, "sqlite", "sqlite:////folder/a@b.db"),
    ("sqlite://", SqlStore, "sqlite", "sqlite:///"),
    ("sqlite+aiosqlite:///file.db", SqlStore, "sqlite", "sqlite:///file.db"),
    ("postgresql://ann@host/db", SqlStore, "postgresql", "postgresql://host/db"),
    ("postgresql+psycopg://ann@host/db", SqlStore, "postgresql", "postgresql://host/db"),
    (f"postgres://ann:{SECRET}@host:5432/db", SqlStore, "postgresql", "postgresql://host:5432/db"),
    ("POSTGRES://host/db", SqlStore, "postgresql", "postgresql://host/db"),
    (f" postgresql://ann:{SECRET}@host/db?sslmode=require\r\n", SqlStore, "postgresql", "postgresql://host/db"),
    (f"postgresql://ann@azure:{SECRET}@host/db?sslmode=verify-full", SqlStore, "postgresql", "postgresql://host/db"),
    (
        f"postgresql://ann:{SECRET}@one:5432,two:5433/db?target_session_attrs=read-write",
        SqlStore,
        "postgresql",
        "postgresql://one:5432,two:5433/db",
    ),
    ("postgresql://[::1]:5432,two/db", SqlStore, "postgresql", "postgresql://[::1]:5432,two/db"),
    ("postgresql://[::1]:5432/db", SqlStore, "postgresql", "postgresql://[::1]:5432/db"),
    ("postgresql:///db?host=one,two&port=1,2", SqlStore, "postgresql", "postgresql://one:1,two:2/db"),
    ("postgresql:///db?host=one,two&port=7", SqlStore, "postgresql", "postgresql://one:7,two:7/db"),
    ("postgresql:///db?host=one&port=7", SqlStore, "postgresql", "postgresql://one:7/db"),
    ("postgresql:///db?host=/run/pg", SqlStore, "postgresql", "postgresql:///run/pg/db"),
    ("postgresql://%2Frun%2Fpg:6000/db", SqlStore, "postgresql", "postgresql:///run/pg/db"),
    ("postgresql://ann:x@/db?host=/cloudsql/a:b:c", SqlStore, "postgresql", "postgresql:///cloudsql/a:b:c/db"),
    (f"postgresql://host:5432/db?password=a@{SECRET}", SqlStore, "postgresql", "postgresql://host:5432/db"),
    ("redis://host", RedisStore, "redis", "redis://host:6379"),
    ("redis://host:6379/\n", RedisStore, "redis", "redis://host:6379/"),
    (f"REDISS://:{SECRET}@host:6380/2", RedisStore, "redis", "rediss://host:6380/2"),
    ("redis://host/?db=3", RedisStore, "redis", "redis://host:6379/3"),
    ("redis://host?db=3", RedisStore, "redis", "redis://host:6379/3"),
    ("redis://host/3?db=3", RedisStore, "redis", "redis://host:6379/3"),
    (f"valkeys://default:{SECRET}@host:6380", RedisStore, "redis", "rediss://host:6380"),
]


@pytest.mark.parametrize(("address", "kind", "name", "shown"), TABLE)
def test_an_address_names_a_store(address: str | None, kind: type, name: str, shown: str) -> None:
    store = store_at(address, time.time)
    assert isinstance(store, kind)
    assert store.name == name
    if shown:
        assert repr(store) == f"{kind.__name__}({shown!r})"


@pytest.mark.parametrize(
    "flag", ["none", "NONE", "optional", "required", "CERT_NONE", "CERT_OPTIONAL", "CERT_REQUIRED"]
)
def test_the_flag_of_a_certificate_is_read_as_python_and_celery_write_it(flag: str) -> None:
    store: Any = store_at(f"rediss://:{SECRET}@host/0?ssl_cert_reqs={flag}&ssl_check_hostname=false", time.time)
    if flag != "NONE":
        pool_at(store._connection._url, 1)
        return
    with pytest.raises(StoreError, match="the parameter 'ssl_cert_reqs', which the client does not know"):
        pool_at(store._connection._url, 1)


@pytest.mark.parametrize("query", ["ssl_cert_reqs=CERT_SOME", "ssl_cert_reqs=foo", "retry_on_timeout=5&foo=1"])
def test_no_error_of_the_client_of_redis_leaves_a_store_as_it_is(query: str) -> None:
    store: Any = store_at(f"rediss://:{SECRET}@host/0?{query}", time.time)
    with pytest.raises(StoreError, match=r"^redis: the address has the parameter") as caught:
        pool_at(store._connection._url, 1)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("address", ["redis://host/2?db=3", "redis://host/0?db=1", "redis://host?db=1&db=2"])
def test_an_address_of_two_databases_is_refused(address: str) -> None:
    with pytest.raises(StoreError, match=r"has the databases \d and \d; give one"):
        store_at(address, time.time)


def given_to(store: Any) -> tuple[str | None, str | None, str | None]:
    """The user, the password and the host that the driver of a store gets."""
    if isinstance(store, SqlStore):
        url = store._database.url
        return url.username, url.password, url.host
    options = pool_at(store._connection._url, 1).connection_kwargs
    return options.get("username"), options.get("password"), options.get("host")


@given(
    password=st.lists(st.sampled_from([*"@/?#:[]+= ", "%40", "s3cret", "canary", "1"]), min_size=1, max_size=6).map(
        "".join
    ),
    scheme=st.sampled_from(["postgresql", "postgres", "redis", "rediss"]),
    tail=st.sampled_from(["", "/0", "/0?client_name=x", "/0?client_name=a@b"]),
)
def test_a_password_arrives_whole_or_is_refused_and_never_shown(password: str, scheme: str, tail: str) -> None:
    """All characters are valid; ``%40`` is an escaped ``@``. The password ends at the last ``@`` before the path."""
    address = f"{scheme}://ann:{password}@host.example:6000{tail}"
    store, error = None, ""
    try:
        store = store_at(address, time.time)
    except StoreError as refused:
        error = str(refused)
    if store is None:
        assert password.count("@") + tail.count("@") > 0, "only an ambiguous address is refused"
        assert not any(part in error for part in ("s3cret", "canary"))
    else:
        path = tail.partition("?")[0] or ("/" if scheme.startswith("postgres") else "")
        assert repr(store).endswith(f"://host.example:6000{path}')")
        assert given_to(store) == ("ann", unquote(password), "host.example")


@pytest.mark.parametrize(
    "address", [f"postgresql://ann:a@{SECRET}@host/db", f"postgresql://host:1/db?password=a@{SECRET}"]
)
def test_the_parser_of_sqlalchemy_alone_takes_a_part_of_such_a_password_for_a_host(address: str) -> None:
    """The control: these addresses would show a password."""
    assert SECRET in str(make_url(address).host)


def test_a_store_is_taken_as_it_is() -> None:
    store = MemoryStore()
    assert store_at(store, time.time) is store


@pytest.mark.parametrize(
    "address",
    [
        f"mysql://ann:{SECRET}@host/db",
        f"{SECRET}",
        f"/path/{SECRET}",
        f"://{SECRET}",
        f"{SECRET} {SECRET}://",
        f"postgresql+asyncpg://ann:{SECRET}@host/db",
        f"postgresql://ann:{SECRET}@host:{SECRET}/db",
        f"redis://ann:x@host:{SECRET}/0",
        f"redis+{SECRET}://host",
        "",
    ],
)
def test_an_address_of_no_store_is_refused_and_not_quoted(address: str) -> None:
    with pytest.raises(StoreError) as refused:
        store_at(address, time.time)
    said = "".join(traceback.format_exception(refused.value))
    assert SECRET not in said
    assert "://" in str(refused.value) or "URL" in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/db?connect_timeout=1",
        f"postgresql://127.0.0.1:1/db?password={SECRET}",
        f"redis://ann:{SECRET}@127.0.0.1:1/0",
        f"redis://127.0.0.1:1/0?password={SECRET}",
    ],
)
async def test_a_password_is_in_no_error_and_no_repr(address: str) -> None:
    store: Any = store_at(address, time.time)
    assert SECRET not in repr(store)
    with pytest.raises(StoreError) as refused:
        await store.open()
    assert SECRET not in "".join(traceback.format_exception(refused.value))


async def test_a_folder_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unable to open database file"):
        await store_at(f"sqlite:///{tmp_path}/nowhere/store.db", time.time).open()


@pytest.mark.parametrize(
    ("module", "address", "extra"),
    [(sql_database, "sqlite://", "sql"), (redis_client, "redis://host", "redis")],
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: Any, address: str, extra: str) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(StoreError) as refused:
        store_at(address, time.time)
    assert f'pip install "callgate[{extra}]"' in str(refused.value)


async def test_memory_needs_no_opening() -> None:
    assert (await store_at("memory://", time.time).quotas.take("", "k", Limit(1, 60.0))).ok


def place_of_server() -> dict[str, Any]:
    """The parts of an address of PostgreSQL; ``folder`` is that of its socket, or empty."""
    with psycopg.connect(POSTGRES) as server:
        found = server.execute("SHOW unix_socket_directories").fetchone()
        folder = str(found[0] if found else "").partition(",")[0]
        if not Path(folder, f".s.PGSQL.{server.info.port}").exists():
            folder = ""
        info = server.info
        return {
            "host": info.host,
            "port": info.port,
            "name": info.dbname,
            "folder": folder,
            "quoted": quote(folder, ""),
        }


REAL = {
    "the first of two hosts is down": "{scheme}://127.0.0.1:1,{host}:{port}/{name}?target_session_attrs=read-write",
    "sslmode": "{scheme}://{host}:{port}/{name}?sslmode=prefer",
    "a line break at the end": "{scheme}://{host}:{port}/{name}\n",
    "a unix socket in a parameter": "{scheme}:///{name}?host={folder}&port={port}",
    "a unix socket as the host": "{scheme}://{quoted}:{port}/{name}",
}


@pytest.mark.parametrize("scheme", ["postgres", "POSTGRESQL"])
@pytest.mark.parametrize("address", REAL.values(), ids=REAL)
async def test_an_address_of_a_managed_database_leads_to_the_server(
    address: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    with schema() as own:
        parts = place_of_server()
        if "socket" in request.node.callspec.id and not parts["folder"]:
            pytest.skip("NO SOCKET of PostgreSQL on this machine")
        text = address.format(scheme=scheme, **parts)
        given = text.rstrip()
        given += f"{'&' if '?' in given else '?'}{own.partition('?')[2]}{text[len(given) :]}"
        store: Any = store_at(given, time.time)
        assert await store.revision() is None, "the schema is empty"
        await store.open()
        assert await store.revision() == sql_database.HEAD
        await store.close()


REFUSED = [
    ("postgresql://h/db?sslmodee={}", "'sslmodee'; did you mean 'sslmode'?"),
    ("postgresql://h/db?pgbouncer={}", "'pgbouncer'; remove it"),
    ("postgresql://h/db?prepare_threshold={}", "'prepare_threshold'"),
    ("postgresql://h/db?connect_timeout={}", "'connect_timeout'"),
    ("postgresql://h/db?port={}", "'port'"),
    ("postgresql://h/db?sslmode={}&sslmode={}", "'sslmode' twice"),
    ("sqlite:///{folder}/a.db?mode=ro", "'mode' has no effect"),
    ("sqlite:///{folder}/a.db?uri=true&mode=ro", "'mode' has no effect"),
    ("sqlite:///file:{folder}/a.db?mode=ro", "'mode' has no effect"),
    ("sqlite:///file:{folder}/a.db", "need each other"),
    ("sqlite:///{folder}/a.db?uri=true", "need each other"),
    ("sqlite:///{folder}/a.db?timeout={}", "'timeout'"),
    ("sqlite:///{folder}/a.db?tymeout={}", "'tymeout'; did you mean 'timeout'?"),
    ("sqlite://a.db", "sqlite:///file.db"),
    *((f"postgresql://h/db?{name}", "without a value") for name in ("sslmode", "sslmode=", "a=1&sslrootcert=&b=2")),
    *((f"postgresql://u:p@h/db?{name}={{}}", f"{name!r}, and names it") for name in ("user", "password", "dbname")),
    ("postgresql://h/db?client_encoding={}", "'client_encoding'"),
    ("sqlite:///{folder}/a?b.db", "%3F for a ? in a name"),
    ("sqlite:///{folder}/a.db?timeout", "without a value"),
    ("redis://h/?db=", "without a value"),
    ("rediss://h/0?ssl_cert_reqs", "without a value"),
    ("redis://h:0/0", "not a valid URL"),
    ("redis://h/0#1", "not a valid URL"),
    ("redis://h/notadb", "the number of a database"),
    ("redis://h/-1", "the number of a database"),
    ("redis://h/0/1", "the number of a database"),
    ("redis://h/?db={}", "'db'"),
    ("redis://h/0?sockettimeout={}", "'sockettimeout'"),
    ("redis://h/0?ssl={}", "'ssl'"),
    ("redis://one:1,two:2/0", "several hosts"),
    ("memory:///a.db", "no place"),
    ("postgresql://h/d\nb", "line break"),
]


@pytest.mark.parametrize(("address", "named"), REFUSED)
async def test_a_parameter_that_would_be_ignored_is_refused_by_its_name(
    address: str, named: str, tmp_path: Path
) -> None:
    """Without its value, and before anything is created or asked."""
    with pytest.raises(StoreError) as refused:
        await store_at(address.replace("{folder}", str(tmp_path)).replace("{}", SECRET), time.time).open()
    assert named in str(refused.value)
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240  (an empty folder)


@contextmanager
def role_without(name: str) -> Generator[str]:
    """A role that may see the schema and do nothing in it."""
    role = f"{name}_role"
    with psycopg.connect(POSTGRES, autocommit=True) as server:
        server.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {name} TO {role}".encode())
        try:
            yield role
        finally:
            server.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


async def test_a_missing_privilege_has_the_code_and_message_of_the_server() -> None:
    with schema() as address, role_without(address.rpartition("%3D")[2]) as role:
        with pytest.raises(StoreError, match=r"permission denied for schema .*; grant .*\(SQLSTATE 42501\)"):
            await store_at(f"{address}%20-crole%3D{role}", time.time).open()
        owner = store_at(address, time.time)
        await owner.open()
        await owner.close()
        with pytest.raises(StoreError, match=r"permission denied for table .*; grant .*\(SQLSTATE 42501\)"):
            await store_at(f"{address}%20-crole%3D{role}", time.time).open()


async def test_a_schema_that_does_not_exist_is_named_as_the_cause() -> None:
    with schema() as address, pytest.raises(StoreError, match=r"no schema has been selected.*\(SQLSTATE 3F000\)"):
        await store_at(f"{address}_of_another", time.time).open()


@pytest.mark.parametrize("kind", ["sqlite-file", "postgresql"])
async def test_a_failed_migration_names_the_table_that_is_in_the_way(kind: str, tmp_path: Path) -> None:
    with place(kind, tmp_path, bare=True) as (address, _):
        if kind == "postgresql":
            with psycopg.connect(POSTGRES, options=f"-csearch_path={address.rpartition('%3D')[2]}") as server:
                server.execute("CREATE TABLE callgate_jobs (x int)")
        else:
            base = sqlite3.connect(tmp_path / "store.db")
            base.execute("CREATE TABLE callgate_jobs (x)")
            base.close()
        code = r" \(SQLSTATE 42P07\)" if kind == "postgresql" else ""
        with pytest.raises(StoreError, match=rf"callgate_jobs\W* already exists{code}$"):
            await store_at(address, time.time).open()


async def test_a_client_of_redis_that_decodes_responses_is_refused_at_opening() -> None:
    with keyspace() as prefix:
        client: Any = redis.asyncio.Redis.from_url(REDIS, decode_responses=True)
        for store in (
            RedisStore(REDIS, prefix=prefix, client=client),
            RedisStore(f"{REDIS}?decode_responses=true", prefix=prefix),
        ):
            with pytest.raises(StoreError, match="leave decode_responses out"):
                await store.open()
        await client.aclose()
        plain: Any = redis.asyncio.Redis.from_url(REDIS)
        await RedisStore(REDIS, prefix=prefix, client=plain).open()
        await plain.aclose()


async def test_a_client_of_redis_that_cannot_be_awaited_is_refused_at_opening() -> None:
    for client in (plain_redis.Redis.from_url(REDIS), redis.asyncio.ConnectionPool.from_url(REDIS), "redis://h"):
        with pytest.raises(StoreError, match="give a Redis or a RedisCluster of"):
            await RedisStore(REDIS, client=client).open()


async def test_a_database_that_redis_does_not_have_is_an_error_with_the_reason() -> None:
    with keyspace(), pytest.raises(StoreError, match=r"DB index is out of range; check the address"):
        await store_at(f"{REDIS.rpartition('/')[0]}/99999", time.time).open()
