"""Find prose that breaks the house's rules of style: ``python scripts/voice.py [PATH ...]``.

The script reads docstrings, comments, messages and pages. It prints one line for each finding and exits with 1 if there is one.
CONTRIBUTING.md explains the rules.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ("runtime", "hooks", "providers", "tools", "src")
PROSE = (*LIBRARY, "examples", "docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
MAINTAINERS = ("docs/contract.md", "docs/contract.toml", "CONTRIBUTING.md")
"""Pages that may cite numbers of the contract."""
LONGEST = 25
"""Words in the first sentence of a docstring."""

SUBJECTS = re.compile(
    r"\b(whoever|whomever|whosoever|somebody|nobody|anybody|(?:it|they|who|which|that) (?:is|are|was|were) told|told so|one that)\b",
    re.IGNORECASE,
)
CITATIONS = re.compile(
    r"\b(?:contract (?:part )?[CI]?\d+|part [A-J] of the contract|design §? ?\d+|invariants? [A-Z]\d*|schemas(?:\.md)? §? ?\d+"
    r"|(?<!-)(?:performance|schemas|invariants|libraries|style|design|house|ports)\.md|threat T\d+|provider_schema_rules)\b"
    r"|§ ?\d|\((?:[CI]\d+[a-z]?(?:[,;] ?)?)+\)|\b(?:C\d+[a-z]?|I\d+|B\d+|T\d+)\)",
    re.IGNORECASE,
)
OPENINGS = re.compile(r"\s*(What|How|Whether|Who|Where|Whose|Whom)\b(?!.*\?$)")


@dataclass(frozen=True, order=True)
class Finding:
    """One offence: where it stands, which rule it breaks, and the words."""

    path: str
    line: int
    rule: str
    words: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.words}"


def findings_in_text(text: str, path: str, line: int = 1, *, cites: bool = False) -> Iterator[Finding]:
    """The offences in plain prose; *cites* allows numbers of the contract."""
    for number, row in enumerate(text.splitlines(), line):
        for found in SUBJECTS.finditer(row):
            yield Finding(path, number, "subject", found[0])
        for found in () if cites else CITATIONS.finditer(row):
            yield Finding(path, number, "citation", found[0])


def findings_in_code(source: str, path: str) -> Iterator[Finding]:
    """The offences in the docstrings, messages and comments of a module."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _first_line(node, path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from findings_in_text(node.value, path, node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from findings_in_text(token.string, path, token.start[0])


def _first_line(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, path: str
) -> Iterator[Finding]:
    text = ast.get_docstring(node)
    if not text:
        return
    at = node.body[0].lineno
    first = text.split("\n\n")[0]
    if OPENINGS.match(first.splitlines()[0]):
        yield Finding(path, at, "opening", first.splitlines()[0])
    sentence = re.split(r"[.:;](?:\s|$)", first)[0]
    if len(sentence.split()) > LONGEST:
        yield Finding(path, at, "length", sentence.replace("\n", " "))


def findings(paths: list[Path]) -> list[Finding]:
    """The offences in files and folders, sorted."""
    found: list[Finding] = []
    for path in sorted({file for top in paths for file in _files(top)}):
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()
        text = path.read_text("utf-8")
        if path.suffix == ".py":
            found += findings_in_code(text, name)
        else:
            found += findings_in_text(text, name, cites=name in MAINTAINERS)
    return sorted(set(found))


def _files(top: Path) -> Iterator[Path]:
    """The Python and Markdown files of a folder; links of an editable install are not followed."""
    if top.is_file():
        yield top
    elif not top.is_symlink():
        for child in top.iterdir():
            if child.is_dir() or child.suffix in {".py", ".md"}:
                yield from _files(child)


if __name__ == "__main__":
    asked = [Path(one).resolve() for one in sys.argv[1:]] or [ROOT / one for one in PROSE]
    offences = findings(asked)
    for offence in offences:
        print(offence)
    print(f"{len(offences)} findings")
    sys.exit(bool(offences))
