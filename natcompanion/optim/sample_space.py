r"""The natural gradient by a system in sample space: exact, and small where examples are few."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion import _distributed
from natcompanion._memory import affordable, refuse_larger
from natcompanion._moments import gram
from natcompanion.damping import reduction_ratio
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics import fast
from natcompanion.metrics.model_function import DETACHED, ModelFunction
from natcompanion.optim._prong_hooks import transformed
from natcompanion.optim.natural_gradient import NaturalGradient, Step
from natcompanion.solvers import Reason
from natcompanion.solvers.solution import largest

REFINEMENTS = 3
"""Most corrections of a solution by its residual."""
SHRINKS = 20
"""Most trials of the line search."""


@dataclass(frozen=True)
class SampleSpaceStep(Step):
    r"""What one step did; beside what :class:`natcompanion.optim.Step` holds:

    Parameters
    ----------
    predicted_kl : float
        :math:`\frac12 \Delta^\top G \Delta` of the move proposed last, in nats per example.
    measured_kl : float
        The mean over the batch of KL(before || after), for the same move.
    scale : float
        What the line search left of the move; 1 without one.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> from natcompanion.optim import SampleSpaceNaturalGradient
    >>> model, x = torch.nn.Linear(1, 1).double(), torch.tensor([[-1.0], [0.0], [1.0]]).double()
    >>> optimizer = SampleSpaceNaturalGradient(model, Gaussian(), lr=1.0, kl=0.01)
    >>> _ = optimizer.step(x, 3 * x + 1)
    >>> step = optimizer.last
    >>> step.accepted, step.measured_kl <= 0.01 * (1 + 1e-6)
    (True, True)
    """

    predicted_kl: float
    measured_kl: float
    scale: float


class SampleSpaceNaturalGradient(NaturalGradient):
    r"""Natural-gradient descent whose damped system is solved exactly, in sample space.

    .. math:: d = \left(\tfrac1n J^\top H J + \lambda I\right)^{-1} g
                = J^\top \left(\tfrac1n H K + \lambda I\right)^{-1} \tfrac{s}{n}, \qquad
              K = J J^\top

    J (n o, P) is the Jacobian of the outputs, H the Fisher matrix of each example's outputs, and s
    the gradient of the losses by the outputs, so that :math:`g = J^\top s / n`. The system has as
    many unknowns as the batch has outputs, n o instead of P. For Linear layers K is made of
    products of two small Gram matrices, without J; for Conv2d layers from rows, one layer at a
    time; for other models from all rows. Where n o is not below P, the system of the parameters is
    the smaller one, and is solved instead.

    The solution is corrected until its true residual, by products with J and its transpose, is at
    most ``rtol``. That examples do not influence one another, and that the layers explain what
    autograd finds, is checked at the first step, and where other parameters are trained than
    before.

    Parameters
    ----------
    model : Module
        Maps (n, ...) to the pre-activations (n, o) of the likelihood. For a residual loss it
        returns the residuals, with the likelihood ``Gaussian`` and targets of zero.
    likelihood : Likelihood
        One of :mod:`natcompanion.likelihoods`, or one's own with ``nll``.
    lr : float
        Step size; with ``kl`` the largest one.
    damping : float or LevenbergMarquardt
        :math:`\lambda`, greater than 0. As for :class:`natcompanion.optim.NaturalGradient`.
    kl : float, optional
        Radius of the step, in nats per example: the move is scaled so that the KL divergence that
        the metric predicts is at most this, and then shrunk until the measured one is, and the loss
        does not rise. Without it the step is ``lr`` times d.
    rtol : float
        Largest relative residual; 1e-4 in float32 and 1e-10 in float64 if left out.
    momentum, nesterov, weight_decay, parameters
        As for :class:`natcompanion.optim.NaturalGradient`.

    Attributes
    ----------
    last : SampleSpaceStep
        What the last step did; None before the first.

    Raises
    ------
    ValueError
        On arguments out of range; at a step, if the system or the rows would
        be larger than :func:`natcompanion.metrics.dense_limit` allows, or there are several
        processes. Nothing is changed then.

    Examples
    --------
    >>> import torch
    >>> from natcompanion.likelihoods import Categorical
    >>> from natcompanion.optim import SampleSpaceNaturalGradient
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(),
    ...                             torch.nn.Linear(30, 3))
    >>> x, t = torch.randn(16, 20), torch.randint(3, (16,))
    >>> optimizer = SampleSpaceNaturalGradient(model, Categorical(), lr=1.0, kl=0.05)
    >>> losses = [optimizer.step(x, t) for _ in range(20)]
    >>> losses[-1] < 0.1 * losses[0]
    True
    >>> optimizer.last.residual < 1e-4, optimizer.last.measured_kl <= 0.05
    (True, True)

    Notes
    -----
    Source: revisiting Eq. 8, with the identity of Woodbury; known as minSR, as the kernel trick, or
    as ENGD with Woodbury.
    """

    SETTINGS = (*NaturalGradient.SETTINGS, "kl")
    _room: torch.Tensor | None = None
    needs_targets = "the system is that of the batch itself; leave them out"

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        lr: float,
        *,
        damping: Any = 1e-3,
        kl: float | None = None,
        rtol: float | None = None,
        **options: Any,
    ) -> None:
        allowed = {"momentum", "nesterov", "weight_decay", "parameters", "output"}
        if unknown := options.keys() - allowed:
            raise ValueError(
                f"{min(unknown)}: expected one of {sorted(allowed)}; the system is solved directly"
            )
        self._seen: set[str] = set()
        self._by_layers = False
        self.kl = kl
        wide = next(model.parameters()).dtype == torch.float64 if _is_model(model) else True
        rtol = (1e-10 if wide else 1e-4) if rtol is None else rtol
        super().__init__(model, likelihood, lr, damping=damping, rtol=rtol, **options)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check.positive(group["damping"], "damping")
        if group["kl"] is not None:
            check.positive(group["kl"], "kl")

    def _step(self, x: torch.Tensor, t: torch.Tensor, metric_inputs: torch.Tensor | None) -> float:
        if _distributed.world_size() > 1:
            raise ValueError(
                "SampleSpaceNaturalGradient: expected one process, got several, each with a part "
                "of the system; use NaturalGradient"
            )
        f = self._function()
        wide, damping = f.check(x), self._damping_value()
        if f.originals.keys() != self._seen:
            f.output(wide)  # sees that examples do not influence one another
            self._by_layers, self._seen = explained_by_layers(f, wide), set(f.originals)
        J = jacobian(f, wide, by_layers=self._by_layers)
        likelihood = f.on(self.likelihood)
        loss, s = self._scores(likelihood, J.r, t)
        d, Jd, size, residual, rounds = self._solved(J, s, damping)
        velocity = self._velocity(f, d)
        move, Jm = self._proposed(f, J, velocity, d, Jd)
        after = self._line_search(f, J.r, Jm, wide, t, move, loss)
        if after.scale != 1:
            move, Jm = after.scale * move, after.scale * Jm
        predicted = -float((s * Jm).sum())
        if self.prediction == "quadratic":
            predicted -= after.predicted_kl + 0.5 * damping * float(move @ move)
        loss_after = after.loss
        rho = reduction_ratio(loss, loss_after, predicted, eps=torch.finfo(f.dtype).eps)
        idle = not (size and largest(move))
        accepted = self._judge(loss, loss_after, predicted, rho, idle=idle) and after.ok
        if accepted:
            self._write(f, move, velocity, d)
        self._count()
        reason = Reason.CONVERGED if residual <= self.rtol else Reason.STAGNATED
        self.last = SampleSpaceStep(
            loss,
            loss_after,
            predicted,
            rho,
            damping,
            rounds,
            residual,
            reason,
            accepted,
            after.predicted_kl,
            after.measured_kl,
            after.scale,
        )
        return loss

    # ---- Parts

    def _scores(self, likelihood: Any, r: torch.Tensor, t: Any) -> tuple[float, torch.Tensor]:
        """Return the mean loss and its gradient by the outputs, (n, o)."""
        leaf = r.detach().requires_grad_()
        with torch.enable_grad():
            loss = likelihood.nll(leaf, t).mean()
            (s,) = torch.autograd.grad(loss, leaf)
        if not bool(torch.isfinite(loss)) or not check.all_finite(s):
            raise ValueError(
                "step: expected a finite loss and gradient at the present parameters, got the loss "
                f"{float(loss):.3g}; check the data and the start"
            )
        return float(loss), s

    def _solved(
        self, J: "Jacobian", s: torch.Tensor, damping: float
    ) -> tuple[torch.Tensor, torch.Tensor, float, float, int]:
        """Return d, J d, the norm of the gradient J^T s, the relative residual of the damped
        system, and the solves it took.
        """
        n = len(s)
        H = _output_fisher(J.f.on(self.likelihood), J.r)
        small = s.numel() < J.f.size
        if small:  # |u J| comes from the kernel, u K u: the gradient itself is not needed
            K, right = J.kernel(), s
            M = (H @ K.view(n, s.shape[1], -1)).view(s.numel(), -1).div_(n)
        else:  # as many outputs as parameters: the system of the parameters is the smaller one
            K, right = None, J.pull(s)
            M = J.rows.flatten(0, 1).mT @ (H @ J.rows).flatten(0, 1) / n
        M.diagonal().add_(damping)
        LU, pivots = torch.linalg.lu_factor(M)
        size, u, rest = _norm(right, K), torch.zeros_like(right), right
        best, least, solves = None, float("inf"), 0
        for k in range(1, 2 + REFINEMENTS):
            u = u + torch.linalg.lu_solve(LU, pivots, rest.reshape(-1, 1)).view_as(u)
            d = J.pull(u) if small else u
            Jd = J.push(d)
            curved = (H @ Jd.unsqueeze(-1)).squeeze(-1) / n
            rest = right - damping * u - (curved if small else J.pull(curved))
            residual = _norm(rest, K) / size if size else 0.0
            if not residual < least:
                break
            best, least, solves = (d, Jd), residual, k
            if residual <= self.rtol:
                break
        if best is None:
            raise ValueError(
                "step: expected a finite direction, got NaN or infinity; raise the damping"
            )
        return *best, size, least, solves

    def _proposed(
        self,
        f: ModelFunction,
        J: "Jacobian",
        velocity: torch.Tensor,
        d: torch.Tensor,
        Jd: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the move and J times it. Where the move is d times one number, it takes the place
        of d, and its image is known.
        """
        lr = {group["lr"] for group in self.param_groups}
        others = ("momentum", "weight_decay")
        if len(lr) == 1 and not any(group[key] for group in self.param_groups for key in others):
            factor = -float(lr.pop())
            return d.mul_(factor), factor * Jd
        move = self._move(f, velocity, d)
        return move, J.push(move)

    def _line_search(
        self,
        f: ModelFunction,
        r: torch.Tensor,
        Jm: torch.Tensor,
        x: torch.Tensor,
        t: torch.Tensor,
        move: torch.Tensor,
        loss: float,
    ) -> "_Trial":
        full = 0.5 * float((Jm * f.on(self.likelihood).fisher_product(r, Jm)).sum()) / len(Jm)
        if self.kl is None:
            return self._trial(f, r, x, t, move, 1.0, full)
        trial = self._trial(f, r, x, t, move, min(1.0, (self.kl / max(full, 1e-300)) ** 0.5), full)
        for _ in range(SHRINKS):
            lower = trial.loss <= loss
            if trial.measured_kl <= self.kl and lower:
                return trial
            factor = max(0.5, 0.99 * (self.kl / trial.measured_kl) ** 0.5) if lower else 0.5
            trial = self._trial(f, r, x, t, move, factor * trial.scale, full)
        return replace(trial, ok=trial.measured_kl <= self.kl and trial.loss <= loss)

    def _trial(
        self,
        f: ModelFunction,
        r: torch.Tensor,
        x: torch.Tensor,
        t: torch.Tensor,
        move: torch.Tensor,
        scale: float,
        full: float,
    ) -> "_Trial":
        after = f(self._at(f, move if scale == 1 else scale * move), x)
        likelihood = f.on(self.likelihood)
        kl = float(likelihood.kl(r, after).mean())
        return _Trial(float(likelihood.nll(after, t).mean()), scale**2 * full, kl, scale, True)

    def _at(self, f: ModelFunction, move: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the parameters plus a vector (P,), until the next call: new memory of this size
        would cost more than the sum.
        """
        room = self._room
        if room is None or (room.shape, room.dtype, room.device) != (
            move.shape,
            move.dtype,
            move.device,
        ):
            room = self._room = torch.empty_like(move)
        sizes = [p.numel() for p in f.theta.values()]
        places = zip(f.theta.items(), move.split(sizes), room.split(sizes), strict=True)
        return {
            name: torch.add(p, piece.view_as(p), out=place.view_as(p))
            for (name, p), piece, place in places
        }

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_room"}


@dataclass(frozen=True)
class _Trial:
    """A point of the line search."""

    loss: float
    predicted_kl: float
    measured_kl: float
    scale: float
    ok: bool


def _norm(u: torch.Tensor, K: torch.Tensor | None) -> float:
    """Return the norm of u, or with the kernel K that of u J."""
    flat = u.flatten()
    return max(float(flat @ (flat if K is None else K @ flat)), 0.0) ** 0.5


def _is_model(model: Any) -> bool:
    return isinstance(model, nn.Module) and next(model.parameters(), None) is not None


def _output_fisher(likelihood: Any, r: torch.Tensor) -> torch.Tensor:
    """Return the Fisher matrix of the outputs of each example, (n, o, o)."""
    root = likelihood.fisher_root(r)
    return root @ root.mT


class Jacobian:
    """The derivative of the outputs of a batch by the parameters, as rows (n, o, P)."""

    def __init__(self, f: ModelFunction, x: torch.Tensor) -> None:
        self.f, self.theta = f, {name: p.detach().requires_grad_() for name, p in f.theta.items()}
        with torch.enable_grad():
            self.graph = f(self.theta, x)
        if not self.graph.requires_grad:
            raise ValueError(DETACHED)
        self.r = self.graph.detach()
        n, o = self.r.shape
        name, remedy = "SampleSpaceNaturalGradient", "fewer examples a step, or NaturalGradient"
        affordable(min(n * o, f.size), f.dtype, name, remedy, what="outputs of a batch")
        self.prepare(x)

    def prepare(self, x: torch.Tensor) -> None:
        """Compute what the products need."""
        n, o = self.r.shape
        refuse_larger(
            n * o * self.f.size,
            self.f.dtype,
            f"SampleSpaceNaturalGradient: {n * o} gradients of {self.f.size} parameters need",
            "layers that are used once, fewer examples a step, or NaturalGradient",
        )
        units = torch.eye(o, dtype=self.f.dtype, device=x.device).expand(n, o, o)
        self.rows = self.f.rows(x, units)

    def gradient(self, s: torch.Tensor) -> torch.Tensor:
        """Return ``s J`` by autograd, (P,)."""
        leaves = list(self.theta.values())
        pieces = torch.autograd.grad(
            self.graph, leaves, s, retain_graph=True, materialize_grads=True
        )
        return self.f.flat(pieces)

    def kernel(self) -> torch.Tensor:
        """Return ``J J^T``, (n o, n o)."""
        rows = self.rows.flatten(0, 1)
        return rows @ rows.mT

    def push(self, v: torch.Tensor) -> torch.Tensor:
        """Return ``J v``; (P,) in, (n, o) out."""
        return self.rows @ v

    def pull(self, u: torch.Tensor) -> torch.Tensor:
        """Return ``u J``; (n, o) in, (P,) out."""
        return u.flatten() @ self.rows.flatten(0, 1)


class LayerJacobian(Jacobian):
    """The same from what goes into each layer and what comes back to it."""

    def __init__(self, f: ModelFunction, x: torch.Tensor, layers: list[fast.Layer]) -> None:
        self.layers = layers
        with fast._recording(layers):
            super().__init__(f, x)

    def prepare(self, x: torch.Tensor) -> None:
        if any(
            m.calls != 1 or not m.outputs.requires_grad or transformed(m.outputs)
            for m in self.layers
        ):
            raise _NotOfLayers(
                "model: expected layers that are called once, as at the first step, got another "
                "pass; use NaturalGradient"
            )
        o, outputs = self.r.shape[1], [layer.outputs for layer in self.layers]
        units = torch.eye(o, dtype=self.r.dtype, device=x.device)
        columns = [
            torch.autograd.grad(
                self.graph, outputs, e.expand_as(self.r), retain_graph=True, materialize_grads=True
            )
            for e in units
        ]
        self.deltas = [torch.stack(column, 1) for column in zip(*columns, strict=True)]
        self.layer_rows: list[torch.Tensor | None] = []
        for layer, delta in zip(self.layers, self.deltas, strict=True):
            if not layer.flat:
                size = sum(q.stop - q.start for q in (layer.weight, layer.bias) if q)
                refuse_larger(
                    delta.shape[0] * o * size,
                    delta.dtype,
                    f"SampleSpaceNaturalGradient: {len(delta) * o} gradients of a layer with "
                    f"{size} parameters need",
                    "fewer examples a step, or NaturalGradient",
                )
            self.layer_rows.append(None if layer.flat else layer.rows(delta.transpose(0, 1)))

    def kernel(self) -> torch.Tensor:
        return reduce(torch.Tensor.add_, self._blocks())

    def _blocks(self) -> Iterator[torch.Tensor]:
        """Yield the kernel of each layer."""
        n, o = self.r.shape
        for layer, delta, rows in self._parts():
            if rows is not None:
                yield rows.flatten(0, 1) @ rows.flatten(0, 1).mT
                continue
            back, h = delta.flatten(0, 1), layer.augmented()
            block = gram(back.mT).view(n, o, n, o).mul_((h @ h.mT)[:, None, :, None])
            yield block.view(n * o, n * o)

    def push(self, v: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(self.r)
        for layer, delta, rows in self._parts():
            if rows is not None:
                places = [place for place in (layer.weight, layer.bias) if place]
                total += rows @ torch.cat([v[place] for place in places])
                continue
            out = torch.zeros_like(delta[:, 0])
            if layer.weight:
                out = layer.inputs @ v[layer.weight].view(delta.shape[2], -1).mT
            if layer.bias:
                out = out + v[layer.bias]
            total += (out.unsqueeze(1) @ delta.mT).squeeze(1)
        return total

    def pull(self, u: torch.Tensor) -> torch.Tensor:
        total = u.new_empty(self.f.size)
        for layer, delta, rows in self._parts():
            if rows is not None:
                found, start = u.flatten() @ rows.flatten(0, 1), 0
                for place in filter(None, (layer.weight, layer.bias)):
                    width = place.stop - place.start
                    total[place] = found[start : start + width]
                    start += width
                continue
            back = (u.unsqueeze(1) @ delta).squeeze(1)
            if layer.weight:
                out = total[layer.weight].view(delta.shape[2], -1)
                torch.mm(back.mT, layer.inputs, out=out)
            if layer.bias:
                total[layer.bias] = back.sum(0)
        return total

    def _parts(self) -> Any:
        return zip(self.layers, self.deltas, self.layer_rows, strict=True)


class _NotOfLayers(ValueError):
    """The layers do not explain the outputs."""


def explained_by_layers(f: ModelFunction, x: torch.Tensor) -> bool:
    """Say whether one gradient by the layers, a mixture of all outputs, is that of autograd."""
    layers = fast.find_layers(f)
    if layers is None:
        return False
    try:
        J = LayerJacobian(f, x, layers)
    except _NotOfLayers:
        return False
    mix = torch.linspace(1, 2, J.r.numel(), dtype=f.dtype, device=x.device).view_as(J.r)
    g = J.gradient(mix)
    return float((J.pull(mix) - g).norm()) <= torch.finfo(f.dtype).eps ** 0.5 * float(g.norm())


def jacobian(f: ModelFunction, x: torch.Tensor, *, by_layers: bool) -> Jacobian:
    """Return the Jacobian by layers, or by rows."""
    layers = fast.find_layers(f) if by_layers else None
    if layers is not None:
        J = LayerJacobian(f, x, layers)
        if J.r.numel() < f.size:
            return J
    return Jacobian(f, x)
