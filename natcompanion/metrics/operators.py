"""Metrics known by their products only: nothing of size (P, P) is stored.

On one batch the graph of the model is kept between products, so that a product costs about one
gradient, and only the first one pays for the set-up. On several batches the graph of one batch at a
time is rebuilt.
"""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import scipy.sparse.linalg
import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.func import jvp

from natcompanion import _checks
from natcompanion._memory import affordable
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics import fast
from natcompanion.metrics.dense import Output, Parameters, gram, sampled_scores, score
from natcompanion.metrics.model_function import DETACHED, ModelFunction
from natcompanion.metrics.structured import Inputs, inputs_of, pair_of

Batches = Any  # a tensor, a dictionary, or an iterable of batches or of pairs with targets

WHOLE = torch.Tensor, Mapping, Inputs


class JacobianProducts:
    """The products ``J v`` and ``u J`` for one batch, from a graph that is built once.

    ``J v`` is the derivative of ``u J`` with respect to ``u``, multiplied by ``v``: reverse mode
    twice. Where a layer has no second derivative (Hardsigmoid, EmbeddingBag, a function of one's
    own), it is found by forward mode, or else from the rows of J.
    """

    def __init__(self, f: ModelFunction, x: Any) -> None:
        self.f, self.x, self.twice = f, x, True
        self.theta = {name: p.detach().requires_grad_() for name, p in f.theta.items()}
        self.leaves = list(self.theta.values())
        self.sizes = [p.numel() for p in self.theta.values()]
        with torch.enable_grad():
            self.r = f(self.theta, x)
            if not self.r.requires_grad:
                raise ValueError(DETACHED)
            self.doubtful = _has_functions_in_python(self.r)
            self.u = torch.zeros_like(self.r, requires_grad=True)
            pulled = torch.autograd.grad(
                self.r, self.leaves, self.u, create_graph=True, materialize_grads=True
            )
        self.pulled = [(i, g) for i, g in enumerate(pulled) if g.requires_grad]

    def push(self, v: torch.Tensor) -> torch.Tensor:
        """Return ``J v`` for each example; (P,) in, (n, o) out."""
        pieces = [
            piece.view_as(p)
            for piece, p in zip(v.split(self.sizes), self.theta.values(), strict=True)
        ]
        if self.twice:
            try:
                found = self._push_in_reverse(pieces)
                self.twice = not self.doubtful or self._adjoint(v, found)
                self.doubtful = False
            except RuntimeError:  # a layer without a second derivative
                self.twice = False
        return found if self.twice else self._push_without(v, pieces)

    def _push_in_reverse(self, pieces: list[torch.Tensor]) -> torch.Tensor:
        along = [pieces[i] for i, _ in self.pulled]
        grads = [g for _, g in self.pulled]
        return torch.autograd.grad(grads, self.u, along, retain_graph=True)[0]

    def _adjoint(self, v: torch.Tensor, found: torch.Tensor) -> bool:
        """Say whether ``u (J v)`` is ``(u J) v`` for one u: it is not where a function of one's own
        has a backward pass that is not differentiable, of which torch says nothing.
        """
        u = torch.arange(found.numel(), dtype=found.dtype, device=found.device).cos()
        back, Jv = self.pull(u.view_as(found)), found.flatten()
        bound = torch.finfo(v.dtype).eps ** 0.5 * (u.norm() * Jv.norm() + back.norm() * v.norm())
        return bool((u @ Jv - back @ v).abs() <= bound)

    def _push_without(self, v: torch.Tensor, pieces: list[torch.Tensor]) -> torch.Tensor:
        """Return ``J v`` without second derivatives."""
        theta = {name: p.detach() for name, p in self.theta.items()}
        tangents = dict(zip(theta, pieces, strict=True))
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "`torch.jit.script")  # of torch's own code
                return jvp(lambda at: self.f(at, self.x), (theta,), (tangents,))[1].detach()
        except RuntimeError:  # nor a forward mode
            o = self.r.shape[1]
            units = torch.eye(o, dtype=v.dtype, device=v.device).expand(len(self.r), o, o)
            return torch.cat([rows @ v for _, rows in self.f.chunks(self.x, units)])

    def pull(self, u: torch.Tensor) -> torch.Tensor:
        """Return the sum over examples of ``u J``; (n, o) in, (P,) out."""
        grads = torch.autograd.grad(
            self.r, self.leaves, u, retain_graph=True, materialize_grads=True
        )
        return torch.cat([g.reshape(-1) for g in grads])


