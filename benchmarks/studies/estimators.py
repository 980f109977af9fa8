"""The estimators of chains.sklearn and of scikit-learn: ``python -m benchmarks.studies.estimators [--seeds N] [--folds N]``.

Scores of cross-validation on scikit-learn's data sets, standardised, with the default parameters of both; and the CPU time
of a fit, in turns, both on one thread unless told otherwise. A row for each type of the data, which is that of the
computation in both.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import KFold, StratifiedKFold
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits
except ImportError as error:
    raise SystemExit(f"this benchmark compares with scikit-learn: {error}; pip install 'chains-nn[bench]'") from None

from benchmarks.harness.machine import describe
from chains.sklearn import ChainClassifier, ChainRegressor

DATA: dict[str, tuple[Callable[..., Any], type, type]] = {
    "diabetes": (load_diabetes, ChainRegressor, MLPRegressor),
    "wine": (load_wine, ChainClassifier, MLPClassifier),
    "breast_cancer": (load_breast_cancer, ChainClassifier, MLPClassifier),
    "digits": (load_digits, ChainClassifier, MLPClassifier),
}
GOAL = 8.0  # times as fast


def measure(name: str, dtype: Any, seeds: int, folds: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and CPU seconds of all fits, both of shape (fits, 2): ours, theirs."""
    load, ours, theirs = DATA[name]
    X, y = load(return_X_y=True)
    split = KFold(folds, shuffle=True, random_state=0) if ours is ChainRegressor else StratifiedKFold(folds)
    scores, seconds = [], []
    for seed in range(seeds):
        for train, test in split.split(X, y):
            scaler = StandardScaler().fit(X[train])
            fitted, held = scaler.transform(X[train]).astype(dtype), scaler.transform(X[test]).astype(dtype)
            row = []
            for kind in (ours, theirs):
                start = time.process_time()
                model = kind(random_state=seed).fit(fitted, y[train])
                row.append((model.score(held, y[test]), time.process_time() - start))
            scores.append([score for score, _ in row])
            seconds.append([spent for _, spent in row])
    return np.array(scores), np.array(seconds)


def main(arguments: list[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of BLAS, for scikit-learn; 0 for as many as it takes itself")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)
    for heading, text in describe(sgemm=False).items():
        print(f"{heading}: {text}")
    print(f"{'data':<14}{'type':<9}{'score':>16}{'scikit-learn':>18}{'ms a fit':>11}{'scikit-learn':>14}{'times':>8}")
    with threadpool_limits(options.threads or None, user_api="blas"):
        for name in options.data:
            for dtype in (np.float32, np.float64):
                measure(name, dtype, 1, 2)  # compiles
                scores, seconds = measure(name, dtype, options.seeds, options.folds)
                means, spread, spent = scores.mean(axis=0), scores.std(axis=0), seconds.mean(axis=0)
                texts = [f"{mean:.3f} ± {each:.3f}" for mean, each in zip(means, spread, strict=True)]
                ratio = spent[1] / spent[0]
                print(
                    f"{name:<14}{np.dtype(dtype).name:<9}{texts[0]:>16}{texts[1]:>18}"
                    f"{spent[0] * 1e3:>11.1f}{spent[1] * 1e3:>14.1f}{ratio:>8.1f}{'' if ratio >= GOAL else '  below the goal'}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
