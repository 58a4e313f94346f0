"""Solvers for the linear systems of natural-gradient methods."""

__all__: list[str] = []
