r"""Any optimizer in the natural parameter space: whitening Section 2.7."""

import copy
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from natcompanion import _checks as check
from natcompanion.optim.base import Preconditioned, _groups
from natcompanion.whitening import whitening_matrix

Metric = Callable[[], torch.Tensor] | torch.Tensor
Factory = Callable[[list[torch.Tensor]], Optimizer]
Root = Literal["symmetric", "pca", "cholesky"]


def natural_space(
    params: Iterable[Any],
    metric: Metric,
    optimizer: Factory,
    *,
    period: int | None = None,
    eps: float = 0.0,
    root: Root = "symmetric",
) -> "NaturalSpace":
    """Run an optimizer on the natural parameters, whitening Section 2.7.

    Parameters
    ----------
    params, metric, optimizer, period, eps, root
        As for :class:`NaturalSpace`.

    Examples
    --------
    >>> theta = torch.tensor([4.0, 4.0], requires_grad=True)
    >>> metric = torch.diag(torch.tensor([1.0, 4.0]))
    >>> optimizer = natural_space([theta], metric, lambda p: torch.optim.SGD(p, lr=0.5))
    >>> (metric @ theta @ theta / 2).backward()
    >>> optimizer.step()
    >>> theta.detach()  # half of the way to the minimum
    tensor([2., 2.])
    """
    return NaturalSpace(params, metric, optimizer, period=period, eps=eps, root=root)


