"""What the processes of a kill run write down as they go."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.runtime.jobs.kill_app import Place


class Tail:
    """The lines of a file that grows; a line that is not whole yet is read later."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> list[dict[str, Any]]:
        """What has come since it was asked last."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class Oracle:
    """What was submitted, and what bodies did."""

    def __init__(self, place: Place) -> None:
        self._bodies, self._intents = Tail(place.path("bodies")), Tail(place.path("intents"))
        self.begun: dict[str, dict[str, Any]] = {}
        """By run."""
        self.ended: dict[str, float] = {}
        """When, by run."""
        self.effects: Counter[str] = Counter()
        """How many, by key."""
        self.intended: set[str] = set()
        self.submitted: dict[str, set[str]] = {}
        """The ids of the jobs that ``submit`` came back with, by key: one each, one hopes."""

    def look(self) -> None:
        """Read what is new."""
        for line in self._intents.new():
            if "intends" in line:
                self.intended.add(line["intends"])
            else:
                self.submitted.setdefault(line["submitted"], set()).add(line["id"])
        for line in self._bodies.new():
            if "begun" in line:
                self.begun[line["run"]] = line
            elif "effect" in line:
                self.effects[line["effect"]] += 1
            else:
                self.ended[line["ended"]] = line["at"]

    @property
    def open(self) -> list[dict[str, Any]]:
        """Bodies that have begun and not ended, for all that is known; the newest last."""
        return [line for run, line in self.begun.items() if run not in self.ended]
