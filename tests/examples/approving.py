"""How the tests run the approval desk: processes of their own, and people who visit them over a real socket."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import httpx

from examples.approval_desk.keys import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
REFUND = {"order_id": "A-1001", "cents": "2900", "reason": "late"}
TEXT = 'refund(order_id="A-1001", cents=2900, reason="late")'


@dataclass
class Running:
    """A process that serves the desk."""

    process: subprocess.Popen[str]
    url: str

    def kill(self) -> None:
        """As the machine's power does it: nothing is cleaned up."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(folder: Path, **environment: str) -> Generator[Running]:
    """A process on a folder; it is ended by its id, if it is not over already."""
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.approval_desk", "--port", "0", "--folder", str(folder)],
        cwd=ROOT,
        env={**kept, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"running on (http://\S+)", line):
                yield Running(process, found[1])
                return
        raise AssertionError(said)
    finally:
        process.terminate()
        process.communicate()


class Visitor:
    """Somebody with a browser that has no JavaScript: pages, forms, cookies."""

    def __init__(self, url: str, person: str | None = None) -> None:
        self.client = httpx.Client(base_url=url, headers={"connection": "close"}, timeout=30, trust_env=False)
        self.answer = self.client.get("/")
        if person is not None:
            self.send("/sign-in", person=person)

    @property
    def page(self) -> str:
        """What is on the page, as one reads it."""
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", self.answer.text)).split())

    @property
    def flash(self) -> str:
        """What was said about the last thing that was done."""
        found = re.search(r'class="flash[^>]*>(.*?)</p>', self.answer.text, re.DOTALL)
        return unescape(found[1]).strip() if found else ""

    @property
    def csrf(self) -> str:
        return self.field("csrf")

    @property
    def handle(self) -> str:
        """Of the first call that waits."""
        return self.field("handle")

    def field(self, name: str) -> str:
        found = re.search(rf'name="{name}" value="([^"]+)"', self.answer.text)
        assert found is not None, f"no field {name} on the page: {self.page}"
        return found[1]

    def send(self, path: str, **fields: str) -> httpx.Response:
        """Send a form of the page, and see what follows; gives the first answer."""
        answer = self.client.post(path, data={"csrf": self.csrf, **fields})
        assert answer.status_code == 303, answer.text
        self.look()
        return answer

    def look(self) -> str:
        self.answer = self.client.get("/")
        assert self.answer.status_code == 200
        return self.page

    def ask(self, **other: str) -> None:
        self.send("/refunds", **{**REFUND, **other})

    def decide(self, decision: str, **fields: str) -> None:
        self.send("/decisions", **{"handle": fields.pop("handle", "") or self.handle, "decision": decision, **fields})


def refunds(folder: Path) -> list[tuple[Any, ...]]:
    """What the order desk's own books say has gone back."""
    with contextlib.closing(sqlite3.connect(folder / "orders.db")) as db:
        return db.execute("select order_id, cents, reason, by_user from refunds order by order_id").fetchall()
