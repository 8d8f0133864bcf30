"""The addresses of SQL databases: their parts, their parameters, and the file of SQLite."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from callgate.errors import StoreError
from callgate.providers.stores.urls import refuse_empty, split_address, split_password

if TYPE_CHECKING:
    from sqlalchemy import URL


_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
_INVALID = "the address of a SQL store is not a valid URL; write it as postgresql://user:password@host/database or sqlite:///file.db"
_OF_SQLITE3 = {"timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements", "uri"}
"""Parameters of ``sqlite3.connect``. All others belong to the URI of a file, and have no effect without ``uri=true``."""
_OF_FILES = {"mode", "cache", "immutable", "vfs", "psow", "nolock", "modeof"}
_NUMBERS = {"timeout", "detect_types", "cached_statements"}


def read_url(url: str) -> URL:
    """Parse an address of SQLite or PostgreSQL, as managed databases hand them out, and set its driver.

    Several hosts (``host1:5432,host2:5433``) and the folder of a Unix socket (``%2Fvar%2Frun``) become parameters.

    Raises:
        StoreError: the address cannot be parsed or names another database, or SQLite would ignore a parameter. The message
            shows its scheme, and the names of parameters, at most.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    scheme, rest = split_address(url)
    backend = scheme.partition("+")[0]
    driver = _DRIVERS.get(backend)
    if driver is None or scheme not in {driver, backend}:
        raise StoreError(
            f"a SQL store supports sqlite:// and postgresql:// addresses, not {scheme}://"
            + ("; leave the driver out" if driver else "")
        )
    try:
        if backend == "sqlite":
            refuse_empty(backend, rest)
            parsed = make_url(f"{driver}://{rest}")
            _refuse_lite(parsed)
            return parsed
        user, host = split_password(rest)
        refuse_empty(backend, host)
        return _read_postgres(driver, user, host)
    except (ArgumentError, ValueError):
        raise StoreError(_INVALID) from None


def _read_postgres(driver: str, user: str, rest: str) -> URL:
    from sqlalchemy.engine import make_url

    where = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "," not in where and "%" not in where:
        parsed = make_url(f"{driver}://{user}{rest}")
    else:
        parsed = make_url(f"{driver}://{user}{rest[len(where) :]}")
        pairs = [_host_and_port(unquote(one)) for one in where.split(",")]
        found = {"host": ",".join(host for host, _ in pairs), "port": ",".join(port for _, port in pairs)}
        parsed = parsed.update_query_dict({name: value for name, value in found.items() if value.strip(",")})
    if parsed.query.get("ssl") == "true":  # libpq reads it so, too
        parsed = parsed.difference_update_query(["ssl"]).update_query_dict({"sslmode": "require"})
    return parsed


def _host_and_port(text: str) -> tuple[str, str]:
    """Split a host and its port.

    Raises:
        ValueError: the port is no number.
    """
    found = re.fullmatch(r"(/.*?|\[[^\]]*\]|[^:\[\]/]*)(?::(\d*))?", text)
    if found is None:
        raise ValueError
    return found[1].strip("[]"), found[2] or ""


def refuse_parameters(url: URL) -> None:
    """Refuse parameters of a PostgreSQL address that libpq does not know, or cannot read.

    Raises:
        StoreError: there is one; the message names it, and not its value.
    """
    if url.get_backend_name() == "sqlite":
        return
    from psycopg import pq
    from sqlalchemy.exc import ArgumentError

    for name, part in (("dbname", url.database), ("user", url.username), ("password", url.password)):
        if part and name in url.query:
            raise StoreError(
                f"postgresql: the address has the parameter {name!r}, and names it before the ?; remove one"
            )
    if str(url.query.get("client_encoding", "utf8")).lower().replace("-", "") not in {"utf8", "auto"}:
        raise StoreError("postgresql: the parameter 'client_encoding' in the address is not utf8; remove it")
    for name, value in url.query.items():
        _refuse_unknown("postgresql", name, [option.keyword.decode() for option in pq.Conninfo.get_defaults()])
        if not isinstance(value, str) and name not in {"host", "port"}:
            raise StoreError(f"postgresql: the address has the parameter {name!r} twice; remove one")
    try:
        url.get_dialect()().create_connect_args(url)
    except (ArgumentError, ValueError):
        raise StoreError("postgresql: the parameters 'host' and 'port' in the address do not fit each other") from None
    if not re.fullmatch(r"\s*-?\d+\s*", str(url.query.get("connect_timeout", "0"))):
        raise StoreError("postgresql: the parameter 'connect_timeout' in the address is no number of seconds")


def _refuse_unknown(backend: str, name: str, known: Collection[str]) -> None:
    if name in known:
        return
    near = get_close_matches(name, known, n=1, cutoff=0.75)
    advice = f"did you mean {near[0]!r}?" if near else "remove it; parameters of other drivers have no meaning here"
    raise StoreError(f"{backend}: the address has the unknown parameter {name[:40]!r}; {advice}")


