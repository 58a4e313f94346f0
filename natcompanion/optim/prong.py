r"""PRONG: gradient descent in coordinates in which the input of every layer is white."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from natcompanion import _checks as check
from natcompanion import _distributed
from natcompanion._moments import Moments, rows
from natcompanion.layers import preserved_buffers
from natcompanion.optim._prong_hooks import Route, Tap, recomputing, remove_taps, transformed
from natcompanion.optim._prong_layers import (
    InverseCovariance,
    PlainLayer,
    WhitenedLayer,
    trained_layers,
)
from natcompanion.optim.base import refuse_not_finite

Inputs = torch.Tensor | tuple | Iterable


class PRONG(Optimizer):
    r"""Projected natural-gradient descent, on plain or on whitened layers.

    With the mean :math:`c` and the covariance :math:`\Sigma` of the input of a layer, a step in the
    whitened coordinates :math:`V = W U^{-1}`, :math:`d = b + W c`, where :math:`U^\top U = (\Sigma
    + \epsilon I)^{-1}`, is

    .. math:: [W \; b] \leftarrow [W \; b] - \mathrm{lr}\, [G_W \; g_b]
              \left( E[\tilde h \tilde h^\top] + \epsilon\, \mathrm{diag}(1, \dots, 1, 0)
              \right)^{-1}, \qquad \tilde h = [h; 1]

    So no eigendecomposition and no change of the model is needed. On an ``nn.Linear`` or
    ``nn.Conv2d`` this optimizer multiplies the gradient by the inverse matrix inside the backward
    pass; every ``period`` steps it measures
    :math:`c` and :math:`\Sigma` anew and inverts by a Cholesky factor. On a
    :class:`~natcompanion.layers.WhitenedLinear` or :class:`~natcompanion.layers.WhitenedConv2d` it
    makes plain steps in (V, d) and changes the coordinates every ``period`` steps, as the paper
    writes it. Both take the same steps.

    Parameters
    ----------
    model : Module
        The model to train; call it before the backward pass as usual.
    lr : float
        Step size, at least 0.
    momentum, nesterov, weight_decay
        As in ``torch.optim.SGD``, applied to the preconditioned gradient. Weight decay shrinks W
        and b themselves, which is the same as shrinking V and d.
    eps : float
        :math:`\epsilon`, positive, in squared units of the layer's input: no direction's step is
        multiplied by more than 1/eps. May differ between parameter groups.
    period : int
        :math:`T`: the statistics are renewed before steps 0, T, 2T, ...
    sample : Tensor or callable, optional
        Inputs for the statistics: a tensor (n, ...) of them, or a function that returns some, drawn
        anew for each renewal (a tensor, a tuple of arguments for the model, or an iterable of such
        batches). Without a sample, the statistics are those of the training batches as they pass.
    sample_size : int, optional
        :math:`N_s`: how many of the inputs in the tensor ``sample`` to draw for each renewal; all
        if left out.
    seed : int
        For that draw, together with the number of steps made.
    decay : float
        Without a sample: what weight older batches keep when a new one comes in, in [0, 1]. 0 is
        the last batch only.
    constant_inputs : iterable of str
        Names of layers whose input never changes its distribution, such as the first one: their
        statistics are measured once.
    backward_eps : float, optional
        Also whiten the back-propagated gradients of plain layers, with this added to the
        eigenvalues of their second moment over the training batches (the paper's footnote 4). The
        loss has to be a mean over the batch. Left out: not done, as the paper recommends.
    synchronize : bool
        With several processes of ``torch.distributed``: average the gradients over them. Not needed
        under ``DistributedDataParallel``. The statistics are always those of all processes.
    parameters : iterable, optional
        Parameters, or parameter groups, if not all trainable ones.

    Attributes
    ----------
    layers : dict
        The layers it acts on, by name.
    plain : dict
        Why every other module with parameters gets plain gradient steps, by name.
    steps : int
        How many steps were made.

    Raises
    ------
    ValueError
        On arguments out of range, or statistics that are not finite.

    Notes
    -----
    After the backward pass ``.grad`` of a plain layer holds the preconditioned gradient, so
    clipping and accumulation act on that, as they do in whitened coordinates. Momentum is a
    velocity of the function: it stays the same in (W, b) when the coordinates change, and so is
    mapped to the new ones in (V, d).

    The statistics are measured in the mode the model is in, and leave its buffers as they were.
    Layers without a bias that this optimizer trains cannot be centred: c is 0 and the second moment
    takes the place of the covariance. Weight and bias of a plain layer have one step size and
    momentum, because centring ties their steps. Shared parameters, grouped convolutions, layers of
    other types, and layers that no sample has reached yet get plain steps. Without a sample, a
    layer that is called several times in a pass is renewed from the first call and earlier passes,
    and every pass with gradients enabled counts as a training batch, whatever the mode of the
    model: evaluate under ``torch.no_grad()``.

    Transforms of ``torch.func`` see the plain model. A second derivative through plain layers is
    refused.

    The hooks on the model do nothing once the optimizer is gone; :meth:`close` removes them at
    once.

    Source: prong Eqs. 6-7, Algorithm 1 with the corrections of the errata page.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        momentum: float = 0.0,
        *,
        eps: float = 1e-2,
        period: int = 100,
        sample: torch.Tensor | Callable[[], Any] | None = None,
        sample_size: int | None = None,
        seed: int = 0,
        decay: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        constant_inputs: Iterable[str] = (),
        backward_eps: float | None = None,
        synchronize: bool = True,
        parameters: Iterable[Any] | None = None,
    ) -> None:
        self.sample: Any
        self._unhook: weakref.finalize
        self.model, self.sample, self.synchronize = model, sample, synchronize
        self.period, self.seed, self.decay = (
            check.whole(period, "period"),
            seed,
            _fraction(decay, "decay"),
        )
        self.sample_size = None if sample_size is None else check.whole(sample_size, "sample_size")
        self.backward_eps = (
            None if backward_eps is None else check.positive(backward_eps, "backward_eps")
        )
        self._measured: dict[str, Moments] | None
        self.steps, self._renewed, self._measured = 0, -1, None
        self.layers: dict[str, Any]  # plain and whitened layers
        self.plain: dict[str, str]
        self.constant_inputs, self.layers, self.plain = frozenset(constant_inputs), {}, {}
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "eps": eps,
        }
        chosen = (
            [p for p in model.parameters() if p.requires_grad] if parameters is None else parameters
        )
        _check_sample(sample, sample_size)
        super().__init__(chosen, defaults)
        unknown = sorted(self.constant_inputs - set(self.layers))
        if unknown:
            raise ValueError(
                f"constant_inputs: expected names of layers among {sorted(self.layers)}, "
                f"got {unknown}"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of the model's parameters with settings of its own."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for key in ("lr", "weight_decay"):
                check.non_negative(group[key], key)
            _fraction(group["momentum"], "momentum")
            check.positive(group["eps"], "eps")
        except ValueError:
            self.param_groups.pop()
            raise
        self._find_layers()

    # ---- Renewing the statistics

    @torch.no_grad()
    def reparametrize(self, inputs: Inputs | None = None) -> None:
        """Measure the statistics of every layer in one forward pass and take them over.

        It is called by itself when the model is first used after ``period`` steps, if there is a
        sample.

        Parameters
        ----------
        inputs : Tensor, tuple of Tensor, or iterable of them, optional
            Inputs of the model; the sample of the optimizer if left out.

        Raises
        ------
        ValueError
            If there are no inputs, or some statistics are not finite. Nothing is changed then.
        """
        if inputs is None and self.sample is None:
            raise ValueError(
                "reparametrize: expected inputs, as there is no sample; pass some, or "
                "PRONG(..., sample=)"
            )
        measured = self._measure(self._drawn() if inputs is None else inputs)
        measured = {name: moments.reduced().checked(name) for name, moments in measured.items()}
        for name, moments in measured.items():
            self._refresh(self.layers[name], moments)
        self._renewed = self.steps

    def _drawn(self) -> Inputs:
        """Return the inputs of the sample for this renewal, the part of this process."""
        if not isinstance(self.sample, torch.Tensor):
            return self.sample()
        chosen = self.sample
        if self.sample_size is not None and self.sample_size < len(chosen):
            g = torch.Generator().manual_seed(self.seed + 1_000_003 * self.steps)
            picked = torch.randperm(len(chosen), generator=g)[: self.sample_size]
            chosen = chosen[picked.to(chosen.device)]
        return chosen[_distributed.rank() :: _distributed.world_size()]

    def _measure(self, inputs: Inputs) -> dict[str, Moments]:
        """Return the moments of every layer's input over a sample."""
        self._measured = {}
        try:
            with preserved_buffers(self.model):
                for arguments in _batches(inputs):
                    self.model(*arguments)
            return self._measured
        finally:
            self._measured = None

    def _refresh(self, layer: PlainLayer | WhitenedLayer, moments: Moments) -> None:
        eps = next(
            group["eps"]
            for group in self.param_groups
            for p in group["params"]
            if p is layer.weight
        )
        layer.refresh(moments, check.positive(eps, "eps"), self.state)
        layer.renewed = self.steps

    def _due(self) -> bool:
        return self.steps % self.period == 0 and self._renewed != self.steps

    # ---- What the hooks call

    def _before(self, name: str, module: nn.Module, h: torch.Tensor) -> None:
        """Renew the statistics before the first forward pass of a step."""
        layer = self.layers[name]
        if self._training(layer, module, h):
            layer.seen = True
            layer.cleared()
            if self.sample is not None and self._due():
                self.reparametrize()
        if isinstance(layer, WhitenedLayer):  # its coordinates cannot change once it has run
            self._observe(layer, module, h)

    def _training(
        self, layer: PlainLayer | WhitenedLayer, module: nn.Module, h: torch.Tensor
    ) -> bool:
        """Return whether a pass may be one of training: no measurement, no evaluation, no other
        parameters.
        """
        return (
            self._measured is None
            and torch.is_grad_enabled()
            and layer.owns(module)
            and not transformed(h)
        )

    def _observe(
        self, layer: PlainLayer | WhitenedLayer, module: nn.Module, h: torch.Tensor
    ) -> None:
        """Note the input of a layer for its statistics; without a sample, renew them when it is
        time.
        """
        if layer.name in self.constant_inputs and layer.renewed >= 0:
            return
        if self._measured is not None:
            self._note(self._measured, layer.name, Moments.of(rows(module, h)))
            return
        if self.sample is not None or recomputing() or not self._training(layer, module, h):
            return
        with torch.no_grad():
            new = Moments.of(rows(module, h)).checked(layer.name)
            layer.moments = new if layer.moments is None else layer.moments.merged(new, self.decay)
            if self.steps % self.period == 0 and layer.renewed != self.steps:
                self._refresh(layer, layer.moments.reduced())

    def _note(self, found: dict[str, Moments], name: str, moments: Moments) -> None:
        found[name] = found[name].merged(moments) if name in found else moments

    def _after(
        self, name: str, module: nn.Module, h: torch.Tensor, output: torch.Tensor
    ) -> torch.Tensor | None:
        """Give the output of a plain layer its preconditioned backward pass."""
        layer = self.layers[name]
        self._observe(layer, module, h)
        if not output.requires_grad or not layer.weight.requires_grad or layer.metric is None:
            return None
        if not self._training(layer, module, h) or layer.unbatched(h):
            return None
        return Route.apply(output.detach(), h, layer.weight, layer.bias, layer)

    # ---- The step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step, from the gradients of the last backward pass, and return what ``closure``
        returns.

        Raises
        ------
        ValueError
            If a gradient is not finite, or a layer has one, but never saw a forward pass of the
            model or the sample. No parameter is changed then.
        """
        self._check_pairs()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        refuse_not_finite(found, type(self).__name__)
        self._precondition_the_rest()
        if self.synchronize:
            _distributed.reduce_mean(
                [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
            )
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._descend(p, group)
        self.steps += 1
        return loss

    def _check_pairs(self) -> None:
        """Refuse another step size for the bias of a plain layer than for its weight: centring ties
        them.
        """
        groups = {id(p): group for group in self.param_groups for p in group["params"]}
        for layer in self.layers.values():
            if not isinstance(layer, PlainLayer) or layer.mean is None or not layer.trains_bias:
                continue
            for key in ("lr", "momentum", "nesterov"):
                one, other = groups[id(layer.weight)][key], groups[id(layer.bias)][key]
                if one != other:
                    raise ValueError(
                        f"step: expected one {key} for weight and bias of layer "
                        f"{layer.name!r}, got {one} and {other}; "
                        "their steps belong together"
                    )

    def _precondition_the_rest(self) -> None:
        """Precondition gradients that did not come through the model's own backward pass."""
        rest = [
            layer
            for layer in self.layers.values()
            if not layer.routed and layer.weight.grad is not None
        ]
        if rest and self.sample is not None and self._due():
            self.reparametrize()
        self._check_seen()
        for layer in rest:
            layer.precondition()
            layer.routed = True

    def _check_seen(self) -> None:
        """Refuse the gradient of a layer whose inputs never came by: its steps would be plain ones
        for good.
        """
        for layer in self.layers.values():
            if (
                not layer.seen
                and layer.renewed < 0
                and layer.weight.grad is not None
                and layer.weight.grad.any()
            ):
                raise ValueError(
                    "step: expected a forward pass through the model, or a sample, but "
                    f"layer {layer.name!r} has a "
                    "gradient and saw neither; call the model itself, on which PRONG was "
                    "built, build PRONG before a "
                    "compiled model first runs, or leave the layer out with parameters="
                )

    def _descend(self, p: Any, group: dict[str, Any]) -> None:
        """Make a step of gradient descent with momentum."""
        g = p.grad.add(p, alpha=group["weight_decay"]) if group["weight_decay"] else p.grad
        if group["momentum"]:
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)
            velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(g)
            g = g.add(velocity, alpha=group["momentum"]) if group["nesterov"] else velocity
        p.add_(g, alpha=-float(group["lr"]))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        super().zero_grad(set_to_none)
        for layer in self.layers.values():
            layer.routed = isinstance(layer, WhitenedLayer)

    # ---- Keeping

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step needs beside the model."""
        layers = {name: layer.state() for name, layer in self.layers.items()}
        return {
            **super().state_dict(),
            "steps": self.steps,
            "renewed": self._renewed,
            "layers": layers,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state from :meth:`state_dict`."""
        if not {"state", "param_groups", "steps", "renewed", "layers"} <= set(state_dict):
            raise ValueError(
                f"load_state_dict: expected a state of PRONG, got the entries {list(state_dict)}"
            )
        layers = state_dict["layers"]
        if set(layers) != set(self.layers):
            raise ValueError(
                f"load_state_dict: expected the layers {sorted(self.layers)}, got {sorted(layers)}"
            )
        misfits = [name for name, layer in self.layers.items() if not layer.fits(layers[name])]
        if misfits or not self._velocities_fit(state_dict):
            where = f"layer {misfits[0]!r}" if misfits else "the momentum"
            raise ValueError(
                "load_state_dict: expected statistics and momentum of the layers as they "
                "are here, got others for "
                f"{where}; build model and optimizer as they were when it was saved"
            )
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.steps, self._renewed = state_dict["steps"], state_dict["renewed"]
        for name, state in layers.items():
            self.layers[name].load_state(state)

    def _velocities_fit(self, state_dict: dict[str, Any]) -> bool:
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        found = [state_dict["state"].get(number, {}).get("momentum_buffer") for number in numbers]
        pairs = zip(found, parameters, strict=False)  # torch checks how many there are
        return all(one is None or one.shape == p.shape for one, p in pairs)

    def close(self) -> None:
        """Remove the hooks from the model."""
        self._unhook()

    def __getstate__(self) -> dict[str, Any]:
        return {
            key: value for key, value in self.__dict__.items() if key not in ("_unhook", "step")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._register()

    def _metric_type(self) -> type:
        """Return the kind of inverse metric of a plain layer's weights; what variants replace."""
        return InverseCovariance

    def _find_layers(self) -> None:
        """Act on the layers of all parameters so far; those known already keep their statistics."""
        known = self.layers
        modules, self.plain = trained_layers(
            self.model, [p for g in self.param_groups for p in g["params"]]
        )
        self.layers = {
            name: known.get(name) or self._layer(name, module) for name, module in modules.items()
        }
        chosen = {id(p) for group in self.param_groups for p in group["params"]}
        for layer in self.layers.values():
            layer.trains_bias = id(layer.bias) in chosen
        self._register()

    def _layer(self, name: str, module: nn.Module) -> PlainLayer | WhitenedLayer:
        if hasattr(module, "V"):
            return WhitenedLayer(name, module)
        layer = PlainLayer(name, module, self._metric_type())
        layer.backward_eps = self.backward_eps
        return layer

    def _register(self) -> None:
        modules, handles = dict(self.model.named_modules()), []
        for name, layer in self.layers.items():
            module, tap = modules[name], Tap(self, name)
            remove_taps(module)
            handles.append(module.register_forward_pre_hook(tap.before, with_kwargs=True))
            if isinstance(layer, PlainLayer):
                handles.append(
                    module.register_forward_hook(tap.after, prepend=True, with_kwargs=True)
                )
        if hasattr(self, "_unhook"):
            self._unhook()
        self._unhook = weakref.finalize(self, _remove, handles)


def _remove(handles: list) -> None:
    for handle in handles:
        handle.remove()


def _check_sample(sample: Any, sample_size: int | None) -> None:
    if sample is None or callable(sample):
        if sample_size is not None:
            got = "no sample" if sample is None else "a function, which draws by itself"
            raise ValueError(
                f"sample_size: expected a tensor as the sample to draw from, got {got}"
            )
    elif not isinstance(sample, torch.Tensor) or not sample.ndim or not sample.numel():
        got = (
            f"shape {tuple(sample.shape)}"
            if isinstance(sample, torch.Tensor)
            else type(sample).__name__
        )
        raise ValueError(
            "sample: expected a tensor of inputs (n, ...) or a function that returns "
            f"inputs, got {got}; of a "
            "DataLoader, pass lambda: (x for x, _ in loader)"
        )


def _batches(inputs: Inputs) -> Iterator[tuple]:
    """Yield the arguments of the model for every batch of a sample."""
    single = isinstance(inputs, (torch.Tensor, tuple))
    for batch in [inputs] if single or not isinstance(inputs, Iterable) else inputs:
        if not isinstance(batch, (torch.Tensor, tuple)):
            raise ValueError(
                "sample: expected a tensor, a tuple of arguments for the model, or an "
                "iterable of such batches, got "
                f"a batch of type {type(batch).__name__}; of a DataLoader, pass lambda: (x "
                "for x, _ in loader)"
            )
        yield batch if isinstance(batch, tuple) else (batch,)


def _fraction(value: float, name: str) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a number in [0, 1], got {value!r}")
    return float(value)
