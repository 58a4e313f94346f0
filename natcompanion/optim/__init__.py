"""Optimizers of the papers, as torch optimizers wherever a per-step rule allows."""

__all__: list[str] = []
