"""The rows as a table of `docs/rosetta.md`, beside what was published for the frameworks of 2018."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rosetta.environments import ROOT, ROWS, Row

PAGE = ROOT / "docs" / "rosetta.md"
END = "<!-- end of the table -->\n"
# Seconds for ten epochs of the CNN, three of the RNN, on a Tesla P100, of the comparison's README.
PUBLISHED: dict[str, dict[str, int]] = {
    "cnn": {
        "MXNet (Module API)": 52, "PyTorch": 51, "CNTK": 53, "Caffe2": 54, "TensorFlow": 57, "MXNet (Gluon)": 57,
        "Lasagne (Theano)": 65, "Chainer": 69, "Keras (CNTK)": 76, "Keras (TensorFlow)": 76, "Keras (Theano)": 93,
    },
    "rnn": {},
}  # fmt: skip
COLUMNS = (
    "framework", "version", "lines", "steps", "ms a step", "seconds an epoch", "accuracy",
    "published, s on a P100",
)  # fmt: skip


def begin(kind: str) -> str:
    """Where the page has the table of a problem."""
    return f"<!-- table: python -m rosetta {kind} --write -->\n"


def table(kind: str, results: dict[str, dict[str, Any] | str], page: Path = PAGE) -> str:
    """The table: rows that ran, and as the page has them those that were not asked for; a sentence for each that failed."""
    known = _lines(kind, page)
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    reasons = []
    for name, row in ROWS.items():
        result = results.get(name, known.get(row.title, ""))
        if isinstance(result, dict):
            result = _line(kind, row, result)
        if result.startswith(("| ", "- ")):
            (lines if result.startswith("| ") else reasons).append(result)
        elif result:
            reasons.append(f"- {row.title}: {result}")
    return "\n".join([*lines, "", *reasons, ""] if reasons else [*lines, ""])


def _line(kind: str, row: Row, result: dict[str, Any]) -> str:
    cells = (
        row.title, result["version"], result["lines"], result["steps"], f"{result['milliseconds a step']:.0f}",
        f"{result['seconds an epoch']:.1f}", f"{result['accuracy']:.3f}", PUBLISHED[kind].get(row.published, ""),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _lines(kind: str, page: Path) -> dict[str, str]:
    """What the page says of each framework: a row of the table, or a reason in the list below it."""
    text = page.read_text().split(begin(kind))[1].split(END)[0]
    found = [line for line in text.splitlines() if line.startswith(("| ", "- "))]
    return {line[2:].split(" |" if line.startswith("| ") else ":")[0].strip(): line for line in found}


def write(kind: str, text: str, page: Path = PAGE) -> None:
    """Put the table where the page has its place."""
    before, rest = page.read_text().split(begin(kind))
    page.write_text(f"{before}{begin(kind)}\n{text}\n{END}{rest.split(END, 1)[1]}")
