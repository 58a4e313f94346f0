r"""Any optimizer in the natural parameter space: whitening Section 2.7."""

import copy
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from natcompanion import _checks as check
from natcompanion.whitening import whitening_matrix

Metric = Callable[[], torch.Tensor] | torch.Tensor
Factory = Callable[[list[torch.Tensor]], Optimizer]
Root = Literal["symmetric", "pca", "cholesky"]


def natural_space(
    params: Iterable[torch.Tensor],
    metric: Metric,
    optimizer: Factory,
    *,
    period: int | None = None,
    eps: float = 0.0,
    root: Root = "symmetric",
) -> "NaturalSpace":
    """Run an optimizer on the natural parameters; see :class:`NaturalSpace` for the arguments."""
    return NaturalSpace(params, metric, optimizer, period=period, eps=eps, root=root)


class NaturalSpace(Optimizer):
    r"""Run any torch optimizer on the natural parameters.

    .. math:: \phi = W \theta, \qquad W^\top W = G(\theta_{\mathrm{fixed}}) + \epsilon I, \qquad
              \nabla_\phi J = W^{-\top} \nabla_\theta J

    Plain gradient descent on :math:`\phi` is natural-gradient descent on :math:`\theta`, whatever
    root W is taken. Momentum, line searches and quasi-Newton updates work as they do on any
    parameters, because
    :math:`\nabla_\phi J` is the true gradient of J as a function of :math:`\phi`.

    The root is kept for ``period`` steps. When it is renewed, the state of the inner optimizer
    (momentum, L-BFGS history) is dropped, because it belongs to the old :math:`\phi`; its learning
    rate is kept.

    Parameters
    ----------
    params : iterable of Tensor
        Flattened in their order, each row-major, into :math:`\theta` of length P.
    metric : Tensor of shape (P, P), or callable that returns one
        A callable is asked for :math:`G` at the present parameters whenever the root is renewed.
    optimizer : callable
        Makes the inner optimizer from a list of one float64 vector, :math:`\phi`; for instance
        ``lambda params: torch.optim.LBFGS(params, line_search_fn="strong_wolfe")``.
    period : int, optional
        Steps between renewals; never renewed after the first step when left out.
    eps : float
        Added to every eigenvalue of the metric.
    root : "symmetric", "pca" or "cholesky"
        :math:`G^{1/2}`, :math:`\Lambda^{1/2} U^\top`, or :math:`L^\top` with :math:`L L^\top = G`.
        (``L`` itself is no root: :math:`L^\top L` is not G.)

    Attributes
    ----------
    inner : torch.optim.Optimizer
        The optimizer on :math:`\phi`. Its ``param_groups`` hold the learning rate: attach
        schedulers to it.

    Raises
    ------
    ValueError
        If the metric is malformed, not positive semi-definite, or singular while ``eps`` is 0; if a
        step starts from a gradient that is not finite or leads to NaN or infinity. The parameters
        and the state of the inner optimizer then are as before the step; so they are if ``closure``
        fails.

    Notes
    -----
    A step moves :math:`\theta` by :math:`W^{-1} \Delta\phi`, so a zero step is exactly zero.
    Everything on
    :math:`\phi` is in float64. ``state_dict`` holds the root and the inner state; save the model
    beside it. Source: whitening Eqs. 11-25 and 37.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        metric: Metric,
        optimizer: Factory,
        *,
        period: int | None = None,
        eps: float = 0.0,
        root: Root = "symmetric",
    ) -> None:
        super().__init__(params, {})
        if root not in ("symmetric", "pca", "cholesky"):
            raise ValueError(f'root: expected "symmetric", "pca" or "cholesky", got {root!r}')
        self.metric, self.period = metric, None if period is None else check.whole(period, "period")
        self.eps, self.root = check.non_negative(eps, "eps"), root
        self._phi = torch.zeros_like(self._flat(), requires_grad=True)
        self._whitener: Any = None  # A = W^{-T}, a tensor once known: it whitens the gradient
        self._steps = 0
        self.inner = optimizer([self._phi])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of the inner optimizer.

        ``closure`` is the usual one: it clears the gradients, computes the loss on the present
        parameters, calls ``backward`` and returns the loss. Without it the gradients must be there
        already.
        """
        if self._whitener is None or (self.period and self._steps % self.period == 0):
            self._renew()
        theta, phi = self._flat(), self._phi.detach().clone()
        state = {key: copy.deepcopy(value) for key, value in self.inner.state.items()}

        def inner_closure() -> Any:
            self._write(theta + (self._phi.detach() - phi) @ self._whitener)
            with torch.enable_grad():
                loss = closure()  # type: ignore[misc]  # only called where there is a closure
            gradient = self._flat_gradient()
            if torch.equal(
                self._phi, phi
            ):  # a line search may try points farther on that are out of bounds
                check.floating(gradient, "gradient")
            self._phi.grad = self._whitener @ gradient
            return loss

        try:
            if closure is None:
                self._phi.grad = self._whitener @ check.floating(self._flat_gradient(), "gradient")
                loss = self.inner.step()
            else:
                loss = self.inner.step(inner_closure)
            check.floating(self._phi.detach(), "natural parameters after the step")
        except BaseException:
            self._write(theta)
            self._phi.data.copy_(phi)
            self.inner.state.clear()
            self.inner.state.update(state)
            raise
        self._write(theta + (self._phi.detach() - phi) @ self._whitener)
        self._steps += 1
        return loss

    def __getstate__(self) -> dict[str, Any]:
        """Return everything, so that a copy goes on as the original would."""
        return dict(self.__dict__)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the inner optimizer, the root, the natural parameters, the step
        count.
        """
        own = {"whitener": self._whitener, "phi": self._phi.detach(), "steps": self._steps}
        return {**super().state_dict(), "inner": self.inner.state_dict(), "natural_space": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state from :meth:`state_dict`; ValueError, and nothing changed, if it does
        not fit.
        """
        check.entries(state_dict, {"natural_space", "inner"}, "NaturalSpace")
        own = state_dict["natural_space"]
        if own["phi"].shape != self._phi.shape:
            raise ValueError(
                f"state_dict: expected {len(self._phi)} natural parameters, got "
                f"{len(own['phi'])}; build the "
                "optimizer on the same parameters as when it was saved"
            )
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.inner.load_state_dict(state_dict["inner"])
        self._whitener = None if own["whitener"] is None else own["whitener"].to(self._phi).clone()
        self._phi.data.copy_(own["phi"])
        self._steps = own["steps"]

    def _renew(self) -> None:
        """Take the metric at the present parameters, and start the inner optimizer anew on its
        root.
        """
        G = self.metric() if callable(self.metric) else self.metric
        theta = self._flat()
        if check.square(G, "metric").shape[0] != len(theta):
            raise ValueError(f"metric: expected shape {(len(theta),) * 2}, got {tuple(G.shape)}")
        kind = "zca" if self.root == "symmetric" else self.root
        self._whitener = whitening_matrix(G.detach(), kind, self.eps).to(theta)
        self._phi.data.copy_(torch.linalg.solve(self._whitener.mT, theta))
        self.inner.state.clear()

    def _leaves(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _flat(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1).double() for p in self._leaves()])

    def _flat_gradient(self) -> torch.Tensor:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._leaves()]
        return torch.cat([g.detach().reshape(-1).double() for g in gradients])

    def _write(self, theta: torch.Tensor) -> None:
        leaves = self._leaves()
        with torch.no_grad():
            for p, part in zip(leaves, theta.split([p.numel() for p in leaves]), strict=True):
                p.copy_(part.view_as(p))
