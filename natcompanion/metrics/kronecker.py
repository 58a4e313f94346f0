r"""The Fisher matrix layer by layer, each block a Kronecker product of two small factors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import pad, unfold

from natcompanion import _checks as check
from natcompanion._memory import affordable
from natcompanion._moments import damped_inverse
from natcompanion._own_likelihood import complete
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics import fast
from natcompanion.metrics.dense import Parameters, sampled_scores
from natcompanion.metrics.model_function import CHUNK, ModelFunction


class KroneckerFactors(NamedTuple):
    r"""The two factors of one layer's block of the Fisher matrix, :math:`F \approx B \otimes A`.

    ``A`` (a, a) is the second moment of the layer's inputs, with a 1 appended if it has a trainable
    bias. ``B`` (o, o) is the second moment of the gradients that come back to its outputs. Both are
    float64.
    """

    A: torch.Tensor
    B: torch.Tensor
    bias: bool

    def dense(self) -> torch.Tensor:
        """Return the block (P, P) for the layer's parameters in their own order: vec W row-major,
        then b; refused if larger than :func:`natcompanion.metrics.dense_limit` allows.
        """
        size = len(self.A) * len(self.B)
        affordable(size, self.A.dtype, "KroneckerFactors.dense", "the factors, or inverse()")
        block = torch.kron(self.B, self.A)
        if not self.bias:
            return block
        places = torch.arange(len(block), device=block.device).view(len(self.B), len(self.A))
        order = torch.cat([places[:, :-1].flatten(), places[:, -1]])
        return block[order][:, order]

    def part(self, weight: bool, bias: bool) -> "KroneckerFactors | None":
        """Return the factors of the block of the weight alone, of the bias alone or of both, or
        None if these do not hold it.
        """
        has_weight = len(self.A) > int(self.bias)
        if (weight and not has_weight) or (bias and not self.bias) or not (weight or bias):
            return None
        columns = slice(0 if weight else len(self.A) - 1, None if bias == self.bias else -1)
        return KroneckerFactors(self.A[columns, columns], self.B, bias)

    def inverse(
        self, damping: float, *, factored: bool = False, dtype: torch.dtype = torch.float64
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        r"""Return the function that takes ``[W b]``-shaped gradients (o, a) to the damped natural
        gradient.

        .. math:: \operatorname{vec} G \mapsto (B \otimes A + \lambda I)^{-1} \operatorname{vec} G

        It needs an eigendecomposition of each factor. With ``factored`` the damping is spread over
        the factors as in Martens and Grosse (2015), which needs a Cholesky factor of each:

        .. math:: (B + \tfrac{\sqrt\lambda}{\pi} I) \otimes (A + \pi \sqrt\lambda I), \qquad
                  \pi^2 = \frac{\operatorname{tr}A / a}{\operatorname{tr}B / o}

        The inverse is taken in float64 and applied in ``dtype``; the result has the dtype of G.
        """
        return (_factored if factored else _exact)(self, check.positive(damping, "damping"), dtype)


def kronecker_factors(
    model: nn.Module,
    x: torch.Tensor,
    likelihood: Likelihood,
    *,
    draws: int | None = None,
    generator: torch.Generator | None = None,
    parameters: Parameters = None,
) -> dict[str, KroneckerFactors]:
    r"""Return the Kronecker factors of the Fisher matrix of every Linear and Conv2d layer, by the
    layer's name.

    .. math:: F_{[W b]} \approx B \otimes A, \qquad
              A = \frac1n \sum_i \tilde h_i \tilde h_i^\top, \qquad
              B = \frac1n \sum_i \mathrm E_{t \sim p(t \mid x_i)} \left[\delta_i
              \delta_i^\top\right]

    Here :math:`\tilde h` is the input with a 1 appended. If inputs and gradients are independent,
    this is the block itself. The expectation over the labels is exact: the columns of a root of the
    likelihood's Fisher matrix are sent back through the model. Where a layer is applied at s
    positions (a convolution, a sequence), A is averaged over n and s, and B is summed over s, as if
    the positions were uncorrelated.

    Parameters
    ----------
    model : Module
        Maps (n, ...) to (n, o). Its trainable parameters belong to Linear and Conv2d layers
        (without groups) that are called once each. It runs in evaluation mode and is left as it
        was.
    x : Tensor, shape (n, ...)
    likelihood : Likelihood
    draws : int, optional
        Estimate B from that many labels per example, drawn from the model, instead of the exact
        expectation.
    generator : torch.Generator, optional
        For the draws.
    parameters : iterable, optional
        Parameters or their names, if not all trainable ones.

    Raises
    ------
    ValueError
        On a model, a batch or an option that does not fit.

    Notes
    -----
    Source: prong Eq. 5; vec takes the rows of a matrix, so that B comes first. Convolutions as in
    Grosse and Martens (2016).
    """
    draws = None if draws is None else check.whole(draws, "draws")
    likelihood = complete(likelihood)
    f = ModelFunction(model, parameters)
    x = f.check(x)
    with torch.autocast(x.device.type, enabled=False):
        return _factors(f, x, likelihood, draws, generator)


def _factors(
    f: ModelFunction,
    x: torch.Tensor,
    likelihood: Likelihood,
    draws: int | None,
    generator: torch.Generator | None,
) -> dict[str, KroneckerFactors]:
    """Return the factors of every layer; the model runs on parts of the batch."""
    layers, names = kronecker_layers(f), {module: name for name, module in f.modules.items()}
    r = f.output(x)
    if draws is None:
        cotangents = likelihood.fisher_root(r).mT
    else:
        cotangents = sampled_scores(likelihood, r, draws, generator)
    sums: list[tuple[Any, Any]] = [(0.0, 0.0)] * len(layers)
    start, step = 0, 1
    while start < len(x):
        part = slice(start, start + step)
        deltas = fast.backpropagate(f, layers, x[part], cotangents[part])
        if deltas is None:
            raise ValueError(
                "model: expected layers that are called once and whose weights are used "
                "nowhere else, got shared "
                "weights or a layer without a part in the output; K-FAC has no block for them"
            )
        start, step = (
            start + step,
            max(1, CHUNK // (sum(d.numel() for d in deltas) // len(x[part]))),
        )
        parts = [_second_moments(layer, delta) for layer, delta in zip(layers, deltas, strict=True)]
        sums = [(A + A_, B + B_) for (A, B), (A_, B_) in zip(sums, parts, strict=True)]
    return {
        names[layer.module]: KroneckerFactors(A / len(x), B / len(x), layer.bias is not None)
        for layer, (A, B) in zip(layers, sums, strict=True)
    }


def kronecker_layers(f: ModelFunction) -> list[fast.Layer]:
    """Return the layers that own the parameters, or say which one K-FAC cannot treat."""
    chosen = {id(p) for p in f.originals.values()}
    for name, module in f.modules.items():
        mine = any(id(p) in chosen for p in module._parameters.values())
        if mine and (
            type(module) not in (nn.Linear, nn.Conv2d) or getattr(module, "groups", 1) != 1
        ):
            raise ValueError(
                "model: expected trainable parameters in Linear and Conv2d layers without "
                f"groups, got {name!r} "
                f"({type(module).__name__}); freeze it, or name the parameters to train"
            )
    layers = fast.find_layers(f)
    if layers is None:
        raise ValueError(
            "model: expected layers with weights of their own, got tied ones; K-FAC cannot "
            "treat them"
        )
    return layers


def _second_moments(layer: fast.Layer, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums over the examples of A and B, from the cotangents (k, n, ...) of the layer's
    outputs.
    """
    h = _positions(layer).double()
    count = len(layer.inputs)
    if layer.bias:
        h = torch.cat([h, h.new_ones(len(h), 1)], 1)
    delta = delta.movedim(2, -1) if isinstance(layer.module, nn.Conv2d) else delta
    delta = delta.flatten(0, -2).double()
    return h.mT @ h * (count / len(h)), delta.mT @ delta


