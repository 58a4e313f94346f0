r"""Relative natural-gradient descent: every neuron has a small Fisher metric of its own."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from natcompanion import _checks as check
from natcompanion._moments import first
from natcompanion.optim._activations import LINEAR, find_activations, require_known
from natcompanion.optim._blocks import KINDS, Block, Tap


class RNGD(Optimizer):
    r"""Natural-gradient descent in the relative Fisher metric of every neuron.

    .. math::
        G_l \leftarrow \lambda\, G_l + (1 - \lambda) \Big( \frac1n \sum_i
            \nu_f(w_l, x_i)\, \tilde x_i \tilde x_i^\top + \epsilon I \Big)

        w_l \leftarrow w_l - \mathrm{lr}\; G_l^{-1}\, \frac{\partial E}{\partial w_l}

    ``w_l`` holds the weights of neuron l with its bias last, :math:`\tilde x_i` is what the layer
    receives for example i, with a 1 last, and :math:`\nu_f` is :func:`natcompanion.relative.nu` of
    the layer's activation. ``G_l`` starts at I. It sees the same forward pass as the gradient; its
    inverse is renewed every ``period`` steps, and before the first renewal a step is plain gradient
    descent.

    The loop is that of any torch optimizer: zero_grad, forward, backward, step. The model is not
    modified, except that its Linear and Conv2d layers carry a forward hook while the optimizer
    lives. Parameters of other modules take plain gradient steps.

    Parameters
    ----------
    model : Module
        Linear and Conv2d layers, each used once, with activations between them.
    lr : float
        Step size, at least 0; the paper's :math:`\gamma`, which its Eq. 33 leaves out.
    eps : float
        Absolute damping :math:`\epsilon` of Eq. 32.
    period : int
        T, the steps between two renewals of the inverse.
    decay : float
        :math:`\lambda`, from 0 to below 1.
    relative_eps : float
        When the inverse is renewed, this times the mean eigenvalue of ``G_l`` is added to it. For a
        neuron that is nearly dead, 1/1000 of the layer's mean takes its place.
    blocks : str or dict of str to str
        Kind of metric, for all layers or by layer name. ``"neuron"``: one for each neuron.
        ``"mean"``: one for the layer, the mean of those of its neurons. ``"linear"``: one for the
        layer, that of a linear layer, with :math:`\nu = 1`. By default ``"linear"`` for the first
        layer and for layers without an activation, as in the paper, and ``"neuron"`` elsewhere.
    activations : dict of str to str or Module, optional
        Activation of a layer, by layer name: ``"relu"``, ``"tanh"``, ``"sigmoid"``, ``"elu"``,
        ``"linear"``, or a module such as ``nn.ELU(0.5)``. Needed only where tracing the model with
        ``torch.fx`` does not find it.
    statistics_every : int
        The running mean takes in every k-th step only, with the decay :math:`\lambda^k`: by default
        ten of a period. A larger k is cheaper and noisier; 1 is the paper's.
    input_statistics : Tensor, optional
        Inputs of the model. The metric of the first layer, whose inputs do not change as training
        goes on, is then computed once from them instead of at every step.
    omega : float
        Width of the bend of the rectifier's :math:`\nu` (Eq. 18); 0 is the hard one.
    memory_limit : float
        Most gibibytes that the metrics may take; see Notes.
    parameters : iterable, optional
        Parameters to train, or parameter groups, each a dict with ``"params"`` and perhaps
        ``"lr"``, ``"eps"``, ``"period"``, ``"decay"``, ``"relative_eps"``. A layer follows the
        group of its weight, but every parameter its own ``"lr"``.

    Raises
    ------
    ValueError
        On arguments out of range; if a layer that is trained has no known activation, shares its
        parameters, is used twice or is a grouped convolution; if the metrics would not fit into
        ``memory_limit``.

    Notes
    -----
    Memory: a layer of m neurons with D inputs and the bias stores m (D + 1)^2 numbers of inverses
    and half as many of running means with ``"neuron"``, and 2 (D + 1)^2 with the shared kinds. For
    Conv2d, D is the number of input channels times the kernel's area, and a neuron is an output
    channel: its metric sums over the positions, because the neuron answers at each. A Linear layer
    does the same with inputs (n, positions, D).

    Order within a step: the running mean takes in the statistics, the inverse is renewed if the
    number of steps is a multiple of ``period``, then the parameters move. Statistics and inverses
    are float32 for half precision. ``state_dict`` holds all that the next step needs beside the
    model. A step on inputs or gradients that are not finite is refused and changes nothing.

    The statistics are those of the passes whose gradients the parameters hold: evaluation,
    transforms of ``torch.func`` and gradients by the inputs alone leave no trace.

    The start at I is a damping of its own, :math:`\lambda^t` after t steps. As it fades, a step
    size that was stable can become too large for ``eps``.

    Source: rfim Section 5.2, Eqs. 31-33.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        *,
        eps: float = 1e-2,
        period: int = 100,
        decay: float = 0.995,
        relative_eps: float = 0.0,
        blocks: str | Mapping[str, str] | None = None,
        activations: Mapping[str, str | nn.Module] | None = None,
        statistics_every: int | None = None,
        input_statistics: torch.Tensor | None = None,
        omega: float = 0.0,
        memory_limit: float = 2.0,
        parameters: Iterable[Any] | None = None,
    ) -> None:
        self.model, self.iteration = model, 0
        every = (
            max(1, check.whole(period, "period") // 10)
            if statistics_every is None
            else statistics_every
        )
        self.statistics_every = check.whole(every, "statistics_every")
        self.memory_limit = check.positive(memory_limit, "memory_limit")
        self.omega = check.non_negative(omega, "omega")
        self.kinds = blocks
        self.activations, self.first = find_activations(model, activations)
        chosen = (
            [p for p in model.parameters() if p.requires_grad] if parameters is None else parameters
        )
        defaults = {
            "lr": lr,
            "eps": eps,
            "period": period,
            "decay": decay,
            "relative_eps": relative_eps,
        }
        super().__init__(chosen, defaults)
        self.blocks: dict[str, Block] = {}
        self._add_blocks()
        if input_statistics is not None:
            self._fix_first(input_statistics)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of the model's parameters: whole layers, or parameters that have no
        metric.
        """
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
            if hasattr(self, "blocks"):
                self._add_blocks()
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step and return the loss of ``closure``, if there is one.

        Raises
        ------
        ValueError
            If a gradient or an input is not finite, or there is a gradient but no forward pass was
            seen. Nothing is changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            with torch.autocast(self.param_groups[0]["params"][0].device.type, enabled=False):
                active = [b for b in self.blocks.values() if self._active(b)]
                statistics = [self._statistics(block) for block in active]
                self._check_gradients()
                self._move(active, statistics)
        finally:
            self._forget()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and forget the forward passes that they came from."""
        super().zero_grad(set_to_none)
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Return the parameter groups, the number of steps, and the metric and inverse of every
        layer.
        """
        layers = {name: {key: getattr(b, key) for key in STATE} for name, b in self.blocks.items()}
        counts = {name: getattr(self, name) for name in COUNTS}
        return {**super().state_dict(), **counts, "layers": layers}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state from :meth:`state_dict`."""
        check.entries(state_dict, {"layers", *COUNTS}, "RNGD")
        layers = state_dict["layers"]
        if set(layers) != set(self.blocks):
            raise ValueError(
                f"state_dict: expected the layers {list(self.blocks)}, got {list(layers)}"
            )
        for name, block in self.blocks.items():
            if not block.fits(layers[name]):
                raise ValueError(
                    f"state_dict: expected metrics of layer {name!r} for {block.neurons} "
                    f"neurons with {block.dim} "
                    f"parameters and blocks = {block.kind!r}, got other shapes; build model "
                    "and optimizer as they "
                    "were when it was saved"
                )
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        for name in COUNTS:
            setattr(self, name, state_dict[name])
        for name, block in self.blocks.items():
            for key in STATE:
                value = layers[name][key]
                if isinstance(value, torch.Tensor):
                    dtype = block.dtype if value.is_floating_point() else None
                    value = value.to(block.layer.weight.device, dtype, copy=True)
                setattr(block, key, value)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        own = ("model", *COUNTS, "memory_limit", "omega", "kinds", "activations", "first", "blocks")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model" in state:  # not while torch loads a state_dict
            self._attach()

    # ---- Parts

    def _active(self, block: Block) -> bool:
        """Return whether a layer has gradients; zeros that no pass explains are a layer that took
        no part.
        """
        grads = [p.grad for p in block.parts if p.grad is not None]
        if block.pending or block.constant is not None or not block.due:
            return bool(grads)
        return any(bool(g.count_nonzero()) for g in grads)

    def _statistics(self, block: Block) -> torch.Tensor | None:
        """Return what the running mean shall take in, or None if nothing."""
        if not block.due or block.constant is not None:
            return None
        if not block.pending:
            raise ValueError(
                "step: expected a forward and backward pass through the model since the "
                "last step, but layer "
                f"{block.name!r} has a gradient and saw none; call the model itself, on "
                "which RNGD was built, "
                "or leave its parameters out with parameters="
            )
        statistics = block.statistics()
        if isfinite(float(statistics.sum())) or bool(statistics.isfinite().all()):
            return statistics
        if block.sees_finite():
            raise ValueError(
                f"step: the squares of the inputs of layer {block.name!r} overflow {block.dtype}; "
                "scale the inputs, or use .double() on them and the model"
            )
        raise ValueError(
            f"step: expected finite inputs, got NaN or infinity into layer {block.name!r}"
        )

    def _check_gradients(self) -> None:
        """Refuse NaN and infinity."""
        grads = [
            p.grad for group in self.param_groups for p in group["params"] if p.grad is not None
        ]
        numbers = [g._values() if g.is_sparse else g for g in grads]
        sums = [g.sum(dtype=torch.promote_types(g.dtype, torch.float32)) for g in numbers]
        if not sums or isfinite(float(torch.stack([total.to(sums[0]) for total in sums]).sum())):
            return
        if not all(bool(g.isfinite().all()) for g in numbers):
            raise ValueError(
                "step: expected finite gradients, got NaN or infinity; try a smaller lr or "
                "a larger eps"
            )

    def _move(self, active: list[Block], statistics: list[torch.Tensor | None]) -> None:
        self.iteration += 1
        groups = {id(p): group for group in self.param_groups for p in group["params"]}
        plain = dict.fromkeys(p for group in self.param_groups for p in group["params"])
        for block, new in zip(active, statistics, strict=True):
            group = groups[id(block.parts[0])]
            if block.due:
                block.accumulate(new, group["eps"], group["decay"] ** self.statistics_every)
            if self.iteration % group["period"] == 0:
                block.refresh(group["relative_eps"])
            d, start = block.direction(), 0
            for p in block.parts:
                width = p[0].numel()
                if p.grad is not None:
                    p.add_(d[:, start : start + width].reshape(p.shape), alpha=-groups[id(p)]["lr"])
                start += width
                del plain[p]
        for p in plain:
            if p.grad is not None:
                p.add_(p.grad, alpha=-groups[id(p)]["lr"])
        self._announce()

    def _announce(self) -> None:
        """Tell every block whether the next step takes in its statistics."""
        for block in self.blocks.values():
            block.due = (self.iteration + 1) % self.statistics_every == 0

    def _forget(self) -> None:
        for block in self.blocks.values():
            block.forget()

    def _attach(self) -> None:
        """Put a hook on every layer, in the place of blind ones that were copied with the model."""
        handles = []
        for block in self.blocks.values():
            hooks = block.layer._forward_hooks
            for key in [
                key
                for key, hook in hooks.items()
                if isinstance(hook, Tap) and hook.block() in (None, block)
            ]:
                del hooks[key]
                block.layer._forward_hooks_with_kwargs.pop(key, None)
            handles.append(block.layer.register_forward_hook(Tap(block), with_kwargs=True))
        for handle in handles:
            weakref.finalize(self, handle.remove).atexit = False

    def _add_blocks(self) -> None:
        """Make the blocks of layers whose parameters are among the groups."""
        chosen = {id(p) for group in self.param_groups for p in group["params"]}
        modules: dict[str, Any] = dict(self.model.named_modules())
        blocks = dict(self.blocks)
        parts = {
            name: {id(modules[name].weight), id(modules[name].bias)} & chosen
            for name in self.activations
        }
        parts = {name: found for name, found in parts.items() if found}
        require_known(self.activations, parts)
        for name, found in parts.items():
            if name not in blocks:
                _check_layer(name, modules)
                kind = self._kind(name)
                blocks[name] = Block(
                    name,
                    modules[name],
                    self.activations[name],  # type: ignore[arg-type]  # require_known refused texts
                    kind,
                    self.omega,
                    found,
                )
            elif found != {id(p) for p in blocks[name].parts}:
                raise ValueError(
                    f"add_param_group: layer {name!r} has its metric; add its parameters together"
                )
        self._check_memory(blocks.values())
        self.blocks = blocks
        self._announce()
        self._attach()

    def _kind(self, name: str) -> str:
        default = "linear" if name == self.first or self.activations[name] == LINEAR else "neuron"
        kinds = self.kinds if isinstance(self.kinds, Mapping) else {}
        if isinstance(self.kinds, str):
            default = self.kinds
        unknown = [key for key in kinds if key not in self.activations]
        kind = kinds.get(name, default)
        if unknown or kind not in KINDS or not isinstance(self.kinds, str | Mapping | None):
            raise ValueError(
                f"blocks: expected one of {', '.join(KINDS)}, or a dict of them by names among "
                f"{list(self.activations)}, got {self.kinds!r}"
            )
        return kind

    def _check_memory(self, blocks: Iterable[Block]) -> None:
        need = {b.name: b.memory / 2**30 for b in blocks}
        if sum(need.values()) > self.memory_limit:
            name = max(need, key=need.get)  # type: ignore[arg-type]  # its own keys
            raise ValueError(
                f"model: the metrics would take {sum(need.values()):.3g} GiB, more than "
                "memory_limit = "
                f"{self.memory_limit:.3g}; layer {name!r} takes {need[name]:.3g}. Give its "
                "neurons a common metric "
                f'with blocks={{{name!r}: "mean"}} or "linear", or raise memory_limit'
            )

    @torch.no_grad()
    def _fix_first(self, inputs: torch.Tensor) -> None:
        """Compute the metric of the first layer once."""
        block = self.blocks.get(self.first)
        if block is None or block.kind != "linear":
            raise ValueError(
                f'input_statistics: expected blocks[{self.first!r}] = "linear", whose '
                "metric does not depend on "
                f"the weights, got {block.kind if block else 'a layer that is not trained'!r}"
            )
        if check.floating(inputs, "input_statistics").ndim < 2:
            raise ValueError(
                f"input_statistics: expected a batch, shape (n, ...), got {tuple(inputs.shape)}"
            )
        total: Any  # a tensor after the first part
        total, seen = 0.0, []
        handle = block.layer.register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(first(args, kwargs)), with_kwargs=True
        )
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            self.model.eval()
            for part in inputs.split(1000):
                self.model(part)
                x = block.inputs(seen.pop())
                total = total + x.mT @ x
        except RuntimeError as error:
            raise ValueError(
                f"input_statistics: expected inputs of the model, got {inputs.dtype} of "
                f"shape {tuple(inputs.shape)}, "
                f"which it refuses: {error}"
            ) from error
        finally:
            handle.remove()
            for module, training in modes:
                module.training = training
        block.constant = total / len(inputs)


