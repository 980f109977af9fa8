"""
A scikit-learn pipeline, tuned by Optuna
========================================

Data must be scaled, settings searched, and the accuracy estimated by cross-validation. scikit-learn has all of it, and
``ChainClassifier`` and ``ChainRegressor`` are estimators for it. A search by Optuna takes the same few lines as for any
other model.
"""

import warnings

import matplotlib.pyplot as plt
import optuna
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from chains import AdamW, Chain, Dense, Dropout, schedules, silu
from chains.sklearn import ChainClassifier

warnings.simplefilter("ignore", ConvergenceWarning)  # epochs are few on purpose
x, t = load_wine(return_X_y=True)

# %%
# The parameters have scikit-learn's names.

model = make_pipeline(StandardScaler(), ChainClassifier((16,), max_iter=60, random_state=0))
print(f"{cross_val_score(model, x, t, cv=5).mean():.3f}")

grid = {"chainclassifier__alpha": [1e-4, 1e-2, 1.0], "chainclassifier__activation": ["tanh", "relu"]}
search = GridSearchCV(model, grid, cv=5).fit(x, t)
print(search.best_params_, f"{search.best_score_:.3f}")

# %%
# Any network can be the estimator's: ``network`` is a function of the numbers of features and outputs.


def classifier(width, dropout, rate):
    def network(features, outputs):
        return Chain(Dense(features, width, silu), Dropout(dropout), Dense(width, outputs))

    solver = AdamW(schedules.cosine(rate, steps=60), weight_decay=0.01)
    return make_pipeline(StandardScaler(), ChainClassifier(network=network, solver=solver, max_iter=60, random_state=0))


# %%
# A trial of Optuna draws the settings and returns a score.


def score(trial):
    width = trial.suggest_int("width", 4, 64, log=True)
    dropout = trial.suggest_float("dropout", 0.0, 0.6)
    rate = trial.suggest_float("rate", 1e-3, 0.3, log=True)
    return cross_val_score(classifier(width, dropout, rate), x, t, cv=5).mean()


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(score, n_trials=20)
print(study.best_params, f"{study.best_value:.3f}")

# %%
# The course of the search:

figure, axis = plt.subplots(layout="constrained")
points = axis.scatter(
    [trial.params["rate"] for trial in study.trials], [trial.params["width"] for trial in study.trials],
    c=[trial.value for trial in study.trials],
)  # fmt: skip
axis.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="width")
figure.colorbar(points, label="accuracy")

# %%
# To try next: ``load_breast_cancer`` instead of ``load_wine``; :doc:`the page on scikit-learn </scikit-learn>` compares the
# parameters with those of ``MLPClassifier``.
