"""Check what the project contains and depends on: ``python scripts/supply_chain.py code|secrets|licences|hashes ...``.

``code`` runs bandit, ``secrets`` the detectors of detect-secrets, ``licences`` pip-licenses. Each prints its findings and
exits with 1 if there is one. scripts/supply_chain.toml has the findings that are accepted, each with its reason.

``hashes`` writes constraints-hashes.txt: the pins of constraints.txt with the SHA-256 of every artefact of each version.
It asks the package index that uv is configured for, downloads no artefact, and writes no address.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CODE = ("runtime", "hooks", "providers", "tools", "src/callgate", "src/pytest_callgate.py", "scripts", "examples")
PINS = ROOT / "constraints.txt"
HASHES = ROOT / "constraints-hashes.txt"


@dataclass(frozen=True, order=True)
class Suspect:
    """A text that looks like a secret. It is not shown, for output of a check is public."""

    path: str
    line: int
    kind: str
    value: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}"


def settings() -> dict[str, Any]:
    """Return the accepted findings."""
    return tomllib.loads((ROOT / "scripts/supply_chain.toml").read_text("utf-8"))


def weak_code(paths: Iterable[Path]) -> list[str]:
    """Run bandit over files and folders, with the rules of pyproject.toml, and return its findings."""
    chosen = ["-c", str(ROOT / "pyproject.toml"), "-f", "json", "-q", "-r", *map(str, paths)]
    done = _run("bandit", chosen, codes=(0, 1))
    report = json.loads(done)
    found = [
        f"{one['filename']}:{one['line_number']}: {one['test_id']} {one['issue_text']}" for one in report["results"]
    ]
    return found + [f"{one['filename']}: {one['reason']}" for one in report["errors"]]


def suspects(paths: Iterable[Path], root: Path, *, skip: Iterable[str] = ()) -> list[Suspect]:
    """Return the texts that a detector of detect-secrets takes for a secret, without the detectors in *skip*.

    Each detector reads a file as a whole: line by line, with a file of 50 settings, takes a minute.
    """
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.high_entropy_strings import HighEntropyStringsPlugin

    left_out = set(skip)
    classes: Mapping[str, Any] = get_mapping_from_secret_type_to_class()
    detectors: list[tuple[str, Any]] = [(kind, c()) for kind, c in classes.items() if c.__name__ not in left_out]
    found: set[Suspect] = set()
    for path in paths:
        text = path.read_text("utf-8", errors="replace")
        for kind, detector in detectors:
            for value in set(detector.analyze_string(text)):
                if isinstance(detector, HighEntropyStringsPlugin) and not _random(detector, value):
                    continue
                line = text.count("\n", 0, text.find(value)) + 1
                found.add(Suspect(path.relative_to(root).as_posix(), line, kind, value))
    return sorted(found)


def _random(detector: Any, value: str) -> bool:
    return bool(detector.calculate_shannon_entropy(value) > detector.entropy_limit)


def judged(found: Iterable[Suspect], accepted: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each suspect that no entry accepts, and for each path or value of an entry without a suspect."""
    rest = list(found)
    lines: list[str] = []
    for entry in accepted:
        paths, values = entry.get("paths"), entry.get("values")
        mine = [
            one
            for one in rest
            if one.kind == entry["type"]
            and (paths is None or one.path in paths)
            and (values is None or one.value in values)
        ]
        rest = [one for one in rest if one not in mine]
        stale = {*(paths or ()), *(values or ())} - {one.path for one in mine} - {one.value for one in mine}
        lines += [f"scripts/supply_chain.toml: nothing is found for {name!r}; remove it" for name in sorted(stale)]
    return [str(one) for one in rest] + lines


def tracked(root: Path = ROOT) -> list[Path]:
    """Return the files of the checkout: those in git, and new ones that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout  # noqa: S603  (fixed words)
    return [path for path in (root / name for name in listed.split("\0") if name) if path.is_file()]


def licences_installed() -> dict[str, str]:
    """Return the licence of each installed package, as its metadata has it."""
    listed = json.loads(_run("piplicenses", ["--format=json", "--from=mixed", "--with-system"]))
    return {one["Name"].lower(): one["License"] for one in listed}


def refused(found: Mapping[str, str], rules: Mapping[str, Any]) -> list[str]:
    """Return a line for each package whose licence is neither allowed nor accepted for that package."""
    known = {(name, entry["licence"]) for entry in rules["accepted"] for name in entry["packages"]}
    allowed = set(rules["allowed"])
    return [
        f"{name}: the licence {licence!r} is not among those of scripts/supply_chain.toml"
        for name, licence in sorted(found.items())
        if (name, licence) not in known and not allowed.issuperset(_parts(licence))
    ]


def _parts(licence: str) -> set[str]:
    """The names in an expression; "BSD License; MIT License" and "MIT OR (Apache-2.0)" have two each."""
    expression = re.search(r" AND | OR ", licence)  # only there are parentheses no part of a name
    return {part.strip("() ") if expression else part for part in re.split(r"; | AND | OR ", licence)}


def with_hashes(pins: Path) -> str:
    """Return the pins of a file with the SHA-256 of every artefact of each version, from uv's configured index."""
    quiet = ["--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    return _run("uv", ["pip", "compile", str(pins), "--no-deps", "--generate-hashes", *quiet])


def _run(module: str, arguments: list[str], *, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)  # noqa: S603  (fixed modules)
    if done.returncode not in codes:
        raise SystemExit(f"{module} failed with {done.returncode}; make install installs it\n{done.stderr.strip()}")
    return done.stdout


def _found() -> Iterator[tuple[str, Callable[[], list[str]]]]:
    rules = settings()
    secrets = rules["secrets"]
    yield "code", lambda: weak_code(ROOT / name for name in CODE)
    yield "secrets", lambda: judged(suspects(tracked(), ROOT, skip=secrets["skip"]), secrets["accepted"])
    yield "licences", lambda: refused(licences_installed(), rules["licences"])


def main(asked: list[str]) -> int:
    """Run the checks that are named, or write the hashes. Return the exit status."""
    if asked == ["hashes"]:
        HASHES.write_text(with_hashes(PINS), "utf-8")
        return 0
    checks = dict(_found())
    if not asked or not set(asked) <= set(checks):
        raise SystemExit(f"usage: python scripts/supply_chain.py hashes, or some of: {' '.join(checks)}")
    with ThreadPoolExecutor() as pool:  # bandit takes the longest, in a process of its own
        found = list(pool.map(lambda name: checks[name](), asked))
    for name, lines in zip(asked, found, strict=True):
        print(*lines, f"{name}: {len(lines)} findings", sep="\n")
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
