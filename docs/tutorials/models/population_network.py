"""
A network in a population
=========================

A hundred patients get a drug, and each gives two to six samples of blood. How does clearance depend on weight and age? Patients
of equal weight and age differ too. A network of the covariates gives the typical clearance; random effects give the rest.
The patients are simulated, so that the answer can be compared with the truth.
"""

import matplotlib.pyplot as plt
import numpy as np

from chains import Chain, Dense, Equations, MSELoss, Parallel, Select, Series, minimize, tanh
from chains.expr import exp
from chains.layers import Compartments
from chains.population import PopulationModel, Proportional, read_table

# %%
# The patients: clearance grows with weight, and falls from the age of fifty on. A third covariate does nothing. Clearance and
# volume vary by 40 and 20 percent beyond that, and measurements have errors of 15 percent. Half of the patients are measured
# soon after the dose only, when the concentration says little of clearance.

rng = np.random.default_rng(1)


def clearance_of(weight, age):
    """The typical clearance in litres an hour."""
    return 5.0 * (weight / 70.0) ** 0.75 / (1.0 + np.exp((age - 65.0) / 6.0)) + 1.0


def simulated(count, first):
    """A table of doses and measurements of new patients, with the columns that such tables have."""
    rows = {name: [] for name in ("ID", "TIME", "AMT", "DV", "weight", "age", "noise")}
    for id in range(first, first + count):
        weight, age, noise = rng.uniform(45.0, 100.0), rng.uniform(20.0, 85.0), rng.normal()
        clearance = clearance_of(weight, age) * np.exp(rng.normal(0.0, 0.4))
        volume = 0.5 * weight * np.exp(rng.normal(0.0, 0.2))
        late = np.sort(rng.uniform(0.5, 4.0 if id % 2 else 16.0, rng.integers(2, 7)))
        values = 100.0 / volume * np.exp(-clearance / volume * late) * (1.0 + rng.normal(0.0, 0.15, len(late)))
        for time, amount, value in [(0.0, 100.0, ""), *((time, 0.0, value) for time, value in zip(late, values, strict=True))]:
            for name, entry in zip(rows, (id, time, amount, value, weight, age, noise), strict=True):
                rows[name].append(entry)
    return read_table(rows, covariates=["weight", "age", "noise"])


table, others = simulated(100, 0), simulated(100, 100)
print(table)
data, held_out = table.samples(), others.samples()

# %%
# The model
# ---------
#
# ``u`` is the output of the network, in units of the logarithm; the covariates are scaled. What the network gets is chosen by
# name, so that the same lines make models with other covariates.

SCALED = {"weight": lambda w, a, n: (w - 70.0) / 30.0, "age": lambda w, a, n: (a - 55.0) / 20.0, "noise": lambda w, a, n: n}


def model_of(covariates):
    """A population model whose clearance is a network of these covariates, or a constant."""
    scaled = Equations(lambda w, a, n: tuple(SCALED[name](w, a, n) for name in covariates), ["w", "a", "n"])
    network = Series(scaled, Dense(len(covariates), 4, tanh), Dense(4, 1))
    drug = Equations(
        lambda w, a, n, e1, e2, u, volume: (exp(u + e1 + 1.0), volume * w * exp(e2)),
        ["w", "a", "n", "e1", "e2"], networks={"u": (network, ["w", "a", "n"])}, parameters={"volume": 0.5},
    )  # fmt: skip
    width = len(data.columns)
    net = Chain(
        Parallel(Series(Select([0, 1, 2, width, width + 1]), drug), Select(range(3, width))),
        Compartments(1, data.doses), input_shape=(width + 2,),
    )  # fmt: skip
    return PopulationModel(net, {"clearance": 0.1, "volume": 0.05}, Proportional(0.1)), network


# %%
# The naive pooled fit takes all measurements as those of one patient. It is where the fits of the population begin.
#
# Which covariates? The value of patients who took no part in the fit decides: lower is better.


def without_effects(samples):
    return np.hstack([samples.x, np.zeros((len(samples.x), 2))])


pooled, fits = {}, {}
for covariates in (["weight"], ["age"], ["weight", "age"], ["weight", "age", "noise"]):
    name = ", ".join(covariates)
    model, network = model_of(covariates)
    p = model.net.init(seed=0, dtype=np.float64)
    loss = model.net.objective(without_effects(data), data.y[:, None], MSELoss())
    pooled[name] = minimize(loss, p, maxiter=100).x
    fit = model.fit(data.x, data.y, data.subjects, theta=model.init(pooled[name]))
    outside = model.objective(held_out.x, held_out.y, held_out.subjects)
    fits[name] = fit, network
    print(f"{name:20} fitted {fit.value:8.1f}, held out {outside(fit.theta)[0]:8.1f}")

# %%
# The noise lowers the fitted value, as every further input does, and worsens the predictions.
#
# Against the truth
# -----------------
#
# The network alone, at weights and ages of the fit: its clearance, and that of the pooled fit.

fit, network = fits["weight, age"]
truth = {"variance of clearance": 0.4**2, "variance of volume": 0.2**2, "variance of errors": 0.15**2}
values = fit.values
found = [*np.diag(values["covariance"]), values["proportional"]]
for (name, true), value in zip(truth.items(), found, strict=True):
    print(f"{name}: {value:.3f}, in truth {true:.3f}")

ages, weights = np.linspace(20.0, 85.0, 100), np.array([50.0, 70.0, 95.0])
curve = Chain(network, input_shape=(3,))


def curves(p):
    """Typical clearances by age for each weight, from a flat vector that begins with the volume, then has the network."""
    points = [np.column_stack([np.full_like(ages, w), ages, 0.0 * ages]) for w in weights]
    return np.array([np.exp(curve(each, p[1 : 1 + curve.n_params])[:, 0] + 1.0) for each in points])


exact = np.array([clearance_of(w, ages) for w in weights])
estimates = {"population": curves(fit.theta), "pooled": curves(pooled["weight, age"])}
for name, values in estimates.items():
    print(f"{name}: error of clearance {np.sqrt(np.mean(np.log(values / exact) ** 2)):.0%}")
print(f"shrinkage: {', '.join(f'{name} {value:.2f}' for name, value in fit.shrinkage().items())}")

# %%
# The variances are those of the simulation within what a hundred patients can tell; the pooled fit has none, and its typical
# clearance is worse: a patient with six samples counts three times as much as one with two, and high concentrations count most.
# Shrinkage says how much of the single effects is lost: where it is large, do not draw conclusions from single patients.

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
for axis, (name, values) in zip(axes, estimates.items(), strict=True):
    for k, w in enumerate(weights):
        axis.plot(ages, exact[k], ":", color=f"C{k}")
        axis.plot(ages, values[k], color=f"C{k}", label=f"{w:.0f} kg")
    axis.set(xlabel="age, years", title=f"{name} (dotted: truth)")
axes[0].set(ylabel="clearance, L/h")
axes[0].legend()

# %%
# To try next: ``layers.Monotone`` instead of the dense layers, since clearance should not fall with weight; 40 patients;
# ``method="FO"``. :doc:`Populations </population>` has standard errors, residuals and predictive checks.
