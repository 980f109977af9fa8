"""Populations fitted by R's nlme and by chains: ``python -m benchmarks.studies.nlme``.

It needs Rscript with the package nlme (Debian: r-base-core, r-cran-nlme). R writes its own data sets to a temporary folder.
*alternating* is the algorithm of Lindstrom and Bates (1990), which nlme runs, with the derivatives of chains. The last columns
are differences in standard errors of the FOCE fit, empty where a variance has vanished. nlme's tolerances are tightened: with
its own, its estimates agree with these to three digits.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import numpy as np

from chains import Chain, Equations
from chains.expr import exp
from chains.population import Additive, PopulationFit, PopulationModel

SCRIPT = """
suppressMessages(library(nlme))
data <- {name}
names(data)[match(c("{subject}", "{y}"), names(data))] <- c("subject", "y")
write.csv(as.data.frame(data), "data.csv", row.names=FALSE)
control <- nlmeControl(tolerance=1e-8, pnlsTol=1e-6, msTol=1e-10, maxIter=500, pnlsMaxIter=50, minScale=1e-6)
fit <- nlme(y ~ {call}, data=as.data.frame(data), fixed={fixed} ~ 1, random=pdDiag({random} ~ 1), groups=~subject,
            start=c({starts}), method="ML", control=control)
variances <- diag(as.matrix(pdMatrix(fit$modelStruct$reStruct)[[1]])) * fit$sigma^2
writeLines(sprintf("%.15g", c(fixef(fit), variances, fit$sigma^2, -2 * as.numeric(logLik(fit)))))
"""
Data = tuple[np.ndarray, np.ndarray, np.ndarray]  # x, y, subjects


@dataclass(frozen=True)
class Study:
    """A data set of R: its columns, and a model in R's words and in ours."""

    subject: str
    y: str
    x: tuple[str, ...]
    call: str
    fixed: dict[str, float]  # starting values
    effects: dict[str, float]  # starting values of the variances
    error: float
    formula: Callable[..., Any]  # of x, the effects, the fixed effects


STUDIES = {
    "Theoph": Study(
        "Subject", "conc", ("Dose", "Time"), "SSfol(Dose, Time, lKe, lKa, lCl)",
        {"lKe": -2.5, "lKa": 0.5, "lCl": -3.0}, {"lKa": 0.4, "lCl": 0.03}, 0.5,
        lambda Dose, Time, e_lKa, e_lCl, lKe, lKa, lCl: (
            Dose * exp(lKe + lKa + e_lKa - lCl - e_lCl) / (exp(lKa + e_lKa) - exp(lKe))
            * (exp(-exp(lKe) * Time) - exp(-exp(lKa + e_lKa) * Time))
        ),
    ),
    "Indometh": Study(
        "Subject", "conc", ("time",), "SSbiexp(time, A1, lrc1, A2, lrc2)",
        {"A1": 2.8, "lrc1": 0.8, "A2": 0.5, "lrc2": -1.3}, {"A1": 0.3, "lrc1": 0.03, "A2": 0.01}, 0.01,
        lambda time, e_A1, e_lrc1, e_A2, A1, lrc1, A2, lrc2: (
            (A1 + e_A1) * exp(-exp(lrc1 + e_lrc1) * time) + (A2 + e_A2) * exp(-exp(lrc2) * time)
        ),
    ),
    "Indometh, two effects": Study(
        "Subject", "conc", ("time",), "SSbiexp(time, A1, lrc1, A2, lrc2)",
        {"A1": 2.8, "lrc1": 0.8, "A2": 0.5, "lrc2": -1.3}, {"A1": 0.3, "A2": 0.01}, 0.01,
        lambda time, e_A1, e_A2, A1, lrc1, A2, lrc2: (
            (A1 + e_A1) * exp(-exp(lrc1) * time) + (A2 + e_A2) * exp(-exp(lrc2) * time)
        ),
    ),
    "Orange": Study(
        "Tree", "circumference", ("age",), "SSlogis(age, Asym, xmid, scal)",
        {"Asym": 190.0, "xmid": 720.0, "scal": 350.0}, {"Asym": 1000.0}, 60.0,
        lambda age, e_Asym, Asym, xmid, scal: (Asym + e_Asym) / (1.0 + exp((xmid - age) / scal)),
    ),
    "Loblolly": Study(
        "Seed", "height", ("age",), "SSasymp(age, Asym, R0, lrc)",
        {"Asym": 103.0, "R0": -8.5, "lrc": -3.3}, {"Asym": 10.0}, 0.5,
        lambda age, e_Asym, Asym, R0, lrc: Asym + e_Asym + (R0 - Asym - e_Asym) * exp(-exp(lrc) * age),
    ),
}  # fmt: skip


def by_nlme(name: str, study: Study) -> tuple[Data, np.ndarray]:
    """The data, and nlme's fixed effects, variances, variance of errors and -2 log likelihood."""
    words = {
        "name": name.split(",")[0],
        "subject": study.subject,
        "y": study.y,
        "call": study.call,
        "fixed": " + ".join(study.fixed),
        "random": " + ".join(study.effects),
        "starts": ", ".join(f"{name}={value}" for name, value in study.fixed.items()),
    }
    with tempfile.TemporaryDirectory() as folder:
        command = ["Rscript", "--vanilla", "-e", SCRIPT.format(**words)]
        printed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        with (Path(folder) / "data.csv").open() as file:
            rows = [*csv.DictReader(file)]
    x = np.array([[float(row[column]) for column in study.x] for row in rows])
    y, subjects = np.array([float(row["y"]) for row in rows]), np.array([row["subject"] for row in rows])
    return (x, y, subjects), np.array(printed.split(), float)


