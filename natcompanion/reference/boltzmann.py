"""Restricted Boltzmann machines by summing over all pairs of states, one after the other; and the
two algorithms of *Natural Boltzmann Machines* in its own letters.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def rbm_joint(W: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return every pair of states ``v`` (n, D), ``h`` (n, H), its probability (n,), and log Z; n =
    2^(D + H).

    Parameters
    ----------
    W, a, b : Tensor, shapes (D, H), (D,) and (H,)

    Examples
    --------
    >>> W, a, b = torch.zeros(1, 1), torch.zeros(1), torch.zeros(1)  # four states, equally likely
    >>> v, h, p, log_z = rbm_joint(W, a, b)
    >>> p
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    D, H = W.shape
    pairs = W.new_tensor(list(itertools.product([0.0, 1.0], repeat=D + H)))
    v, h = pairs[:, :D], pairs[:, D:]
    minus_energy = torch.stack([a @ x + b @ y + x @ W @ y for x, y in zip(v, h, strict=True)])
    log_Z = torch.logsumexp(minus_energy, 0)
    return v, h, torch.exp(minus_energy - log_Z), log_Z


def rbm_statistics(v: Tensor, h: Tensor) -> Tensor:
    """Return g = (v, h, vec(v hᵀ)) of each row, (n, P).

    Parameters
    ----------
    v, h : Tensor, shapes (n, D) and (n, H)

    Examples
    --------
    >>> rbm_statistics(torch.tensor([[1.0]]), torch.tensor([[0.0, 1.0]]))
    tensor([[1., 0., 1., 0., 1.]])
    """
    return torch.stack(
        [torch.cat([x, y, torch.outer(x, y).reshape(-1)]) for x, y in zip(v, h, strict=True)]
    )


def rbm_fisher(W: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the covariance of g under the model, one pair of states after the other; (P, P).

    Parameters
    ----------
    W, a, b : Tensor, shapes (D, H), (D,) and (H,)

    Examples
    --------
    >>> W, a, b = torch.zeros(1, 1), torch.zeros(1), torch.zeros(1)  # four states, equally likely
    >>> rbm_fisher(W, a, b).diagonal()
    tensor([0.2500, 0.2500, 0.1875])
    """
    v, h, p, _ = rbm_joint(W, a, b)
    g = rbm_statistics(v, h)
    mean = p @ g
    return sum(p_k * torch.outer(g_k - mean, g_k - mean) for p_k, g_k in zip(p, g, strict=True))


