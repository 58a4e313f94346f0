"""A likelihood of one's own, from its negative log-likelihood alone."""

from collections.abc import Callable
from typing import Any

import torch

from natcompanion import _checks as check

CHUNK = 2**22
"""Numbers that the scores of one block of targets may hold."""
UNKNOWN = (
    "likelihood: expected to know the targets, got nll alone, whose second derivative depends on "
    "them; use FromNLL(nll, targets=...) or FromNLL(nll, sample=...)"
)


class FromNLL:
    r"""An output model of one's own, from ``-log p(t | r)``; the rest is found by autograd.

    The Fisher matrix of the outputs is an expectation over the targets that the model itself would
    give,

    .. math:: F(r) = \mathrm E_{t \sim p(t \mid r)}\left[\nabla_r \log p(t \mid r)\,
              \nabla_r \log p(t \mid r)^\top\right],

    so it must be known what targets there are. There are three ways to say so:

    * ``targets``: the values that a target can take, all of them or evenly spaced ones that cover
      the density. Sums over them are exact, or a trapezoidal rule that is for smooth densities.
    * ``sample``: draws targets. Expectations are means over ``draws`` of them, always from the same
      random numbers, so that F is one fixed matrix near the true one.
    * neither, if the second derivative by ``r`` is the same for all targets, as for exponential
      families in their natural parameter: it is F then. This is checked.

    Parameters
    ----------
    nll : callable
        ``nll(r, t)`` returns ``-log p(t | r)``, with all terms that depend on ``r``, for every
        example: (n, o) and targets (n, ...) in, (n,) out; differentiable by ``r``, twice if neither
        ``targets`` nor ``sample`` is given.
    targets : Tensor, shape (k,) or (k, ...), optional
        The values, one target each.
    sample : callable, optional
        ``sample(r, generator=...)`` returns one target per example.
    draws : int
        How many to draw where ``sample`` is used.

    Raises
    ------
    ValueError
        On arguments of the wrong kind; later, if ``nll`` has another shape or is not normalized, or
        nothing says what the targets are.

    Examples
    --------
    A Gaussian whose scale is learned: the outputs are its mean and the logarithm of its standard
    deviation. The Fisher matrix of the outputs is diag(1 / s^2, 2).

    >>> import torch
    >>> from natcompanion.likelihoods import FromNLL
    >>> def nll(r, t):
    ...     mean, log_s = r.unbind(-1)
    ...     return 0.5 * ((t - mean) / log_s.exp()) ** 2 + log_s
    >>> own = FromNLL(nll, targets=torch.linspace(-20, 20, 2001, dtype=torch.float64))
    >>> r = torch.tensor([[0.3, 0.0]], dtype=torch.float64)
    >>> own.fisher(r).round(decimals=6).abs()
    tensor([[[1., 0.],
             [0., 2.]]], dtype=torch.float64)

    Counts, with the logarithm of their mean as output: nothing more is needed.

    >>> counts = FromNLL(lambda r, t: (r.exp() - t * r + torch.lgamma(t + 1)).sum(-1))
    >>> counts.fisher(torch.zeros(1, 2))
    tensor([[[1., 0.],
             [0., 1.]]])

    Notes
    -----
    Source: revisiting Eq. 8 to 11.
    """

    def __init__(
        self,
        nll: Callable[[torch.Tensor, Any], torch.Tensor],
        *,
        targets: torch.Tensor | None = None,
        sample: Callable[..., Any] | None = None,
        draws: int = 1000,
    ) -> None:
        if nll is None:
            raise ValueError("nll: expected a function of outputs and targets, got None")
        check.function(nll, "nll"), check.function(sample, "sample")
        if targets is not None and (
            not isinstance(targets, torch.Tensor) or not targets.ndim or not len(targets)
        ):
            raise ValueError("targets: expected a tensor of the values of a target, (k,)")
        self._nll, self._sample, self.targets = nll, sample, targets
        self.draws = check.whole(draws, "draws")

    def nll(self, r: torch.Tensor, t: Any) -> torch.Tensor:
        """Return ``-log p(t | r)`` of every example, the sum over its positions; (n,)."""
        if r.ndim > 2:
            found = self.nll(r.flatten(0, -2), t.flatten(0, r.ndim - 2))
            return found.view(r.shape[:-1]).flatten(1).sum(1)
        found = self._nll(r, t)
        if not isinstance(found, torch.Tensor) or found.shape != r.shape[:1]:
            got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise ValueError(
                f"nll: expected one number per example, shape ({len(r)},), got {got}; sum over the "
                "outputs, not over the examples"
            )
        return found

    def mean(self, r: torch.Tensor) -> torch.Tensor:
        """Return the mean of the target; (n, ...)."""
        if r.ndim > 2:
            return self.mean(r.flatten(0, -2)).unflatten(0, r.shape[:-1])
        if self._canonical:
            return self._natural_mean(_wide(r)).to(r.dtype)
        t, p = self._nodes(_wide(r))
        return torch.einsum("nk,nk...->n...", p, t.to(p.dtype)).to(r.dtype)

    def kl(self, r: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        """Return KL(p_r || p_s) of every row of outputs; (n,)."""
        if r.ndim > 2:
            return self.kl(r.flatten(0, -2), s.flatten(0, -2)).view(r.shape[:-1])
        wide, other = _wide(r), _wide(s)
        if self._canonical:  # the difference is linear in t
            mean = self._natural_mean(wide)
            return (self.nll(other, mean) - self.nll(wide, mean)).to(r.dtype)
        t, p = self._nodes(wide)
        return ((self._all(other, t) - self._all(wide, t)) * p).sum(1).to(r.dtype)

    def fisher(self, r: torch.Tensor) -> torch.Tensor:
        """Return the Fisher matrix of the outputs of every example; (n, o, o)."""
        if r.ndim > 2:
            return self.fisher(r.flatten(0, -2)).unflatten(0, r.shape[:-1])
        with torch.no_grad():
            wide = _wide(r.detach())
            if self._canonical:
                return self._natural(wide).to(r.dtype)
            numbers = wide.shape[-1] * (self.draws if self.targets is None else len(self.targets))
            parts = wide.split(max(1, CHUNK // numbers))
            return torch.cat([self._expected(part) for part in parts]).to(r.dtype)

    def fisher_product(self, r: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Return F u for each example; ``u`` and the result have the shape of ``r``."""
        return (self.fisher(r) @ u.unsqueeze(-1)).squeeze(-1)

    def fisher_root(self, r: torch.Tensor) -> torch.Tensor:
        """Return S with ``S @ S.mT`` = F; (n, o, o)."""
        values, vectors = torch.linalg.eigh(_wide(self.fisher(r)))
        return (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)).to(r.dtype)

    def sample(self, r: torch.Tensor, *, generator: torch.Generator | None = None) -> torch.Tensor:
        """Draw one target per example; (n, ...)."""
        if r.ndim > 2:
            return self.sample(r.flatten(0, -2), generator=generator).unflatten(0, r.shape[:-1])
        if self._sample is not None:
            return self._sample(r, generator=generator)
        if self.targets is None:
            raise ValueError(
                "sample: expected to know the targets, got nll alone; give FromNLL sample= or "
                "targets="
            )
        t, p = self._nodes(_wide(r))
        drawn = torch.multinomial(p, 1, generator=generator)
        return t[torch.arange(len(r), device=r.device), drawn.squeeze(1)]

    # ---- Parts

    @property
    def _canonical(self) -> bool:
        return self._sample is None and self.targets is None

    def _nodes(self, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return targets (n, k, ...) and their weights (n, k)."""
        if self.targets is not None:
            t = self.targets.to(r.device)
            t = (t.to(r.dtype) if t.is_floating_point() else t).expand(len(r), *t.shape)
            return t, torch.softmax(-self._all(r, t).detach(), 1)
        repeated = r.repeat_interleave(self.draws, 0)
        generator = torch.Generator(r.device).manual_seed(0)
        t = self.sample(repeated, generator=generator)
        weights = r.new_full((len(r), self.draws), 1 / self.draws)
        return t.unflatten(0, (len(r), self.draws)), weights

    def _all(self, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return the negative log-likelihoods of targets (n, k, ...); (n, k)."""
        return self.nll(r.repeat_interleave(t.shape[1], 0), t.flatten(0, 1)).unflatten(
            0, t.shape[:2]
        )

    def _expected(self, r: torch.Tensor) -> torch.Tensor:
        """Return the mean of the outer products of the scores, (n, o, o).

        The mean of the scores themselves is 0 if ``nll`` is normalized and the targets cover it.
        """
        t, p = self._nodes(r)
        repeated = r.repeat_interleave(t.shape[1], 0).requires_grad_()
        with torch.enable_grad():
            total = self.nll(repeated, t.flatten(0, 1)).sum()
            scores = torch.autograd.grad(total, repeated)[0].unflatten(0, p.shape)
        weighted = scores * p.unsqueeze(-1)
        F = weighted.mT @ scores
        drift = weighted.sum(1).square().sum(-1)
        noise = 0.0 if self.targets is not None else 30 / self.draws
        if bool((drift > (1e-4 + noise) * F.diagonal(dim1=1, dim2=2).sum(-1)).any()):
            raise ValueError(
                "nll: expected a normalized density, whose scores have the mean 0 over its "
                "targets, got another one; add the terms that depend on r, or give targets that "
                "cover the density"
            )
        return F

    def _natural(self, r: torch.Tensor) -> torch.Tensor:
        """Return the Fisher matrix (n, o, o), the second derivative by ``r`` if it depends on no
        target.
        """
        try:
            (_, F), (_, other) = (
                self._derivatives(r, torch.full_like(r, value)) for value in (0.0, 1.0)
            )
        except (RuntimeError, IndexError, TypeError) as error:  # targets of another kind than r
            raise ValueError(f"{UNKNOWN} ({error})") from None
        size = F.abs().amax((1, 2), keepdim=True)
        if not bool(((F - other).abs() <= torch.finfo(r.dtype).eps ** 0.75 * (1 + size)).all()):
            raise ValueError(UNKNOWN)
        return F

    def _natural_mean(self, r: torch.Tensor) -> torch.Tensor:
        """Return the target (n, o) at which the score is 0, if it is linear in each target."""
        self._natural(r)
        zero, one = (self._derivatives(r, torch.full_like(r, value))[0] for value in (0.0, 1.0))
        mean = zero / (zero - one)
        rest = self._derivatives(r, mean)[0]
        if not bool((rest.abs() <= torch.finfo(r.dtype).eps ** 0.6 * (1 + zero.abs())).all()):
            raise ValueError(UNKNOWN)
        return mean

    def _derivatives(self, r: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradient and the Hessian of ``nll`` by ``r`` of every example."""
        leaf = r.detach().requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad(self.nll(leaf, t).sum(), leaf, create_graph=True)
            columns = [
                torch.autograd.grad(c.sum(), leaf, retain_graph=True, materialize_grads=True)[0]
                for c in g.unbind(-1)
            ]
        return g.detach(), torch.stack(columns, -1)


def complete(likelihood: Any) -> Any:
    """Return a likelihood that has all that the metrics ask for; one with ``nll`` alone, or with
    ``nll`` and ``sample`` or ``targets``, is completed by :class:`FromNLL`.

    Raises
    ------
    ValueError
        If it has no ``nll``.
    """
    made = not isinstance(likelihood, type)
    if made and hasattr(likelihood, "fisher_root") and hasattr(likelihood, "fisher_product"):
        return likelihood
    if not made or not hasattr(likelihood, "nll"):
        raise ValueError(
            "likelihood: expected one such as Categorical(), or an object with nll(r, t), got "
            f"{check.got(likelihood)}"
        )
    given: dict[str, Any] = {key: getattr(likelihood, key, None) for key in ("targets", "sample")}
    return FromNLL(likelihood.nll, **given)


def _wide(r: torch.Tensor) -> torch.Tensor:
    return r.float() if r.dtype in (torch.float16, torch.bfloat16) else r