def ours(study: Study) -> PopulationModel:
    """The model of a study."""
    inputs = (*study.x, *(f"e_{name}" for name in study.effects))
    net = Chain(Equations(study.formula, inputs, parameters=study.fixed))
    return PopulationModel(net, study.effects, Additive(study.error))


def alternating(model: PopulationModel, data: Data, theta: np.ndarray, rounds: int = 100) -> np.ndarray:
    """The vector that rounds leave in place: effects at their optima, then the best fit of the model linear around them."""
    x, y, subjects = data
    number = np.unique(subjects, return_inverse=True)[1]
    n, m = model.net.n_params, len(model.effects)
    inputs, names = [f"x{k}" for k in range(n + 2 * m)], [f"b{k}" for k in range(n)]

    def linear(*v: Any) -> Any:
        return sum(slope * value for slope, value in zip(v[: n + m], (*v[n + 2 * m :], *v[n + m : n + 2 * m]), strict=True))

    every = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in (*inputs, *names)]
    linear.__signature__ = Signature(every)  # type: ignore[attr-defined]  # `Equations` asks for names
    net = Chain(Equations(linear, inputs, parameters=dict.fromkeys(names, 0.0)))
    held = PopulationModel(net, model.effects, model.error)
    objective = model.objective(x, y, subjects, method="FOCE")
    for _ in range(rounds):
        before, p, effects = theta, theta[:n], objective.effects(theta)[number]
        full = np.hstack([x, effects])
        by_p, by_effects = model.net.jacobian(p, full)[:, 0], model.net.input_jacobian(p, full)[:, 0, -m:]
        response = y - model.net(full, p)[:, 0] + by_p @ p + np.sum(by_effects * effects, 1)
        slopes = np.hstack([by_p, by_effects])
        theta = held.fit(slopes, response, subjects, method="FO", theta=theta, gtol=1e-6, ftol=1e-13, progress=False).theta
        if np.allclose(theta, before, rtol=1e-7, atol=1e-7):
            break
    return theta


def numbers(model: PopulationModel, theta: np.ndarray) -> np.ndarray:
    """The fixed effects and the standard deviations of effects and errors, as the table has them."""
    values = model.values(theta)
    variances = [*np.diag(values.pop("covariance")), values.pop("additive")]
    return np.array([*map(float, values.values()), *np.sqrt(variances)])


def errors_of(fit: PopulationFit) -> np.ndarray:
    """The standard errors of `numbers`; NaN where a variance has vanished."""
    try:
        found = np.array([*fit.standard_errors("R").values()])
    except ValueError:
        return np.full(len(fit.theta), np.nan)
    n = fit.model.net.n_params
    found[n:] /= 2.0 * numbers(fit.model, fit.theta)[n:]
    return found


def report(name: str, study: Study) -> None:
    """Print the rows of a data set."""
    data, found = by_nlme(name, study)
    model, n, m = ours(study), len(study.fixed), len(study.effects)
    at = {"nlme": model.vector(found[:n], np.diag(found[n : n + m]), found[n + m : -1])}
    at["alternating"] = alternating(model, data, model.init())
    fits = {way: model.fit(*data, method=way, gtol=1e-6, ftol=1e-13, progress=False) for way in ("FOCE", "Laplace")}
    columns = [numbers(model, theta) for theta in (*at.values(), *(fit.theta for fit in fits.values()))]
    errors = errors_of(fits["FOCE"])
    apart = [(column - columns[0]) / errors for column in columns[2:]]
    labels = [*study.fixed, *(f"s.d. of {effect}" for effect in study.effects), "s.d. of errors"]
    for label, *cells in zip(labels, *columns, *apart, strict=True):
        values, distances = (
            [f"{cell:.6g}" for cell in cells[:4]],
            ["" if np.isnan(cell) else f"{cell:.2f}" for cell in cells[4:]],
        )
        print(f"| {name}: {label} | {' | '.join([*values, *distances])} |")
    print(f"| {name}: -2 log likelihood by nlme | {found[-1]:.5f} | | | | | |")
    for way, fit in fits.items():
        constant = len(data[1]) * np.log(2.0 * np.pi)
        values = [fit.objective(theta)[0] + constant for theta in (*at.values(), *(each.theta for each in fits.values()))]
        print(f"| {name}: -2 log likelihood, {way} | {' | '.join(f'{value:.5f}' for value in values)} | | |", flush=True)


def missing() -> str:
    """Why nlme cannot run here; empty if it can."""
    if shutil.which("Rscript") is None:
        return "Rscript is not installed: this study compares with R's nlme (Debian: r-base-core, r-cran-nlme)"
    if subprocess.run(["Rscript", "--vanilla", "-e", "library(nlme)"], capture_output=True).returncode:
        return "R has no package nlme (Debian: r-cran-nlme)"
    return ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="*", default=list(STUDIES), help=f"of {', '.join(STUDIES)}; by default all")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.data) - STUDIES.keys():
        parser.error(f"unknown data: {', '.join(sorted(unknown))}")
    if reason := missing():
        print(reason)
        return
    ways = "nlme | alternating | FOCE | Laplace | FOCE - nlme | Laplace - nlme"
    print(f"| | {ways} |", f"| --- {'| --- ' * 6}|", sep="\n")
    for name in chosen.data:
        report(name, STUDIES[name])


if __name__ == "__main__":
    main()
