r"""Mirror descent: steps in a dual space. With a quadratic distance it is the natural gradient."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from natcompanion import _checks as check
from natcompanion.optim.base import Directions, Preconditioned


class Mirror(Protocol):
    r"""A strictly convex function :math:`\psi`, which gives mirror descent its distance; write your
    own.

    All three methods take one vector of parameters, shape (P,).

    Notes
    -----
    Source: prong Section 3.3.

    Examples
    --------
    Negative entropy is the mirror of exponentiated gradients, which keep parameters positive:

    >>> class NegativeEntropy:
    ...     def value(self, theta):
    ...         return (theta * theta.log() - theta).sum()
    ...
    ...     def gradient(self, theta):
    ...         return theta.log()
    ...
    ...     def conjugate_gradient(self, omega):
    ...         return omega.exp()
    >>> theta, gradient = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, -1.0])
    >>> mirror_step(NegativeEntropy(), theta, gradient, lr=1.0)
    tensor([1.0000, 0.7358, 8.1548])
    >>> theta * torch.exp(-gradient)
    tensor([1.0000, 0.7358, 8.1548])
    """

    def value(self, theta: torch.Tensor) -> torch.Tensor:
        r"""Return :math:`\psi(\theta)`, a scalar."""

    def gradient(self, theta: torch.Tensor) -> torch.Tensor:
        r"""Return the dual parameters :math:`\Omega = \nabla \psi(\theta)`."""

    def conjugate_gradient(self, omega: torch.Tensor) -> torch.Tensor:
        r"""Return :math:`\theta = \nabla \psi^*(\Omega)`, the inverse of :meth:`gradient`;
        differentiable.
        """


class Quadratic:
    r"""The mirror :math:`\psi(\theta) = \tfrac12 \theta^\top M \theta`.

    Its dual parameters are :math:`\Omega = M \theta`, its convex conjugate is
    :math:`\psi^*(\Omega) = \tfrac12 \Omega^\top M^{-1} \Omega`.

    Parameters
    ----------
    metric : Tensor, shape (P, P)
        M, symmetric and positive definite. Kept in float64.

    Raises
    ------
    ValueError
        If the metric is malformed, or singular to the precision of its dtype; damp it then.

    Notes
    -----
    Source: prong Section 3.3.

    Examples
    --------
    >>> psi, theta = Quadratic(torch.diag(torch.tensor([1.0, 4.0]))), torch.ones(2).double()
    >>> psi.value(theta)
    tensor(2.5000, dtype=torch.float64)
    >>> omega = psi.gradient(theta)
    >>> omega, psi.conjugate(omega)
    (tensor([1., 4.], dtype=torch.float64), tensor(2.5000, dtype=torch.float64))
    >>> psi.root().gradient(theta)
    tensor([1., 2.], dtype=torch.float64)
    """

    def __init__(self, metric: torch.Tensor) -> None:
        self.metric = check.symmetric(metric, "metric").detach().double()
        self._values, self._vectors = check.semidefinite_eigh(self.metric, "metric", metric.dtype)
        check.full_rank(self._values, "metric", metric.dtype)

    def value(self, theta: torch.Tensor) -> torch.Tensor:
        r"""Return :math:`\tfrac12 \theta^\top M \theta`."""
        return theta @ self.metric @ theta / 2

    def gradient(self, theta: torch.Tensor) -> torch.Tensor:
        r"""Return :math:`\Omega = M \theta`."""
        return self.metric @ theta

    def conjugate(self, omega: torch.Tensor) -> torch.Tensor:
        r"""Return :math:`\tfrac12 \Omega^\top M^{-1} \Omega`."""
        return omega @ self.conjugate_gradient(omega) / 2

    def conjugate_gradient(self, omega: torch.Tensor) -> torch.Tensor:
        r"""Return :math:`\theta = M^{-1} \Omega`."""
        return self._vectors @ (self._vectors.mT @ omega / self._values)

    def root(self) -> "Quadratic":
        r"""Return :math:`\tilde\psi(\theta) = \tfrac12 \theta^\top M^{1/2} \theta`."""
        return Quadratic((self._vectors * self._values.sqrt()) @ self._vectors.mT)


def _is_mirror(psi: Any) -> bool:
    return hasattr(psi, "conjugate_gradient") and not isinstance(psi, type)


def _require_mirror(psi: Any) -> None:
    if not _is_mirror(psi):
        raise ValueError(f"psi: expected a mirror such as Quadratic(metric), got {check.got(psi)}")


def bregman_divergence(psi: Mirror, q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    r"""Return :math:`B_\psi(q, p) = \psi(q) - \psi(p) - \langle \nabla\psi(p), q - p \rangle`, at
    least 0.

    For a :class:`Quadratic` it is half the squared distance under the metric.

    Parameters
    ----------
    psi : Mirror
    q, p : Tensor, shape (P,)

    Returns
    -------
    Tensor, shape ()

    Notes
    -----
    Source: prong Section 3.3.

    Examples
    --------
    >>> psi = Quadratic(torch.diag(torch.tensor([1.0, 4.0])))
    >>> q, p = torch.tensor([3.0, 2.0]).double(), torch.tensor([1.0, 1.0]).double()
    >>> bregman_divergence(psi, q, p)  # half of 1 * 2 ** 2 + 4 * 1 ** 2
    tensor(4., dtype=torch.float64)
    """
    _require_mirror(psi)
    check.shaped(q, "q", *p.shape)
    return psi.value(q) - psi.value(p) - psi.gradient(p) @ (q - p)


def proximal_objective(
    psi: Mirror, q: torch.Tensor, theta: torch.Tensor, gradient: torch.Tensor, lr: float
) -> torch.Tensor:
    r"""Return what a step of mirror descent from ``theta`` minimizes over ``q``.

    .. math:: \langle q, \nabla \rangle + \frac{1}{\alpha} B_\psi(q, \theta)

    With :math:`\psi(\theta) = \tfrac12 |\theta|^2` the step is one of gradient descent.

    Parameters
    ----------
    psi : Mirror
    q, theta, gradient : Tensor, shape (P,)
        Where to evaluate it, the parameters, and the gradient :math:`\nabla` of the loss there.
    lr : float
        Step size, :math:`\alpha`, positive.

    Returns
    -------
    Tensor, shape ()

    Raises
    ------
    ValueError
        If ``lr`` is not positive.

    Notes
    -----
    Source: prong Eq. 2.

    Examples
    --------
    >>> psi = Quadratic(torch.diag(torch.tensor([1.0, 4.0])))
    >>> theta, gradient = torch.ones(2).double(), torch.tensor([2.0, 1.0]).double()
    >>> q = mirror_step(psi, theta, gradient, lr=0.5)
    >>> best = proximal_objective(psi, q, theta, gradient, lr=0.5)
    >>> near = [q + torch.tensor(d) for d in ([0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1])]
    >>> all(proximal_objective(psi, other, theta, gradient, lr=0.5) > best for other in near)
    True
    """
    check.shaped(gradient, "gradient", *theta.shape)
    return q @ gradient + bregman_divergence(psi, q, theta) / check.positive(lr, "lr")


class MirrorDescent(Preconditioned):
    r"""Gradient steps on the dual parameters of a convex function :math:`\psi`.

    .. math:: \Omega = \nabla\psi(\theta) - \alpha\, \nabla_\theta, \qquad
              \theta \leftarrow \nabla\psi^*(\Omega)

    With :math:`\psi = \tfrac12 \theta^\top F \theta` this is the natural gradient. The gradient
    :math:`\nabla_\theta` is taken in one space and used in the other. With ``dual=True`` the
    gradient with respect to :math:`\Omega` takes its place, the step is plain gradient descent on
    the dual parameters, and
    :math:`\tilde\psi = \tfrac12 \theta^\top F^{1/2} \theta` makes that the natural gradient:

    .. math::
        \tilde\Omega = \nabla\tilde\psi(\theta) - \alpha\, \nabla_{\tilde\Omega}
        = F^{1/2} \theta - \alpha\, F^{-1/2}\, \nabla_\theta

        \theta \leftarrow \nabla\tilde\psi^*(\tilde\Omega) = \theta - \alpha F^{-1} \nabla_\theta

    PRONG is this second form, with the Fisher matrix approximated layer by layer and kept for
    ``period`` steps.

    Parameters
    ----------
    params : iterable of Tensor
        Flattened in their order, each row-major, into :math:`\theta` of length P.
    psi : Mirror, Tensor of shape (P, P), or callable that returns one
        A :class:`Mirror` is used as it is. A metric, or a callable that returns the metric at the
        present parameters, stands for :math:`\psi` or, with ``dual=True``, :math:`\tilde\psi` made
        of it.
    lr : float
        Step size, :math:`\alpha`.
    dual : bool
        Use the gradient with respect to the dual parameters.
    period : int
        Steps for which the metric of a callable is kept.
    momentum, nesterov, weight_decay
        As for :class:`natcompanion.optim.Preconditioned`: momentum of the step divided by ``lr``,
        and decoupled decay.

    Raises
    ------
    ValueError
        On arguments out of range; if the metric is malformed or singular; if a gradient or a step
        is not finite. The parameters then are as before the step.

    Notes
    -----
    :math:`\psi` couples the parameters of all groups; each group takes its part of the step with
    its own ``lr``. ``state_dict`` holds the metric of a callable. All on :math:`\Omega` is
    float64. Source: prong Eq. 8 to 10; the paper says "complex" conjugate and means the convex one.

    Examples
    --------
    With the metric of a quadratic loss, a step of size 1 leads to its minimum:

    >>> metric = torch.diag(torch.tensor([1.0, 100.0]))
    >>> theta = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = MirrorDescent([theta], metric, lr=1.0)
    >>> (theta @ metric @ theta / 2).backward()
    >>> optimizer.step()
    >>> bool(theta.norm() < 1e-5)
    True
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        psi: Mirror | torch.Tensor | Callable[[], torch.Tensor],
        lr: float,
        *,
        dual: bool = False,
        period: int = 1,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        metric = isinstance(psi, torch.Tensor) or (callable(psi) and not isinstance(psi, type))
        if not (metric or _is_mirror(psi)):
            raise ValueError(
                "psi: expected a mirror, a metric or a callable that returns one, got "
                f"{check.got(psi)}"
            )
        self._source: Any = psi  # a Mirror, a metric, or a callable that returns one
        self._renewed = callable(psi) and not hasattr(psi, "conjugate_gradient")
        self.psi: Any = None  # a Mirror; None before the callable's first metric
        options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(None, params, {"lr": lr, **options, "dual": dual, "period": period})
        if not self._renewed:
            self.psi = self._mirror(psi) if isinstance(psi, torch.Tensor) else psi

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check.whole(group["period"], "period")

    def _directions(self, gradients: Directions) -> Directions:
        options = self.param_groups[0]
        g = check.floating(self._vector([p.grad for p in self._leaves()]), "gradient")
        psi, metric = self.psi, None
        if self._renewed and (psi is None or options["steps"] % options["period"] == 0):
            metric = self._source()
            psi = self._mirror(metric)
        theta, found = self._vector(self._leaves()), {}
        for lr in {float(group["lr"]) for group in self.param_groups} - {0.0}:
            # from where no gradient leads, so that rounding there and back moves nothing
            start, end = (mirror_step(psi, theta, u, lr, dual=options["dual"]) for u in (0 * g, g))
            d = check.floating((start - end) / lr, "parameters after the step")
            found[lr] = dict(zip(self._leaves(), self._pieces(d), strict=True))
        if metric is not None:
            self.psi = psi
            self.state[self._leaves()[0]]["metric"] = metric.detach().clone()
        return {
            p: found[float(group["lr"])][p].to(p.dtype)
            for group in self.param_groups
            for p in group["params"]
            if group["lr"] and p.requires_grad
        }

    def _check_state(self, state: dict[Any, dict[str, Any]]) -> None:
        super()._check_state(state)
        metric = state.get(self._leaves()[0], {}).get("metric")
        if metric is not None:
            self._sized(metric)

    def _restored(self) -> None:
        metric = self.state.get(self._leaves()[0], {}).get("metric")
        if self._renewed:
            self.psi = None if metric is None else self._mirror(metric)
        elif isinstance(self._source, torch.Tensor):  # "dual" may have come with the state
            self.psi = self._mirror(self._source)

    def _mirror(self, metric: torch.Tensor) -> Any:
        """Return the mirror that a metric stands for."""
        psi = Quadratic(self._sized(metric))
        return psi.root() if self.param_groups[0]["dual"] else psi

    def _sized(self, metric: torch.Tensor) -> torch.Tensor:
        size = sum(p.numel() for p in self._leaves())
        if check.square(metric, "metric").shape[0] != size:
            raise ValueError(f"metric: expected shape {(size, size)}, got {tuple(metric.shape)}")
        return metric

    def _vector(self, pieces: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Join one tensor per parameter into a float64 vector (P,); None counts as zeros."""
        wide = [
            torch.zeros_like(p) if piece is None else piece
            for p, piece in zip(self._leaves(), pieces, strict=True)
        ]
        return torch.cat([piece.detach().to_dense().reshape(-1).double() for piece in wide])

    def _pieces(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Cut a vector (P,) into one tensor for each parameter."""
        leaves = self._leaves()
        parts = vector.split([p.numel() for p in leaves])
        return [part.view_as(p) for part, p in zip(parts, leaves, strict=True)]


def mirror_step(
    psi: Mirror, theta: torch.Tensor, gradient: torch.Tensor, lr: float, *, dual: bool = False
) -> torch.Tensor:
    r"""Return the parameters (P,) after one step of mirror descent from ``theta``.

    Parameters
    ----------
    psi : Mirror
    theta, gradient : Tensor, shape (P,)
        The parameters, and the gradient of the loss with respect to them.
    lr : float
        Step size, :math:`\alpha`.
    dual : bool
        Use the gradient with respect to the dual parameters,
        :math:`\nabla_\Omega = (\partial\theta / \partial\Omega)^\top \nabla_\theta`.

    Returns
    -------
    Tensor, shape (P,)

    Notes
    -----
    Source: prong Eq. 8 and 9; Eq. 10 with ``dual``.

    Examples
    --------
    With M the step is :math:`M^{-1}` times the gradient; in the dual space its root does that:

    >>> psi = Quadratic(torch.diag(torch.tensor([1.0, 4.0])))
    >>> theta, gradient = torch.ones(2).double(), torch.tensor([2.0, 1.0]).double()
    >>> mirror_step(psi, theta, gradient, lr=0.5)
    tensor([0.0000, 0.8750], dtype=torch.float64)
    >>> bool(torch.dist(mirror_step(psi.root(), theta, gradient, lr=0.5, dual=True),
    ...                 mirror_step(psi, theta, gradient, lr=0.5)) < 1e-12)
    True
    """
    _require_mirror(psi)
    check.shaped(gradient, "gradient", *check.floating(theta, "theta").shape)
    omega = psi.gradient(theta)
    if dual:
        _, gradient = torch.autograd.functional.vjp(psi.conjugate_gradient, omega, gradient)
    return psi.conjugate_gradient(omega - lr * gradient)
