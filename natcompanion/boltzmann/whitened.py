"""The second approach worked out: whitening matrices of both layers, learned beside the weights."""

from typing import Any

import torch

from natcompanion import _checks
from natcompanion.boltzmann.enumeration import check_enumerable
from natcompanion.boltzmann.penalty import Moments, covariances, model_moments
from natcompanion.boltzmann.rbm import RBM


def whitened_direction(
    gradient: torch.Tensor,
    mean_v: torch.Tensor,
    mean_h: torch.Tensor,
    PA: torch.Tensor,
    PB: torch.Tensor,
) -> torch.Tensor:
    r"""Return the Euclidean gradient of the whitened parameters, seen in the canonical ones (a, b,
    vec W), (P,).

    With x = A (v - mu), y = B (h - lambda), PA = A^T A, PB = B^T B, and D the data minus the model
    expectation:

    .. math::

        dW &= P_A\, D[(v - \mu)(h - \lambda)^T]\, P_B, \\
        da &= P_A\, D[v] - dW\, \lambda, \quad db = P_B\, D[h] - dW^T \mu

    At W = 0 with the exact inverse covariances this is the exact natural gradient.

    Parameters
    ----------
    gradient
        Of the mean log-likelihood, (P,): it holds D[v], D[h] and D[v h^T].
    mean_v, mean_h
        The centres mu (D,) and lambda (H,).
    PA, PB
        (D, D) and (H, H); identities give the centred gradient.

    Notes
    -----
    Source: boltzmann Sec. 4 (whitening parameters, only sketched there).

    Examples
    --------
    >>> gradient, mean = torch.tensor([0.5, 0.0, 0.25]), torch.tensor([0.5])
    >>> P = torch.tensor([[4.0]])
    >>> torch.allclose(
    ...     whitened_direction(gradient, mean, mean, P, P), torch.tensor([2.0, 0.0, 0.0])
    ... )
    True
    """
    D, H = len(mean_v), len(mean_h)
    _checks.shaped(gradient, "gradient", D + H + D * H)
    _checks.shaped(PA, "PA", D, D), _checks.shaped(PB, "PB", H, H)
    d_v, d_h, d_vh = gradient.split([D, H, D * H])
    centred = d_vh.reshape(D, H) - torch.outer(mean_v, d_h) - torch.outer(d_v, mean_h)
    dW = PA @ centred @ PB
    return torch.cat([PA @ d_v - dW @ mean_h, PB @ d_h - dW.mT @ mean_v, dW.reshape(-1)])


def ridge_inverse(covariance: torch.Tensor, eps: float) -> torch.Tensor:
    """Return (covariance + eps I)^-1 by eigendecomposition, as PRONG does periodically.

    Parameters
    ----------
    covariance : Tensor, shape (d, d)
    eps : float

    Examples
    --------
    >>> ridge_inverse(torch.tensor([[1.5]]), eps=0.5)
    tensor([[0.5000]])
    """
    values, vectors = torch.linalg.eigh(_checks.symmetric(covariance, "covariance"))
    return (vectors / (values.clamp_min(0) + _checks.positive(eps, "eps"))) @ vectors.mT


def exact_whitened_direction(rbm: RBM, gradient: torch.Tensor, eps: float = 0.01) -> torch.Tensor:
    """Return `whitened_direction` with the exact means and (ridge) inverse covariances of the
    model, (P,).

    Parameters
    ----------
    rbm : RBM
    gradient : Tensor, shape (P,)
        Of the mean log-likelihood.
    eps : float
        Ridge of the covariances.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> gradient = torch.tensor([0.5, 0.0, 0.25])
    >>> exact_whitened_direction(rbm, gradient, eps=0.25)[0]  # divided by 0.25 + 0.25
    tensor(1.)
    """
    check_enumerable(rbm.hidden, rbm.visible)
    C, moments = covariances(rbm), model_moments(rbm)
    PA, PB = ridge_inverse(C["vv"], eps), ridge_inverse(C["hh"], eps)
    return whitened_direction(gradient, moments.v, moments.h, PA, PB)