COUNTS = ("iteration", "statistics_every")
STATE = ("S", "identity", "share", "constant", "inverse", "live", "rest", "due")


def _check_group(group: dict[str, Any]) -> None:
    for key in ("lr", "eps", "relative_eps"):
        check.non_negative(group[key], key)
    check.whole(group["period"], "period")
    if not 0 <= check.non_negative(group["decay"], "decay") < 1:
        raise ValueError(f"decay: expected a number >= 0 and < 1, got {group['decay']!r}")


def _check_layer(name: str, modules: dict[str, Any]) -> None:
    """Refuse a layer that has no metric here."""
    layer = modules[name]
    for other, module in modules.items():
        if other != name and {id(p) for p in module.parameters(False)} & {
            id(p) for p in layer.parameters(False)
        }:
            raise ValueError(
                f"model: layers {name!r} and {other!r} share a parameter; a tied layer has "
                "no metric here: leave it "
                "out with parameters="
            )
    if is_lazy(layer.weight):
        raise ValueError(
            f"model: layer {name!r} is not initialized; run the model on a batch first"
        )
    if isinstance(layer, nn.Conv2d) and (layer.groups != 1 or layer.padding_mode != "zeros"):
        raise ValueError(
            f"model: layer {name!r} is a Conv2d with groups = {layer.groups} and padding_mode = "
            f"{layer.padding_mode!r}; RNGD takes groups = 1 and padding_mode = 'zeros'"
        )