def _has_functions_in_python(r: torch.Tensor) -> bool:
    """Say whether a ``torch.autograd.Function`` took part in a result."""
    seen, todo = set(), [r.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return True
        seen.add(node)
        todo += [function for function, _ in node.next_functions]
    return False


def input_batches(x: Batches) -> list[Any]:
    """Return the inputs of each batch: of one tensor or dictionary, or of a list or loader of
    batches, whose items may be pairs with targets.
    """
    if isinstance(x, WHOLE):
        return [x]
    refuse_pair(x)
    if not isinstance(x, Iterable):
        raise ValueError(f"x: expected a tensor, or batches of inputs, got {_checks.got(x)}")
    return [batch if isinstance(batch, WHOLE) else inputs_of(batch) for batch in x]


def refuse_pair(x: Any) -> None:
    """Raise ValueError for a tuple of two tensors, or a list of two with as many examples, as a
    DataLoader gives it: two batches, or one with its targets?
    """
    two = isinstance(x, (tuple, list)) and len(x) == 2
    if not two or not all(isinstance(part, torch.Tensor) for part in x):
        return
    if isinstance(x, tuple) or x[0].shape[:1] == x[1].shape[:1]:
        raise ValueError(
            f"x: expected the inputs, or a list of batches, got a {type(x).__name__} of two "
            "tensors, which may be inputs with their targets, two batches, or two inputs; pass the "
            "inputs alone, torch.cat of two batches, or a dictionary of the names and values that "
            "the model takes"
        )


def apart(x: Batches, t: Any) -> tuple[Batches, list[Any]]:
    """Return inputs, and the targets of each batch: given as ``t`` for one batch, and as the second
    of each pair for several.
    """
    if isinstance(x, WHOLE) == (t is None):
        raise ValueError(
            "t: expected targets where x is one batch, and None where x is batches of pairs"
        )
    if t is not None:
        return x, [t]
    refuse_pair(x)
    pairs = list(map(pair_of, x))
    return [inputs_of(pair) for pair in pairs], [pair[1] for pair in pairs]


class MetricOperator:
    """What all metric operators share: products, damping, diagonal, dense form.

    ``operator @ v`` takes a vector (P,) or a matrix (P, k). ``damping`` times the identity is added
    everywhere and may be changed at any time. The parameters of the model must not change while the
    operator is in use; a change is noticed, except one through ``parameter.data``, which torch does
    not count.

    Parameters
    ----------
    model, x, damping, parameters, output
        As for :class:`FisherOperator`.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> G: MetricOperator = FisherOperator(model, x, Gaussian(), damping=0.5)
    >>> G.shape, G.diagonal(), G.dense()
    ((1, 1), tensor([3.]), tensor([[3.]]))
    """

    def __init__(
        self,
        model: nn.Module,
        x: Batches,
        damping: float,
        parameters: Parameters,
        output: Output,
    ) -> None:
        self._f = ModelFunction(model, parameters, output)
        self.damping = _checks.non_negative(damping, "damping")
        self._batches = [self._f.check(batch) for batch in input_batches(x)]
        if not self._batches:
            raise ValueError("x: expected a tensor or at least one batch, got none")
        self._n = sum(map(len, self._batches))
        self._versions = self._state()
        self._scores: list[torch.Tensor] = []
        self._kept: tuple[JacobianProducts, torch.Tensor | None] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (P, P)."""
        return self._f.size, self._f.size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that products are computed in."""
        return self._f.dtype

    @property
    def device(self) -> torch.device:
        """Where products are computed."""
        return self._batches[0].device

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        """Return the product with a vector (P,) or with each column of a matrix (P, k)."""
        P = self._f.size
        if not isinstance(v, torch.Tensor) or v.ndim not in (1, 2) or len(v) != P or v.numel() == 0:
            got = f"shape {tuple(v.shape)}" if isinstance(v, torch.Tensor) else type(v).__name__
            raise ValueError(f"v: expected a tensor of shape ({P},) or ({P}, k), got {got}")
        _checks.numbers(v, "v")
        if not v.is_floating_point():
            raise ValueError(
                f"v: expected a floating-point tensor, got {v.dtype}; convert it with .double()"
            )
        self._check_unchanged()
        w = v.detach().to(self.dtype)
        product = (
            self._product(w)
            if w.ndim == 1
            else torch.stack([self._product(c) for c in w.unbind(1)], 1)
        )
        return (product.add_(w, alpha=self.damping) if self.damping else product).to(v.dtype)

    def diagonal(self) -> torch.Tensor:
        """Return the exact diagonal (P,), with the damping.

        In closed form where all parameters belong to Linear and Conv2d layers that are called
        once; by the gradient of every example and output elsewhere.
        """
        self._check_unchanged()
        total = _sum(self._squares(index, x) for index, x in enumerate(self._batches))
        return (total / self._n + self.damping).to(self._f.out_dtype)

    def _squares(self, index: int, x: Any) -> torch.Tensor:
        """Return the squared rows of a batch, summed; (P,)."""
        mean, cotangents = self._mean(), self._cotangents(index, self._f.output(x))
        if mean is None and (total := fast.diagonal(self._f, x, cotangents)) is not None:
            return total
        total = torch.zeros(self._f.size, dtype=self.dtype, device=x.device)
        for _, rows in self._f.chunks(x, cotangents):
            total += (rows if mean is None else rows - mean).square().sum((0, 1))
        return total

    def dense(self) -> torch.Tensor:
        """Return the matrix (P, P), with the damping.

        Raises
        ------
        ValueError
            If it would be larger than :func:`natcompanion.metrics.dense_limit` allows.
        """
        remedy = "products with the operator, or its diagonal()"
        affordable(self._f.size, self.dtype, f"{type(self).__name__}.dense", remedy)
        self._check_unchanged()
        mean = self._mean()
        total = _sum(
            gram(self._f, x, self._cotangents(index, self._f.output(x)), mean)
            for index, x in enumerate(self._batches)
        ).div_(self._n)
        total.diagonal().add_(self.damping)
        return total.to(self._f.out_dtype)

    def to_scipy(self) -> scipy.sparse.linalg.LinearOperator:
        """Return the operator for NumPy vectors."""
        device, dtype = self.device, self.dtype

        def product(v: np.ndarray) -> np.ndarray:
            return (self @ torch.as_tensor(v, dtype=dtype, device=device)).cpu().numpy()

        as_numpy = torch.empty(0, dtype=dtype).numpy().dtype
        return scipy.sparse.linalg.LinearOperator(
            self.shape, matvec=product, rmatvec=product, dtype=as_numpy
        )

    def _product(self, v: torch.Tensor) -> torch.Tensor:
        shift = self._shift(v)
        return _sum(self._part(index, v, shift) for index in range(len(self._batches)))

    def _part(self, index: int, v: torch.Tensor, shift: torch.Tensor | float) -> torch.Tensor:
        """Return what one batch contributes to the product."""
        jacobian, cotangents = self._graph(index)
        r = jacobian.r.detach()
        return jacobian.pull(self._inner(r, jacobian.push(v), cotangents, shift) / self._n)

    def _graph(self, index: int) -> tuple[JacobianProducts, torch.Tensor | None]:
        """Return the kept graph of a single batch with what its output metric needs, or build that
        of this batch.
        """
        if self._kept is not None:
            if self._kept[1] is None:  # the second product: more will come
                self._kept = self._kept[0], self._output_metric(self._kept[0].r.detach())
            return self._kept
        jacobian = JacobianProducts(self._f, self._batches[index])
        graph = jacobian, self._factors(index)
        if len(self._batches) == 1:
            self._kept = graph
        return graph

    def _state(self) -> list[tuple[int, int]]:
        return [(p._version, p.data_ptr()) for p in self._f.originals.values()]

    def _check_unchanged(self) -> None:
        if self._state() != self._versions:
            raise ValueError(
                "model: the parameters changed after the operator was made; make a new one"
            )

    def _inner(
        self,
        r: torch.Tensor,
        u: torch.Tensor,
        cotangents: torch.Tensor | None,
        shift: torch.Tensor | float,
    ) -> torch.Tensor:
        """Return the product (n, o) of ``u`` (n, o) with the metric of the outputs."""
        weights = torch.einsum("nko,no->nk", cotangents, u) - shift
        return torch.einsum("nko,nk->no", cotangents, weights)

    def _factors(self, index: int) -> torch.Tensor | None:
        """Return what :meth:`_inner` needs for a batch."""
        return self._scores[index]

    def _output_metric(self, r: torch.Tensor) -> torch.Tensor | None:
        """Return what makes further products with one batch faster."""
        return None

    def _cotangents(self, index: int, r: torch.Tensor) -> torch.Tensor:
        """Return vectors (n, k, o) whose outer products sum to the metric of the outputs."""
        return self._scores[index]

    def _mean(self) -> torch.Tensor | None:
        """Return the mean gradient (P,) if it is to be subtracted."""
        return None

    def _shift(self, v: torch.Tensor) -> torch.Tensor | float:
        mean = self._mean()
        return 0.0 if mean is None else mean @ v


class FisherOperator(MetricOperator):
    r"""The Fisher matrix of a model on a batch, or on several, as an operator.

    .. math:: G v = \frac1n \sum_i J_i^T F(r_i) J_i v

    Parameters
    ----------
    model
        Any differentiable module from (n, ...) to (n, o), or (n, ..., o) with positions, which an
        example sums over; it runs in evaluation mode and is left as it was.
    x
        Inputs (n, ...), or a dictionary of the names and values that the model takes, or batches of
        these (of any sizes, alone or paired with targets, which are not read; the inputs of a pair
        may be a tuple). Batches are read once and kept.
    likelihood
        The output model.
    damping
        Multiple of the identity to add; an attribute.
    parameters
        Names or parameters to restrict to; by default all with ``requires_grad``.
    output
        Selects the outputs (n, ..., o) from what the model returns.

    Raises
    ------
    ValueError
        On an empty batch, NaN input, vectors of the wrong length, or changed parameters.

    Source: revisiting Eq. 8 and Section 8.3.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> FisherOperator(model, x, Gaussian(), damping=0.5) @ torch.ones(1)
    tensor([3.])
    """

    def __init__(
        self,
        model: nn.Module,
        x: Batches,
        likelihood: Likelihood,
        damping: float = 0.0,
        *,
        parameters: Parameters = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, x, damping, parameters, output)
        self._likelihood = self._f.on(likelihood)

    def _inner(
        self,
        r: torch.Tensor,
        u: torch.Tensor,
        cotangents: torch.Tensor | None,
        shift: torch.Tensor | float,
    ) -> torch.Tensor:
        if cotangents is None:
            return self._likelihood.fisher_product(r, u)
        return (cotangents @ u.unsqueeze(2)).squeeze(2)

    def _factors(self, index: int) -> torch.Tensor | None:
        return None

    def _output_metric(self, r: torch.Tensor) -> torch.Tensor | None:
        """Return the metric of the outputs (n, o, o) where it is small: faster than computing with
        ``r`` each time.
        """
        root = self._likelihood.fisher_root(r) if r.numel() * r.shape[1] <= 2**20 else None
        return None if root is None else root @ root.mT

    def _cotangents(self, index: int, r: torch.Tensor) -> torch.Tensor:
        return self._likelihood.fisher_root(r).mT


class CovarianceOperator(MetricOperator):
    r"""The covariance of the per-example gradients at given targets, as an operator.

    .. math:: C v = \frac1n \sum_i (g_i - \bar g) (g_i - \bar g)^T v, \qquad g_i = -\nabla
              \log p(t_i \mid x_i)

    With ``centred=False`` nothing is subtracted: U, the empirical Fisher. ``t`` holds the targets
    of ``x``; if ``x`` is several batches, they are pairs (inputs, targets) and ``t`` is None.
    Otherwise as :class:`FisherOperator`.

    Source: revisiting Eq. 12 and 13.

    Parameters
    ----------
    model, x, likelihood, damping, parameters, output
        As for :class:`FisherOperator`.
    t : Tensor or None
        The targets.
    centred : bool
        C, or U with False.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> t = model(x).detach() + torch.tensor([[1.0], [2.0]])
    >>> C = CovarianceOperator(model, x, t, Gaussian())  # of the gradients -1 and -4
    >>> torch.allclose(C @ torch.ones(1), torch.tensor([2.25]))
    True
    """

    def __init__(
        self,
        model: nn.Module,
        x: Batches,
        t: Any,
        likelihood: Likelihood,
        damping: float = 0.0,
        *,
        centred: bool = True,
        parameters: Parameters = None,
        output: Output = None,
    ) -> None:
        x, targets = apart(x, t)
        super().__init__(model, x, damping, parameters, output)
        scores = [
            score(self._f.on(likelihood), self._f.output(b), t)
            for b, t in zip(self._batches, targets, strict=True)
        ]
        self._scores = [s.unsqueeze(1) for s in scores]
        self._centre: Any = None
        if centred:
            rows = (self._f.chunks(b, s) for b, s in zip(self._batches, self._scores, strict=True))
            self._centre = sum(row.sum((0, 1)) for chunk in rows for _, row in chunk) / self._n

    def _mean(self) -> torch.Tensor | None:
        return self._centre


class MonteCarloOperator(MetricOperator):
    """An unbiased estimate of the Fisher matrix as an operator, from labels drawn from the model.

    ``samples`` labels are drawn for each example when the operator is made, and kept: the operator
    is one fixed matrix. Without ``generator``, torch's global one is used. Otherwise as
    :class:`FisherOperator`.

    Parameters
    ----------
    model, x, likelihood, damping, parameters, output
        As for :class:`FisherOperator`.
    samples : int
        Labels per example.
    generator : torch.Generator, optional

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> G = MonteCarloOperator(model, x, Gaussian(), generator=torch.Generator().manual_seed(0))
    >>> torch.equal(G @ torch.ones(1), G @ torch.ones(1))  # the labels are drawn once
    True
    """

    def __init__(
        self,
        model: nn.Module,
        x: Batches,
        likelihood: Likelihood,
        damping: float = 0.0,
        *,
        samples: int = 1,
        generator: torch.Generator | None = None,
        parameters: Parameters = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, x, damping, parameters, output)
        self._scores = [
            sampled_scores(self._f.on(likelihood), self._f.output(b), samples, generator)
            for b in self._batches
        ]


def _sum(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Add the tensors, into the first one."""
    parts = iter(parts)
    total = next(parts)
    for part in parts:
        total += part
    return total
