r"""The natural gradient by truncated Newton: a metric known by its products, a damping rule, an
iterative solver.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite, nan
from typing import Any, Literal

import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion._own_likelihood import complete
from natcompanion.damping import (
    LevenbergMarquardt,
    linear_decrease,
    quadratic_decrease,
    reduction_ratio,
)
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics import FisherOperator
from natcompanion.metrics.dense import Output
from natcompanion.metrics.model_function import ModelFunction
from natcompanion.metrics.structured import joined
from natcompanion.optim.base import Parameters, Preconditioned, Share, trainable
from natcompanion.solvers import Reason, Solution, minres_qlp
from natcompanion.solvers.solution import largest

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

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = nn.Linear(1, 1).double(), torch.tensor([[-1.0], [0.0], [1.0]]).double()
    >>> t = 3 * x + 1
    >>> optimizer = NaturalGradient(model, Gaussian(), lr=1.0)
    >>> _ = optimizer.step(x, t)
    >>> step = optimizer.last
    >>> step.accepted, step.iterations <= 2, step.reason.name
    (True, True, 'CONVERGED')
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


class NaturalGradient(Preconditioned):
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
        Maps (n, ...) to the pre-activations (n, o) of the likelihood, or (n, ..., o) with
        positions.
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
    momentum, nesterov, weight_decay
        As for :class:`natcompanion.optim.Preconditioned`: momentum of the natural gradient, and
        decoupled decay. The reduction ratio is that of the whole move.
    parameters : iterable, optional
        Parameters or their names, or parameter groups; all of the model if left out. Those that are
        frozen at a step stay where they are.
    output : callable, optional
        Selects the pre-activations from what the model returns; ``metric`` is handed it too.

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
    ``state_dict`` holds all that the next step needs, options included, beside the model, the
    likelihood, the solver and the metric. Source: revisiting Eq. 8, Section 8.3.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = nn.Linear(1, 1).double(), torch.tensor([[-1.0], [0.0], [1.0]]).double()
    >>> t = 3 * x + 1
    >>> optimizer = NaturalGradient(model, Gaussian(), lr=1.0, damping=0.0)
    >>> _ = optimizer.step(x, t)  # a quadratic takes one step
    >>> torch.allclose(model.weight, 3 * torch.ones(1, 1).double(), rtol=1e-3)
    True
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
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        parameters: Parameters = None,
        output: Output = None,
    ) -> None:
        complete(likelihood)  # refuses what is none
        check.function(solver, "solver"), check.function(metric, "metric", classes=True)
        self.likelihood, self.solver, self.metric = likelihood, solver, metric
        self.output = output
        self.damping = damping
        if not isinstance(damping, LevenbergMarquardt):
            self.damping = check.non_negative(damping, "damping")
        self.prediction, self.rtol, self.max_iter = prediction, rtol, max_iter
        self.warm_start = warm_start
        self.last: Step | None = None
        options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(model, parameters, {"lr": lr, **options, **self._options()})
        self._function()

    SETTINGS: tuple[str, ...] = ("rtol", "max_iter", "prediction", "warm_start")
    """Attributes that ``param_groups`` hold too, so that a state brings them along."""

    needs_targets: str | None = None
    """Why ``metric_inputs`` are refused, where they are."""

    @torch.no_grad()
    def step(  # type: ignore[override]  # the batch comes first: the step computes its own gradient
        self,
        x: Any = None,
        t: Any = None,
        metric_inputs: Any = None,
        *,
        closure: Callable[[], Any] | None = None,
    ) -> float | None:
        """Make one step and return the loss before it.

        The step takes its gradient from the batch, not from ``.grad``; a call without a batch, as
        libraries make it to initialize a state, does nothing where all gradients are zero.

        Parameters
        ----------
        x : Tensor, shape (n, ...), or tuple or dictionary of such
        t : Tensor
            Targets of ``x``, as the likelihood expects them.
        metric_inputs : Tensor, shape (m, ...), optional
            Inputs for the metric; ``x`` if left out. They need no targets.
        closure : None
            Refused: the loss is the likelihood's.

        Raises
        ------
        ValueError
            If the batch does not fit the model, or the loss or its gradient is not finite at the
            present parameters. Nothing is changed then.

        Notes
        -----
        Autocast is switched off: products and the loss in half precision would stop the solver and
        the damping rule. With several processes of ``torch.distributed`` each gives its part of the
        batch; loss, gradient and products are means over all examples.
        """
        if x is None or t is None or closure is not None:
            self._without_batch(empty=x is None and t is None and closure is None)
            return None
        self._check_groups()
        if metric_inputs is not None and self.needs_targets is not None:
            raise ValueError(f"metric_inputs: {self.needs_targets}")
        with torch.autocast(self._leaves()[0].device.type, enabled=False):
            return self._step(joined(x), t, joined(metric_inputs))

    def _without_batch(self, *, empty: bool) -> None:
        """Do nothing in a call with nothing for gradients of zero; ask for a batch otherwise."""
        moving = any(p.grad is not None and bool(p.grad.any()) for p in self._leaves())
        if moving or not empty:
            raise ValueError(
                f"step: expected a batch of inputs and targets, as in step(x, t); "
                f"{type(self).__name__} computes loss and gradient itself"
            )

    def _step(self, x: torch.Tensor, t: torch.Tensor, metric_inputs: torch.Tensor | None) -> float:
        f = self._function()
        wide, share = f.check(x), Share(len(x))
        loss, g = self._gradient(f, wide, t)
        loss, g = share.mean(loss, g)
        damping = self._damping_value()
        inputs = x if metric_inputs is None else metric_inputs
        metric = Shared.over_processes(self._metric(x, t, inputs, g), len(inputs))
        A = Damped(metric, damping)
        solution = self._solve(A, g, f, wide, t)
        velocity = self._velocity(f, solution.x)
        move = self._move(f, velocity, solution.x)
        (loss_after,) = share.mean(self._loss(f, moved(f, move), wide, t))
        predicted = self._predicted(g, move, A)
        rho = reduction_ratio(loss, loss_after, predicted, eps=torch.finfo(f.dtype).eps)
        idle = not largest(self._option(f, "lr") * g)
        accepted = self._judge(loss, loss_after, predicted, rho, idle=idle)
        if accepted:
            self._write(f, move, velocity, solution.x)
        self._count()
        ended = (solution.iterations, solution.residual, solution.reason)
        self.last = Step(loss, loss_after, predicted, rho, damping, *ended, accepted)
        return loss

    def _count(self) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            group.update(self._options())

    # ---- What variants replace

    def _metric(
        self, x: torch.Tensor, t: torch.Tensor, inputs: torch.Tensor, g: torch.Tensor
    ) -> Any:
        """Return the metric of this step, whose gradient is ``g``."""
        return self.metric(self.model, inputs, self.likelihood, **self._chosen())

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
            loss = f.on(self.likelihood).nll(f(theta, x), t).mean()
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
        return float(f.on(self.likelihood).nll(f(theta, x), t).mean())

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

    def _options(self) -> dict[str, Any]:
        """Return what the groups hold of the present attributes."""
        rule = self.damping if isinstance(self.damping, LevenbergMarquardt) else None
        settings = {key: getattr(self, key) for key in self.SETTINGS}
        return {"damping": self._damping_value(), "rule": rule and asdict(rule), **settings}

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["rule"] is None:
            check.non_negative(group["damping"], "damping")
        else:
            LevenbergMarquardt(**{**group["rule"], "damping": group["damping"]})
        for key in ("rtol", "warm_start"):
            check.non_negative(group[key], key)
        if group["prediction"] not in ("linear", "quadratic"):
            raise ValueError(
                f'prediction: expected "linear" or "quadratic", got {group["prediction"]!r}'
            )

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step needs beside the model, the likelihood, the solver and the
        metric.
        """
        for group in self.param_groups:
            group.update(self._options())
        return super().state_dict()

    def _check_state(self, state: dict[nn.Parameter, dict[str, Any]]) -> None:
        super()._check_state(state)
        for p, entries in state.items():
            d = entries.get("direction", p)
            if d.shape != p.shape:
                raise ValueError(f"a direction of shape {tuple(d.shape)} for {tuple(p.shape)}")

    def _restored(self) -> None:
        group = self.param_groups[0]
        for key in self.SETTINGS:
            setattr(self, key, group[key])
        rule, value = group["rule"], float(group["damping"])
        if rule is None:
            self.damping = value
        elif isinstance(self.damping, LevenbergMarquardt):  # the object may be the user's own
            for key, entry in {**rule, "damping": value}.items():
                setattr(self.damping, key, entry)
        else:
            self.damping = LevenbergMarquardt(**{**rule, "damping": value})

    def _damping_value(self) -> float:
        if isinstance(self.damping, LevenbergMarquardt):
            return float(self.damping.damping)
        return float(self.damping)

    def _function(self) -> ModelFunction:
        """Return the model as a function of what is trained now."""
        return ModelFunction(self.model, self._trained(), self.output)

    def _chosen(self) -> dict[str, Any]:
        """Return what a metric has to know of parameters and outputs."""
        selected = {} if self.output is None else {"output": self.output}
        return {"parameters": self._trained(), **selected}

    def _trained(self) -> list[nn.Parameter]:
        """Return the parameters that are trained now."""
        return list(trainable(self._leaves()))

    def _option(self, f: ModelFunction, key: str) -> torch.Tensor | float:
        """Return an option of the groups for every entry of the parameter vector, or the value that
        all share.
        """
        groups = self._group_of()
        values = {name: float(groups[p][key]) for name, p in f.originals.items()}
        if len(set(values.values())) == 1:
            return next(iter(values.values()))
        return f.flat([torch.full_like(f.theta[name], value) for name, value in values.items()])

    def _velocity(self, f: ModelFunction, direction: torch.Tensor) -> torch.Tensor:
        """Return the velocity that this direction would give."""
        if not any(group["momentum"] for group in self.param_groups):
            return direction
        return self._option(f, "momentum") * self._saved(f, "momentum_buffer") + direction

    def _move(
        self, f: ModelFunction, velocity: torch.Tensor, direction: torch.Tensor
    ) -> torch.Tensor:
        """Return the change of the parameters, (P,)."""
        lr, decay = self._option(f, "lr"), self._option(f, "weight_decay")
        ahead = velocity
        if any(group["nesterov"] for group in self.param_groups):
            looking = self._option(f, "nesterov")
            ahead = (
                looking * (direction + self._option(f, "momentum") * velocity)
                + (1 - looking) * velocity
            )
        move = -lr * ahead
        if any(group["weight_decay"] for group in self.param_groups):
            move = move - lr * decay * f.flat(f.theta.values())
        return move

    def _last_direction(self, f: ModelFunction) -> torch.Tensor:
        return self._saved(f, "direction")

    def _saved(self, f: ModelFunction, key: str) -> torch.Tensor:
        """Return an entry of the state as a vector (P,), 0 where there is none yet."""
        return f.flat(
            [
                self.state.get(p, {}).get(key, torch.zeros_like(f.theta[n])).to(f.dtype)
                for n, p in f.originals.items()
            ]
        )

    def _write(
        self, f: ModelFunction, move: torch.Tensor, velocity: torch.Tensor, direction: torch.Tensor
    ) -> None:
        pieces = move.split([p.numel() for p in f.theta.values()])
        for p, theta, piece in zip(f.originals.values(), f.theta.values(), pieces, strict=True):
            if p.dtype == theta.dtype:
                p.add_(piece.view_as(p))
            else:  # half precision: computed in float32
                p.copy_(theta + piece.view_as(p))
        kept = {"momentum_buffer": velocity, "direction": direction}
        if not any(group["momentum"] for group in self.param_groups):
            del kept["momentum_buffer"]
        if not self.warm_start:
            del kept["direction"]
        for key, vector in kept.items():
            for p, d in zip(f.originals.values(), _split(f, vector), strict=True):
                self.state[p][key] = d


class Shared:
    """A metric whose examples lie with several processes: its products are means over all."""

    def __init__(self, metric: Any, share: Share) -> None:
        self.metric, self.share = metric, share
        self.shape, self.dtype = tuple(metric.shape), metric.dtype

    @classmethod
    def over_processes(cls, metric: Any, examples: int) -> Any:
        """Return the metric itself where there is one process."""
        share = Share(examples)
        return cls(metric, share) if share.several else metric

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        return self.share.mean(self.metric @ v)[0]


def _split(f: ModelFunction, vector: torch.Tensor) -> list[torch.Tensor]:
    """Cut a vector (P,) into one tensor per parameter."""
    pieces = vector.split([p.numel() for p in f.theta.values()])
    return [piece.view_as(p).clone() for piece, p in zip(pieces, f.theta.values(), strict=True)]


def moved(f: ModelFunction, move: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the parameters plus a vector (P,)."""
    pieces = move.split([p.numel() for p in f.theta.values()])
    return {
        name: p + piece.view_as(p) for (name, p), piece in zip(f.theta.items(), pieces, strict=True)
    }
