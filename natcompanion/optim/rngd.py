r"""Relative natural-gradient descent: every neuron has a small Fisher metric of its own."""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from natcompanion import _checks as check
from natcompanion._distributed import reduce_sum, world_size
from natcompanion._memory import beyond
from natcompanion._modules import own, own_parameters
from natcompanion._moments import first
from natcompanion.optim._activations import (
    LENT,
    LINEAR,
    NEVER,
    TWICE,
    UNTRACED,
    find_activations,
)
from natcompanion.optim._blocks import KINDS, Block, InputTap, PassTap, uses
from natcompanion.optim.base import (
    Directions,
    Parameters,
    Preconditioned,
    Share,
    require_module,
    trainable,
    warn_if_plain,
)


class RNGD(Preconditioned):
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
    modified, except that its layers carry a forward hook while the optimizer lives, and where it
    cannot be traced, so does the model itself.

    A layer has a metric if it is a Linear, a Conv2d or the Conv1D of GPT-2. Where its output meets
    a norm, a residual sum or an unknown activation, as in a ResNet or a transformer, or where the
    model cannot be traced, that is the metric of a linear layer, which what follows has no part in:
    its subsystem ends at its output.

    All else takes plain gradient steps: other modules, grouped convolutions, layers with more than
    ``max_features`` inputs, layers that share or lend parameters or are used twice. ``plain`` lists
    them, and a warning says so if that is over half of the model. Where the model cannot be traced,
    its first pass that the metric takes in shows who lends parameters and who is used twice.

    Parameters
    ----------
    model : Module
        The model, on whose layers the optimizer looks while it is called. It may return outputs of
        any form.
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
        layer, that of a linear layer, with :math:`\nu = 1`; the activation need not be known.
        ``"diagonal"``: the diagonal of that, for inputs in their principal axes; see
        :func:`natcompanion.relative.principal_inputs`. By default ``"linear"`` for the first layer
        and for layers without an activation, as in the paper, and for those whose activation is not
        known; elsewhere ``"mean"`` for a Conv2d and ``"neuron"`` for the others. Asked for
        ``"neuron"`` or ``"mean"``, a layer without a known activation takes plain steps.
    activations : dict of str to str or Module, optional
        Activation of a layer, by layer name: ``"relu"``, ``"tanh"``, ``"sigmoid"``, ``"elu"``,
        ``"linear"``, or a module such as ``nn.ELU(0.5)``. Where it is left out, tracing the model
        with ``torch.fx`` finds it or does not.
    statistics_every : int
        The running mean takes in every k-th step only, with the decay :math:`\lambda^k`: by default
        ten of a period. A larger k is cheaper and noisier; 1 is the paper's.
    sample : Tensor, optional
        Inputs of the model. The metric of the first layer, whose inputs do not change as training
        goes on, is then computed once from them instead of at every step.
    omega : float
        Width of the bend of the rectifier's :math:`\nu` (Eq. 18); 0 is the hard one.
    memory_limit : float
        Most gibibytes that the metrics may take; see Notes.
    max_features : int
        Layers with more inputs than this get plain steps, except with ``"diagonal"``: time and
        memory of their statistics grow with the cube and the square. Of a Conv2d, all the inputs of
        a kernel count.
    momentum, nesterov, weight_decay
        As for :class:`natcompanion.optim.Preconditioned`: momentum of the natural gradient, and
        decoupled decay.
    parameters : iterable, optional
        Parameters or their names, or parameter groups, each a dict with ``"params"`` and perhaps
        options of its own; all of the model if left out. A layer has the ``"eps"``, ``"period"``,
        ``"decay"``, ``"relative_eps"``, ``"statistics_every"`` and ``"omega"`` of its weight's
        group, and every parameter the other options of its own group.

    Attributes
    ----------
    plain : dict of str to str
        Why a module takes plain steps, by its name; the largest first.

    Raises
    ------
    ValueError
        On arguments out of range; if the metrics would not fit into ``memory_limit``.

    Notes
    -----
    Memory: a layer of m neurons with D inputs and the bias stores m (D + 1)^2 numbers of inverses
    and half as many of running means with ``"neuron"``, and 2 (D + 1)^2 with the shared kinds. For
    Conv2d, D is the number of input channels times the kernel's area, and a neuron is an output
    channel: its metric sums over the positions, because the neuron answers at each. A Linear layer
    does the same with inputs (n, positions, D).

    Order within a step: the running mean takes in the statistics, the inverse is renewed if the
    number of steps is a multiple of ``period``, then the parameters move. Statistics and inverses
    are float32 for half precision. A step on inputs or gradients that are not finite is refused and
    changes nothing. With several processes of ``torch.distributed`` the statistics are means over
    the examples of all.

    A weight or a bias that is frozen has no part in the inverse, and joins it when it is trained.

    The statistics are those of the passes whose gradients the parameters hold: evaluation,
    transforms of ``torch.func`` and gradients by the inputs alone leave no trace.

    The start at I is a damping of its own, :math:`\lambda^t` after t steps. As it fades, a step
    size that was stable can become too large for ``eps``.

    Source: rfim Section 5.2, Eqs. 31-33.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(),
    ...                       nn.Linear(6, 3))
    >>> optimizer = RNGD(model, lr=0.1, period=20)
    >>> x, t = torch.randn(50, 4), torch.randint(3, (50,))
    >>> for _ in range(40):
    ...     optimizer.zero_grad()
    ...     nn.functional.cross_entropy(model(x), t).backward()
    ...     optimizer.step()
    >>> {name: tuple(optimizer.metric(name).shape) for name in optimizer.blocks}
    {'0': (5, 5), '2': (6, 9, 9), '4': (7, 7)}

    A layer before a norm has the metric of a linear one:

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    >>> RNGD(model, lr=0.1).plain
    {'1': 'a LayerNorm has no metric here'}
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        eps: float = 1e-2,
        period: int = 100,
        decay: float = 0.995,
        relative_eps: float = 0.0,
        blocks: str | Mapping[str, str] | None = None,
        activations: Mapping[str, str | nn.Module] | None = None,
        statistics_every: int | None = None,
        sample: torch.Tensor | None = None,
        omega: float = 0.0,
        memory_limit: float = 2.0,
        max_features: int = 4096,
        parameters: Parameters = None,
    ) -> None:
        require_module(model, "RNGD")
        if statistics_every is None:
            statistics_every = max(1, check.whole(period, "period") // 10)
        self.memory_limit = check.positive(memory_limit, "memory_limit")
        self.max_features = check.whole(max_features, "max_features")
        self.kinds = blocks
        self.activations, self.first = find_activations(model, activations)
        self.blocks: dict[str, Block] = {}
        self.plain: dict[str, str] = {}
        self._found: dict[str, str] = {}  # in passes: why a layer that has a block is plain
        self._calls: Counter[str] | None = None  # in the pass through the model that is at work
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "eps": eps,
            "period": period,
            "decay": decay,
            "relative_eps": relative_eps,
            "statistics_every": statistics_every,
            "omega": omega,
        }
        super().__init__(model, parameters, defaults)
        if sample is not None:
            self._fix_first(sample)
        warn_if_plain(self)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        for key in ("eps", "relative_eps", "omega"):
            check.non_negative(group[key], key)
        for key in ("period", "statistics_every"):
            check.whole(group[key], key)
        if not 0 <= check.non_negative(group["decay"], "decay") < 1:
            raise ValueError(f"decay: expected a number from 0 to below 1, got {group['decay']!r}")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step and return the loss of ``closure``, if there is one.

        Raises
        ------
        ValueError
            If a gradient or an input is not finite, or there is a gradient but no forward pass was
            seen. Nothing is changed then.
        """
        try:
            return super().step(closure)
        finally:
            self._forget()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and forget the forward passes that they came from."""
        super().zero_grad(set_to_none)
        self._forget()

    def metric(self, name: str) -> torch.Tensor:
        """Return the present metric of a layer.

        Parameters
        ----------
        name : str
            Of the layer, as in ``model.named_modules()``; with D inputs, its bias among them, and m
            neurons.

        Returns
        -------
        Tensor, shape (m, D, D), (D, D) or (D,)
            One matrix for each neuron, or one for the layer, or the diagonal of that.
        """
        block = self.blocks[name]
        return block.metric(self.state.get(block.parts[0]) or block.new())

    # ---- Parts

    def _directions(self, gradients: Directions) -> Directions:
        if torch.compiler.is_compiling():  # a compiled step runs as it is
            return self._directions_uncompiled(gradients)
        return self._preconditioned(gradients)

    @torch._disable_dynamo
    def _directions_uncompiled(self, gradients: Directions) -> Directions:
        return self._preconditioned(gradients)

    def _preconditioned(self, gradients: Directions) -> Directions:
        statistics = self._statistics(gradients) if self._watches() else {}
        for name, block in self.blocks.items():
            if name in self._found:
                continue
            if all(p.grad is None or not p.requires_grad for p in block.parts):
                continue
            group, kept = self._group(block), self.state[block.parts[0]]
            if "kind" not in kept:
                kept.update(block.new())
            if name in statistics or ("constant" in kept and _due(group)):
                decay = group["decay"] ** group["statistics_every"]
                block.accumulate(kept, statistics.get(name), group["eps"], decay)
            if (group["steps"] + 1) % group["period"] == 0:
                block.refresh(kept, group["relative_eps"])
            gradients |= block.directions(kept, gradients, group["relative_eps"])
        return gradients

    def _group(self, block: Block) -> dict[str, Any]:
        """Return the group of a layer's weight, or of its bias if that is all."""
        if len(self.param_groups) == 1:
            return self.param_groups[0]
        return self._group_of()[block.parts[0]]

    def _watches(self) -> bool:
        """Return whether the coming step takes in any statistics."""
        return any(map(_due, self.param_groups))

    def _see(self, name: str, x: torch.Tensor, output: torch.Tensor) -> None:
        """Note a forward pass of a layer, if its statistics are wanted."""
        block = self.blocks.get(name)
        if self._calls is not None and torch.is_grad_enabled() and output.requires_grad:
            self._calls[name] += 1
        if block is not None and name not in self._found and self._wanted(block):
            block.see(x, output, self._group(block)["omega"])

    def _begin_pass(self) -> None:
        self._calls = Counter()

    def _end_pass(self, output: Any) -> None:
        """Find what tracing the model did not show: layers that lend parameters, which then enter
        the graph more often than the layer is called, or that are called twice in a pass.
        """
        calls, self._calls = self._calls, None
        if calls is None or not (entering := uses(output)):  # no gradient will come back
            return
        found = {}
        for name, block in self.blocks.items():
            if not self._untraced(name):
                continue
            if calls[name] > 1:
                found[name] = TWICE
            elif any(entering[id(p)] > calls[name] for p in block.parts):
                found[name] = LENT
        self._leave_plain(found)

    def _leave_plain(self, found: dict[str, str]) -> None:
        """Let layers that have a block take plain steps from now on."""
        if found.keys() - self._found.keys():
            self._found, self.plain = found | self._found, self.plain | found
            warn_if_plain(self)

    def _untraced(self, name: str) -> bool:
        """Return whether a layer has its metric though the model could not be traced."""
        reason = self.activations[name]
        traced = not isinstance(reason, str) or not reason.startswith(UNTRACED)
        return not traced and self._asked(name) is None

    def _wanted(self, block: Block) -> bool:
        """Return whether the coming step takes in the statistics of a layer."""
        return _due(self._group(block)) and "constant" not in self.state.get(block.parts[0], {})

    def _statistics(self, gradients: Directions) -> dict[str, torch.Tensor]:
        """Return what the running means shall take in, by layer, averaged over the examples of all
        processes.
        """
        several = world_size() > 1
        due = {
            name: block
            for name, block in self.blocks.items()
            if self._wanted(block)
            and any(p.requires_grad and (several or p in gradients) for p in block.parts)
        }
        examples = {
            name: -inf if name in self._found else float(block.examples)
            for name, block in due.items()
        }
        found = {
            name: block.statistics()
            for name, block in due.items()
            if block.pending and name not in self._found
        }
        if several and due:
            found, examples = _over_processes(due, found, examples)
        for name, block in due.items():
            if examples[name] < 0:  # found by this process or by another
                self._leave_plain({name: self._found.get(name, LENT)})
            elif not examples[name]:
                self._refuse_unseen(block, gradients)
        for name, statistics in found.items():
            self._refuse_not_finite(due[name], statistics)
        if any("kind" not in self.state.get(due[name].parts[0], {}) for name in found):
            self._check_memory()
        return found

    def _refuse_unseen(self, block: Block, gradients: Directions) -> None:
        """Refuse the gradient of a layer that no pass explains; zeros are a layer that took no
        part.
        """
        if any(bool(gradients[p].count_nonzero()) for p in block.parts if p in gradients):
            raise ValueError(
                f"step: expected a forward and backward pass through the model since the last "
                f"step, but layer {block.name!r} has a gradient and saw none; call the model "
                "itself, on which RNGD was built, or leave its parameters out with parameters="
            )

    def _refuse_not_finite(self, block: Block, statistics: torch.Tensor) -> None:
        if isfinite(float(statistics.sum())) or bool(statistics.isfinite().all()):
            return
        if block.sees_finite():
            raise ValueError(
                f"step: the squares of the inputs of layer {block.name!r} overflow {block.dtype}; "
                "scale the inputs, or use .double() on them and the model"
            )
        raise ValueError(
            f"step: expected finite inputs, got NaN or infinity into layer {block.name!r}"
        )

    def _forget(self) -> None:
        for block in self.blocks.values():
            block.forget()

    # ---- Layers

    def _changed(self) -> None:
        """Find the layers whose parameters are among the groups, and watch them."""
        chosen = {id(p) for p in self._leaves()}
        blocks, plain = {}, {}
        modules = {id(m): (name, m) for name, m in self.model.named_modules()}.values()
        owners = Counter(id(p) for _, m in modules for p in own_parameters(m))
        for name, module in modules:
            if not {id(p) for p in own_parameters(module)} & chosen:
                continue
            if (reason := self._refusal(name, module, owners)) is not None:
                plain[name] = reason
                continue
            mine = {id(own(module, key)) for key in ("weight", "bias")} & chosen
            if not mine:
                plain[name] = "its weight is computed from other parameters, or is not trained here"
                continue
            block = self._block(name, module, mine)
            if (reason := self._wide(block)) is not None:
                plain[name] = reason
            else:
                blocks[name] = block
        self._check_kinds()
        sizes = {name: _size(module) for name, module in modules if name in plain}
        self.plain = dict(sorted(plain.items(), key=lambda item: sizes[item[0]], reverse=True))
        same = {name for name, block in blocks.items() if self.blocks.get(name) is block}
        self._found = {name: why for name, why in self._found.items() if name in same}
        self.plain |= self._found
        self.blocks = blocks
        self._check_memory()
        self._attach()

    def _refusal(self, name: str, module: nn.Module, owners: Counter) -> str | None:
        """Return why a module takes plain steps, or None if it has a metric."""
        if name not in self.activations:
            return f"{check.kind(module)} has no metric here"
        return _without_metric(module, owners) or self._unknown(name)

    def _unknown(self, name: str) -> str | None:
        """Return why a layer has no metric of the kind that it shall have, or None."""
        activation, asked = self.activations[name], self._asked(name)
        if not isinstance(activation, str) or (asked is None and activation not in NEVER):
            return None
        known = asked in ("linear", "diagonal") and activation not in (TWICE, LENT)
        return None if known else activation

    def _wide(self, block: Block) -> str | None:
        """Return why a layer has too many inputs for a matrix of them, or None."""
        if block.width <= self.max_features or block.kind == "diagonal":
            return None
        operations = 2e-9 * block.dim**3 * (block.neurons if block.own else 1)
        what = f"it has {block.width} inputs"
        return beyond(what, self.max_features, 1e-9 * block.memory, operations)

    def _block(self, name: str, layer: nn.Module, chosen: set[int]) -> Block:
        """Return the block of a layer, the present one if it has the same parameters."""
        old = self.blocks.get(name)
        if old is not None and old.layer is layer and {id(p) for p in old.parts} == chosen:
            return old
        if old is not None and self.state.get(old.parts[0]):
            raise ValueError(
                f"add_param_group: layer {name!r} has its metric; add its parameters together"
            )
        kind = self._asked(name) or self._default(name, layer)
        return Block(name, layer, self.activations[name], kind, chosen)

    def _asked(self, name: str) -> str | None:
        """Return the kind of metric that was asked for, if any was."""
        return self.kinds.get(name) if isinstance(self.kinds, Mapping) else self.kinds

    def _default(self, name: str, layer: nn.Module) -> str:
        activation = self.activations[name]
        if name == self.first or activation == LINEAR or isinstance(activation, str):
            return "linear"
        return "mean" if isinstance(layer, nn.Conv2d) else "neuron"

    def _check_kinds(self) -> None:
        """Refuse kinds of metric, or layers, that are not known."""
        chosen = self.kinds if isinstance(self.kinds, Mapping) else {}
        kinds = list(chosen.values()) if chosen else [self.kinds or "linear"]
        if set(chosen) - set(self.activations) or any(kind not in KINDS for kind in kinds):
            raise ValueError(
                f"blocks: expected one of {', '.join(KINDS)}, or a dict of them by names among "
                f"{list(self.activations)}, got {self.kinds!r}"
            )

    def _check_memory(self) -> None:
        """Refuse metrics of what is trained now that are too large."""
        trained = [b for b in self.blocks.values() if any(p.requires_grad for p in b.parts)]
        need = {b.name: b.memory / 2**30 for b in trained}
        if sum(need.values()) > self.memory_limit:
            name = max(need, key=need.get)  # type: ignore[arg-type]  # its own keys
            raise ValueError(
                f"model: the metrics would take {sum(need.values()):.3g} GiB, more than "
                f"memory_limit = {self.memory_limit:.3g}; layer {name!r} takes {need[name]:.3g}. "
                f'Give its neurons a common metric with blocks={{{name!r}: "mean"}} or "linear", '
                "or raise memory_limit"
            )

    def _attach(self) -> None:
        """Put a hook on every layer, in the place of blind ones that were copied with the model,
        and two on the model where it could not be traced.
        """
        handles = []
        for name, block in self.blocks.items():
            self._remove_taps(block.layer)
            tap = InputTap(self, name)
            handles.append(block.layer.register_forward_hook(tap, with_kwargs=True))
        if any(map(self._untraced, self.blocks)):
            self._remove_taps(self.model)
            both = PassTap(self)
            handles.append(self.model.register_forward_pre_hook(both, with_kwargs=True))
            handles.append(self.model.register_forward_hook(both, with_kwargs=True))
        for handle in handles:
            weakref.finalize(self, handle.remove).atexit = False

    def _remove_taps(self, module: nn.Module) -> None:
        """Remove the hooks of this optimizer and those that are blind."""
        for hooks, with_kwargs in (
            (module._forward_hooks, module._forward_hooks_with_kwargs),
            (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        ):
            for key, hook in list(hooks.items()):
                if isinstance(hook, (InputTap, PassTap)) and hook.optimizer() in (None, self):
                    del hooks[key]
                    with_kwargs.pop(key, None)

    # ---- Saving and loading

    def _check_state(self, state: dict[nn.Parameter, dict[str, Any]]) -> None:
        super()._check_state(state)
        blocks = {block.parts[0]: block for block in self.blocks.values()}
        for p, kept in state.items():
            if not isinstance(p, torch.Tensor) or "kind" not in kept:
                continue
            if p not in blocks:
                raise ValueError("metrics of a layer that takes plain steps here")
            block = blocks[p]
            if not block.fits(kept):
                raise ValueError(
                    f"expected metrics of layer {block.name!r} for {block.neurons} neurons with "
                    f"{block.dim} parameters and blocks = {block.kind!r}, got other shapes"
                )

    def _restored(self) -> None:
        self._forget()

    @torch.no_grad()
    def _fix_first(self, sample: torch.Tensor) -> None:
        """Compute the metric of the first layer once."""
        block = self.blocks.get(self.first)
        if block is None or block.kind not in ("linear", "diagonal"):
            raise ValueError(
                f'sample: expected blocks[{self.first!r}] = "linear", whose metric does not depend '
                f"on the weights, got {block.kind if block else 'a layer without a metric'!r}"
            )
        looked_up = isinstance(sample, torch.Tensor) and sample.dtype in (torch.int32, torch.int64)
        if not (looked_up and sample.numel()):
            check.floating(sample, "sample")
        if sample.ndim < 2:
            raise ValueError(f"sample: expected a batch, shape (n, ...), got {tuple(sample.shape)}")
        total = block.nothing()
        try:
            for part in sample.split(1000):
                received = _received(self.model, block.layer, part)
                self._refuse_changing(block, received)
                total += block.moments(block.inputs(received.detach()))
        except RuntimeError as error:
            raise ValueError(
                f"sample: expected inputs of the model, got {sample.dtype} of shape "
                f"{tuple(sample.shape)}, which it refuses: {error}"
            ) from error
        (constant,) = Share(len(sample)).mean(total / len(sample))
        self.state[block.parts[0]].update(block.new(), constant=constant)

    def _refuse_changing(self, block: Block, received: torch.Tensor) -> None:
        """Refuse inputs of a layer that depend on what is trained."""
        if not received.requires_grad:
            return
        leaves, along = list(trainable(self._leaves())), torch.ones_like(received)
        slopes = torch.autograd.grad(received, leaves, along, allow_unused=True)
        changing = [p for p, slope in zip(leaves, slopes, strict=True) if slope is not None]
        if changing:
            names = {id(p): name for name, p in self.model.named_parameters()}
            raise ValueError(
                f"sample: expected a first layer whose inputs do not change, but those of layer "
                f"{block.name!r} depend on {names[id(changing[0])]!r}, which is trained; leave "
                "sample out, or freeze what comes before the layer"
            )


def _due(group: dict[str, Any]) -> bool:
    """Return whether the coming step takes in the statistics of a group's layers."""
    return (group["steps"] + 1) % group["statistics_every"] == 0


def _over_processes(
    due: dict[str, Block], found: dict[str, torch.Tensor], examples: dict[str, float]
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Return the statistics and the numbers of the examples of all processes; one may have none
    of a layer.
    """
    counts = torch.tensor([examples[name] for name in due], dtype=torch.float64)
    reduce_sum([counts])
    totals = dict(zip(due, counts.tolist(), strict=True))
    parts = {
        name: found[name] * (examples[name] / total) if name in found else due[name].nothing()
        for name, total in totals.items()
        if total > 0
    }
    reduce_sum(list(parts.values()))
    return parts, totals


def _received(model: nn.Module, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return what a layer receives when the model is evaluated at ``x``; the mode is put back."""
    seen: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(first(args, kwargs)), with_kwargs=True
    )
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.enable_grad():
            model(x.detach())
    finally:
        handle.remove()
        for module, training in modes:
            module.training = training
    if not seen:
        raise ValueError("sample: expected a model that calls its first layer; leave sample out")
    return seen.pop()


def _size(module: nn.Module) -> int:
    """Return how many numbers a module holds itself."""
    return sum(p.numel() for p in own_parameters(module) if not is_lazy(p))


def _without_metric(layer: Any, owners: Counter) -> str | None:
    """Return why a linear or convolutional layer has no metric here, or None."""
    if any(owners[id(p)] > 1 for p in own_parameters(layer)):
        return "it shares parameters with another layer"
    if any(map(is_lazy, own_parameters(layer))):
        return "it is not initialized; run the model on a batch before RNGD is built"
    if not all(p.numel() for p in own_parameters(layer)):
        return "it has no inputs or no outputs"
    if isinstance(layer, nn.Conv2d) and (layer.groups != 1 or layer.padding_mode != "zeros"):
        return f"it is a Conv2d with groups = {layer.groups}, padding_mode = {layer.padding_mode!r}"
    return None
