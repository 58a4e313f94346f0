r"""K-FAC: gradient descent with a Kronecker-factored Fisher matrix."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from natcompanion import _checks as check
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics.kronecker import KroneckerFactors, kronecker_factors, kronecker_layers
from natcompanion.metrics.model_function import ModelFunction
from natcompanion.optim.natural_gradient import _groups


class KFAC(Optimizer):
    r"""Gradient descent with a Kronecker-factored Fisher matrix.

    .. math:: [W\, b] \leftarrow [W\, b] - \mathrm{lr}\; \operatorname{mat}\!\left(
              (B \otimes A + \lambda I)^{-1} \operatorname{vec} [G_W\, g_b]\right)

    for each layer, with the factors of :func:`natcompanion.metrics.kronecker_factors`. An ordinary
    optimizer, but for one call more: the factors come from a batch of inputs (no targets) given to
    :meth:`refresh` before the first step and as often after it as one likes. ::

        optimizer = KFAC(model, Categorical(), lr=0.1)
        for step, (x, t) in enumerate(batches):
            if step % 20 == 0:
                optimizer.refresh(x)
            optimizer.zero_grad()
            Categorical().nll(model(x), t).mean().backward()
            optimizer.step()

    Parameters
    ----------
    model, likelihood
        As for :func:`natcompanion.metrics.kronecker_factors`.
    lr : float
        Step size.
    momentum, weight_decay : float
        Momentum is applied to the preconditioned direction, as in ``torch.optim.SGD``. Weight decay
        is added to the gradient, before the preconditioning.
    damping : float
        :math:`\lambda`, greater than 0.
    factored : bool
        Spread the damping over the factors; see
        :meth:`natcompanion.metrics.KroneckerFactors.inverse`.
    decay : float
        How much of the earlier factors is kept at a refresh, from 0 (none) to below 1.
    draws, generator
        As for :func:`natcompanion.metrics.kronecker_factors`.
    parameters : iterable, optional
        Parameters or their names, if not all trainable ones; or parameter groups, each a dict with
        ``"params"`` and perhaps ``"lr"``, ``"momentum"``, ``"weight_decay"``.

    Attributes
    ----------
    factors : dict
        The present :class:`natcompanion.metrics.KroneckerFactors` by the name of the layer; empty
        before the first refresh.

    Raises
    ------
    ValueError
        On arguments out of range.

    Notes
    -----
    The factors are float64; their inverses are applied in the dtype of the parameters, float32 for
    half precision. ``state_dict`` holds the factors. What this leaves out of Martens and Grosse
    (2015): blocks between layers, the rescaling and momentum of their Section 6 and 7, adaptive
    damping. Source: prong Section 3.4.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        damping: float = 1e-3,
        factored: bool = False,
        decay: float = 0.0,
        draws: int | None = None,
        generator: torch.Generator | None = None,
        parameters: Iterable[Any] | None = None,
    ) -> None:
        if not hasattr(likelihood, "fisher_root"):
            raise ValueError(f"likelihood: expected one such as Categorical(), got {likelihood!r}")
        self.model, self.likelihood = model, likelihood
        self.damping, self.factored = check.positive(damping, "damping"), factored
        self.decay = check.non_negative(decay, "decay")
        if self.decay >= 1:
            raise ValueError(f"decay: expected a number from 0 to below 1, got {decay!r}")
        self.draws, self.generator = draws, generator
        self.factors: dict[str, KroneckerFactors] = {}
        self._inverses: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(_groups(model, parameters), defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of the model's parameters with settings of its own; call :meth:`refresh`
        before the next step.
        """
        super().add_param_group(param_group)
        try:
            for key in ("lr", "momentum", "weight_decay"):
                check.non_negative(self.param_groups[-1][key], key)
            kronecker_layers(ModelFunction(self.model, self._leaves()))
        except ValueError:
            self.param_groups.pop()
            raise

    def refresh(self, x: torch.Tensor) -> None:
        """Take the factors from the inputs ``x`` (n, ...) at the present parameters, and invert
        them.

        Raises
        ------
        ValueError
            If ``x`` does not fit the model. The earlier factors are kept.
        """
        new = kronecker_factors(
            self.model,
            x,
            self.likelihood,
            draws=self.draws,
            generator=self.generator,
            parameters=self._leaves(),
        )
        self._take({name: self._averaged(name, f) for name, f in new.items()})

    def _averaged(self, name: str, new: KroneckerFactors) -> KroneckerFactors:
        """Return the running mean of a layer's factors; new ones, if other parameters of it are
        trained now.
        """
        old, k = self.factors.get(name), self.decay
        if old is None or old.A.shape != new.A.shape:
            return new
        return KroneckerFactors(k * old.A + (1 - k) * new.A, k * old.B + (1 - k) * new.B, new.bias)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step along the gradients that the parameters hold; a parameter without one
        counts as still.

        Raises
        ------
        ValueError
            If :meth:`refresh` was not called since parameters were added, or a gradient is not
            finite. Nothing is changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._inverses:
            raise ValueError("step: expected factors; call refresh(x) with a batch of inputs first")
        groups = {id(p): group for group in self.param_groups for p in group["params"]}
        with torch.autocast(self._leaves()[0].device.type, enabled=False):
            moves = [move for layer in self._chosen() for move in self._directions(*layer, groups)]
        for p, direction in moves:
            self._move(p, direction, groups[id(p)])
        return loss

    def __getstate__(self) -> dict[str, Any]:
        """Return everything, so that a copy of model and optimizer goes on as the original
        would.
        """
        return {
            key: value for key, value in self.__dict__.items() if key not in ("_inverses", "step")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._take(self.factors)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameter groups, the momentum and the factors."""
        return {
            **super().state_dict(),
            "factors": {name: tuple(f) for name, f in self.factors.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state from :meth:`state_dict`; its factors go to the device of their
        layers.
        """
        check.entries(state_dict, {"factors"}, "KFAC")
        factors = {name: KroneckerFactors(*f) for name, f in state_dict["factors"].items()}
        for name, own in self._layers() if factors else ():
            if not _fit(factors.get(name), own):
                raise ValueError(
                    f"state_dict: expected factors of layer {name!r} for parameters of shapes "
                    f"{[tuple(p.shape) for p in own]}, got others; build model and "
                    "optimizer as they were when it was saved"
                )
            A, B, bias = factors[name]
            factors[name] = KroneckerFactors(
                *(x.to(own[0].device, torch.float64) for x in (A, B)), bias
            )
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self._take(factors)

    # ---- Parts

    def _leaves(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def _take(self, factors: dict[str, KroneckerFactors]) -> None:
        narrow = self._leaves()[0].dtype
        dtype = torch.float32 if narrow in (torch.float16, torch.bfloat16) else narrow
        inverses = {
            name: f.inverse(self.damping, factored=self.factored, dtype=dtype)
            for name, f in factors.items()
        }
        self.factors, self._inverses = factors, inverses

    def _layers(self) -> Iterable[tuple[str, list[nn.Parameter]]]:
        """Yield the name of each layer and those of its parameters that are ours: weight, then
        bias.
        """
        ours = {id(p) for p in self._leaves()}
        for name, module in self.model.named_modules():
            own = [p for p in module._parameters.values() if p is not None and id(p) in ours]
            if own:
                yield name, own

    def _chosen(self) -> Iterable[tuple[str, list[nn.Parameter]]]:
        """Yield the layers with a gradient."""
        for name, own in self._layers():
            if any(p.grad is not None for p in own):
                if not _fit(self.factors.get(name), own):
                    raise ValueError(
                        f"step: expected factors of the parameters that layer {name!r} has "
                        "now; call refresh(x) after "
                        "add_param_group"
                    )
                yield name, own

    def _directions(
        self, name: str, own: list[nn.Parameter], groups: dict[int, dict]
    ) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Return the natural gradient of a layer, for each of its parameters."""
        columns = []
        for p in own:
            g = torch.zeros_like(p)
            if p.grad is not None:
                g = (
                    check.floating(p.grad, f"gradient of {name}")
                    + groups[id(p)]["weight_decay"] * p
                )
            columns.append(g.reshape(len(p), -1))
        direction = self._inverses[name](torch.cat(columns, 1))
        pieces = direction.split([c.shape[1] for c in columns], 1)
        return [
            (p, d.reshape(p.shape)) for p, d in zip(own, pieces, strict=True) if p.grad is not None
        ]

    def _move(self, p: nn.Parameter, direction: torch.Tensor, group: dict[str, Any]) -> None:
        if group["momentum"]:
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)
            direction = state["momentum_buffer"].mul_(group["momentum"]).add_(direction)
        p.add_(direction, alpha=-group["lr"])


def _fit(factors: KroneckerFactors | None, own: list[nn.Parameter]) -> bool:
    """Return whether factors have the shapes of the parameters of a layer."""
    return factors is not None and (len(factors.B), len(factors.A)) == (
        len(own[0]),
        sum(p[0].numel() for p in own),
    )