def _positions(layer: fast.Layer) -> torch.Tensor:
    """Return what the weights of a layer see, one row for each example and position; (n s, a)."""
    m, h = layer.module, layer.inputs
    if not layer.weight:
        h = h.movedim(1, -1) if isinstance(m, nn.Conv2d) else h
        return h.flatten(0, -2)[:, :0]
    if isinstance(m, nn.Linear):
        return h.flatten(0, -2)
    mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
    padded = pad(h, m._reversed_padding_repeated_twice, mode=mode)
    return unfold(padded, m.kernel_size, m.dilation, 0, m.stride).mT.flatten(0, 1)


def _exact(
    f: KroneckerFactors, damping: float, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    (a, Q), (b, R) = (torch.linalg.eigh(factor) for factor in (f.A, f.B))
    scale = (1 / (b.clamp(min=0)[:, None] * a.clamp(min=0) + damping)).to(dtype)
    Q, R = Q.to(dtype), R.to(dtype)
    return lambda G: (R @ ((R.mT @ G.to(dtype) @ Q) * scale) @ Q.mT).to(G.dtype)


def _factored(
    f: KroneckerFactors, damping: float, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    a, b = float(f.A.diagonal().mean()), float(f.B.diagonal().mean())
    pi = (a / b) ** 0.5 if a > 0 and b > 0 else 1.0
    left, right = (
        damped_inverse(f.B, damping**0.5 / pi).to(dtype),
        damped_inverse(f.A, damping**0.5 * pi).to(dtype),
    )
    return lambda G: (left @ G.to(dtype) @ right).to(G.dtype)
