r"""K-FAC: gradient descent with a Kronecker-factored Fisher matrix."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion._modules import own_parameters
from natcompanion._own_likelihood import complete
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics.dense import Output
from natcompanion.metrics.kronecker import (
    KroneckerFactors,
    as_matrix,
    as_parameter,
    factors_of,
    find_layers,
)
from natcompanion.metrics.model_function import ModelFunction
from natcompanion.optim.base import (
    Directions,
    Parameters,
    Preconditioned,
    Share,
    trainable,
    warn_if_plain,
)

Inverse = Callable[[torch.Tensor], torch.Tensor]
Block = tuple[str, bool, bool]
"""The name of a layer, and whether its weight and its bias are trained."""


class KFAC(Preconditioned):
    r"""Gradient descent with a Kronecker-factored Fisher matrix.

    .. math:: [W\, b] \leftarrow [W\, b] - \mathrm{lr}\; \operatorname{mat}\!\left(
              (B \otimes A + \lambda I)^{-1} \operatorname{vec} [G_W\, g_b]\right)

    for each layer, with the factors of :func:`natcompanion.metrics.kronecker_factors`. An ordinary
    optimizer, but for one call more: the factors come from a batch of inputs (no targets) given to
    :meth:`refresh` before the first step and as often after it as one likes. Linear, Conv1d, Conv2d
    and Embedding layers that are used once have factors, and the Conv1D of the package
    transformers; all else takes plain gradient steps, see ``plain``. ::

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
    momentum, nesterov, weight_decay
        As for :class:`natcompanion.optim.Preconditioned`: momentum of the preconditioned gradient,
        and decoupled decay.
    damping : float
        :math:`\lambda`, greater than 0.
    factored : bool
        Spread the damping over the factors; see
        :meth:`natcompanion.metrics.KroneckerFactors.inverse`.
    decay : float
        How much of the earlier factors is kept at a refresh, from 0 (none) to below 1.
    sharing, draws, generator
        As for :func:`natcompanion.metrics.kronecker_factors`.
    max_features : int
        Layers with more inputs or outputs than this take plain steps: time and memory of their
        factors grow with the cube and the square. The inputs of an Embedding do not count.
    parameters : iterable, optional
        Parameters or their names, or parameter groups, each a dict with ``"params"`` and perhaps
        ``"lr"``, ``"momentum"``, ``"weight_decay"``; all of the model if left out.

    Raises
    ------
    ValueError
        On arguments out of range.

    Examples
    --------
    >>> import torch
    >>> from natcompanion.likelihoods import Categorical
    >>> from natcompanion.optim import KFAC
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8),
    ...                             torch.nn.Linear(8, 3))
    >>> optimizer = KFAC(model, Categorical(), lr=0.1)
    >>> optimizer.plain
    {'1': 'a LayerNorm, has no factors'}
    >>> x, t = torch.randn(20, 4), torch.randint(3, (20,))
    >>> optimizer.refresh(x)
    >>> Categorical().nll(model(x), t).mean().backward()
    >>> optimizer.step()

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
        nesterov: bool = False,
        weight_decay: float = 0.0,
        damping: float = 1e-3,
        factored: bool = False,
        decay: float = 0.0,
        sharing: str = "expand",
        draws: int | None = None,
        generator: torch.Generator | None = None,
        max_features: int = 4096,
        parameters: Parameters = None,
        output: Output = None,
    ) -> None:
        self.output = output
        self.likelihood, self.generator = complete(likelihood), generator
        self._inverses: dict[Block, Inverse] = {}
        self._warned = False
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "damping": damping,
            "factored": factored,
            "decay": decay,
            "sharing": sharing,
            "draws": draws,
            "max_features": max_features,
        }
        super().__init__(model, parameters, defaults)
        warn_if_plain(self)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check.positive(group["damping"], "damping")
        if not 0 <= check.non_negative(group["decay"], "decay") < 1:
            raise ValueError(f"decay: expected a number from 0 to below 1, got {group['decay']!r}")
        if group["sharing"] not in ("expand", "reduce"):
            raise ValueError(f'sharing: expected "expand" or "reduce", got {group["sharing"]!r}')
        check.whole(group["max_features"], "max_features")
        if group["draws"] is not None:
            check.whole(group["draws"], "draws")

    @property
    def plain(self) -> dict[str, str]:
        """Why a module takes plain gradient steps, by its name.

        What only a pass can show is known after the first refresh. One warning says so if that is
        over half of the parameters.
        """
        chosen = list(trainable(self._leaves()))
        most = self.param_groups[0]["max_features"]
        found = find_layers(ModelFunction(self.model, chosen), most)[1] if chosen else {}
        for name, layer in self._layers():
            if (reason := self.state.get(layer[0], {}).get("plain")) is not None:
                found[name] = reason
        return found

    @property
    def factors(self) -> dict[str, KroneckerFactors]:
        """The present factors by the name of the layer; empty before the first refresh."""
        found = {}
        for name, layer in self._layers():
            kept = self.state.get(layer[0], {})
            if "A" in kept:
                newest = kept.get("A_newest", kept["A"]), kept.get("B_newest", kept["B"])
                found[name] = KroneckerFactors(*newest, kept["bias"])
        return found

    def refresh(self, x: torch.Tensor, *, invert: bool = True) -> None:
        """Take the factors from the inputs ``x`` (n, ...) at the present parameters, and invert
        them.

        Parameters
        ----------
        x : Tensor, shape (n, ...), or a tuple or dictionary of these
            One batch. Of a loader, join the inputs, which the model sees in parts:
            ``refresh(torch.cat([x for x, _ in loader]))``; or see the example.
        invert : bool
            If False, only the running mean of the factors is renewed, and the steps go on with the
            earlier inverses: with ``decay``, factors may be had often and inverses seldom.

        Raises
        ------
        ValueError
            If ``x`` does not fit the model. The earlier factors are kept.

        Examples
        --------
        The mean over the batches of a loader, one in memory at a time and one inversion at the end:
        the k-th enters the running mean with the weight 1 / k.

        >>> from natcompanion.likelihoods import Categorical
        >>> model, loader = nn.Linear(3, 2), torch.randn(4, 5, 3)
        >>> optimizer = KFAC(model, Categorical(), lr=0.1)
        >>> for k, x in enumerate(loader, start=1):
        ...     optimizer.param_groups[0]["decay"] = 1 - 1 / k
        ...     optimizer.refresh(x, invert=k == len(loader))
        """
        options = self.param_groups[0]
        f = ModelFunction(self.model, list(trainable(self._leaves())), self.output)
        layers, _ = find_layers(f, options["max_features"])
        how = options["sharing"], options["draws"], self.generator
        new, plain = factors_of(f, layers, x, self.likelihood, *how)
        shared = _over_processes(new, len(f.check(x)))
        averaged = {name: self._averaged(name, factors) for name, factors in shared.items()}
        self._take(averaged, invert=invert)
        for name, layer in self._layers():
            kept = self.state[layer[0]]
            if name in plain:
                kept["plain"] = plain[name]
            elif name in averaged:
                kept.pop("plain", None)
        if plain and not self._warned:
            self._warned = True
            warn_if_plain(self)

    def _averaged(self, name: str, new: KroneckerFactors) -> KroneckerFactors:
        """Return the running mean of a layer's factors; new ones, if other parameters of it are
        trained now.
        """
        old, k = self.factors.get(name), self.param_groups[0]["decay"]
        if old is None or (old.A.shape, old.bias) != (new.A.shape, new.bias):
            return new
        return KroneckerFactors(old.A.lerp(new.A, 1 - k), old.B.lerp(new.B, 1 - k), new.bias)

    # ---- Parts

    def _take(self, factors: dict[str, KroneckerFactors], *, invert: bool) -> None:
        """Keep factors, and their inverses; nothing is kept if one cannot be inverted. Where the
        inverses stay, those of the factors that they belong to stay with them.
        """
        inverses = self._inverted(factors) if invert else self._inverses
        for name, layer in self._layers():
            if name in factors:
                A, B, bias = factors[name]
                kept = self.state[layer[0]]
                if not invert and "A" in kept and kept["bias"] == bias:
                    kept.update(A_newest=A, B_newest=B)
                    continue
                for key in ("A_newest", "B_newest"):
                    kept.pop(key, None)
                kept.update(A=A, B=B, bias=bias)
        self._inverses = inverses

    def _inverted(self, factors: dict[str, KroneckerFactors]) -> dict[Block, Inverse]:
        """Return the inverses of the blocks that are trained now."""
        found = {}
        for name, layer in self._layers():
            block = name, *_trained(layer)
            if name in factors and (part := factors[name].part(*block[1:])) is not None:
                found[block] = self._inverse(part)
        return found

    def _inverse(self, factors: KroneckerFactors) -> Inverse:
        options, narrow = self.param_groups[0], self._leaves()[0].dtype
        dtype = torch.float32 if narrow in (torch.float16, torch.bfloat16) else narrow
        return factors.inverse(options["damping"], factored=options["factored"], dtype=dtype)

    def _check_state(self, state: dict[nn.Parameter, dict[str, Any]]) -> None:
        super()._check_state(state)
        modules = dict(self.model.named_modules())
        for name, layer in self._layers():
            kept = state.get(layer[0], {})
            if "A" in kept and not _fit(kept, layer, modules[name]):
                raise ValueError(f"factors of layer {name!r} of another shape")

    def _restored(self) -> None:
        self._inverses = self._inverted(self._kept())

    def _kept(self) -> dict[str, KroneckerFactors]:
        """Return the factors that the inverses belong to."""
        states = {name: self.state.get(layer[0], {}) for name, layer in self._layers()}
        return {
            name: KroneckerFactors(kept["A"], kept["B"], kept["bias"])
            for name, kept in states.items()
            if "A" in kept
        }

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_inverses"}

    def _layers(self) -> Iterable[tuple[str, list[nn.Parameter]]]:
        """Yield the name of each layer and those of its parameters that are ours, trained now or
        not: weight, then bias. The factors are kept with the first.
        """
        ours = {id(p) for p in self._leaves()}
        for name, module in self.model.named_modules():
            layer = [p for p in own_parameters(module) if id(p) in ours]
            if layer:
                yield name, layer

    def _directions(self, gradients: Directions) -> Directions:
        found: Directions = {}
        plain, modules = self.plain, dict(self.model.named_modules())
        for name, layer in self._layers():
            own = [p for p in layer if p.requires_grad]
            mine = {p: gradients[p] for p in own if p in gradients}
            if not mine:
                continue
            if name in plain:
                found |= mine
                continue
            inverse = self._inverse_of(name, layer)
            if inverse is None:
                if any(bool(g.any()) for g in mine.values()):
                    raise ValueError(
                        f"step: expected factors of the parameters that layer {name!r} trains now; "
                        "call refresh(x) with a batch of inputs first"
                    )
                continue
            found |= _of_layer(inverse, modules[name], own, gradients)
        return found

    def _inverse_of(self, name: str, layer: list[nn.Parameter]) -> Inverse | None:
        """Return the inverse of what a layer trains now: a frozen weight or bias has no part in the
        block.
        """
        block = name, *_trained(layer)
        if block not in self._inverses and (factors := self._kept().get(name)):
            part = factors.part(*block[1:])
            if part is not None:
                self._inverses[block] = self._inverse(part)
        return self._inverses.get(block)


