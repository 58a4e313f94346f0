"""Restricted Boltzmann machines by summing over all pairs of states, one after the other."""

import itertools

import torch


def rbm_joint(
    W: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return every pair of states ``v`` (n, D), ``h`` (n, H), its probability (n,), and log Z; n =
    2^(D + H).
    """
    D, H = W.shape
    pairs = W.new_tensor(list(itertools.product([0.0, 1.0], repeat=D + H)))
    v, h = pairs[:, :D], pairs[:, D:]
    minus_energy = torch.stack([a @ x + b @ y + x @ W @ y for x, y in zip(v, h, strict=True)])
    log_Z = torch.logsumexp(minus_energy, 0)
    return v, h, torch.exp(minus_energy - log_Z), log_Z


def rbm_statistics(v: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Return g = (v, h, vec(v hᵀ)) of each row, (n, P)."""
    return torch.stack(
        [torch.cat([x, y, torch.outer(x, y).reshape(-1)]) for x, y in zip(v, h, strict=True)]
    )


def rbm_fisher(W: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the covariance of g under the model, one pair of states after the other; (P, P)."""
    v, h, p, _ = rbm_joint(W, a, b)
    g = rbm_statistics(v, h)
    mean = p @ g
    return sum(p_k * torch.outer(g_k - mean, g_k - mean) for p_k, g_k in zip(p, g, strict=True))


def rbm_covariance(W: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return cov(v, h) under the model, (D, H); differentiable."""
    v, h, p, _ = rbm_joint(W, a, b)
    return (p[:, None] * (v - p @ v)).mT @ (h - p @ h)


def rbm_log_likelihood(
    W: torch.Tensor, a: torch.Tensor, b: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """Return the mean of log p(v) over the rows of ``x`` (n, D), which must be binary;
    differentiable.
    """
    v, _, p, _ = rbm_joint(W, a, b)
    return torch.stack([p[(v == row).all(1)].sum().log() for row in x]).mean()
