"""Three rings: the core, its uses, and the doors to other software. The core knows neither of the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.test_house import FLOOR, PACKAGE, house_files, import_nodes, imports

CORE = """
    support data expr initializers program params jets lowering activations schedules optimizers backends layers penalties
    metrics losses network chain training
""".split()  # noqa: SIM905
USES = ["minimize", "residuals", "objectives", "solving", "sampling", "models", "population"]
DOORS = ["interop", "exporting", "sklearn", "files", "callbacks", "queueing", "testing", "__main__"]
# `Chain` is the page of all calls: it is where the rings meet.
MEETING = {"chain.py": {"objectives"}}
TOUR = PACKAGE.parent / "docs" / "design" / "core.md"
HOUSE = TOUR.parent.parent / "design.md"
LISTED = re.compile(r"`([\w/]+\.py)` \| (\d+) \|")


def outside(path: Path) -> set[str]:
    """What a file of the core imports from the other rings."""
    return imports(path) & {*USES, *DOORS} - MEETING.get(path.name, set())


def ring(path: Path) -> str:
    """The room of a file, or its name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


core_files = [path for path in house_files if ring(path) in CORE]


def test_every_room_is_in_a_ring():
    rooms = {ring(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "version"}
    assert rooms == {*CORE, *USES, *DOORS}
    assert len(CORE) + len(USES) + len(DOORS) == len(rooms)
    assert {*CORE, *USES, *DOORS} <= {*FLOOR, *rooms}


def rooms_of_the_tour() -> dict[str, int]:
    """The row of each room in the tour's table."""
    table = HOUSE.read_text().split("\n## Rooms\n")[1].split("\n### Rings\n")[0]
    rows = [re.findall(r"`(\w+)(?:/|\.py)`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")]
    return {room: number for number, names in enumerate(rows) for room in names}


@pytest.mark.skipif(not HOUSE.exists(), reason="the documentation is not here")
def test_the_tour_lists_rooms_below_those_they_import():
    row = rooms_of_the_tour()
    assert set(row) == {*CORE, *USES, *DOORS}
    later = {
        path: {name for name in imports(path) if row.get(name, 0) > row[ring(path)]}
        for path in house_files
        if ring(path) in row
    }
    assert {path: names for path, names in later.items() if names} == {}


def test_the_core_imports_neither_uses_nor_doors():
    assert len(core_files) > 150
    assert {path: names for path in core_files if (names := outside(path))} == {}


def test_an_import_of_a_use_is_found(tmp_path):
    wrong = tmp_path / "network.py"
    wrong.write_text("def f():\n    from chains.minimize import rows\n    import chains.expr\n")
    assert outside(wrong) == {"minimize"}
    import_nodes.cache_clear()


@pytest.mark.skipif(not TOUR.exists(), reason="the documentation is not here")
def test_the_tour_of_the_core_lists_files_of_their_lengths():
    listed = {name: int(lines) for name, lines in LISTED.findall(TOUR.read_text())}
    assert len(listed) > 20
    actual = {name: len((PACKAGE / name).read_text().splitlines()) for name in listed}
    assert {name: n for name, n in actual.items() if abs(n - listed[name]) > max(20, n // 4)} == {}
    assert {name for name in listed if Path(name).parts[0].removesuffix(".py") not in CORE} == set()
