"""The figures of a benchmark as a table, and what each must reach."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table; without bounds it is there to be read."""

    key: str
    what: str
    most: float | None = None
    least: float | None = None
    form: str = "{:.2f}"

    @property
    def target(self) -> str:
        most, least = (None if bound is None else f"{bound:g}" for bound in (self.most, self.least))
        if most is None:
            return "" if least is None else f"≥ {least}"
        return f"{least} to {most}" if least is not None else f"≤ {most}" if float(most) else "0"

    def missed(self, value: float) -> bool:
        return (self.most is not None and value > self.most) or (self.least is not None and value < self.least)


def show(title: str, rows: Iterable[Row], found: Mapping[str, float]) -> list[Row]:
    """Print those rows that have a figure; returns the ones that miss their target."""
    lines, missed = [], []
    for row in rows:
        if row.key not in found:
            continue
        late = row.missed(found[row.key])
        missed += [row] if late else []
        mark = "" if not row.target else "MISSED" if late else "ok"
        lines.append((row.what, row.form.format(found[row.key]), row.target, mark))
    _print_table(title, lines)
    return missed


def _print_table(title: str, lines: list[tuple[str, str, str, str]]) -> None:
    head = ("what", "value", "target", "")
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        width = max(len(line[0]) for line in [head, *lines])
        for what, value, target, mark in [head, *lines]:
            print(f"{what:{width}}  {value:>9}  {target:>11}  {mark}")
        return
    table = Table(title=title, title_justify="left")
    for name, justify in zip(head, ("left", "right", "right", "left"), strict=True):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for what, value, target, mark in lines:
        table.add_row(what, value, target, {"MISSED": "[red]MISSED", "ok": "[green]ok"}.get(mark, ""))
    narrow = None if sys.stdout.isatty() else 120
    Console(width=narrow).print(table)