def _refuse_lite(url: URL) -> None:
    """Refuse what SQLite would ignore: the file would be opened otherwise than the address says.

    Raises:
        StoreError: the address has a host, an unknown parameter, or a parameter without effect.
    """
    if url.username or url.password or url.host or url.port:
        raise StoreError("sqlite: the address has a host; write sqlite:///file.db, or sqlite:////folder/file.db")
    as_uri = str(url.query.get("uri", "")).lower() in {"true", "1", "yes", "on", "y", "t"}
    is_uri = (url.database or "").startswith("file:")
    for name, value in url.query.items():
        _refuse_unknown("sqlite", name, [*_OF_SQLITE3, *_OF_FILES])
        if name in _NUMBERS and not re.fullmatch(r"\d+(\.\d+)?", str(value)):
            raise StoreError(f"sqlite: the parameter {name!r} in the address is no number")
        if name in _OF_FILES and not (as_uri and is_uri):
            raise StoreError(
                f"sqlite: the parameter {name!r} has no effect in this form of address; write "
                f"sqlite:///file:/folder/file.db?{name}=...&uri=true; a store writes when it opens, so mode=ro is refused"
            )
    if as_uri != is_uri:
        raise StoreError("sqlite: a file name that begins with file: and the parameter uri=true need each other")


def sqlite_file(url: URL) -> Path | None:
    """Return the file that a URL of SQLite names, also as ``file:...?uri=true``; None for a database in memory."""
    name = re.sub(r"^file:(//(localhost)?(?=/))?", "", url.database or ":memory:")
    in_memory = name == ":memory:" or url.query.get("mode") == "memory" or url.query.get("vfs") == "memdb"
    return None if in_memory else Path(name)


def located(url: URL, file: Path | None) -> URL:
    """Return a URL with the absolute path of its file, which holds when the process changes its folder.

    SQLite decodes a name that begins with ``file:``, and the address was decoded already.
    """
    if file is None:
        return url
    path = str(file.absolute())
    return url.set(database=f"file:{quote(path)}" if (url.database or "").startswith("file:") else path)


def refuse_unusable(file: Path | None) -> None:
    """Refuse a path that cannot be the file of a database.

    Raises:
        StoreError: its folder does not exist, it is no regular file, or the file has other names; see ``_refuse_other_names``.
    """
    if file is None:
        return
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise StoreError(f"sqlite: {file.absolute()} is no regular file; give the address of a file")
    if not file.absolute().parent.is_dir():
        raise StoreError("sqlite: unable to open database file: its folder does not exist; create the folder first")
    if file.is_dir():
        raise StoreError(f"sqlite: {file.absolute()} is a folder; give the address of a file")
    if file.exists():
        _refuse_other_names(file.resolve())


def _refuse_other_names(file: Path) -> None:
    """Refuse a file with hard links, or a file that is mounted by itself, as into a container.

    SQLite keeps the latest records in a file beside it, which has the same name with ``-wal``. Processes that use another
    name of the file do not find those records, and run their effects again.

    Raises:
        StoreError: the file may have another name.
    """
    if (names := file.stat().st_nlink) > 1:
        raise StoreError(
            f"sqlite: {file} has {names} names (hard links), and the latest records would be kept for each name apart; remove "
            "the other names, and make backups as copies"
        )
    mounts = _MOUNTS.read_text(errors="surrogateescape").splitlines() if _MOUNTS.exists() else []
    if str(file) in {re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in mounts}:
        raise StoreError(
            f"sqlite: {file} is mounted by itself, so the files beside it with the latest records are left out; mount the "
            "folder of the file"
        )


_MOUNTS = Path("/proc/self/mountinfo")
"""What is mounted where, on Linux: the fifth word of a line is the path, with some characters as octal numbers."""


def shown_url(url: URL) -> str:
    """Return an address without user, password and parameters, but with its hosts."""
    place = "" if url.host is None else f"[{url.host}]" if ":" in url.host else url.host
    place += "" if url.port is None else f":{url.port}"
    hosts, ports = (_texts(url.query.get(name, "")) for name in ("host", "port"))
    if hosts != [""]:
        ports = ports * len(hosts) if len(ports) == 1 else ports  # one port holds for all hosts
        place = ",".join(map(_with_port, hosts, ports))
    return f"{url.get_backend_name()}://{place}/{url.database or ''}"


def _texts(value: str | Sequence[str]) -> list[str]:
    return (value if isinstance(value, str) else ",".join(value)).split(",")


def _with_port(host: str, port: str) -> str:
    shown = f"[{host}]" if ":" in host and not host.startswith("/") else host
    return shown if not port or host.startswith("/") else f"{shown}:{port}"


def prepare(url: URL, file: Path | None) -> None:
    """Refuse what would fail or be ignored later, and create the file of a new database for its owner alone.

    SQLite gives its other files the same permissions.

    Raises:
        StoreError: see ``refuse_unusable`` and ``refuse_parameters``.
    """
    refuse_unusable(file)
    refuse_parameters(url)
    if file is not None and url.query.get("mode", "rwc") == "rwc":
        with contextlib.suppress(OSError):  # it exists, or SQLite reports the failure
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
