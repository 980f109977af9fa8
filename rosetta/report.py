"""The rows as a table of `docs/rosetta.md`, beside what was published for the frameworks of 2018."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rosetta.environments import ROOT, ROWS

PAGE = ROOT / "docs" / "rosetta.md"
BEGIN, END = "<!-- table of the CNN: python -m rosetta cnn --write -->\n", "<!-- end of the table -->\n"
# Seconds for ten epochs on a Tesla P100, of the comparison's README.
PUBLISHED = {
    "MXNet (Module API)": 52, "PyTorch": 51, "CNTK": 53, "Caffe2": 54, "TensorFlow": 57, "MXNet (Gluon)": 57,
    "Lasagne (Theano)": 65, "Chainer": 69, "Keras (CNTK)": 76, "Keras (TensorFlow)": 76, "Keras (Theano)": 93,
}  # fmt: skip


def table(results: dict[str, dict[str, Any] | str]) -> str:
    """The table of the rows that ran, and a sentence for each that did not."""
    head = "| framework | version | lines | ms a step | seconds an epoch | accuracy | published, s for ten epochs on a P100 |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for name, result in results.items():
        if not isinstance(result, str):
            row = ROWS[name]
            lines.append(
                f"| {row.title} | {result['version']} | {result['lines']} | {result['milliseconds a step']:.0f} "
                f"| {result['seconds an epoch']:.1f} | {result['accuracy']:.3f} | {PUBLISHED.get(row.published, '')} |"
            )
    missing = [f"- {ROWS[name].title}: {reason}" for name, reason in results.items() if isinstance(reason, str)]
    return "\n".join([*lines, "", *missing, ""] if missing else [*lines, ""])


def write(text: str, page: Path = PAGE) -> None:
    """Put the table where the page has its place."""
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")
