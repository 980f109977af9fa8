"""The results of `benchmarks.gpu`: printed and written as they come, and a table."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.problems import PROBLEMS, Result


@dataclass
class Report:
    """The results of this run and those before it, printed as they come; the file is written after each."""

    facts: dict[str, str]
    path: Path | None
    results: list[Result] = field(default_factory=list)
    goals: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        if self.path is not None and self.path.exists():
            self.results = json.loads(self.path.read_text())["results"]

    def find(self, problem: str, who: str) -> Result | None:
        """The result of a row, or None."""
        return next((each for each in self.results if (each["problem"], each["who"]) == (problem, who)), None)

    def add(self, problem: str, who: str, result: Result) -> None:
        """Store the result of a row, which replaces an earlier one."""
        result = {"problem": problem, "who": who} | result
        details = result.pop("details", None)
        with self._lock:
            if details and self.path is not None:
                with self.path.with_name("details.txt").open("a") as file:
                    file.write(f"{'=' * 100}\n{line(result)}\n\n{details}\n\n")
            before = self.find(problem, who)
            if before is None:
                self.results.append(result)
            else:
                self.results[self.results.index(before)] = result
            if not result.get("holds"):  # a case that is right needs no line
                print(line(result), flush=True)
            self.save()

    def save(self) -> None:
        if self.path is not None:
            content = {"machine": self.facts, "results": self.results, "goals": self.goals}
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(content, indent=1, default=float) + "\n")
            os.replace(new, self.path)


def line(result: Result) -> str:
    """A result as a line; a failed one with the end of its traceback."""
    if "failed" in result:
        *where, _ = result.get("traceback", "").rstrip().rsplit("\n", 4) if result.get("traceback") else ("",)
        place = "".join(f"\n{'':13}| {text}" for text in where[1:])
        return f"{result['problem']:13}{result['who']:34}{result['failed'][:300]}{place}"
    parts = []
    if "seconds" in result:
        parts.append(f"{result['seconds']:.4g} s")
    if "us_a_step" in result:
        parts.append(f"{result['us_a_step']:,.1f} us a step")
    parts += [f"{name} {result[name]:.4g}" for name in ("value", "loss", "accuracy", "TFLOP/s") if result.get(name) is not None]
    parts += ["holds" if result["holds"] else "DOES NOT HOLD"] if "holds" in result else []
    parts += [result["note"]] if result.get("note") else []
    parts += [f"warned: {text.splitlines()[0]}" for text in result.get("warnings", ())]
    return f"{result['problem']:13}{result['who']:34}{'; '.join(parts)}"


def table(results: Sequence[Result]) -> str:
    """The trained problems: times, also as multiples of chains' fastest."""
    lines = [f"{'problem':13}{'who':28}{'seconds':>10}{'us a step':>12}{'x chains':>10}{'loss':>11}{'accuracy':>10}"]
    for key in PROBLEMS:
        done = [result for result in results if result["problem"] == key and "seconds" in result]
        ours = min((result["seconds"] for result in done if result["who"].startswith("chains")), default=None)
        for result in done:
            times = f"{result['seconds'] / ours:.2f}" if ours else "-"
            accuracy = f"{result['accuracy']:.4f}" if result.get("accuracy") is not None else "-"
            lines.append(
                f"{key:13}{result['who']:28}{result['seconds']:>10.4g}{result['us_a_step']:>12,.1f}{times:>10}"
                f"{result['loss']:>11.4g}{accuracy:>10}"
            )
    return "\n".join(lines)
