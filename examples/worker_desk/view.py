"""The progress display of a run: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from examples.worker_desk.workers import Worker

EVENTS = 6
"""Numbers of the latest events and the latest calls on a terminal."""

COLOURS = {"works": "green", "killed": "bold red", "starts": "yellow"}


class View:
    """Print events as lines, and the progress at every tenth of the run."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total = console, total
        self._began, self._shown = time.monotonic(), 0

    def say(self, event: str) -> None:
        """Print an event."""
        self.console.print(Text(f"{time.monotonic() - self._began:5.1f} s  {event}"))

    def ended(self, worker: Worker, what: str) -> None:
        """Do nothing: ended calls are too many for lines."""

    def show(self, done: int, workers: Sequence[Worker]) -> None:
        """Show the state of the run."""
        if done * 10 // self.total > self._shown:
            self._shown = done * 10 // self.total
            told = ", ".join(f"worker {one.number} {one.state}: {one.done} done" for one in workers)
            self.say(f"{done} of {self.total} done; {told}")


class LiveView(View):
    """A table of the workers, a bar, and the last events, drawn over and over."""

    def __init__(self, console: Console, total: int, live: Live) -> None:
        super().__init__(console, total)
        self._live = live
        self._events: deque[Text] = deque(maxlen=EVENTS)
        self._calls: deque[Text] = deque(maxlen=EVENTS)
        columns = (TextColumn("calls"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("calls", total=total)

    def say(self, event: str) -> None:
        self._events.append(Text(f"{time.monotonic() - self._began:5.1f} s  {event}", "bold"))

    def ended(self, worker: Worker, what: str) -> None:
        self._calls.append(Text(f"{time.monotonic() - self._began:5.1f} s  worker {worker.number}: {what}", "dim"))

    def show(self, done: int, workers: Sequence[Worker]) -> None:
        table = Table("worker", "pid", "state", "running", "done")
        for one in workers:
            running = "" if one.state == "killed" else str(one.running)
            state = Text(one.state, COLOURS.get(one.state, ""))
            table.add_row(str(one.number), str(one.process.pid), state, running, str(one.done))
        self._progress.update(self._task, completed=done)
        self._live.update(Group(table, self._progress, *self._events, *self._calls), refresh=True)


@contextmanager
def view(total: int, console: Console | None = None) -> Generator[View]:
    """Return the live view for a terminal, else the line view."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 120
        yield View(console, total)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield LiveView(console, total, live)
