"""Estimators for scikit-learn, with the parameter names of its multi-layer perceptrons."""

try:
    from chains.sklearn.classifier import ChainClassifier
    from chains.sklearn.regressor import ChainRegressor
except ImportError as error:
    raise ImportError(
        f"chains.sklearn needs scikit-learn 1.7 or later: pip install scikit-learn ({error})", name=error.name
    ) from error

__all__ = ["ChainClassifier", "ChainRegressor"]
