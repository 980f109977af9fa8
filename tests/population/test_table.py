"""Long tables of doses and measurements: what is read from them, and what is refused by row and column."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from chains import Chain, Equations, Parallel, Select, Series
from chains.expr import exp, where
from chains.layers import Compartments
from chains.population import PopulationModel, Proportional, read_table

FILE = Path(os.environ.get("CHAINS_DATA", "")) / "population" / "phenobarbital.csv"
GOOD = {
    "ID": [1, 1, 1, 2, 2, 2],
    "TIME": [0.0, 1.0, 2.0, 0.0, 0.0, 3.0],
    "AMT": [100.0, 0.0, 0.0, 50.0, 0.0, 0.0],
    "DV": ["", 3.0, 2.0, ".", 4.0, 1.0],
    "EVID": [1, 0, 0, 1, 0, 0],
    "WT": [70.0, 70.0, "", 60.0, 60.0, 60.0],
}


def changed(**columns):
    """The good table with other columns, or other entries by row: ``TIME={3: 0.5}``."""
    table = {name: list(column) for name, column in GOOD.items()}
    for name, change in columns.items():
        column = table.setdefault(name, [0] * 6)
        for row, value in change.items() if isinstance(change, dict) else enumerate(change):
            column[row] = value
    return table


def test_a_table_gives_measurements_doses_and_covariates():
    table = read_table(changed(), covariates=["WT"])
    one, two = table.subjects
    assert (one.id, two.id, repr(table)) == (1, 2, "<table of 2 subjects: 4 measurements, 2 doses>")
    assert (one.times.tolist(), one.values.tolist(), one.outputs.tolist()) == ([1.0, 2.0], [3.0, 2.0], [1, 1])
    assert (one.doses.times.tolist(), one.doses.amounts.tolist(), two.doses.amounts.tolist()) == ([0.0], [100.0], [50.0])
    assert (one.covariates["WT"].tolist(), two.covariates["WT"].tolist()) == ([70.0, 70.0], [60.0, 60.0])
    samples = table.samples()
    assert samples.columns == ("WT", "time", "time of dose 1", "amount of dose 1")
    assert samples.x.tolist() == [[70, 1, 0, 100], [70, 2, 0, 100], [60, 0, 0, 50], [60, 3, 0, 50]]
    assert (samples.y.tolist(), samples.subjects.tolist()) == ([3.0, 2.0, 4.0, 1.0], [1, 1, 2, 2])


def test_files_frames_and_other_names(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = {{"DV": "conc", "AMT": "dose"}.get(name, name.lower()): column for name, column in changed().items()}
    frame = pandas.DataFrame(table)
    frame.to_csv(tmp_path / "table.csv", index=False)
    wanted = read_table(changed()).samples()
    for source in (table, frame, tmp_path / "table.csv", str(tmp_path / "table.csv")):
        found = read_table(source, {"dv": "conc", "amt": "dose"}).samples()
        assert found.x.tolist() == wanted.x.tolist()
        assert (found.y.tolist(), found.subjects.tolist()) == (wanted.y.tolist(), wanted.subjects.tolist())


def test_additional_doses_infusions_and_steady_states():
    rows = changed(ADDL={0: 2}, II={0: 6.0, 3: 12.0}, SS={3: 1}, RATE={3: 25.0}, CMT=[2] * 6, DVID=[1, 2, 1, 1, 3, 1])
    one, two = read_table(rows).subjects
    assert one.doses.times.tolist() == [0.0, 6.0, 12.0]
    assert one.doses.intervals.tolist() == [0.0, 0.0, 0.0]
    assert one.outputs.tolist() == [2, 1]
    each = two.doses
    assert [each.durations.item(), each.intervals.item(), each.compartments.item()] == [2.0, 12.0, 2.0]
    with pytest.raises(ValueError, match="infusion=True: some doses have a RATE"):
        read_table(rows).samples(steady=True)
    with pytest.raises(ValueError, match="steady=True: some doses have SS"):
        read_table(rows).samples(infusion=True)
    samples = read_table(rows).samples(infusion=True, steady=True)
    layer = Compartments(1, samples.doses, infusion=True, steady=True)
    assert samples.columns[1:] == layer.features[3:]
    assert read_table(rows).samples(compartment=1, infusion=True).x[:, 2].tolist() == [0.0] * 4


def test_measurements_before_and_after_doses_at_their_time():
    rows = {
        "ID": [1] * 7, "TIME": [0, 0, 0, 8, 8, 12, 13], "AMT": [0, 10, 0, 0, 20, 0, 0], "DV": [1, 0, 2, 3, 0, 4, 5],
        "EVID": [0, 1, 0, 0, 4, 3, 0], "ADDL": [0, 2, 0, 0, 0, 0, 0], "II": [0, 4, 0, 0, 0, 0, 0],
    }  # fmt: skip
    table = read_table(rows)
    # Before the first dose; after it; before the dose that was added at this time; a reset with a dose, and one without.
    samples = table.samples()
    assert samples.x[:, 1 + samples.doses :].sum(axis=1).tolist() == [0, 10, 20, 0]
    assert table.subjects[0].values.tolist() == [1, 2, 3, 5]


def test_samples_for_a_network_with_places_for_more_doses():
    samples = read_table(changed(), covariates=["WT"]).samples(doses=3)
    assert samples.doses == 3
    assert samples.x[0].tolist() == [70.0, 1.0, 0.0, 0.0, 0.0, 100.0, 0.0, 0.0]
    assert samples.columns[-1] == "amount of dose 3"
    two = read_table(changed(AMT={1: 20.0}, EVID={1: 1}))
    with pytest.raises(ValueError, match=r"`doses` \(=1\) must be at least 2"):
        two.samples(doses=1)


def test_covariates_that_vary_are_carried_forward():
    rows = changed(WT=[70, "", 71, 60, 61, ""])
    assert read_table(rows, varying=["WT"]).samples().x[:, 0].tolist() == [70, 71, 61, 61]


BAD = {
    "time-missing": ({"TIME": {2: ""}}, "row 3, column TIME (=''): a time is missing"),
    "time-clock": ({"TIME": {1: "10:30"}}, "row 2, column TIME (='10:30'): this is not a number"),
    "time-decreases": ({"TIME": {2: 0.5}}, "row 3, column TIME (=0.5): times of a subject must not decrease"),
    "time-infinite": ({"TIME": {5: np.inf}}, "row 6, column TIME (=inf): this is not finite"),
    "id-missing": ({"ID": {4: "."}}, "row 5, column ID (='.'): an ID is missing"),
    "id-again": ({"ID": {5: 1}}, "row 6, column ID (=1): the rows of a subject must follow one another"),
    "evid": ({"EVID": {1: 5}}, "row 2, column EVID (=5): EVID must be 0, 1, 2, 3 or 4"),
    "evid-missing": ({"EVID": {1: ""}}, "row 2, column EVID (=''): EVID must be"),
    "mdv": ({"MDV": {1: 2}}, "row 2, column MDV (=2): MDV must be 0 or 1"),
    "mdv-of-a-dose": ({"MDV": [0] * 6}, "row 1, column MDV (=0): MDV must be 1 where EVID is not 0"),
    "value-missing": ({"DV": {2: ""}}, "row 3, column DV (=''): a measurement is missing: give MDV = 1"),
    "value-below": ({"DV": {2: "<0.1"}}, "row 3, column DV (='<0.1'): this is not a number"),
    "amount-missing": ({"AMT": {3: ""}}, "row 4, column AMT (=''): the amount of a dose must be positive"),
    "amount-negative": ({"AMT": {0: -5.0}}, "row 1, column AMT (=-5.0): the amount of a dose must be positive"),
    "amount-measured": ({"AMT": {1: 5.0}}, "row 2, column AMT (=5.0): only doses, with EVID 1 or 4, have amounts"),
    "rate-measured": ({"RATE": {1: 5.0}}, "row 2, column EVID (=0): only doses, with EVID 1 or 4, have RATE"),
    "rate-modelled": ({"RATE": {0: -2}}, "row 1, column RATE (=-2): a RATE that is a parameter is not supported"),
    "compartment": ({"CMT": [0, 1, 1, 1, 1, 1]}, "row 1, column CMT (=0): CMT must be a whole number from 1 on"),
    "output": ({"DVID": [1, 1.5, 1, 1, 1, 1]}, "row 2, column DVID (=1.5): DVID must be a whole number from 1 on"),
    "addl-fraction": ({"ADDL": {0: 1.5}, "II": {0: 6}}, "row 1, column ADDL (=1.5): ADDL must be a whole number"),
    "addl-alone": ({"ADDL": {0: 3}}, "row 1, column II: ADDL and SS need an II"),
    "ii-alone": ({"II": {3: 6.0}}, "row 4, column II (=6.0): II needs ADDL or SS"),
    "ii-negative": ({"II": {3: -6.0}}, "row 4, column II (=-6.0): II must not be negative"),
    "ss": ({"SS": {0: 3}, "II": {0: 6}}, "row 1, column SS (=3): SS must be 0, 1 or 2"),
    "ss-infusion": ({"SS": {0: 1}, "II": {0: 6}, "RATE": {0: 10}}, "row 1, column RATE (=10): an infusion in a steady state"),
    "covariate-changes": ({"WT": {4: 61.0}}, "row 5, column WT (=61.0): the covariate changes"),
    "covariate-missing": ({"WT": {3: "", 4: "", 5: ""}}, "row 4, column WT (=''): the covariate is missing"),
    "covariate-text": ({"WT": {4: "heavy"}}, "row 5, column WT (='heavy'): this is not a number"),
    "date": ({"DATE": {0: "1.1."}}, "column DATE is not understood: rename or remove it"),
    "censored": ({"CENS": {0: 1}}, "column CENS is not understood: rename or remove it"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_refused_by_row_and_column(name):
    columns, message = BAD[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        read_table(changed(**columns), covariates=["WT"])


def test_doses_of_several_subjects_into_several_compartments_are_refused():
    rows = changed(CMT=[1, 1, 1, 2, 2, 2], DVID=[1] * 6)
    message = "doses into several compartments, 1 (subject 1), 2 (subject 2): pass `compartment`"
    with pytest.raises(ValueError, match=re.escape(message)):
        read_table(rows).samples()
    assert read_table(rows).samples(compartment=2).doses == 1
    with pytest.raises(TypeError, match=re.escape("`compartment` (='2')")):
        read_table(rows).samples(compartment="2")


def test_covariates_may_have_the_names_of_columns_that_are_elsewhere():
    rows = {"ID": [1, 1], "TAD": [0.0, 1.0], "time": [5.0, 6.0], "DV": [3.0, 4.0]}
    table = read_table(rows, columns={"time": "TAD"}, varying=["time"])
    assert table.samples().x[:, :2].tolist() == [[5.0, 0.0], [6.0, 1.0]]


def test_ids_of_one_number_are_one_subject_and_others_are_names():
    rows = {"TIME": [0, 1, 2], "DV": [1, 2, 3]}
    assert [each.id for each in read_table({"ID": ["1", "1.0", "2.5"], **rows}).subjects] == [1, 2.5]
    assert [each.id for each in read_table({"ID": ["inf", "inf", "9007199254740993"], **rows}).subjects] == [
        "inf", "9007199254740993",
    ]  # fmt: skip
    assert [each.id for each in read_table({"ID": ["9007199254740993", "9007199254740992", 7], **rows}).subjects] == [
        9007199254740993, 9007199254740992, 7,
    ]  # fmt: skip


def test_masked_entries_are_missing():
    rows = {"ID": [1, 1], "TIME": np.ma.array([0.0, 1.0], mask=[False, True]), "DV": [1.0, 2.0]}
    with pytest.raises(ValueError, match=r"row 2, column TIME.* a time is missing"):
        read_table(rows)


def test_columns_that_are_not_clear_are_refused(tmp_path):
    rows = {"ID": [1], "TIME": [0.0], "time": [1.0], "DV": [3.0], "WT": [70.0]}
    with pytest.raises(ValueError, match="columns TIME and time: say in `columns` which one is 'time'"):
        read_table(rows)
    assert read_table(rows, columns={"time": "time"}).subjects[0].times.tolist() == [1.0]
    del rows["time"]
    with pytest.raises(ValueError, match="`covariates` and `varying` name 'WT' twice"):
        read_table(rows, covariates=["WT"], varying=["WT"])
    (tmp_path / "twice.csv").write_text("ID,TIME,DV,DV \n1,0,3,9\n")
    with pytest.raises(ValueError, match="the header has a name twice: ID, TIME, DV, DV"):
        read_table(tmp_path / "twice.csv")
    with pytest.raises(ValueError, match="the table has no measurements"):
        read_table({"ID": [1], "TIME": [0.0], "DV": ["."], "AMT": [5.0]}).samples()


def test_a_dose_with_a_measurement_needs_evid():
    table = changed(DV={0: 7.0})
    del table["EVID"]
    with pytest.raises(ValueError, match=re.escape("row 1, column DV (=7.0): a dose and a measurement in one row: give EVID")):
        read_table(table)
    assert len(read_table(table | {"MDV": [1, 0, 0, 1, 0, 0]}).subjects[0].times) == 2


def test_other_tables_are_refused(tmp_path):
    file = tmp_path / "table.csv"
    for text, message in [
        ("ID,TIME,DV\n1,0,2\n1,1\n", "row 2 has 2 entries, but the header has 3 columns"),
        ("ID,TIME,TIME,DV\n", "the header has a name twice"),
        ("ID,TIME,DV\n", "the table has no rows"),
        ("ID,TIME\n1,0\n", "there is no column 'dv': the table has ID, TIME"),
    ]:
        file.write_text(text)
        with pytest.raises(ValueError, match=re.escape(message)):
            read_table(file)
    with pytest.raises(TypeError, match="must be the path of a CSV file, a frame, or a mapping"):
        read_table(3)
    with pytest.raises(ValueError, match="all columns must be vectors of one length"):
        read_table({"ID": [1], "TIME": [0.0, 1.0], "DV": [1.0]})
    with pytest.raises(ValueError, match="`columns` has 'dose': the names that are known are"):
        read_table(changed(), {"dose": "AMT"})
    with pytest.raises(ValueError, match="there is no column 'AGE'"):
        read_table(changed(), covariates=["AGE"])


@pytest.mark.skipif(not FILE.exists(), reason="CHAINS_DATA has no folder population")
def test_the_newborns():
    """Each amount of the file is before the later concentrations of its subject, and the closed form is the sum of all."""
    table = read_table(FILE, {"amt": "amount", "dv": "concentration"}, ["weight", "apgar"])
    samples, raw = table.samples(), np.genfromtxt(FILE, delimiter=",", names=True)
    measured = ~np.isnan(raw["concentration"])
    assert (len(table.subjects), len(samples.y), measured.sum()) == (59, 155, 155)
    np.testing.assert_array_equal(samples.y, raw["concentration"][measured])
    np.testing.assert_array_equal(samples.subjects, raw["id"][measured])
    drug = np.column_stack([0.005 * samples.x[:, 0], samples.x[:, 0], samples.x[:, 2:]])
    found = Chain(Compartments(1, samples.doses), backend="numpy")(drug, np.empty(0))
    for row, value in zip(np.flatnonzero(measured), found[:, 0], strict=True):
        doses = (raw["id"] == raw["id"][row]) & ~measured & (np.arange(len(raw)) < row)
        since = raw["time"][row] - raw["time"][doses]
        assert value == pytest.approx((raw["amount"][doses] * np.exp(-0.005 * since)).sum() / raw["weight"][row], rel=1e-12)


@pytest.mark.skipif(not FILE.exists(), reason="CHAINS_DATA has no folder population")
def test_tables_and_compartments_give_the_likelihood_of_the_newborns():
    """NONMEM's value at its estimates, 586.27606: clearance and volume by formulas, concentrations in closed form."""
    samples = read_table(FILE, {"amt": "amount", "dv": "concentration"}, ["weight", "apgar"]).samples()
    drug = Equations(
        lambda w, apgar, e1, e2, cl, v, low: (cl * w * exp(e1), v * w * (1.0 + where(apgar < 5.0, low, 0.0)) * exp(e2)),
        ["w", "apgar", "e1", "e2"], parameters={"cl": 4.69555e-3, "v": 0.984258, "low": 0.158920},
    )  # fmt: skip
    n = len(samples.columns)
    parts = Parallel(Series(Select([0, 1, n, n + 1]), drug), Select(range(2, n)))
    net = Chain(parts, Compartments(1, samples.doses), input_shape=(n + 2,))
    model = PopulationModel(net, {"clearance": 2.93508e-2, "volume": 2.79060e-2}, Proportional(1.32410e-2))
    value, gradient = model.objective(samples.x, samples.y, samples.subjects)(model.init())
    assert value == pytest.approx(586.27606, abs=1e-4)
    assert np.abs(gradient * model.fit(samples.x, samples.y, samples.subjects).theta).max() < 1.0


def test_gradients_of_a_population_of_compartments():
    samples = read_table(changed(TIME={4: 1.0}), covariates=["WT"]).samples()
    drug = Equations(
        lambda w, e1, e2, cl, v, ka: (cl * w * exp(e1), v * w * exp(e2), ka), ["w", "e1", "e2"],
        parameters={"cl": 0.4, "v": 0.3, "ka": 1.2},
    )  # fmt: skip
    net = Chain(
        Parallel(Series(Select([0, 4, 5]), drug), Select([1, 2, 3])), Compartments(1, 1, absorption=True), input_shape=(6,),
        backend="numpy",
    )  # fmt: skip
    model = PopulationModel(net, {"clearance": 0.1, "volume": 0.1}, Proportional(0.05))
    for method in ("FO", "FOCE", "FOCEI", "Laplace"):
        objective, theta, step = model.objective(samples.x, samples.y, samples.subjects, method=method), model.init(), 1e-5
        _, gradient = objective(theta)
        for k, direction in enumerate(step * np.eye(len(theta))):
            slope = (objective(theta + direction)[0] - objective(theta - direction)[0]) / (2.0 * step)
            assert gradient[k] == pytest.approx(slope, rel=1e-6, abs=1e-6)
