"""Metrics on parameter space: Fisher matrices and their relatives, dense and matrix-free."""

__all__: list[str] = []
