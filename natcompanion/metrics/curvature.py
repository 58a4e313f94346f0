"""The curvature of a loss at given targets, by its products: Gauss-Newton matrix and Hessian."""

from typing import Any

import torch
from torch import nn

from natcompanion._memory import affordable
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics import fast
from natcompanion.metrics.dense import Output, Parameters, gram, output_hessian, score
from natcompanion.metrics.model_function import DETACHED
from natcompanion.metrics.operators import Batches, MetricOperator, apart


class TargetOperator(MetricOperator):
    """A metric operator that knows the targets of its inputs.

    Parameters
    ----------
    model, x, t, likelihood, damping, parameters, output
        As for :class:`natcompanion.metrics.CovarianceOperator`.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Batches,
        t: Any,
        likelihood: Likelihood,
        damping: float = 0.0,
        *,
        parameters: Parameters = None,
        output: Output = None,
    ) -> None:
        x, self._targets = apart(x, t)
        super().__init__(model, x, damping, parameters, output)
        self._likelihood = self._f.on(likelihood)
        for b, t_b in zip(self._batches, self._targets, strict=True):
            score(self._likelihood, self._f.output(b), t_b)  # refuses targets that do not fit

    def _affordable(self, what: str, remedy: str) -> None:
        affordable(self._f.size, self.dtype, f"{type(self).__name__}.{what}", remedy)


class GaussNewtonOperator(TargetOperator):
    r"""The extended Gauss-Newton matrix of the mean negative log-likelihood, as an operator.

    .. math:: G_N v = \frac1n \sum_i J_i^T \, \frac{\partial^2 (-\log p(t_i \mid r_i))}{\partial
              r^2} \, J_i v

    The inner Hessian is that of the loss at the given targets, so that for the three standard
    likelihoods it is the Fisher matrix; for one's own it may differ from it and be indefinite.
    Inputs and targets as for :class:`natcompanion.metrics.CovarianceOperator`.

    Source: revisiting Eq. 14 (which lacks the minus sign).

    Parameters
    ----------
    model, x, t, likelihood, damping, parameters, output
        As for :class:`natcompanion.metrics.CovarianceOperator`.

    Raises
    ------
    ValueError
        As :class:`natcompanion.metrics.FisherOperator`; on targets that do not fit.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> G = GaussNewtonOperator(model, x, torch.zeros(2, 1), Gaussian())
    >>> G @ torch.ones(1), G.diagonal()
    (tensor([2.5000]), tensor([2.5000]))
    """

    def _inner(self, r: torch.Tensor, u: torch.Tensor, t: Any, shift: Any) -> torch.Tensor:
        r = r.detach().requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad(self._likelihood.nll(r, t).sum(), r, create_graph=True)
        if not g.requires_grad:  # a loss that is linear in r
            return torch.zeros_like(u)
        return torch.autograd.grad(g, r, u, materialize_grads=True)[0]

    def _factors(self, index: int) -> Any:
        return self._targets[index]

    def _signed(self, index: int, r: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        """Return vectors (n, k, o) whose outer products sum to the positive part of the inner
        Hessian, and those of the negative part, if there is one.
        """
        values, vectors = torch.linalg.eigh(
            output_hessian(self._likelihood, r, self._targets[index])
        )
        slack = torch.finfo(r.dtype).eps * r.shape[1] * values.abs().amax()
        signs = [1, -1] if bool((values < -slack).any()) else [1]
        parts = ((s, (s * values).clamp(min=0).sqrt()) for s in signs)
        return [(s, (vectors * root.unsqueeze(1)).mT) for s, root in parts]

    def _squares(self, index: int, x: Any) -> torch.Tensor:
        total = torch.zeros(self._f.size, dtype=self.dtype, device=x.device)
        for sign, cotangents in self._signed(index, self._f.output(x)):
            part: Any = fast.diagonal(self._f, x, cotangents)
            if part is None:
                chunks = self._f.chunks(x, cotangents)
                part = sum(rows.square().sum((0, 1)) for _, rows in chunks)
            total += sign * part
        return total

    def dense(self) -> torch.Tensor:
        """Return the matrix (P, P), with the damping.

        Raises
        ------
        ValueError
            If it would be larger than :func:`natcompanion.metrics.dense_limit` allows.
        """
        self._affordable("dense", "products with the operator, or its diagonal()")
        self._check_unchanged()
        total: Any = sum(
            sign * gram(self._f, x, cotangents)
            for index, x in enumerate(self._batches)
            for sign, cotangents in self._signed(index, self._f.output(x))
        )
        total.div_(self._n).diagonal().add_(self.damping)
        return total.to(self._f.out_dtype)


class HessianOperator(TargetOperator):
    r"""The Hessian of the mean negative log-likelihood, as an operator.

    .. math:: H v = \frac1n \sum_i \frac{\partial^2 (-\log p(t_i \mid r_i))}{\partial \theta^2} v

    It may be indefinite. A product is one gradient of a gradient. Inputs and targets as for
    :class:`natcompanion.metrics.CovarianceOperator`.

    ``diagonal()`` and ``dense()`` take P products;
    :func:`natcompanion.metrics.estimate_diagonal` takes fewer. Source: revisiting Section 4.2; the
    product is that of Pearlmutter (1994).

    Parameters
    ----------
    model, x, t, likelihood, damping, parameters, output
        As for :class:`natcompanion.metrics.CovarianceOperator`.

    Raises
    ------
    ValueError
        As :class:`natcompanion.metrics.FisherOperator`; on targets that do not fit; if torch has no
        second derivative of a layer.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> class Square(torch.nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x).square()
    >>> model = Square(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(2.0)
    >>> x, t = torch.ones(1, 1), torch.tensor([[7.0]])
    >>> HessianOperator(model, x, t, Gaussian()) @ torch.ones(1)  # of (w^2 - 7)^2 / 2: 6 w^2 - 14
    tensor([10.])
    """

    def _graph_of_gradient(self, index: int) -> tuple[list[torch.Tensor], list[Any]]:
        """Return the parameters and the gradient of the summed loss of a batch, with its graph."""
        if (kept := getattr(self, "_gradient", None)) is not None:
            return kept
        theta = {name: p.detach().requires_grad_() for name, p in self._f.theta.items()}
        leaves = list(theta.values())
        with torch.enable_grad():
            r = self._f(theta, self._batches[index])
            if not r.requires_grad:
                raise ValueError(DETACHED)
            loss = self._likelihood.nll(r, self._targets[index]).sum()
            found = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
        graph = leaves, list(found)
        if len(self._batches) == 1:
            self._gradient = graph
        return graph

    def _part(self, index: int, v: torch.Tensor, shift: Any) -> torch.Tensor:
        leaves, gradient = self._graph_of_gradient(index)
        along = v.split([p.numel() for p in leaves])
        live = [
            (g, part.view_as(g)) for g, part in zip(gradient, along, strict=True) if g.requires_grad
        ]
        if not live:
            return torch.zeros_like(v)
        try:
            found = torch.autograd.grad(
                [g for g, _ in live],
                leaves,
                [part for _, part in live],
                retain_graph=True,
                materialize_grads=True,
            )
        except RuntimeError as error:
            raise ValueError(
                f"model: expected layers with a second derivative, torch says: {error}; use "
                "GaussNewtonOperator, which needs none"
            ) from error
        return torch.cat([h.reshape(-1) for h in found]) / self._n

    def diagonal(self) -> torch.Tensor:
        """Return the exact diagonal (P,), with the damping, by P products.

        Raises
        ------
        ValueError
            If the model is so large that :meth:`dense` is refused.
        """
        self._affordable("diagonal", "metrics.estimate_diagonal")
        return torch.stack([column[i] for i, column in enumerate(self._columns())])

    def dense(self) -> torch.Tensor:
        """Return the matrix (P, P), with the damping, by P products.

        Raises
        ------
        ValueError
            If it would be larger than :func:`natcompanion.metrics.dense_limit` allows.
        """
        self._affordable("dense", "products with the operator, or metrics.estimate_diagonal")
        H = torch.stack(list(self._columns()))
        return (H + H.mT) / 2

    def _columns(self) -> Any:
        """Yield the products with the unit vectors."""
        e = torch.zeros(self._f.size, dtype=self._f.out_dtype, device=self._batches[0].device)
        for i in range(len(e)):
            e[i] = 1
            yield self @ e
            e[i] = 0
