"""Each HTTP client of the package reads through the bounded reader; a bare one is found in the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("hooks", "providers", "runtime", "tools", "src/callgate")
READERS = {"bounded_transport", "BoundedBody"}
CLIENTS = {"AsyncClient", "Client", "ClientSession", "HTTPConnection", "HTTPSConnection", "PoolManager", "Session"}
LIBRARIES = {"aiohttp", "http.client", "httpx", "httpx2", "requests", "urllib.request", "urllib3"}
SHORT = {"delete", "get", "head", "options", "patch", "post", "put", "request", "stream", "urlopen", "urlretrieve"}
"""Functions of the libraries that make a client for one request."""
SCRIPTED = "runtime/testing/"
"""The scripted model answers requests, and sends none."""


def bare_clients(text: str) -> Iterator[str]:
    """The uses of an HTTP library in a source that has no bounded reader."""
    tree = ast.parse(text)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(one.asname or one.name.partition(".")[0]): one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    if READERS & names.keys():
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        first, _, rest = called.partition(".")
        whole = ".".join(filter(None, [names.get(first, ""), rest]))
        last = whole.rpartition(".")[2]
        if any(whole.startswith(f"{one}.") for one in LIBRARIES) and last in CLIENTS | SHORT:
            yield called


def test_each_http_client_is_behind_the_bounded_reader() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    ours = [path for path in files if not str(path.relative_to(ROOT)).startswith(SCRIPTED)]
    found = {str(path.relative_to(ROOT)): list(bare_clients(path.read_text("utf-8"))) for path in ours}
    assert {path: uses for path, uses in found.items() if uses} == {}
    assert sum("httpx" in path.read_text("utf-8") for path in ours) > 5


@pytest.mark.parametrize(
    ("source", "use"),
    [
        ("import httpx\nhttpx.AsyncClient(timeout=1)", "httpx.AsyncClient"),
        ("def f():\n    import httpx2 as h\n    h.AsyncClient()", "h.AsyncClient"),
        ("from httpx import AsyncClient as C\nC()", "C"),
        ("import httpx\nhttpx.get('http://a.test')", "httpx.get"),
        ("import urllib.request\nurllib.request.urlopen('http://a.test')", "urllib.request.urlopen"),
        ("from urllib.request import urlopen\nurlopen('http://a.test')", "urlopen"),
        ("import requests\nrequests.post('http://a.test')", "requests.post"),
        ("import aiohttp\naiohttp.ClientSession()", "aiohttp.ClientSession"),
        ("from http import client\nclient.HTTPSConnection('a.test')", "client.HTTPSConnection"),
    ],
)
def test_control_a_bare_client_is_found(source: str, use: str) -> None:
    assert list(bare_clients(source)) == [use]


def test_control_the_client_of_an_audit_endpoint_would_be_found_without_its_reader() -> None:
    text = (ROOT / "providers/http/post.py").read_text("utf-8")
    assert list(bare_clients(text)) == []
    assert list(bare_clients(text.replace("BodyRefused, BoundedBody", "BodyRefused"))) == ["httpx.AsyncClient"]