class NaturalSpace(Preconditioned):
    r"""Run any torch optimizer on the natural parameters.

    .. math:: \phi = W \theta, \qquad W^\top W = G(\theta_{\mathrm{fixed}}) + \epsilon I, \qquad
              \nabla_\phi J = W^{-\top} \nabla_\theta J

    Plain gradient descent on :math:`\phi` is natural-gradient descent on :math:`\theta`, whatever
    root W is taken. Momentum, line searches and quasi-Newton updates work as they do on any
    parameters, because
    :math:`\nabla_\phi J` is the true gradient of J as a function of :math:`\phi`.

    The root is kept for ``period`` steps. When it is renewed, the state of the inner optimizer
    (momentum, L-BFGS history) is dropped, because it belongs to the old :math:`\phi`.

    Parameters
    ----------
    params : iterable of Tensor or of dict
        Flattened in their order, each row-major, into :math:`\theta` of length P. Groups may have
        an ``lr`` of their own, and ``momentum``, ``nesterov`` and ``weight_decay`` as for
        :class:`natcompanion.optim.Preconditioned`, which act on the steps of :math:`\theta`.
    metric : Tensor of shape (P, P), or callable that returns one
        A callable is asked for :math:`G` at the present parameters whenever the root is renewed.
    optimizer : callable
        Makes the inner optimizer from a list of one float64 vector, :math:`\phi`; for instance
        ``lambda params: torch.optim.LBFGS(params, line_search_fn="strong_wolfe")``. Its step size
        becomes the ``lr`` of the groups, and follows the largest of these.
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
        The optimizer on :math:`\phi`.

    Raises
    ------
    ValueError
        If the metric is malformed, not positive semi-definite, or singular while ``eps`` is 0; if a
        step starts from a gradient that is not finite or leads to NaN or infinity. All then is as
        before the step; so it is if ``closure`` fails. If parameters are added later.

    Notes
    -----
    A step moves :math:`\theta` by :math:`W^{-1} \Delta\phi`, so a zero step is exactly zero.
    Everything on :math:`\phi` is in float64. The metric couples all parameters; those that are
    frozen or have no gradient stay. The state of the first parameter holds the root, :math:`\phi`
    and the inner state. Source: whitening Eqs. 11-25 and 37.

    Examples
    --------
    L-BFGS on the natural parameters of a badly scaled problem, whose curvature is the metric, ends
    at its first line search.

    >>> theta = torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True)
    >>> metric = torch.diag(torch.tensor([1.0, 1e6], dtype=torch.float64))
    >>> optimizer = NaturalSpace([theta], metric, torch.optim.LBFGS)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = metric @ theta @ theta / 2
    ...     loss.backward()
    ...     return loss
    >>> round(optimizer.step(closure).item(), 1)  # the loss before
    500000.5
    >>> round(closure().item(), 10), optimizer.param_groups[0]["lr"]
    (0.0, 1)
    """

    def __init__(
        self,
        params: Iterable[Any],
        metric: Metric,
        optimizer: Factory,
        *,
        period: int | None = None,
        eps: float = 0.0,
        root: Root = "symmetric",
    ) -> None:
        self.metric: Any = metric
        self.inner: Any = None
        if not callable(optimizer) or not (callable(metric) or isinstance(metric, torch.Tensor)):
            raise ValueError(
                "metric, optimizer: expected a metric or a function that returns one, and a "
                f"function that makes an optimizer, got {check.got(metric)} and "
                f"{check.got(optimizer)}"
            )
        groups = _groups(None, params)
        options: dict[str, Any] = {
            "lr": 0.0,
            "period": period,
            "eps": eps,
            "root": root,
            "inner": {},
        }
        super().__init__(None, groups, options)
        self._phi = torch.zeros_like(self._flat(), requires_grad=True)
        self.inner = optimizer([self._phi])
        self.defaults["lr"] = self.inner.param_groups[0].get("lr", 1.0)
        for group, given in zip(self.param_groups, groups, strict=True):
            group["lr"] = given.get("lr", self.defaults["lr"])
        self._note_options()

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check.non_negative(group["eps"], "eps")
        if group["period"] is not None:
            check.whole(group["period"], "period")
        if group["root"] not in ("symmetric", "pca", "cholesky"):
            raise ValueError(
                f'root: expected "symmetric", "pca" or "cholesky", got {group["root"]!r}'
            )

    def _changed(self) -> None:
        if self.inner is not None and len(self._flat()) != len(self._phi):
            raise ValueError(
                "params: expected all parameters when the optimizer is made, because the metric "
                "has a size, got more"
            )

    # ---- The step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of the inner optimizer and return its loss, if there is a closure.

        Parameters
        ----------
        closure : callable, optional
            Clears the gradients, computes the loss on the present parameters, calls ``backward``
            and returns the loss. Without it the gradients must be there already.

        Raises
        ------
        ValueError
            As the class says. Nothing is changed then.
        """
        self._check_groups()
        loss = None
        if closure is not None or any(p.grad is not None for p in self._leaves()):
            theta, phi, state = self._flat(), self._phi.detach().clone(), self._own
            kept = {**state, "inner": copy.deepcopy(state["inner"])} if state else {}
            try:
                loss = self._advance(theta, closure)
            except BaseException:
                for p, part in self._pieces(theta):
                    p.copy_(part)
                self.state[self._leaves()[0]] = kept if not kept else {**kept, "phi": phi}
                self._restored()
                raise
        for group in self.param_groups:
            group["steps"] += 1
        return loss

    def _advance(self, theta: torch.Tensor, closure: Callable[[], Any] | None) -> Any:
        """Make the step from ``theta`` and return the loss."""
        A = self._whitener()
        start = self._phi.detach().clone()
        rates = {float(group["lr"]) for group in self.param_groups}
        lr = max(rates)
        told, options = self.param_groups[0]["inner"], self.inner.param_groups[0]
        if options.get("lr") != told.get("lr"):
            raise ValueError(
                f"inner: expected the step size {told['lr']} that it was told, got "
                f"{options['lr']}; set lr in the groups of {type(self).__name__}, and attach "
                "schedulers to it"
            )
        if "lr" in options:
            options["lr"] = told["lr"] = lr

        def change() -> torch.Tensor:
            return (self._phi.detach() - start) @ A

        @torch.no_grad()
        def inner_closure() -> Any:
            self._move(theta, change(), lr)
            with torch.enable_grad():
                loss = closure()  # type: ignore[misc]  # only called where there is a closure
            gradient = self._flat_gradient()
            if torch.equal(self._phi, start):  # farther on, a line search may leave the bounds
                check.floating(gradient, "gradient")
            self._phi.grad = A @ gradient
            return loss

        if closure is None:
            self._phi.grad = A @ check.floating(self._flat_gradient(), "gradient")
            loss = self.inner.step()
        else:
            loss = self.inner.step(inner_closure)
        check.floating(self._phi.detach(), "natural parameters after the step")
        own = any(group["momentum"] or group["weight_decay"] for group in self.param_groups)
        if own:
            self._move(theta, torch.zeros_like(theta), lr)
            self._descend(
                {p: -part / lr for p, part in self._pieces(change()) if lr and _moving(p)}
            )
        else:
            self._move(theta, change(), lr)
        if own or len(rates) > 1 or not all(map(_moving, self._leaves())):
            self._phi.data.copy_(torch.linalg.solve(A.mT, self._flat()))
        state = {"whitener": A, "phi": self._phi.detach(), "inner": self.inner.state[self._phi]}
        self.state[self._leaves()[0]].update(state)
        return loss

    def _whitener(self) -> torch.Tensor:
        r"""Return :math:`W^{-\top}`, which whitens the gradient; renew it if that is due, and the
        inner optimizer with it.
        """
        options = self.param_groups[0]
        due = options["period"] and options["steps"] % options["period"] == 0
        if self._own and not due:
            return self._own["whitener"]
        with torch.enable_grad():
            G = self.metric() if callable(self.metric) else self.metric
        theta = self._flat()
        if check.square(G, "metric").shape[0] != len(theta):
            raise ValueError(f"metric: expected shape {(len(theta),) * 2}, got {tuple(G.shape)}")
        kind: Any = "zca" if options["root"] == "symmetric" else options["root"]
        A = whitening_matrix(G.detach(), kind, options["eps"]).to(theta)
        self._phi.data.copy_(torch.linalg.solve(A.mT, theta))
        self.inner.state.clear()
        return A

    # ---- Saving, loading, copying

    def state_dict(self) -> dict[str, Any]:
        self._note_options()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        self._note_options()
        return super().__getstate__()

    def _note_options(self) -> None:
        """Write the options of the inner optimizer where they are saved."""
        options = self.inner.param_groups[0].items()
        self.param_groups[0]["inner"] = {key: item for key, item in options if key != "params"}

    def _check_state(self, state: dict[Any, dict[str, Any]]) -> None:
        super()._check_state(state)
        own, size = state.get(self._leaves()[0], {}), len(self._phi)
        if "whitener" in own and own["whitener"].shape != (size, size):
            raise ValueError(f"expected {size} natural parameters, got {len(own['whitener'])}")

    def _restored(self) -> None:
        self.inner.param_groups[0].update(self.param_groups[0]["inner"])
        self.inner.state.clear()
        if own := self._own:
            self._phi.data.copy_(own["phi"])
            own["phi"] = self._phi.detach()
            self.inner.state[self._phi] = own["inner"]

    # ---- Vectors

    @property
    def _own(self) -> dict[str, Any]:
        """The state: of all parameters together, kept with the first."""
        state = self.state.get(self._leaves()[0], {})
        return state if "whitener" in state else {}

    def _pieces(self, vector: torch.Tensor) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Return every parameter with its part of a vector (P,)."""
        leaves = self._leaves()
        parts = vector.split([p.numel() for p in leaves])
        return [(p, part.view_as(p)) for p, part in zip(leaves, parts, strict=True)]

    def _move(self, theta: torch.Tensor, change: torch.Tensor, lr: float) -> None:
        """Set the parameters to ``theta`` and a change of it, each with its share of ``lr``."""
        groups = self._group_of()
        for (p, old), (_, part) in zip(self._pieces(theta), self._pieces(change), strict=True):
            if _moving(p):
                p.copy_(old + part * (float(groups[p]["lr"]) / lr if lr else 1.0))

    def _flat(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1).double() for p in self._leaves()])

    def _flat_gradient(self) -> torch.Tensor:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._leaves()]
        return torch.cat([g.detach().to_dense().reshape(-1).double() for g in gradients])


def _moving(p: torch.Tensor) -> bool:
    """Say whether a step moves a parameter."""
    return p.requires_grad and p.grad is not None
