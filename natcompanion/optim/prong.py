r"""PRONG: gradient descent in coordinates in which the input of every layer is white."""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion import _distributed
from natcompanion._memory import beyond
from natcompanion._modules import cleared
from natcompanion._moments import Moments, damped_inverse
from natcompanion.layers import preserved_buffers
from natcompanion.optim._prong_hooks import LayerTap, Route, recomputing, remove_taps, transformed
from natcompanion.optim._prong_layers import (
    Layer,
    Map,
    Pair,
    PlainLayer,
    WhitenedLayer,
    computing,
    trained_layers,
)
from natcompanion.optim.base import (
    Directions,
    Parameters,
    Preconditioned,
    refuse_not_finite,
    warn_if_plain,
)

Inputs = torch.Tensor | tuple | Mapping | Iterable


class PRONG(Preconditioned):
    r"""Projected natural-gradient descent, on plain or on whitened layers.

    With the mean :math:`c` and the covariance :math:`\Sigma` of the input of a layer, a step in the
    whitened coordinates :math:`V = W U^{-1}`, :math:`d = b + W c`, where :math:`U^\top U = (\Sigma
    + \epsilon I)^{-1}`, is

    .. math:: [W \; b] \leftarrow [W \; b] - \mathrm{lr}\, [G_W \; g_b]
              \left( E[\tilde h \tilde h^\top] + \epsilon\, \mathrm{diag}(1, \dots, 1, 0)
              \right)^{-1}, \qquad \tilde h = [h; 1]

    So no eigendecomposition and no change of the model is needed. On an ``nn.Linear``, an
    ``nn.Conv2d`` or the ``Conv1D`` of GPT-2 this optimizer multiplies the gradient by the inverse
    matrix; every ``period`` steps it measures :math:`c` and :math:`\Sigma` anew and inverts by a
    Cholesky factor. On a :class:`~natcompanion.layers.WhitenedLinear` or
    :class:`~natcompanion.layers.WhitenedConv2d` it makes plain steps in (V, d) and changes the
    coordinates every ``period`` steps, as the paper writes it. Both take the same steps.

    Parameters
    ----------
    model : Module
        The model to train. It may return outputs of any form: they are not looked at.
    lr : float
        Step size, at least 0.
    momentum, nesterov, weight_decay
        As for :class:`natcompanion.optim.Preconditioned`: momentum of the preconditioned gradient,
        and decoupled decay, which shrinks V and d as it shrinks W and b.
    eps : float
        :math:`\epsilon`, positive, in squared units of the layer's input: no direction's step is
        multiplied by more than 1/eps. May differ between parameter groups.
    period : int
        :math:`T`: the statistics are renewed in steps 0, T, 2T, ..., before their gradient is used.
    sample : Tensor or callable, optional
        Inputs for the statistics: a tensor (n, ...) of them, or a function that returns some, drawn
        anew for each renewal (a tensor, a tuple or dictionary of arguments for the model, or an
        iterable of such batches). Without a sample, the statistics are those of the batches whose
        backward passes made the gradient.
    sample_size : int, optional
        :math:`N_s`: how many of the inputs in the tensor ``sample`` to draw for each renewal; all
        if left out.
    seed : int
        For that draw, together with the number of steps made.
    decay : float
        Without a sample: what weight the batches of earlier steps keep, in [0, 1]. 0 is the last
        step only.
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
    max_features : int
        Layers with more inputs than this get plain steps: time and memory of their statistics grow
        with the cube and the square.
    in_backward : bool
        A faster route: the gradients of plain linear layers are preconditioned inside the backward
        pass. It changes what a gradient is: ``.grad`` and ``torch.autograd.grad`` are then the
        preconditioned ones for these layers, also for clipping and accumulation, a second
        derivative is refused, and the statistics are renewed before the forward pass. It needs a
        sample.
    parameters : iterable, optional
        Parameters or their names, or parameter groups; all of the model if left out.

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

    Warns
    -----
    UserWarning
        If most of the parameters get plain steps; ``plain`` says why.

    Notes
    -----
    The step is made from ``.grad``. Where that costs less, or ``eps`` is so small that it would
    amplify the rounding of ``.grad``, it is made from the inputs and back-propagated gradients of
    linear layers instead, which the optimizer keeps until the step, if ``.grad`` is what one
    backward pass left of them: the same step to rounding.

    Momentum is a velocity of the function: it stays the same in (W, b) when the coordinates change,
    and so is mapped to the new ones in (V, d). With a sample, whitened layers change theirs before
    the forward pass; else in the step, and the gradient is mapped too.

    The statistics are measured in the mode the model is in, and leave its buffers as they were.
    Layers without a bias that this optimizer trains cannot be centred: c is 0 and the second moment
    takes the place of the covariance. Weight and bias of a plain layer have one step size and
    momentum, because centring ties their steps. Shared parameters, grouped convolutions, layers of
    other types, and layers that no sample has reached yet get plain steps.

    Without a sample, a pass counts once its backward pass has run, and a pass of a compiled model
    is seen only if the optimizer was built before its first. Several processes of
    ``torch.distributed`` have the statistics of all their examples. ``state_dict`` does not hold
    the sample.

    The hooks on the model do nothing once the optimizer is gone; :meth:`close` removes them at
    once.

    Source: prong Eqs. 6-7, Algorithm 1 with the corrections of the errata page.

    Examples
    --------
    For a linear layer with a squared error the metric is the curvature, so that a step of size 1
    solves least squares, whatever the scale of the inputs:

    >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 100.0], [1.0, 100.0]]).double()
    >>> t = x @ torch.tensor([[3.0], [0.02]]).double() + 5
    >>> model = nn.Sequential(nn.Linear(2, 1)).double()
    >>> optimizer = PRONG(model, lr=1.0, eps=1e-9, sample=x)
    >>> ((model(x) - t).square().mean() / 2).backward()
    >>> optimizer.step()
    >>> model[0].weight.detach(), model[0].bias.detach()
    (tensor([[3.0000, 0.0200]], dtype=torch.float64), tensor([5.0000], dtype=torch.float64))
    """

    METRIC = "inverse"
    """Under which name the state of a layer holds its matrix."""
    _more: Mapping[str, Any] = {}

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
        constant_inputs: Collection[str] = (),
        backward_eps: float | None = None,
        synchronize: bool = True,
        max_features: int = 4096,
        in_backward: bool = False,
        parameters: Parameters = None,
    ) -> None:
        self.sample: Any = sample
        self.synchronize = synchronize
        self.layers: dict[str, Any] = {}  # plain and whitened layers
        self.plain: dict[str, str] = {}
        self._measured: dict[str, Moments] | None = None
        self._unhook: weakref.finalize | None = None
        _check_sample(sample, sample_size)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "eps": eps,
            "period": period,
            "sample_size": sample_size,
            "seed": seed,
            "decay": decay,
            "backward_eps": backward_eps,
            "max_features": max_features,
            "constant_inputs": sorted(constant_inputs),
            "in_backward": in_backward,
            **self._more,
        }
        super().__init__(model, parameters, defaults)
        unknown = sorted(set(constant_inputs) - set(self.layers))
        if unknown:
            raise ValueError(
                f"constant_inputs: expected names of layers among {sorted(self.layers)}, "
                f"got {unknown}"
            )
        warn_if_plain(self)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check.positive(group["eps"], "eps")
        check.whole(group["period"], "period")
        check.whole(group["max_features"], "max_features")
        _fraction(group["decay"], "decay")
        if group["sample_size"] is not None:
            check.whole(group["sample_size"], "sample_size")
        if group["backward_eps"] is not None:
            check.positive(group["backward_eps"], "backward_eps")
        if group["in_backward"] and (self.sample is None or self._needs_passes(group)):
            raise ValueError(
                "in_backward: expected a sample, and neither backward_eps nor a diagonal of every "
                "batch with it"
            )

    # ---- Renewing the statistics

    @torch.no_grad()
    def refresh(self, inputs: Inputs | None = None) -> None:
        """Measure the statistics of every layer in one forward pass and take them over.

        :meth:`step` does it every ``period`` steps, if there is a sample.

        Parameters
        ----------
        inputs : Tensor, tuple or dictionary of such, or iterable of these, optional
            Inputs of the model; the sample of the optimizer if left out.

        Raises
        ------
        ValueError
            If there are no inputs, or some statistics are not finite. Nothing is changed then.
        """
        if inputs is None and self.sample is None:
            raise ValueError(
                "refresh: expected inputs, as there is no sample; pass some, or PRONG(..., sample=)"
            )
        gradients = {p: p.grad for p in self._leaves() if p.grad is not None}
        for p, g in self._renewed(self._of_sample(inputs), gradients).items():
            if p.grad is not g:
                p.grad = g

    def _of_sample(self, inputs: Inputs | None = None) -> dict[str, Moments]:
        """Return the moments of the layers' inputs over a sample, of all processes."""
        measured = self._measure(self._drawn() if inputs is None else inputs)
        return {name: moments.reduced().checked(name) for name, moments in measured.items()}

    def _drawn(self) -> Inputs:
        """Return the inputs of the sample for this renewal, the part of this process."""
        if not isinstance(self.sample, torch.Tensor):
            return self.sample()
        chosen, options = self.sample, self.param_groups[0]
        size = options["sample_size"]
        if size is not None and size < len(chosen):
            g = torch.Generator().manual_seed(options["seed"] + 1_000_003 * self.steps)
            picked = torch.randperm(len(chosen), generator=g)[:size]
            chosen = chosen[picked.to(chosen.device)]
        return chosen[_distributed.rank() :: _distributed.world_size()]

    @torch.compiler.disable  # compiled code would run the model without its hooks
    def _measure(self, inputs: Inputs) -> dict[str, Moments]:
        """Return the moments of every layer's input over a sample."""
        self._measured = {}
        plainly = torch.compiler.set_stance("force_eager")
        try:
            with preserved_buffers(self.model), _held(self.model), plainly:
                for arguments, named in _batches(inputs):
                    self.model(*arguments, **named)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                "sample: expected inputs that the model takes (of a pair of inputs and targets, "
                f"the inputs alone), but it refuses these: {error}"
            ) from error
        else:
            if not self._measured and not all(map(self._constant, self.layers.values())):
                raise ValueError(
                    "sample: expected at least one example that reaches a layer, got none; a "
                    "generator is used up after one renewal: let the function return a new one"
                )
            return self._measured
        finally:
            self._measured = None

    def _renewed(self, moments: dict[str, Moments], gradients: Directions) -> Directions:
        """Take over new statistics, and return the gradients in the coordinates that follow."""
        groups, found = self._group_of(), dict(gradients)
        matrices = {
            name: self._matrix(layer, self._statistics(layer, moments[name]), groups[layer.weight])
            for name, layer in self.layers.items()
            if name in moments and isinstance(layer, PlainLayer)
        }
        for name, of_layer in moments.items():
            layer, kept = self.layers[name], self.state[self.layers[name].weight]
            kept["renewed"] = self.steps
            if isinstance(layer, PlainLayer):
                kept.pop("mean", None)
                kept |= matrices[name]
            else:
                self._rewhiten(layer, of_layer, groups[layer.weight]["eps"], found)
        return found

    def _statistics(self, layer: PlainLayer, moments: Moments) -> tuple[torch.Tensor, Any]:
        """Return the matrix to invert and the centre of a layer, which only a bias that moves can
        take up.
        """
        if layer.bias is not None and layer.bias.requires_grad and layer.bias in self._group_of():
            return moments.covariance(), moments.mean
        return moments.second_moment(), None

    def _matrix(
        self, layer: PlainLayer, statistics: tuple[torch.Tensor, Any], group: dict[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Return what the steps of a layer need of its statistics."""
        sigma, mean = statistics
        dtype, device = computing(layer.weight.dtype), layer.weight.device
        made = {self.METRIC: self._made(sigma, float(group["eps"]), dtype)}
        made |= {} if mean is None else {"mean": mean}
        return {key: part.to(device, dtype) for key, part in made.items()}

    def _rewhiten(
        self, layer: WhitenedLayer, moments: Moments, eps: float, found: Directions
    ) -> None:
        """Change the coordinates of a whitened layer; its gradient among ``found`` follows."""
        pair = layer.weight, layer.bias
        velocity = [self.state.get(p, {}).get("momentum_buffer") for p in pair]
        gradient = [found.get(p) for p in pair]
        carried = layer.renew(
            moments,
            eps,
            None if velocity[0] is None else (velocity[0], velocity[1]),
            None if gradient[0] is None else (gradient[0], gradient[1]),
        )
        if carried is not None:
            found[layer.weight] = carried[0]

    def _last(self, layer: Layer) -> int:
        """Return the step in which a layer's statistics were renewed, -1 before."""
        return self.state.get(layer.weight, {}).get("renewed", -1)

    def _due(self, *layers: Layer) -> bool:
        """Return whether it is time to renew the statistics of these layers."""
        period = self.param_groups[0]["period"]
        last = max(map(self._last, layers), default=-1)
        return last < self.steps - self.steps % period

    def _constant(self, layer: Layer) -> bool:
        """Return whether the statistics of a layer are known for good."""
        return layer.name in self.param_groups[0]["constant_inputs"] and self._last(layer) >= 0

    # ---- What the hooks call

    def _needs_passes(self, group: dict[str, Any]) -> bool:
        """Return whether the step needs more of the passes than the gradients they leave."""
        return self.sample is None or group["backward_eps"] is not None

    @torch.compiler.disable
    def _before(self, name: str, module: nn.Module, h: torch.Tensor) -> None:
        """Renew the statistics before the first pass of a step whose backward pass shall know
        them.
        """
        layer = self.layers[name]
        if self.sample is not None and self._training(layer, module, h):
            layer.routed = layer.routed and layer.weight.grad is not None
            if self._due(*self.layers.values()):
                self.refresh()

    def _training(self, layer: Layer, module: nn.Module, h: torch.Tensor) -> bool:
        """Return whether a pass may be one of training: no measurement, no evaluation, no other
        parameters.
        """
        return (
            self._measured is None
            and torch.is_grad_enabled()
            and layer.owns(module)
            and not transformed(h)
        )

    @torch.compiler.disable
    def _after(
        self, name: str, module: nn.Module, h: torch.Tensor, output: torch.Tensor
    ) -> torch.Tensor | None:
        """Note a pass through a layer, which counts once its backward pass has come by."""
        layer = self.layers[name]
        if self._measured is not None:
            if not self._constant(layer) and h.numel():
                new = Moments.of(layer.rows(h))
                old = self._measured.get(name)
                self._measured[name] = new if old is None else old.merged(new)
            return None
        if not self._training(layer, module, h) or not output.requires_grad:
            return None
        layer.seen = True
        if not layer.weight.requires_grad or not h.numel():
            return None
        kept = self.state.get(layer.weight, {})
        if self.param_groups[0]["in_backward"] and layer.linear and self.METRIC in kept:
            matrix, c = self._followed(layer)
            map_ = self._applied(matrix, None)
            return Route.apply(output.detach(), h, layer.weight, layer.bias, layer, c, map_)
        if layer.into == "grad" and not recomputing() and cleared((layer.weight, layer.bias)):
            layer.forget()  # those gradients were cleared without a step
        wanted = self._wanted(layer, h, output)
        if self.sample is None and not self._constant(layer):
            with torch.no_grad():
                wanted["moments"] = Moments.of(layer.rows(h))
        if wanted:
            output.register_hook(partial(layer.arrived, wanted))
        return None

    def _wanted(self, layer: Layer, h: torch.Tensor, output: torch.Tensor) -> dict[str, Any]:
        """Return what the step may use of a pass through a layer, beside moments."""
        if not isinstance(layer, PlainLayer):
            return {}
        wanted: dict[str, Any] = {}
        if self.param_groups[0]["backward_eps"] is not None:
            wanted["errors"] = True
        eps, rounding = self._group_of()[layer.weight]["eps"], torch.finfo(layer.weight.dtype).eps
        if layer.linear and (layer.cheap(h.numel() // layer.features) or eps < 1000 * rounding):
            wanted["captured"] = (h.detach(), h._version)
        return wanted

    # ---- The step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step and return the loss of ``closure``, if there is one.

        Raises
        ------
        ValueError
            If a gradient or the statistics are not finite, or a layer has a gradient, but never saw
            a forward pass of the model or the sample. Nothing is changed then.
        """
        try:
            return super().step(closure)
        finally:
            self._forget()

    def _forget(self) -> None:
        for layer in self.layers.values():
            layer.forget()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and what the passes left that made them."""
        super().zero_grad(set_to_none)
        self._forget()
        for layer in self.layers.values():
            layer.routed = False

    def _gradients(self) -> Directions:
        """Return the gradients, averaged over processes if asked to: a parameter without one in
        this process counts as 0, if it has one in another.
        """
        if not self.synchronize or _distributed.world_size() == 1:
            return super()._gradients()
        leaves = self._leaves()
        some = torch.tensor([float(p.grad is not None) for p in leaves], device=leaves[0].device)
        _distributed.reduce_sum([some])
        found = {
            p: torch.zeros_like(p) if p.grad is None else p.grad.to_dense().clone()
            for p, count in zip(leaves, some.tolist(), strict=True)
            if count
        }
        _distributed.reduce_mean(list(found.values()))
        refuse_not_finite(found.values(), type(self).__name__)
        return found

    def _directions(self, gradients: Directions) -> Directions:
        self._check_pairs(gradients)
        moments, backward = self._moments_due(), self._backward_moments()
        self._check_seen(gradients, moments)
        found = self._renewed(moments, gradients)
        for name, new in backward.items():
            self._renew_backward(self.layers[name], new)
        for layer in self.layers.values():
            if isinstance(layer, PlainLayer) and layer.weight in gradients and not layer.routed:
                found |= self._of_layer(layer, gradients)
        return found

    def _check_pairs(self, gradients: Directions) -> None:
        """Refuse another step size for the bias of a plain layer than for its weight: centring ties
        them.
        """
        groups = self._group_of()
        for layer in self.layers.values():
            both = layer.weight in gradients and layer.bias in gradients
            if not isinstance(layer, PlainLayer) or not both or layer.bias not in groups:
                continue
            for key in ("lr", "momentum", "nesterov"):
                one, other = (float(groups[p][key]) for p in (layer.weight, layer.bias))
                if one != other:
                    raise ValueError(
                        f"step: expected one {key} for weight and bias of layer "
                        f"{layer.name!r}, got {one} and {other}; their steps belong together"
                    )

    def _check_seen(self, gradients: Directions, moments: dict[str, Moments]) -> None:
        """Refuse the gradient of a layer whose inputs never came by: its steps would be plain ones
        for good.
        """
        for name, layer in self.layers.items():
            known = layer.seen or name in moments or self._last(layer) >= 0
            if known or self.sample is not None or layer.weight not in gradients:
                continue
            if bool(gradients[layer.weight].any()):
                raise ValueError(
                    "step: expected a forward pass through the model, or a sample, but "
                    f"layer {name!r} has a gradient and saw neither; call the model itself, on "
                    "which PRONG was built, build PRONG before a compiled model first runs, or "
                    "leave the layer out with parameters="
                )

    # ---- Its parts

    def _moments_due(self) -> dict[str, Moments]:
        """Return the statistics to take over in this step, by layer."""
        if self.sample is not None:
            return self._of_sample() if self._due(*self.layers.values()) else {}
        decay, kept = self.param_groups[0]["decay"], {}
        for name, layer in self.layers.items():
            new = self._of_all(layer, layer.moments, layer.features)
            if new is not None and not self._constant(layer):
                old = self._running(layer, "input")
                kept[name] = (new if old is None else old.merged(new, decay)).checked(name)
        for name, moments in kept.items():
            self._keep(self.layers[name], "input", moments)
        return {name: m for name, m in kept.items() if self._due(self.layers[name])}

    def _backward_moments(self) -> dict[str, Moments]:
        """Return the running moments of the back-propagated gradients, by plain layer."""
        found: dict[str, Moments] = {}
        if self.param_groups[0]["backward_eps"] is None:
            return found
        for name, layer in self.layers.items():
            if isinstance(layer, PlainLayer):
                new = self._of_all(layer, layer.errors_of_a_mean(), layer.outputs)
                if new is not None:
                    old = self._running(layer, "backward")
                    total = new if old is None else old.merged(new, 0.9)
                    found[name] = total.checked(f"back-propagated gradients of {name}")
        return found

    def _renew_backward(self, layer: PlainLayer, moments: Moments) -> None:
        kept = self.state[layer.weight]
        self._keep(layer, "backward", moments)
        if "backward_inverse" not in kept or self._last(layer) == self.steps:
            eps, dtype = self.param_groups[0]["backward_eps"], computing(layer.weight.dtype)
            inverse = damped_inverse(moments.second_moment(), eps)
            kept["backward_inverse"] = inverse.to(layer.weight.device, dtype)

    def _of_all(self, layer: Layer, moments: Moments | None, size: int) -> Moments | None:
        """Return the moments over all processes, some of which may have none."""
        if _distributed.world_size() == 1:
            return moments
        if moments is None:
            zeros = torch.zeros(size, dtype=torch.float64, device=layer.weight.device)
            moments = Moments(0.0, zeros, zeros.new_zeros(size, size))
        total = moments.reduced()
        return total if total.count else None

    def _running(self, layer: Layer, what: str) -> Moments | None:
        """Return running moments from the state of a layer."""
        kept = self.state.get(layer.weight, {})
        if f"{what}_count" not in kept:
            return None
        parts = (kept[f"{what}_{part}"].to(layer.weight.device) for part in ("mean", "scatter"))
        return Moments(kept[f"{what}_count"], *parts)

    def _keep(self, layer: Layer, what: str, moments: Moments) -> None:
        """Put running moments into the state of a layer."""
        values = {"count": moments.count, "mean": moments.mean, "scatter": moments.scatter}
        self.state[layer.weight].update({f"{what}_{key}": v for key, v in values.items()})

    def _of_layer(self, layer: PlainLayer, gradients: Directions) -> Directions:
        """Return the step of a plain layer."""
        G, g = gradients[layer.weight], gradients.get(layer.bias)
        if self.METRIC not in self.state.get(layer.weight, {}):
            return {}
        dtype = computing(G.dtype)
        matrix, c = self._followed(layer)
        W, b = self._step_of(layer, G.to(dtype), None if g is None else g.to(dtype), c, matrix)
        backward = self.state[layer.weight].get("backward_inverse")
        if backward is not None:
            backward = backward.to(W)
            W = torch.tensordot(backward, W, 1)
            b = None if b is None else backward @ b
        found = {layer.weight: W.to(G.dtype)}
        return found if b is None or g is None else {**found, layer.bias: b.to(g.dtype)}

    def _step_of(
        self, layer: PlainLayer, G: torch.Tensor, g: torch.Tensor | None, c: Any, matrix: Any
    ) -> Pair:
        """Return the step from what the passes left, if that is right and costs less."""
        apply = self._applied(matrix, self._scale(layer, matrix, c))
        several = self.synchronize and _distributed.world_size() > 1
        if len(layer.captured) == 1 and not several and (c is None or g is not None):
            h, version, delta = layer.captured[0]
            if h._version == version and h.dtype == delta.dtype == G.dtype:
                h, delta = (part.reshape(-1, part.shape[-1]) for part in (h, delta))
                if layer.explains(h, delta, G, g):
                    return layer.from_passes(h, delta, c, apply)
        return layer.from_gradient(G, g, c, apply)

    def _followed(self, layer: PlainLayer) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return matrix and centre of a layer, moved to the device and precision of its weight."""
        kept, dtype = self.state[layer.weight], computing(layer.weight.dtype)
        for key in {self.METRIC, "mean", "backward_inverse"} & kept.keys():
            kept[key] = kept[key].to(layer.weight.device, dtype)
        return kept[self.METRIC], kept.get("mean")

    # ---- What variants replace

    def _made(self, sigma: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        """Return the matrix of a layer's metric for a covariance in float64."""
        return damped_inverse(sigma, eps, dtype)

    def _scale(self, layer: PlainLayer, matrix: torch.Tensor, c: Any) -> torch.Tensor | None:
        """Return what of the metric follows every batch."""
        return None

    def _applied(self, matrix: torch.Tensor, scale: torch.Tensor | None) -> Map:
        """Return the multiplication of rows by the metric."""
        return lambda x: (x.reshape(-1, x.shape[-1]) @ matrix).view(x.shape)

    # ---- Keeping

    def _check_state(self, state: dict[nn.Parameter, dict[str, Any]]) -> None:
        super()._check_state(state)
        layers = {layer.weight: layer for layer in self.layers.values()}
        for p, entries in state.items():
            sizes: dict[str, tuple[int, ...]] = {"momentum_buffer": tuple(p.shape)}
            if (layer := layers.get(p)) is not None:
                sizes |= self._sizes(layer)
            for key, value in entries.items():
                if key not in sizes or getattr(value, "shape", ()) != sizes[key]:
                    raise ValueError(f"{key!r} of the layer {layer and layer.name!r}")
            renewed = entries.get("renewed", -1) >= 0
            if isinstance(layer, PlainLayer) and renewed != (self.METRIC in entries):
                raise ValueError(f"{self.METRIC!r} of the layer {layer.name!r}")

    def _sizes(self, layer: Layer) -> dict[str, tuple[int, ...]]:
        """Return the entries that the state of a layer may have, and their shapes."""
        out, n = layer.outputs, layer.features
        found: dict[str, tuple[int, ...]] = {"renewed": ()}
        for what, size in (("input", n), ("backward", out)):
            found |= {
                f"{what}_count": (),
                f"{what}_mean": (size,),
                f"{what}_scatter": (size, size),
            }
        if isinstance(layer, PlainLayer):
            found |= {self.METRIC: (n, n), "mean": (n,), "backward_inverse": (out, out)}
        return found

    def close(self) -> None:
        """Remove the hooks from the model."""
        if self._unhook is not None:
            self._unhook()

    def __getstate__(self) -> dict[str, Any]:
        left: dict[str, Any] = {"_unhook": None, "layers": {}, "plain": {}}
        return {**super().__getstate__(), **left}

    def _changed(self) -> None:
        """Act on the layers of all parameters so far."""
        known = self.layers
        modules, self.plain = trained_layers(
            self.model, self._leaves(), self.param_groups[0]["max_features"]
        )
        self.layers = {
            name: known.get(name) or self._layer(name, module) for name, module in modules.items()
        }
        self._refuse_wide_outputs()
        self._register(modules)

    def _refuse_wide_outputs(self) -> None:
        """Refuse to whiten the errors of layers whose matrices of them would be too large."""
        limit = self.param_groups[0]["max_features"]
        for name, layer in self.layers.items():
            n = layer.outputs
            if self.param_groups[0]["backward_eps"] is None or n <= limit:
                continue
            reason = beyond(f"its output has {n} features", limit, 24e-9 * n**2, 2e-9 * n**3)
            raise ValueError(
                f"backward_eps: layer {name!r}: {reason}, or leave it out with parameters="
            )

    def _restored(self) -> None:
        self._changed()

    def _layer(self, name: str, module: nn.Module) -> Layer:
        return (WhitenedLayer if hasattr(module, "V") else PlainLayer)(name, module)

    def _register(self, modules: dict[str, nn.Module]) -> None:
        self.close()
        handles = []
        for name, module in modules.items():
            tap = LayerTap(self, name)
            remove_taps(module)
            early = self.param_groups[0]["in_backward"] or hasattr(module, "V")
            if early and self.sample is not None:
                handles.append(module.register_forward_pre_hook(tap.before, with_kwargs=True))
            handles.append(module.register_forward_hook(tap.after, prepend=True, with_kwargs=True))
        self._unhook = weakref.finalize(self, _remove, handles)


@contextmanager
def _held(model: nn.Module) -> Iterator[None]:
    """Let a model run without a graph of its parameters, and yet differentiate in its pass."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for p in trained:
            p.requires_grad_(True)


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


def _batches(inputs: Inputs) -> Iterator[tuple[tuple, dict[str, Any]]]:
    """Yield the arguments of the model for every batch of a sample: those by place, and by name."""
    single = isinstance(inputs, (torch.Tensor, tuple, Mapping))
    for batch in [inputs] if single or not isinstance(inputs, Iterable) else inputs:
        if not isinstance(batch, (torch.Tensor, tuple, Mapping)):
            raise ValueError(
                "sample: expected a tensor, a tuple or dictionary of arguments for the model, or "
                "an iterable of such batches, got "
                f"a batch of type {type(batch).__name__}; of a DataLoader, pass lambda: (x "
                "for x, _ in loader)"
            )
        if isinstance(batch, Mapping):
            yield (), {name: _detached(a) for name, a in batch.items()}
        else:
            yield tuple(map(_detached, batch if isinstance(batch, tuple) else (batch,))), {}


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x


def _fraction(value: float, name: str) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a number in [0, 1], got {value!r}")
    return float(value)
