r"""The Fisher matrix layer by layer, each block a Kronecker product of two small factors."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import pad, unfold

from natcompanion import _checks as check
from natcompanion._memory import affordable, beyond
from natcompanion._modules import is_transposed, own_parameters
from natcompanion._moments import damped_inverse, eigenpairs, gram
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics import fast
from natcompanion.metrics.dense import Output, Parameters, sampled_scores
from natcompanion.metrics.model_function import CHUNK, DETACHED, ModelFunction
from natcompanion.metrics.operators import input_batches
from natcompanion.metrics.structured import Inputs


class KroneckerFactors(NamedTuple):
    r"""The two factors of one layer's block of the Fisher matrix, :math:`F \approx B \otimes A`.

    ``A`` (a, a) is the second moment of the layer's inputs, with a 1 appended if it has a trainable
    bias; a vector (a,) where it is diagonal, as for an Embedding. ``B`` (o, o) is the second moment
    of the gradients that come back to its outputs. Both are float64. A layer whose weight is stored
    as (a, o), as that of an Embedding, counts as the linear layer with the transposed weight.

    Parameters
    ----------
    A : Tensor, shape (a, a)
    B : Tensor, shape (o, o)
    bias : bool
        Whether the layer has a trainable bias.

    Examples
    --------
    >>> A, B = torch.eye(2, dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)
    >>> KroneckerFactors(A, B, bias=False).dense()
    tensor([[3., 0.],
            [0., 3.]], dtype=torch.float64)
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
        block = torch.kron(self.B, self.A if self.A.ndim == 2 else self.A.diag())
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
        if self.A.ndim == 1:
            return self
        columns = slice(0 if weight else len(self.A) - 1, None if bias == self.bias else -1)
        return KroneckerFactors(self.A[columns, columns], self.B, bias)

    def inverse(
        self, damping: float, *, factored: bool = False, dtype: torch.dtype = torch.float64
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        r"""Return the function that takes ``[W b]``-shaped gradients (o, a) to the damped natural
        gradient.

        .. math:: \operatorname{vec} G \mapsto (B \otimes A + \lambda I)^{-1} \operatorname{vec} G

        It needs an eigendecomposition of each factor; of a large ``A`` whose rank is at most half
        of its rows, made of few samples, only one of its range, and is applied so. With
        ``factored`` the damping is spread over the factors as in Martens and Grosse (2015), which
        needs a Cholesky factor of each:

        .. math:: (B + \tfrac{\sqrt\lambda}{\pi} I) \otimes (A + \pi \sqrt\lambda I), \qquad
                  \pi^2 = \frac{\operatorname{tr}A / a}{\operatorname{tr}B / o}

        The inverse is taken in float64 and applied in ``dtype``; the result has the dtype of G.
        """
        return (_factored if factored else _exact)(self, check.positive(damping, "damping"), dtype)

    def solve(self, v: torch.Tensor, damping: float, *, factored: bool = False) -> torch.Tensor:
        """Return the damped inverse times a vector (P,) in the order of :meth:`dense`.

        Raises
        ------
        ValueError
            If ``v`` has another shape, or ``damping`` is not positive.

        Examples
        --------
        >>> import torch
        >>> from natcompanion.metrics import KroneckerFactors
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> KroneckerFactors(2 * eye, eye, bias=False).solve(torch.ones(4), damping=2.0)
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
        """
        o, a = len(self.B), len(self.A)
        if check.floating(v, "v").shape != (o * a,):
            raise ValueError(f"v: expected shape ({o * a},), got {tuple(v.shape)}")
        inverse = self.inverse(damping, factored=factored, dtype=v.dtype)
        if not self.bias:
            return inverse(v.view(o, a)).flatten()
        found = inverse(torch.cat([v[: o * (a - 1)].view(o, a - 1), v[o * (a - 1) :, None]], 1))
        return torch.cat([found[:, :-1].flatten(), found[:, -1]])

    def logdet(self, damping: float) -> float:
        r"""Return :math:`\log\det(B \otimes A + \lambda I)`, from the eigenvalues of the factors.

        Raises
        ------
        ValueError
            If ``damping`` is not positive.

        Examples
        --------
        >>> import torch
        >>> from natcompanion.metrics import KroneckerFactors
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> round(KroneckerFactors(2 * eye, eye, bias=False).logdet(2.0), 4)  # four times log 4
        5.5452
        """
        a, b = (torch.linalg.eigvalsh(S) if S.ndim == 2 else S for S in (self.A, self.B))
        products = b.clamp(min=0)[:, None] * a.clamp(min=0)
        return float((products + check.positive(damping, "damping")).log().sum())


def kronecker_factors(
    model: nn.Module,
    x: Any,
    likelihood: Likelihood,
    *,
    sharing: str = "expand",
    draws: int | None = None,
    generator: torch.Generator | None = None,
    parameters: Parameters = None,
    output: Output = None,
) -> dict[str, KroneckerFactors]:
    r"""Return the Kronecker factors of the Fisher matrix of every layer, by its name.

    .. math:: F_{[W b]} \approx B \otimes A, \qquad
              A = \frac1n \sum_i \tilde h_i \tilde h_i^\top, \qquad
              B = \frac1n \sum_i \mathrm E_{t \sim p(t \mid x_i)} \left[\delta_i
              \delta_i^\top\right]

    Here :math:`\tilde h` is the input with a 1 appended. If inputs and gradients are independent,
    this is the block itself. The expectation over the labels is exact: the columns of a root of the
    likelihood's Fisher matrix are sent back through the model.

    A layer may be applied at s positions of each example (a convolution, a sequence). With
    ``sharing="expand"`` they count as independent examples: A is averaged over n and s, and B is
    summed over s. With ``"reduce"`` the inputs are averaged over the positions first, and what
    comes back is summed over them. A deep linear network has its exact blocks by the first if the
    loss is a sum of terms of the positions, and by the second if the network sums or averages over
    the positions.

    Parameters
    ----------
    model : Module
        Maps (n, ...) to (n, o). Its trainable parameters belong to Linear, Conv1d, Conv2d and
        Embedding layers (without groups), or the Conv1D of the package transformers, that are
        called once each. It runs in evaluation mode and is left as it was.
    x : Tensor, shape (n, ...), tuple or dictionary of these, or an iterable of batches
        A loader may give inputs alone or pairs with targets; the means are over all its examples.
    likelihood : Likelihood
    sharing : "expand" or "reduce"
        What is done where a layer is applied at several positions.
    draws : int, optional
        Estimate B from that many labels per example, drawn from the model, instead of the exact
        expectation.
    generator : torch.Generator, optional
        For the draws.
    parameters : iterable, optional
        Parameters or their names, if not all trainable ones.
    output : callable, optional
        Selects the outputs (n, ..., o) from what the model returns.

    Raises
    ------
    ValueError
        On a model, a batch or an option that does not fit.

    Notes
    -----
    Source: prong Eq. 5; vec takes the rows of a matrix, so that B comes first. Convolutions as in
    Grosse and Martens (2016); the two settings are those of Eschenhagen et al. (2023).

    Examples
    --------
    >>> import torch
    >>> from natcompanion.likelihoods import Gaussian
    >>> from natcompanion.metrics import kronecker_factors
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))
    >>> {name: (*f.A.shape, *f.B.shape)
    ...  for name, f in kronecker_factors(model, torch.ones(5, 3), Gaussian()).items()}
    {'0': (4, 4, 2, 2), '2': (3, 3, 1, 1)}

    Over a loader:

    >>> from torch.utils.data import DataLoader
    >>> batches = DataLoader(torch.ones(5, 3), batch_size=2)
    >>> list(kronecker_factors(model, batches, Gaussian()))
    ['0', '2']
    """
    f = ModelFunction(model, parameters, output)
    layers, plain = find_layers(f)
    refuse_plain(plain)
    several = not isinstance(x, (torch.Tensor, tuple, Mapping, Inputs))
    parts, sizes = [], []
    for batch in input_batches(x) if several else [x]:
        factors, plain = factors_of(f, layers, batch, likelihood, sharing, draws, generator)
        refuse_plain(plain)
        parts.append(factors)
        sizes.append(len(f.check(batch)))
    return _mean_of_batches(parts, sizes)


def _mean_of_batches(
    parts: list[dict[str, KroneckerFactors]], sizes: list[int]
) -> dict[str, KroneckerFactors]:
    """Return the factors of all examples from those of batches of such sizes."""
    if len(parts) == 1:
        return parts[0]
    total = sum(sizes)
    if not total:
        raise ValueError("x: expected at least one batch of inputs, got none")
    found = {name: list(map(torch.zeros_like, f[:2])) for name, f in parts[0].items()}
    for size, part in zip(sizes, parts, strict=True):
        for name, means in found.items():
            for mean, new in zip(means, part[name][:2], strict=True):
                mean.add_(new, alpha=size / total)
    return {name: KroneckerFactors(A, B, parts[0][name].bias) for name, (A, B) in found.items()}


def refuse_plain(plain: dict[str, str]) -> None:
    """Raise ValueError if a module has no Kronecker factors."""
    for name, reason in plain.items():
        raise ValueError(
            "model: expected trainable parameters in Linear, Conv1d, Conv2d and Embedding layers "
            f"that are used once, got module {name!r}, {reason}; freeze it, or name the parameters "
            "to train"
        )


class Layer(fast.Layer):
    """A layer that has Kronecker factors, as a linear map from what it sees at each position."""

    def seen(self) -> torch.Tensor:
        """Return what the weights see, (n, s, a), with a 1 for the bias; without the columns of a
        frozen parameter. Not for an Embedding.
        """
        m, h = self.module, self.inputs
        if isinstance(m, (nn.Conv1d, nn.Conv2d)):
            h = _patches(m, h) if self.weight else self.outputs.detach().flatten(2).mT
        h = h.reshape(len(h), -1, h.shape[-1])
        h = h if self.weight else h[..., :0]
        return torch.cat([h, h.new_ones(*h.shape[:2], 1)], 2) if self.bias else h

    def backward(self, delta: torch.Tensor) -> torch.Tensor:
        """Return cotangents (..., n, ...) of the output as (..., n, s, o), given (k, n, ...)."""
        if isinstance(self.module, (nn.Conv1d, nn.Conv2d)):
            return delta.flatten(3).mT
        return delta.reshape(*delta.shape[:2], -1, delta.shape[-1])

    def moments(self, delta: torch.Tensor, sharing: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums over the examples of A and B, from the cotangents (k, n, ...) of the
        outputs.
        """
        d = self.backward(delta)
        if sharing == "reduce":
            d = d.sum(2, keepdim=True)
        d = d.flatten(0, 2).double()
        return self._inputs_moment(sharing), gram(d)

    def _inputs_moment(self, sharing: str) -> torch.Tensor:
        if isinstance(self.module, nn.Embedding):
            if sharing == "expand":
                found = _counts(self.module, self.inputs.flatten()[None])[0]
                return found / self.inputs[0].numel()
            h = _counts(self.module, self.inputs.flatten(1)) / self.inputs[0].numel()
            return gram(h)
        h = self.seen()
        if sharing == "reduce":
            h = h.mean(1, keepdim=True)
        count, h = len(h), h.flatten(0, 1).double()
        return gram(h).mul_(count / len(h))

    def explains(self, delta: torch.Tensor, gradients: dict[str, torch.Tensor]) -> bool:
        """Say whether cotangents (n, ...) of the output give the gradients that autograd finds:
        not if a weight is used elsewhere.
        """
        d = self.backward(delta[None])[0].flatten(0, 1)
        columns = []
        if "weight" in gradients and isinstance(self.module, nn.Embedding):
            ids = self.inputs.flatten()
            used = ids if self.module.padding_idx is None else ids[ids != self.module.padding_idx]
            rows = d if self.module.padding_idx is None else d[ids != self.module.padding_idx]
            columns = [torch.zeros_like(gradients["weight"]).index_add_(0, used, rows).mT]
        else:
            columns = [d.mT @ self.seen().flatten(0, 1)]
        theirs = torch.cat([as_matrix(self.module, g) for g in gradients.values()], 1)
        close = torch.finfo(d.dtype).eps ** 0.5 * float(theirs.norm())
        return float((columns[0] - theirs).norm()) <= close


def _patches(m: Any, h: torch.Tensor) -> torch.Tensor:
    """Return what a convolution sees at each position, (n, s, a)."""
    mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
    padded = pad(h, m._reversed_padding_repeated_twice, mode=mode)
    if isinstance(m, nn.Conv2d):
        return unfold(padded, m.kernel_size, m.dilation, 0, m.stride).mT
    size, dilation, stride = ((1, v[0]) for v in (m.kernel_size, m.dilation, m.stride))
    return unfold(padded.unsqueeze(2), size, dilation, 0, stride).mT


def _counts(m: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
    """Return how often each row of ``ids`` (n, s) holds each entry, (n, V); padding is none."""
    counts = torch.zeros(len(ids), m.num_embeddings, dtype=torch.float64, device=ids.device)
    counts.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.float64))
    if m.padding_idx is not None:
        counts[:, m.padding_idx] = 0
    return counts


def transposed(module: nn.Module) -> bool:
    """Say whether a layer keeps its weight as (a, o), as an Embedding does."""
    return isinstance(module, nn.Embedding) or is_transposed(module)


def as_matrix(module: nn.Module, g: torch.Tensor) -> torch.Tensor:
    """Return a weight of a layer, or its gradient, as a matrix (o, a); a bias as (o, 1)."""
    if g.ndim < 2:
        return g.reshape(-1, 1)
    return g.mT if transposed(module) else g.flatten(1)


def as_parameter(module: nn.Module, d: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Return a matrix (o, a) in the shape of the parameter ``p``."""
    return (d.mT if transposed(module) and p.ndim > 1 else d).reshape(p.shape)


def why_plain(module: nn.Module) -> str | None:
    """Return why a module has no Kronecker factors, or None."""
    kind = check.kind(module)
    known = type(module) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding)
    if not known and not is_transposed(module):
        return f"{kind}, has no factors"
    if not {k for k, p in module._parameters.items() if p is not None} <= {"weight", "bias"}:
        return f"{kind} with parameters other than weight and bias, has no factors"
    if not all(p.numel() for p in own_parameters(module)):
        return f"{kind} without inputs or outputs, has no factors"
    if getattr(module, "groups", 1) != 1:
        return f"{kind} with groups, has no factors"
    if getattr(module, "max_norm", None) or getattr(module, "scale_grad_by_freq", False):
        return f"{kind} that scales its weights or gradients, has no factors"
    return None


def too_large(module: nn.Module, max_features: int) -> str | None:
    """Return why the factors of a layer would be too large, or None; that of the inputs of an
    Embedding is diagonal.
    """
    sides = as_matrix(module, module.weight).shape  # type: ignore[arg-type]  # a tensor
    rows = sides[0] if isinstance(module, nn.Embedding) else max(sides)
    if rows <= max_features:
        return None
    what = f"a factor of which would have {rows} rows"
    return beyond(what, max_features, 8e-9 * rows**2, 9e-9 * rows**3)


def find_layers(
    f: ModelFunction, max_features: int | None = None
) -> tuple[dict[str, Layer], dict[str, str]]:
    """Return the layers that have factors, of at most so many rows, and why the other modules with
    chosen parameters have none, both by name.
    """
    chosen = {id(p) for p in f.originals.values()}
    owners = [id(p) for m in f.modules.values() for p in own_parameters(m)]
    layers, plain = {}, {}
    for name, module in f.modules.items():
        own = {k: id(p) in chosen for k, p in module._parameters.items() if p is not None}
        if not any(own.values()):
            continue
        reason = why_plain(module)
        if reason is None and any(owners.count(id(p)) > 1 for p in own_parameters(module)):
            reason = "whose weights are tied to those of another module, has no factors"
        if reason is None and max_features is not None:
            reason = too_large(module, max_features)
        if reason is not None:
            plain[name] = reason
        else:
            weight, bias = (slice(0, 0) if own.get(k) else None for k in ("weight", "bias"))
            layers[name] = Layer(module, weight, bias)
    return layers, plain


def factors_of(
    f: ModelFunction,
    layers: dict[str, Layer],
    x: Any,
    likelihood: Likelihood,
    sharing: str,
    draws: int | None,
    generator: torch.Generator | None,
) -> tuple[dict[str, KroneckerFactors], dict[str, str]]:
    """Return the factors of layers, and why some have none after all; the model runs on parts of
    the batch.
    """
    if sharing not in ("expand", "reduce"):
        raise ValueError(f'sharing: expected "expand" or "reduce", got {sharing!r}')
    draws = None if draws is None else check.whole(draws, "draws")
    likelihood, x = f.on(likelihood), f.check(x)
    if sharing == "reduce":
        for name, layer in layers.items():
            if isinstance(layer.module, nn.Embedding):
                size, remedy = layer.module.num_embeddings, 'sharing="expand", or freeze it'
                affordable(size, torch.float64, f"Embedding {name!r}", remedy)
    with torch.autocast(x.device.type, enabled=False):
        r = f.output(x)  # of all examples: a likelihood may hold something for each, as weights
        if draws is None:
            cotangents = likelihood.fisher_root(r).mT
        else:
            cotangents = sampled_scores(likelihood, r, draws, generator)
        return _summed(f, layers, x, cotangents, sharing)


def _summed(
    f: ModelFunction,
    layers: dict[str, Layer],
    x: Any,
    cotangents: torch.Tensor,
    sharing: str,
) -> tuple[dict[str, KroneckerFactors], dict[str, str]]:
    layers, plain = dict(layers), dict[str, str]()
    sums: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    start, step = 0, 2  # the first part is small: it says how large the next may be
    while start < len(x) and layers:
        part = slice(start, start + step)
        new, deltas = _backpropagated(f, layers, x[part], cotangents[part], first=start == 0)
        plain |= new
        layers = {name: layer for name, layer in layers.items() if name not in plain}
        for name, layer in layers.items():
            new_moments = layer.moments(deltas[name], sharing)
            for total, moment in zip(sums.setdefault(name, new_moments), new_moments, strict=True):
                if total is not moment:
                    total += moment
        start += step
        numbers = sum(d.numel() for d in deltas.values()) // len(x[part])
        step = max(1, CHUNK // max(numbers, 1))
    factors = {}
    for name, layer in layers.items():
        A, B = (moment.div_(len(x)) for moment in sums[name])
        factors[name] = KroneckerFactors(A, B, layer.bias is not None)
    return factors, plain


def _backpropagated(
    f: ModelFunction,
    layers: dict[str, Layer],
    x: Any,
    cotangents: torch.Tensor,
    first: bool,
) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Run the model; return why layers have no factors, and the cotangents (k, n, ...) of the
    outputs of the others. On the first part their gradients are compared with autograd's.
    """
    theta = {name: p.clone().requires_grad_() for name, p in f.theta.items()}
    with torch.enable_grad(), fast._recording(list(layers.values())):
        r = f(theta, x)
    if not r.requires_grad:
        raise ValueError(DETACHED)
    plain = {name: why for name, layer in layers.items() if (why := _why_not(layer, len(x)))}
    live = {name: layer for name, layer in layers.items() if name not in plain}
    if not live:
        return plain, {}
    outputs = [layer.outputs for layer in live.values()]
    columns = [
        torch.autograd.grad(r, outputs, c, retain_graph=True, materialize_grads=True)
        for c in cotangents.unbind(1)
    ]
    stacked = (torch.stack(column) for column in zip(*columns, strict=True))
    deltas = dict(zip(live, stacked, strict=True))
    if first:
        mix = torch.linspace(1, 2, cotangents.shape[1], dtype=f.dtype, device=r.device)
        mixed = torch.einsum("nko,k->no", cotangents, mix)
        pieces = torch.autograd.grad(r, list(theta.values()), mixed, materialize_grads=True)
        by_id = dict(zip(map(id, f.originals.values()), pieces, strict=True))
        for name, layer in live.items():
            own = layer.module._parameters.items()
            mine = {key: by_id[id(p)] for key, p in own if id(p) in by_id}
            if not layer.explains(torch.einsum("k,k...->...", mix, deltas[name]), mine):
                plain[name] = "whose weights are used elsewhere too, has no factors"
    return plain, deltas


def _why_not(layer: Layer, n: int) -> str | None:
    """Return why a layer has no factors after a pass of n examples, or None."""
    if layer.calls != 1:
        return f"which is called {layer.calls} times and not once, has no factors"
    if not layer.outputs.requires_grad:
        return "which has no part in the output, has no factors"
    if len(layer.inputs) != n or len(layer.outputs) != n:
        return f"which sees {tuple(layer.inputs.shape)} in a pass of {n} examples, has no factors"
    return None


def _exact(
    f: KroneckerFactors, damping: float, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    b, R = torch.linalg.eigh(f.B)
    a, Q = eigenpairs(f.A) if f.A.ndim == 2 else (f.A, None)
    scale = 1 / (b.clamp(min=0)[:, None] * a.clamp(min=0) + damping)
    R = R.to(dtype)
    if Q is None:
        scale = scale.to(dtype)
        return lambda G: (R @ ((R.mT @ G.to(dtype)) * scale)).to(G.dtype)
    elsewhere = 1 / damping if Q.shape[1] < len(Q) else 0.0  # where A has no eigenvalue but 0
    Q, scale = Q.to(dtype), (scale.mT - elsewhere).to(dtype)

    def apply(G: torch.Tensor) -> torch.Tensor:
        wide = G.to(dtype).mT
        found = Q @ ((Q.mT @ wide @ R) * scale) @ R.mT
        return (found.add_(wide, alpha=elsewhere) if elsewhere else found).mT.to(G.dtype)

    return apply


def _factored(
    f: KroneckerFactors, damping: float, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    diagonal = f.A if f.A.ndim == 1 else f.A.diagonal()
    a, b = float(diagonal.mean()), float(f.B.diagonal().mean())
    pi = (a / b) ** 0.5 if a > 0 and b > 0 else 1.0
    left, eps = damped_inverse(f.B, damping**0.5 / pi, dtype), damping**0.5 * pi
    if f.A.ndim == 1:
        column = (1 / (f.A + eps)).to(dtype)
        return lambda G: (left @ (G.to(dtype) * column)).to(G.dtype)
    right = damped_inverse(f.A, eps, dtype)
    return lambda G: (right @ (G.to(dtype).mT @ left)).mT.to(G.dtype)