def centred_direction(rbm: RBM, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the centred parameters, in the canonical ones: exact model means, no
    whitening, (P,).

    Parameters
    ----------
    rbm : RBM
    gradient : Tensor, shape (P,)
        Of the mean log-likelihood.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> gradient = torch.tensor([0.5, 0.0, 0.25])
    >>> torch.allclose(centred_direction(rbm, gradient), torch.tensor([0.5, 0.0, 0.0]))
    True
    """
    moments = model_moments(rbm)
    eye: dict[str, Any] = {"dtype": rbm.W.dtype, "device": rbm.W.device}
    PA, PB = torch.eye(rbm.visible, **eye), torch.eye(rbm.hidden, **eye)
    return whitened_direction(gradient, moments.v, moments.h, PA, PB)


def equivariant_step(
    A: torch.Tensor, covariance: torch.Tensor, rate: float, eps: float
) -> torch.Tensor:
    """Return A after one serial whitening step towards A (covariance + eps I) A^T = I, of bounded
    relative size.

    Parameters
    ----------
    A, covariance : Tensor, shape (d, d)
    rate : float
    eps : float
        Ridge.

    Notes
    -----
    Source: boltzmann Sec. 4 (the rule of Cardoso and Laheld 1996, on a covariance instead of one
    sample).

    Examples
    --------
    >>> equivariant_step(torch.eye(1), torch.eye(1), rate=0.5, eps=0.0)  # white already
    tensor([[1.]])
    """
    _checks.shaped(covariance, "covariance", *A.shape)
    M = A @ covariance @ A.mT + eps * A @ A.mT
    size = rate / (1 + rate * torch.linalg.matrix_norm(M, 2))
    return A - size * (M @ A - A)


class LearnedWhitening:
    """Whitening of both layers, learned on-line by the equivariant rule; no decomposition is
    computed.

    Parameters
    ----------
    visible, hidden
        D and H.
    rate
        Rate of the equivariant rule and of the running means.
    eps
        Ridge: keeps A and B finite where a unit never changes.
    dtype
        Of the matrices.

    Attributes
    ----------
    A, B
        Whitening matrices (D, D), (H, H).
    mean_v, mean_h
        Running means.

    Notes
    -----
    Feed it samples of the model (negative phase) with binary hidden states: the Fisher matrix is a
    model expectation.

    Examples
    --------
    >>> whitening = LearnedWhitening(1, 1)
    >>> v = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    >>> for _ in range(1000):
    ...     whitening.update(v, v)
    >>> bool((whitening.A**2 * (0.25 + 0.01) - 1).abs() < 0.05)  # the variance, and eps
    True
    """

    def __init__(
        self,
        visible: int,
        hidden: int,
        *,
        rate: float = 0.01,
        eps: float = 0.01,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ):
        self.rate, self.eps = _checks.positive(rate, "rate"), _checks.non_negative(eps, "eps")
        _checks.whole(visible, "visible"), _checks.whole(hidden, "hidden")
        self.A, self.B = (torch.eye(d, dtype=dtype, device=device) for d in (visible, hidden))
        self.mean_v, self.mean_h = (
            torch.full((d,), 0.5, dtype=dtype, device=device) for d in (visible, hidden)
        )

    def update(self, v: torch.Tensor, h: torch.Tensor) -> None:
        """Take paired model samples (n, D) and (n, H): move the means, then the whitening
        matrices.
        """
        _checks.matrix(v, "v"), _checks.matrix(h, "h")
        self._move_means(v.mean(0), h.mean(0))
        x, y = v - self.mean_v, h - self.mean_h
        self._move_matrices(x.mT @ x / len(v), y.mT @ y / len(h))

    def update_exact(self, moments: Moments, cov_v: torch.Tensor, cov_h: torch.Tensor) -> None:
        """Take exact model moments and covariances instead of samples; the means are set, not
        averaged.
        """
        self.mean_v, self.mean_h = moments.v, moments.h
        self._move_matrices(cov_v, cov_h)

    def _move_means(self, mean_v: torch.Tensor, mean_h: torch.Tensor) -> None:
        self.mean_v = self.mean_v + self.rate * (mean_v - self.mean_v)
        self.mean_h = self.mean_h + self.rate * (mean_h - self.mean_h)

    def _move_matrices(self, cov_v: torch.Tensor, cov_h: torch.Tensor) -> None:
        self.A = equivariant_step(self.A, cov_v, self.rate, self.eps)
        self.B = equivariant_step(self.B, cov_h, self.rate, self.eps)

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the whitened direction for a gradient of the mean log-likelihood (ascent),
        (P,).
        """
        return whitened_direction(
            gradient, self.mean_v, self.mean_h, self.A.mT @ self.A, self.B.mT @ self.B
        )


def metric_cosine(G: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the cosine of the angle between two directions in the metric G: 1 if they are
    parallel.

    Parameters
    ----------
    G : Tensor, shape (P, P)
    first, second : Tensor, shape (P,)

    Examples
    --------
    >>> G = torch.diag(torch.tensor([1.0, 3.0]))
    >>> metric_cosine(G, torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0]))
    0.5
    """
    P = len(_checks.square(G, "G"))
    _checks.shaped(first, "first", P), _checks.shaped(second, "second", P)
    inner = float(first @ G @ second)
    return inner / float((first @ G @ first).sqrt() * (second @ G @ second).sqrt())
