r"""The natural gradient by truncated Newton: a metric known by its products, a damping rule, an
iterative solver.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from natcompanion import _checks as check
from natcompanion.damping import (
    LevenbergMarquardt,
    linear_decrease,
    quadratic_decrease,
    reduction_ratio,
)
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics import FisherOperator
from natcompanion.metrics.model_function import ModelFunction
from natcompanion.solvers import Reason, Solution, minres_qlp

Metric = Callable[..., Any]
Solver = Callable[..., Solution]


@dataclass(frozen=True)
class Step:
    """What one step did.

    Parameters
    ----------
    loss, loss_after : float
        Mean negative log-likelihood of the batch before the step and at the point proposed.
    predicted : float
        The decrease of the loss that was predicted.
    rho : float
        Reduction ratio, the actual decrease over the predicted one, as far as rounding shows them;
        NaN where either is not finite or nothing was predicted.
    damping : float
        The damping with which this step was computed.
    iterations, residual, reason
        Of the solver, as in :class:`natcompanion.solvers.Solution`.
    accepted : bool
        Whether the parameters moved. If not, they are as before.
    """

    loss: float
    loss_after: float
    predicted: float
    rho: float
    damping: float
    iterations: int
    residual: float
    reason: Reason
    accepted: bool


class Damped:
    """The matrix ``metric + damping I``, known by its products with vectors."""

    def __init__(self, metric: Any, damping: float) -> None:
        self.metric, self.damping = metric, damping
        self.shape, self.dtype = tuple(metric.shape), metric.dtype

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        return self.metric @ v + self.damping * v


class NaturalGradient(Optimizer):
    r"""Natural-gradient descent on the mean negative log-likelihood of a model.

    .. math:: \theta \leftarrow \theta - \mathrm{lr}\, (G + \lambda I)^{-1} g, \qquad
              G = \frac1m \sum_j J_j^\top F(r_j) J_j

    ``g`` is the gradient on the batch ``(x, t)``. ``G`` is the Fisher matrix on the same inputs or
    on others: it needs no targets, so the others may be unlabelled. The system is solved by a few
    products with G, which is never formed.

    The model runs in evaluation mode and leaves no trace: Dropout is off, BatchNorm uses its
    running statistics and does not change them.

    Parameters
    ----------
    model : Module
        Maps (n, ...) to the pre-activations (n, o) of the likelihood.
    likelihood : Likelihood
        One of :mod:`natcompanion.likelihoods`.
    lr : float
        Step size, at least 0; the paper's :math:`\gamma`.
    damping : float or LevenbergMarquardt
        :math:`\lambda`. With a number it is constant, and only a step to a point that is not finite
        is refused. With :class:`natcompanion.damping.LevenbergMarquardt` it adapts to the reduction
        ratio, and a step uphill is refused too.
    solver : callable
        One of :mod:`natcompanion.solvers`, or anything that is called like them.
    rtol, max_iter : float, int
        Handed to the solver.
    prediction : "linear" or "quadratic"
        What the reduction ratio divides by: the slope, as in Eq. 30, or slope and curvature (with
        the damping), as in Martens (2010). See :mod:`natcompanion.damping`.
    warm_start : float
        The solver starts at this multiple of the last direction.
    metric : callable
        ``metric(model, inputs, likelihood, parameters=...)`` returns G, as something with ``@``,
        ``shape`` and ``dtype``.
    parameters : iterable, optional
        Parameters or their names, if not all trainable ones; or parameter groups, each a dict with
        ``"params"`` and perhaps ``"lr"``.

    Attributes
    ----------
    last : Step
        What the last step did; None before the first.

    Raises
    ------
    ValueError
        On arguments out of range.

    Notes
    -----
    Deviations from the paper's Algorithm 1: it has no damping, the text has; the solver is
    MINRES-QLP as in the text, ``solver=conjugate_gradient`` gives the algorithm as printed.
    ``state_dict`` holds all that the next step needs beside the model. Source: revisiting Eq. 8,
    Section 8.3.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        lr: float,
        *,
        damping: float | LevenbergMarquardt = 1e-3,
        solver: Solver = minres_qlp,
        rtol: float = 1e-4,
        max_iter: int | None = 20,
        prediction: Literal["linear", "quadratic"] = "linear",
        warm_start: float = 0.0,
        metric: Metric = FisherOperator,
        parameters: Iterable[Any] | None = None,
    ) -> None:
        self.model, self.likelihood, self.solver, self.metric = model, likelihood, solver, metric
        self.damping = damping
        if not isinstance(damping, LevenbergMarquardt):
            self.damping = check.non_negative(damping, "damping")
        if prediction not in ("linear", "quadratic"):
            raise ValueError(f'prediction: expected "linear" or "quadratic", got {prediction!r}')
        self.prediction = prediction
        self.rtol, self.max_iter = check.non_negative(rtol, "rtol"), max_iter
        self.warm_start = check.non_negative(warm_start, "warm_start")
        self.last: Step | None = None
        super().__init__(_groups(model, parameters), {"lr": lr})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of the model's parameters with a step size of its own."""
        super().add_param_group(param_group)
        try:
            check.non_negative(self.param_groups[-1]["lr"], "lr")
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(
        self, x: torch.Tensor, t: torch.Tensor, metric_inputs: torch.Tensor | None = None
    ) -> float:
        """Make one step and return the loss before it.

        Parameters
        ----------
        x : Tensor, shape (n, ...)
        t : Tensor
            Targets of ``x``, as the likelihood expects them.
        metric_inputs : Tensor, shape (m, ...), optional
            Inputs for the metric; ``x`` if left out. They need no targets.

        Raises
        ------
        ValueError
            If the batch does not fit the model, or the loss or its gradient is not finite at the
            present parameters. Nothing is changed then.

        Notes
        -----
        Autocast is switched off: products and the loss in half precision would stop the solver and
        the damping rule.
        """
        with torch.autocast(self._leaves()[0].device.type, enabled=False):
            return self._step(x, t, metric_inputs)

    def _step(self, x: torch.Tensor, t: torch.Tensor, metric_inputs: torch.Tensor | None) -> float:
        f = ModelFunction(self.model, self._leaves())
        wide = f.check(x)
        loss, g = self._gradient(f, wide, t)
        damping = self._damping_value()
        A = Damped(self._metric(x, t, x if metric_inputs is None else metric_inputs, g), damping)
        solution = self._solve(A, g, f, wide, t)
        move = -self._rates(f) * solution.x
        loss_after = self._loss(f, moved(f, move), wide, t)
        predicted = self._predicted(g, move, A)
        rho = reduction_ratio(loss, loss_after, predicted, eps=torch.finfo(f.dtype).eps)
        accepted = self._judge(
            loss, loss_after, predicted, rho, idle=not bool((self._rates(f) * g).any())
        )
        if accepted:
            self._write(f, move, solution.x)
        self.last = Step(
            loss,
            loss_after,
            predicted,
            rho,
            damping,
            solution.iterations,
            solution.residual,
            solution.reason,
            accepted,
        )
        return loss

    def __getstate__(self) -> dict[str, Any]:
        """Return everything, the model included, so that copies and pickles of both together go on
        as one would.
        """
        return dict(self.__dict__)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameter groups, the damping, and the last direction if the solver starts
        from it.
        """
        return {**super().state_dict(), "damping": self._damping_value()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state from :meth:`state_dict`.

        Raises
        ------
        ValueError
            If it is not one of this optimizer, or its damping is not one that the optimizer could
            be built with. Nothing is changed then.
        """
        damping = self._checked(state_dict)
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        if isinstance(self.damping, LevenbergMarquardt):
            self.damping.damping = damping
        else:
            self.damping = damping

    # ---- What variants replace

    def _metric(
        self, x: torch.Tensor, t: torch.Tensor, inputs: torch.Tensor, g: torch.Tensor
    ) -> Any:
        """Return the metric of this step, whose gradient is ``g``."""
        return self.metric(self.model, inputs, self.likelihood, parameters=self._leaves())

    def _solve(
        self, A: Any, g: torch.Tensor, f: ModelFunction, x: torch.Tensor, t: torch.Tensor
    ) -> Solution:
        """Return the direction ``d`` of the step ``-lr d``."""
        start = self.warm_start * self._last_direction(f) if self.warm_start else None
        return self.solver(A, g, rtol=self.rtol, max_iter=self.max_iter, x0=start)

    # ---- Parts

    def _gradient(
        self,
        f: ModelFunction,
        x: torch.Tensor,
        t: torch.Tensor,
        at: dict[str, torch.Tensor] | None = None,
    ) -> tuple[float, torch.Tensor]:
        """Return the loss and its gradient (P,) at the present parameters, or at others."""
        theta = {name: p.clone().requires_grad_() for name, p in (at or f.theta).items()}
        with torch.enable_grad():
            loss = self.likelihood.nll(f(theta, x), t).mean()
            pieces = torch.autograd.grad(loss, list(theta.values()), materialize_grads=True)
        g = f.flat(pieces)
        if not bool(torch.isfinite(loss)) or not bool(torch.isfinite(g).all()):
            raise ValueError(
                "step: expected a finite loss and gradient at the present parameters, got "
                f"the loss {float(loss):.3g} and "
                f"{int((~torch.isfinite(g)).sum())} gradient entries that are not finite; "
                "check the data and the start"
            )
        return float(loss), g

    def _loss(self, f: ModelFunction, theta: dict, x: torch.Tensor, t: torch.Tensor) -> float:
        return float(self.likelihood.nll(f(theta, x), t).mean())

    def _predicted(self, g: torch.Tensor, move: torch.Tensor, A: Any) -> float:
        if self.prediction == "linear":
            return linear_decrease(move, g)
        return quadratic_decrease(move, g, A @ move)

    def _judge(
        self, loss: float, loss_after: float, predicted: float, rho: float, idle: bool
    ) -> bool:
        """Return whether to take the step; adapt the damping."""
        if not isinstance(self.damping, LevenbergMarquardt):
            return isfinite(loss_after)
        if not idle:  # a gradient or a step size of zero teaches nothing
            self.damping.update(rho if predicted > 0 else nan)  # uphill as predicted is no success
        return isfinite(loss_after) and loss_after <= loss

    def _checked(self, state_dict: dict[str, Any]) -> float:
        """Return the damping of a state that fits."""
        check.entries(state_dict, {"state", "param_groups", "damping"}, type(self).__name__)
        for group in state_dict["param_groups"]:
            check.non_negative(group.get("lr"), "state_dict: lr")
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        for key, p in zip(keys, self._leaves(), strict=False):  # their number is checked by torch
            d = state_dict["state"].get(key, {}).get("direction", p)
            if d.shape != p.shape:
                raise ValueError(
                    f"state_dict: expected the direction of parameter {key} to have shape "
                    f"{tuple(p.shape)}, got "
                    f"{tuple(d.shape)}; build model and optimizer as they were when it was saved"
                )
        value = state_dict["damping"]
        if not isinstance(self.damping, LevenbergMarquardt):
            return check.non_negative(value, "state_dict: damping")
        try:
            return float(replace(self.damping, damping=value).damping)
        except ValueError as error:
            raise ValueError(f"state_dict: {error}") from error

    def _damping_value(self) -> float:
        adaptive = isinstance(self.damping, LevenbergMarquardt)
        return float(self.damping.damping if adaptive else self.damping)

    def _leaves(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def _rates(self, f: ModelFunction) -> torch.Tensor | float:
        """Return the step size of every entry of the parameter vector, or the one that all
        share.
        """
        rates = {id(p): group["lr"] for group in self.param_groups for p in group["params"]}
        if len(set(rates.values())) == 1:
            return float(next(iter(rates.values())))
        return f.flat(
            [torch.full_like(f.theta[name], float(rates[id(p)])) for name, p in f.originals.items()]
        )

    def _last_direction(self, f: ModelFunction) -> torch.Tensor:
        return f.flat(
            [
                self.state[p].get("direction", torch.zeros_like(f.theta[n]))
                for n, p in f.originals.items()
            ]
        )

    def _write(self, f: ModelFunction, move: torch.Tensor, direction: torch.Tensor) -> None:
        for (name, p), new in zip(f.originals.items(), moved(f, move).values(), strict=True):
            p.copy_(new)
        if self.warm_start:
            for p, d in zip(f.originals.values(), _split(f, direction), strict=True):
                self.state[p]["direction"] = d


def _groups(model: nn.Module, parameters: Iterable[Any] | None) -> list[dict[str, Any]]:
    """Return parameter groups for torch from what the user chose."""
    chosen = None if parameters is None else list(parameters)
    if chosen and isinstance(chosen[0], dict):
        return chosen
    return [{"params": list(ModelFunction(model, chosen).originals.values())}]


def _split(f: ModelFunction, vector: torch.Tensor) -> list[torch.Tensor]:
    """Cut a vector (P,) into one tensor per parameter."""
    pieces = vector.split([p.numel() for p in f.theta.values()])
    return [piece.view_as(p).clone() for piece, p in zip(pieces, f.theta.values(), strict=True)]


def moved(f: ModelFunction, move: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the parameters plus a vector (P,)."""
    return {name: p + d for (name, p), d in zip(f.theta.items(), _split(f, move), strict=True)}
