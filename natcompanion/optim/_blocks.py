r"""The relative metric of one layer: its running mean, its inverse, and the hook that sees the
layer's inputs.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from natcompanion._moments import first, gram
from natcompanion.optim._activations import Activation
from natcompanion.optim._prong_hooks import recomputing, transformed

KINDS = ("neuron", "mean", "linear")
FLOOR = 1e-3
"""The relative damping of a neuron is at least this part of the layer's mean."""


def packed_moments(x: torch.Tensor, nu: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    r"""Return :math:`\sum_i \nu_{li}\, \tilde x_{ia} \tilde x_{ib}` for the pairs ``a <= b`` in
    ``index``.

    One matrix product for all neurons: ``x`` (rows, D), ``nu`` (rows, m), ``index`` (2, D (D + 1) /
    2), the result (m, D (D + 1) / 2).
    """
    xt = x.mT.contiguous()
    pairs = xt.index_select(0, index[0]).mul_(xt.index_select(0, index[1]))
    return nu.mT @ pairs.mT


def unpacked(packed: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the symmetric matrices (m, D, D) whose upper triangles are the rows of ``packed``."""
    G = packed.new_empty(len(packed), dim, dim)
    G[:, index[0], index[1]] = packed
    G[:, index[1], index[0]] = packed
    return G


def damped_inverse(G: torch.Tensor, relative: float) -> torch.Tensor:
    r"""Return the inverses of :math:`G_l + \rho \max(t_l, t / 1000) I` for a stack (m, D, D) or one
    matrix (D, D).

    :math:`t_l = \mathrm{tr}\, G_l / D`, ``t`` is its mean over the stack, and :math:`\rho` is
    ``relative``. A block that is still not positive definite in this precision gets more: the
    damping grows tenfold, from the precision times its trace, until it is, and its inverse finite.
    """
    level = G.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(max=torch.finfo(G.dtype).max)
    level = torch.maximum(level, FLOOR * level.mean())
    eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
    if relative:
        G = G + (relative * level)[..., None, None] * eye
    inverse, failed = _inverse(G)
    extra = torch.finfo(G.dtype).eps
    while bool(failed.any()):
        level = torch.where(level > 0, level, torch.ones_like(level))
        G = torch.where(failed[..., None, None], G + (extra * level)[..., None, None] * eye, G)
        inverse, failed = _inverse(G)
        extra *= 10
    return inverse


def _inverse(G: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inverses by Cholesky, and which of them are not to be used.

    A pivot counts as 0 from where its products are subnormal: there digits are lost, some
    processors and libraries flush them to 0 and others do not, and the inverse overflows.
    """
    root, failed = torch.linalg.cholesky_ex(G)
    info = torch.finfo(G.dtype)
    pivots = root.diagonal(dim1=-2, dim2=-1)
    failed = (failed > 0) | (pivots < (info.tiny / info.eps) ** 0.5).any(-1)
    # In the place of a root that failed stands I: a zero pivot is an error in cholesky_inverse.
    eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
    inverse = torch.cholesky_inverse(torch.where(failed[..., None, None], eye, root))
    return inverse, failed | ~inverse.isfinite().all(-1).all(-1)


def windows(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """Return the patches (n, positions, C k k) that a convolution multiplies with its weights."""
    sizes = list(zip(layer.kernel_size, layer.dilation, strict=True))
    if layer.padding == "same":
        total = [d * (k - 1) for k, d in sizes]
        margins = [(t // 2, t - t // 2) for t in total]
    else:
        margins = [(0, 0) if layer.padding == "valid" else (p, p) for p in _pair(layer.padding)]
    x = F.pad(x, (*margins[1], *margins[0]))
    return F.unfold(x, layer.kernel_size, dilation=layer.dilation, stride=layer.stride).mT


def _pair(padding: Any) -> tuple:
    return padding if isinstance(padding, tuple) else (0, 0)


class Block:
    """One layer with its metric.

    The metric is ``S + identity * I``: ``S`` is the running mean of the statistics from 0, and
    ``identity`` is what the start at I and the absolute damping contribute to Eq. 32.
    """

    def __init__(
        self,
        name: str,
        layer: Any,
        activation: Activation,
        kind: str,
        omega: float,
        chosen: set[int],
    ) -> None:
        self.name, self.layer, self.activation, self.kind, self.omega = (
            name,
            layer,
            activation,
            kind,
            omega,
        )
        self.weight = layer.weight if id(layer.weight) in chosen else None
        self.bias = layer.bias if layer.bias is not None and id(layer.bias) in chosen else None
        self.parts = [p for p in (self.weight, self.bias) if p is not None]
        self.neurons = len(layer.weight)
        self.dim = (0 if self.weight is None else self.weight[0].numel()) + (self.bias is not None)
        dtype = layer.weight.dtype
        self.dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        self.identity, self.share = 1.0, 0.0
        self.S: torch.Tensor | None = None
        self.constant: torch.Tensor | None = None
        self.inverse: torch.Tensor | None = None
        self.live: torch.Tensor | None = None
        self.rest = 1.0
        self.due = True
        self.accumulated = False
        self.pending: list[tuple[torch.Tensor, Any, int]] = []  # Any: weights, or None for 1

    @property
    def own(self) -> bool:
        """Whether every neuron has a metric of its own."""
        return self.kind == "neuron"

    @property
    def memory(self) -> int:
        """Bytes of the running mean (its upper triangles) and the inverse."""
        pairs = self.dim * (self.dim + 1) // 2
        numbers = self.neurons * (pairs + self.dim**2) if self.own else 2 * self.dim**2
        return numbers * torch.finfo(self.dtype).bits // 8

    # ---- Statistics

    def see(self, x: torch.Tensor, a: torch.Tensor) -> None:
        """Note the inputs and weights of a forward pass, once a gradient comes back through it to
        the parameters.
        """
        if transformed(a) or not (
            self.due and self.constant is None and torch.is_grad_enabled() and a.requires_grad
        ):
            return
        if not x.numel():  # no examples
            return
        if (
            self.weight is not None and self.layer.weight is not self.weight
        ):  # torch.func.functional_call
            return
        if self.accumulated and all(p.grad is None for p in self.parts) and not recomputing():
            self.forget()  # those gradients were cleared without a step
        with torch.no_grad():
            noted = (x.detach(), self._nu(a.detach()), _examples(self.layer, x))
        a.register_hook(lambda _: self._keep(*noted))

    def _keep(self, x: torch.Tensor, nu: torch.Tensor | None, examples: int) -> None:
        """Keep what a pass showed, if the backward pass that is at work goes to the parameters."""
        into = [_destination(p) for p in self.parts if p.requires_grad]
        if any(into):
            self.accumulated |= "grad" in into
            self.pending.append(
                (x.clone(), nu, examples)
            )  # the user may fill x anew before the step

    def forget(self) -> None:
        """Forget the passes that were seen."""
        self.pending.clear()
        self.accumulated = False

    def _nu(self, a: torch.Tensor) -> torch.Tensor | None:
        """Return the weights (rows, m), or their mean over the neurons (rows, 1), or None for 1."""
        if self.kind == "linear" or self.activation.name == "linear":
            return torch.ones_like(self._rows(a), dtype=self.dtype) if self.own else None
        nu = self._rows(self.activation.nu(a.to(self.dtype), self.omega))
        return nu if self.own else nu.mean(1, keepdim=True)

    def _rows(self, a: torch.Tensor) -> torch.Tensor:
        if isinstance(self.layer, nn.Conv2d):
            return a.movedim(-3, -1).reshape(-1, self.neurons)
        return a.reshape(-1, self.neurons)

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return the extended inputs (rows, D), of the parameters that are trained: a 1 last for
        the bias.
        """
        if isinstance(self.layer, nn.Conv2d):
            x = windows(self.layer, x)
        x = x.reshape(-1, x.shape[-1]).to(self.dtype)
        one = [x.new_ones(len(x), 1)] if self.bias is not None else []
        return torch.cat([x] * (self.weight is not None) + one, 1)

    def statistics(self) -> torch.Tensor:
        """Return the sum of the seen ``nu x x^T`` over positions, divided by the number of
        examples.
        """
        x = torch.cat([self.inputs(x) for x, _, _ in self.pending])
        examples = sum(n for _, _, n in self.pending)
        nu: Any = (
            None if self.pending[0][1] is None else torch.cat([nu for _, nu, _ in self.pending])
        )
        if self.own:
            return packed_moments(x, nu / examples, self._index(x.device))
        return gram(x * (examples**-0.5 if nu is None else (nu / examples).sqrt()))

    def sees_finite(self) -> bool:
        """Return whether all inputs of the seen passes are finite."""
        return all(bool(x.isfinite().all()) for x, _, _ in self.pending)

    def fits(self, state: dict[str, Any]) -> bool:
        """Return whether a stored state has the shapes of this layer's metric."""
        D, m = self.dim, self.neurons
        live = D if state["live"] is None else len(state["live"])
        if self.own:
            shapes = {"S": (m, D * (D + 1) // 2), "inverse": (m, D, D), "constant": None}
        else:
            shapes = {"S": (D, D), "inverse": (live, live), "constant": (D, D)}
        return all(state[key] is None or state[key].shape == shape for key, shape in shapes.items())

    def accumulate(self, statistics: torch.Tensor | None, eps: float, decay: float) -> None:
        """Move the running mean (Eq. 32); None stands for statistics that never change."""
        self.identity = decay * self.identity + (1 - decay) * eps
        self.share = decay * self.share + (1 - decay)
        if statistics is None:
            return
        if self.S is None:
            self.S = torch.zeros_like(statistics)
        self.S.mul_(decay).add_(statistics, alpha=1 - decay)

    def metric(self) -> torch.Tensor:
        """Return G: (m, D, D), or one matrix (D, D) for all neurons."""
        G = self._mean().clone()
        G.diagonal(dim1=-2, dim2=-1).add_(self.identity)
        return G

    def _mean(self) -> torch.Tensor:
        """Return the running mean of the statistics, from 0."""
        if self.constant is not None:
            return self.share * self.constant
        if self.S is None:
            stack = (self.neurons,) * self.own
            return torch.zeros(
                *stack, self.dim, self.dim, dtype=self.dtype, device=self.layer.weight.device
            )
        return unpacked(self.S, self._index(self.S.device), self.dim) if self.own else self.S

    def refresh(self, relative: float) -> None:
        """Compute the inverse of the present metric.

        Inputs that were always 0, such as the margin of an image, have rows of their own in a
        shared metric, all the same multiple of I. They are left out of the matrix.
        """
        G, self.live, self.rest = self.metric(), None, 1.0
        if not self.own:
            level = self.identity + relative * float(G.diagonal().mean())
            live = self._mean().count_nonzero(1) > 0
            if level > 0 and 20 * int((~live).sum()) > self.dim:
                self.live, self.rest = live.nonzero()[:, 0], 1 / level
                G, relative = G[live][:, live], 0.0
                G.diagonal().add_(level - self.identity)
        self.inverse = damped_inverse(G, relative)

    def direction(self) -> torch.Tensor:
        """Return the gradient (m, D) times the stored inverse."""
        g = torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad).reshape(self.neurons, -1)
                for p in self.parts
            ],
            1,
        ).to(self.dtype)
        if self.inverse is None:
            return g
        if self.own:
            return torch.bmm(g[:, None], self.inverse)[:, 0]
        if self.live is None:
            return g @ self.inverse
        d = self.rest * g
        return d.index_copy_(1, self.live, g.index_select(1, self.live) @ self.inverse)

    def _index(self, device: torch.device) -> torch.Tensor:
        cached = getattr(self, "_pairs", None)
        if cached is None or cached.device != device:
            self._pairs = torch.triu_indices(self.dim, self.dim, device=device)
        return self._pairs


class Tap:
    """A forward hook that shows a block what its layer sees. A copy of it, or one without its
    block, is blind.
    """

    def __init__(self, block: Block | None) -> None:
        self.block: Callable[[], Block | None] = (
            (lambda: None) if block is None else weakref.ref(block)
        )

    @torch._disable_dynamo  # under torch.compile the hook runs as it is
    def __call__(self, layer: nn.Module, args: tuple, kwargs: dict, output: torch.Tensor) -> None:
        block = self.block()
        if block is not None:
            block.see(first(args, kwargs), output)

    def __deepcopy__(self, memo: dict) -> "Tap":
        return Tap(None)

    def __reduce__(self) -> tuple:
        return Tap, (None,)


def _destination(p: torch.Tensor) -> str | None:
    """Return where the backward pass at work puts the gradient of a parameter: "grad", "result", or
    None.
    """
    try:
        return "grad" if torch._C._will_engine_execute_node(get_gradient_edge(p).node) else None
    except RuntimeError:  # torch.autograd.grad with respect to p
        return "result"


def _examples(layer: nn.Module, x: torch.Tensor) -> int:
    single = 3 if isinstance(layer, nn.Conv2d) else 1
    return 1 if x.ndim == single else len(x)