def rbm_covariance(W: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return cov(v, h) under the model, (D, H); differentiable.

    Parameters
    ----------
    W, a, b : Tensor, shapes (D, H), (D,) and (H,)

    Examples
    --------
    >>> W, a, b = torch.zeros(1, 1), torch.zeros(1), torch.zeros(1)  # four states, equally likely
    >>> rbm_covariance(W, a, b)
    tensor([[0.]])
    """
    v, h, p, _ = rbm_joint(W, a, b)
    return (p[:, None] * (v - p @ v)).mT @ (h - p @ h)


def rbm_log_likelihood(W: Tensor, a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Return the mean of log p(v) over the rows of ``x`` (n, D), which must be binary;
    differentiable.

    Parameters
    ----------
    W, a, b : Tensor, shapes (D, H), (D,) and (H,)
    x : Tensor, shape (n, D)

    Examples
    --------
    >>> W, a, b = torch.zeros(1, 1), torch.zeros(1), torch.zeros(1)  # four states, equally likely
    >>> rbm_log_likelihood(W, a, b, torch.ones(1, 1)).exp()
    tensor(0.5000)
    """
    v, _, p, _ = rbm_joint(W, a, b)
    return torch.stack([p[(v == row).all(1)].sum().log() for row in x]).mean()


def hidden_state_fisher(W: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return G = E[g gᵀ] - E[g] E[g]ᵀ, one hidden state after the other (Section 3).

    Corrected: E[g|h] and Cov(g|h) are known in closed form, where the paper takes a sample of v
    and sums over "visible configurations"; and each state has the weight p(h), not p(h|v).

    Parameters
    ----------
    W, a, b
        (D, H), (D,), (H,)

    Returns
    -------
    torch.Tensor
        (P, P), in the order of g = (v, h, vec(v hᵀ)).

    Notes
    -----
    Source: boltzmann Sec. 3.

    Examples
    --------
    >>> W, a, b = torch.zeros(1, 1), torch.zeros(1), torch.zeros(1)  # four states, equally likely
    >>> hidden_state_fisher(W, a, b).diagonal()
    tensor([0.2500, 0.2500, 0.1875])
    """
    D, H = W.shape
    states = W.new_tensor(list(itertools.product([0.0, 1.0], repeat=H)))  # the 2^H states of h
    log_p = torch.stack([b @ h + torch.log1p(torch.exp(a + W @ h)).sum() for h in states])
    E_g, E_ggT = W.new_zeros(()), W.new_zeros(())
    for p, h in zip(torch.softmax(log_p, 0), states, strict=True):
        m = torch.sigmoid(a + W @ h)  # Eq. 3: E[v|h]
        g = torch.cat([m, h, torch.outer(m, h).reshape(-1)])  # E[g|h]
        v_to_g = torch.cat(
            [torch.eye(D).to(W), W.new_zeros(H, D), torch.block_diag(*[h[:, None]] * D)]
        )
        cov = v_to_g @ torch.diag(m * (1 - m)) @ v_to_g.mT  # Cov(g|h): the v_i are independent
        E_g, E_ggT = E_g + p * g, E_ggT + p * (torch.outer(g, g) + cov)
    return E_ggT - torch.outer(E_g, E_g)


def equation_4(before: tuple[Tensor, ...], after: tuple[Tensor, ...]) -> Tensor:
    """Return the right side of Eq. 4 as printed, dW set to 1, (D, H).

    Parameters
    ----------
    before, after
        E[v] (D,), E[h] (H,) and E[v hᵀ] (D, H) at the steps t and t + 1.

    Notes
    -----
    Source: boltzmann Eq. 4 and the three displays after it. The product rule would have E[v] of
    step t in the third term.

    Examples
    --------
    >>> one, two = torch.ones(1), 2 * torch.ones(1)
    >>> moments = one, one, torch.eye(1)
    >>> equation_4(moments, moments)
    tensor([[0.]])
    """
    (v_t, h_t, vh_t), (v_t1, h_t1, vh_t1) = before, after
    return vh_t1 - vh_t - torch.outer(v_t1 - v_t, h_t1) - torch.outer(v_t1, h_t1 - h_t)


def next_gamma(gamma: float, penalty: Tensor, v: float, p: float) -> float:
    """Return the weight of the penalty after one step: up if more than the fraction p of the
    entries exceeds v in size, else down; trimmed between 0.00001 and 1.

    Parameters
    ----------
    gamma : float
    penalty : Tensor, shape (D, H)
    v, p : float
        Threshold and fraction.

    Notes
    -----
    Source: boltzmann Sec. 5. The factors of a step are not given; 1.1 and 0.9 are ours, and so is
    taking absolute values.

    Examples
    --------
    >>> next_gamma(0.5, torch.tensor([[0.0, -0.3]]), v=0.01, p=0.05)
    0.55
    """
    share = float((penalty.abs() > v).double().mean())
    return min(max(gamma * (1.1 if share > p else 0.9), 0.00001), 1.0)


def natural_boltzmann_scheme(
    W: Tensor,
    a: Tensor,
    b: Tensor,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    v: float,
    p: float,
    *,
    alpha: float,
    gamma: float = 0.01,
) -> Iterator[tuple[Tensor, Tensor, Tensor, float]]:
    """Learn with the covariance penalty: yield W, a, b and gamma after each step.

    Parameters
    ----------
    W, a, b
        The machine at the start, (D, H), (D,), (H,).
    batches
        For each step the data (n, D) and the uniform random numbers that decide the states of the
        hidden units (n, H) and of the visible units (n, D).
    v, p
        Threshold and fraction.
    alpha
        Learning rate.
    gamma
        Weight of the penalty at the start; the paper gives none.

    Notes
    -----
    Source: boltzmann Eqs. 1 to 4 and Sec. 5; the moments of the model are those of the
    reconstruction, by probabilities.

    Examples
    --------
    >>> W, a, b = torch.zeros(1, 1), torch.zeros(1), torch.zeros(1)  # four states, equally likely
    >>> batch = torch.ones(1, 1), torch.full((1, 1), 0.3), torch.full((1, 1), 0.3)
    >>> steps = natural_boltzmann_scheme(W, a, b, [batch] * 2, 0.001, 0.05, alpha=0.1)
    >>> [W.shape for W, a, b, gamma in steps]
    [torch.Size([1, 1]), torch.Size([1, 1])]
    """
    last: tuple | None = None
    terms: list[torch.Tensor] = []
    for data, u_h, u_v in batches:
        n, q = len(data), torch.sigmoid(b + data @ W)  # Eq. 2
        m = torch.sigmoid(a + (u_h < q).to(W) @ W.mT)  # Eq. 3
        model = (u_v < m).to(W)  # one Gibbs step: contrastive divergence
        q_model = torch.sigmoid(b + model @ W)
        now = m.mean(0), q_model.mean(0), m.mT @ q_model / n
        terms += [equation_4(last, now)] if last else []
        last, terms = now, terms[-15:]  # the moving average of the last 15 steps
        penalty: Any = sum(terms) / len(terms) if terms else torch.zeros_like(W)
        gamma = next_gamma(gamma, penalty, v, p)
        dW = (data.mT @ q - model.mT @ q_model) / n  # Eq. 1
        W = W + alpha * ((1 - gamma) * dW - gamma * penalty)
        a = a + alpha * (1 - gamma) * (data - model).mean(0)
        b = b + alpha * (1 - gamma) * (q - q_model).mean(0)
        yield W, a, b, gamma
