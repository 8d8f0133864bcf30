"""Redis and RabbitMQ for the tests of Celery: names that are no other test's, workers, and what waits in a queue."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.providers.stores.backends import REDIS, keyspace, schema
from tests.runtime.jobs import engine_app

ROOT = Path(__file__).resolve().parents[3]
RABBITMQ = os.environ.get("CALLGATE_TEST_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672//")
KINDS = ("redis", "rabbitmq")
QUEUES = ("default", "idle")
"""Workers look at the first, nobody at the second."""


@dataclass
class Broker:
    """A broker, the names in it that are ours, and the store of its jobs.

    Workers look after all jobs of their store: one of another broker's would take those of this one.
    """

    kind: str
    address: str
    prefix: str
    store: str
    app: Any = field(init=False)
    worker: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.app = engine_app.celery_app(self.address, self.prefix)

    def start(self, application: str = "tests.runtime.jobs.engine_celery") -> None:
        """A worker of two processes, in a group of its own, with a time limit for tasks that are not ours."""
        assert self.worker is None
        name = f"{uuid.uuid4().hex[:8]}@callgate"
        self.worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", application, "worker"),
                *("-c", "2", "-n", name, "-Q", f"{self.prefix}.default", "-l", "WARNING"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat", "--soft-time-limit", "1"),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "CALLGATE_TEST_STORE": self.store,
                "CALLGATE_TEST_BROKER": self.address,
                "CALLGATE_TEST_PREFIX": self.prefix,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """End the worker with all its processes, none of which may do anything before."""
        worker, self.worker = self.worker, None
        if worker is not None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    async def messages(self, number: int, queue: str = "idle") -> list[Any]:
        """What waits in a queue, in the order in which a worker would get it, once there are so many; it is taken out."""
        with self.app.connection_for_read() as connection, connection.channel() as channel:
            waiting = self.app.amqp.queues[f"{self.prefix}.{queue}"](channel)
            waiting.declare()

            async def have_come() -> bool:  # RabbitMQ says that it has a message before others can get it
                return bool(waiting.queue_declare().message_count >= number)

            await engine_app.until(have_come)
            found: list[Any] = []
            while (message := waiting.get(no_ack=True)) is not None:
                found.append(message)
        return found

    def clean(self) -> None:
        """Take out of RabbitMQ what is ours; keys in Redis go with their prefix."""
        from kombu import pools

        if self.kind == "rabbitmq":
            with self.app.connection_for_write() as connection, connection.channel() as channel:
                for queue in (*QUEUES, "unused"):
                    channel.queue_delete(f"{self.prefix}.{queue}")
                    channel.exchange_delete(f"{self.prefix}.{queue}")
        # kombu keeps pools by address: one that is closed, and not forgotten, would be the next application's, too.
        pools.reset()  # type: ignore[no-untyped-call]
        self.app.close()


@contextmanager
def broker(kind: str) -> Generator[Broker]:
    """A broker with names of our own, which are gone afterwards; skipped loudly where there is none."""
    if kind == "redis":
        with keyspace() as prefix, schema() as store:
            yield from _used(Broker(kind, REDIS, prefix, store))
    else:
        try:
            socket.create_connection(("127.0.0.1", 5672), timeout=3).close()
        except OSError as error:
            pytest.skip(f"NO RABBITMQ at {RABBITMQ} (set CALLGATE_TEST_RABBITMQ): {error}")
        with schema() as store:
            yield from _used(Broker(kind, RABBITMQ, f"callgate-test-{uuid.uuid4().hex[:12]}", store))


def _used(made: Broker) -> Generator[Broker]:
    try:
        yield made
    finally:
        made.kill()
        made.clean()
