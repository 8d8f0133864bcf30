"""The example services, each started as its reader would start it and called over a real socket."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
ANN, MAX = {"Authorization": "Bearer token-of-ann"}, {"Authorization": "Bearer token-of-max"}
REDIS = ("127.0.0.1", 6379)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port


@contextlib.contextmanager
def process(*command: str, **environment: str) -> Generator[subprocess.Popen[str], None, None]:
    """A process of its own, ended by its id; its output is part of the failure of a test that waits for it."""
    started = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            started.kill()
            started.communicate()


@contextlib.contextmanager
def service(name: str, **environment: str) -> Generator[httpx.Client, None, None]:
    port = free_port()
    with process(f"examples.{name}", "--port", str(port), **environment) as started:
        for _ in range(6000):  # a busy machine takes its time
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if started.poll() is not None:
                raise AssertionError(started.communicate()[0])
            time.sleep(0.05)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300, trust_env=False) as client:
            yield client
        assert started.poll() is None
        started.terminate()
        assert started.wait(timeout=300) in {0, -15}


def test_a_plain_web_service_calls_tools_from_its_threads() -> None:
    """One portal for the process."""
    with service("django_service") as client:
        for method, path in [("GET", "/tools"), ("POST", "/tools/refund")]:
            assert client.request(method, path).status_code == 401
        assert client.get("/tools", headers=ANN).json()["tools"]
        asked = {"order_id": "A-1001", "cents": 100}
        denied = client.post("/tools/refund", json=asked, headers=ANN)
        assert (denied.status_code, denied.json()["error"]) == (403, "The call was denied.")
        invalid = client.post("/tools/refund", json={**asked, "cents": "CANARY"}, headers=MAX)
        assert (invalid.status_code, "CANARY" in invalid.text) == (422, False)

        def order(number: int) -> Any:
            return client.post("/tools/get_order", json={"order_id": "A-1002"}, headers=ANN).json()["output"]["paid"]

        with ThreadPoolExecutor(10) as pool:
            assert list(pool.map(order, range(50))) == [12_900] * 50
        for _ in range(2):  # run, and answered with the receipt: the tool itself would refuse to do it twice
            assert client.post("/tools/refund", json=asked, headers=MAX).json()["output"]["refunded"] == 100
        other = client.post("/tools/refund", json={**asked, "cents": 200}, headers=MAX)
        assert (other.status_code, other.json()["metadata"]["outcome"]) == (409, "conflict")


def test_with_a_store_a_repeat_is_answered_after_a_restart(tmp_path: Path) -> None:
    """I4: the first process has ended; its receipt has not. Without a store the new process knows nothing, and runs it."""
    asked = {"order_id": "A-1001", "cents": 100}
    ran: dict[str, list[bool]] = {"": [], f"sqlite:///{tmp_path / 'shop.db'}": []}
    for address, found in ran.items():
        for _ in range(2):
            with service("django_service", CALLGATE_STORE=address) as client:
                assert client.post("/tools/refund", json=asked, headers=MAX).json()["output"]["refunded"] == 100
                order = client.post("/tools/get_order", json={"order_id": "A-1001"}, headers=MAX).json()["output"]
                found.append(order["refunded"] == 100)  # by this process: the shop's own books are in its memory
    assert [*ran.values()] == [[True, True], [True, False]]


@pytest.fixture(params=["redis", "files"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of the worker."""
    if request.param == "files":
        return {"CELERY_BROKER_URL": "filesystem://", "CELERY_FOLDER": str(tmp_path), "CELERY_QUEUE": "shop"}
    try:
        socket.create_connection(REDIS, timeout=1).close()
    except OSError:
        pytest.skip("NO REDIS at 127.0.0.1:6379: the Celery service is tried with a broker of files only")
    return {"CELERY_BROKER_URL": "redis://127.0.0.1:6379/0", "CELERY_QUEUE": f"callgate-test-{secrets.token_hex(6)}"}


CALLING = """
import json, sys
from examples.celery_service.app import app, call_tool
asked = [
    ("max", "get_order", {"order_id": "A-1001"}),
    ("ann", "refund", {"order_id": "A-1001", "cents": 1}),
    ("max", "refund", {"order_id": "A-1001", "cents": "CANARY"}),
]
sent = [call_tool.delay(user, f"c{n}", tool, arguments) for n, (user, tool, arguments) in enumerate(asked)]
answers = [one.get(timeout=300) for one in sent]
for one in sent:
    one.forget()
print(json.dumps([[answer["status"], answer.get("error"), answer.get("output")] for answer in answers]))
with app.connection() as connection:
    if connection.transport_cls == "redis":
        client = connection.default_channel.client
        client.delete(*client.keys(f"*{app.conf.task_default_queue}*"), app.conf.task_default_queue)
"""


def test_a_celery_worker_opens_the_gate_after_its_fork_and_answers_in_json(broker: dict[str, str]) -> None:
    with process("examples.celery_service", **broker) as worker:
        calling = subprocess.run(
            [sys.executable, "-c", CALLING],
            cwd=ROOT,
            env={**os.environ, **broker},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert worker.poll() is None
    assert calling.returncode == 0, calling.stderr
    assert "CANARY" not in calling.stdout
    (found, denied, invalid) = json.loads(calling.stdout.splitlines()[-1])
    assert found == ["success", None, {"order_id": "A-1001", "paid": 4200, "refunded": 0}]
    assert denied == ["error", "The call was denied.", None]
    assert invalid[0] == "error"
    assert "/cents" in invalid[1]