def _trained(layer: list[nn.Parameter]) -> tuple[bool, bool]:
    """Return whether the weight and the bias of a layer are trained now."""
    dims = {p.ndim > 1 for p in layer if p.requires_grad}
    return True in dims, False in dims


def _of_layer(
    inverse: Inverse, module: nn.Module, own: list[nn.Parameter], gradients: Directions
) -> Directions:
    """Return the natural gradient of a layer; a parameter without a gradient counts as 0."""
    pieces = [gradients[p] if p in gradients else torch.zeros_like(p) for p in own]
    dense = [g.to_dense() if g.is_sparse else g for g in pieces]
    columns = [as_matrix(module, g) for g in dense]
    direction = inverse(torch.cat(columns, 1))
    parts = direction.split([c.shape[1] for c in columns], 1)
    return {
        p: as_parameter(module, d, p) for p, d in zip(own, parts, strict=True) if p in gradients
    }


def _over_processes(
    factors: dict[str, KroneckerFactors], examples: int
) -> dict[str, KroneckerFactors]:
    """Return the factors of the examples of all processes."""
    share = Share(examples)
    found = {}
    for name, f in factors.items():
        A, B = share.mean(f.A, f.B)
        found[name] = KroneckerFactors(A, B, f.bias)
    return found


def _fit(kept: dict[str, Any], layer: list[nn.Parameter], module: nn.Module) -> bool:
    """Return whether kept factors are of the weight, of the bias or of both of a layer."""
    shapes = [as_matrix(module, p).shape for p in layer]
    width = sum(a for (_, a), p in zip(shapes, layer, strict=True) if p.ndim > 1)
    sizes = {width + 1, 1} if kept["bias"] else {width}
    return len(kept["B"]) == shapes[0][0] and len(kept["A"]) in sizes
