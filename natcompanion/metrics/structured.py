"""Inputs in several parts, and outputs at several positions, as rows of examples."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion._memory import affordable_root
from natcompanion.likelihoods import Bernoulli, Gaussian, Weighted


class Inputs:
    """A batch of inputs in several parts, cut into examples as one tensor is.

    Parameters
    ----------
    parts : dict
        Tensors (n, ...), by position or name; what is no tensor goes with every example.
    named : bool
        Whether the parts are keyword arguments.
    """

    def __init__(self, parts: dict[Any, Any], named: bool) -> None:
        self.parts, self.named = parts, named
        self.tensors = {k: v for k, v in parts.items() if isinstance(v, torch.Tensor)}
        sizes = {len(v) if v.ndim else 0 for v in self.tensors.values()}
        if len(sizes) != 1:
            raise ValueError(
                "x: expected parts with the same number of examples, got the shapes "
                f"{[tuple(v.shape) for v in self.tensors.values()]}"
            )
        self.device = next(iter(self.tensors.values())).device

    @classmethod
    def of(cls, x: Any) -> "Inputs":
        """Return a tuple or dictionary of parts as inputs."""
        if isinstance(x, Inputs):
            return x
        named = isinstance(x, Mapping)
        return cls(dict(x.items() if named else enumerate(x)), named)

    @staticmethod
    def alone(x: Any, batch: Any) -> Any:
        """Return one example, without the batch dimension, as a batch like another."""
        if not isinstance(batch, Inputs):
            return x.unsqueeze(0)
        return batch.map(lambda part: part, {k: v.unsqueeze(0) for k, v in x.items()})

    def map(self, f: Callable, tensors: dict[Any, torch.Tensor] | None = None) -> "Inputs":
        """Return the same with a function of every tensor."""
        tensors = self.tensors if tensors is None else tensors
        return Inputs({**self.parts, **{k: f(v) for k, v in tensors.items()}}, self.named)

    def given_to(self, model: nn.Module) -> Any:
        """Return what the model returns for them."""
        return model(**self.parts) if self.named else model(*self.parts.values())

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, part: slice) -> "Inputs":
        return self.map(lambda v: v[part])


def joined(x: Any) -> Any:
    """Return inputs in several parts as one batch; a bare tuple would be taken for several."""
    return Inputs.of(x) if isinstance(x, (tuple, Mapping)) else x


def inputs_of(pair: Any) -> Any:
    """Return the inputs of a pair with targets; a loader of torch makes lists of tuples."""
    return joined(tuple(pair[0]) if isinstance(pair[0], list) else pair[0])


def pair_of(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the targets of a batch of a loader.

    Raises
    ------
    ValueError
        If it is no pair.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(
            f"x: expected batches (inputs, targets), got {check.kind(batch)}; make pairs of them, "
            'as in ((b["inputs"], b["labels"]) for b in loader)'
        )
    return batch[0], batch[1]


class Positions:
    """A likelihood on rows (n, T o) of outputs that the model gave as (n, ..., o), or as (n,).

    Parameters
    ----------
    likelihood : Likelihood
    f
        Knows in ``trailing`` the shape of the last outputs, without the examples.
    """

    def __init__(self, likelihood: Any, f: Any) -> None:
        self.likelihood, self.f = likelihood, f

    @property
    def drawn(self) -> "Positions":
        """The likelihood whose scores at drawn labels have the Fisher matrix as covariance."""
        return Positions(getattr(self.likelihood, "drawn", self.likelihood), self.f)

    def _apart(self, r: torch.Tensor) -> torch.Tensor:
        """Return rows (n, T o) as (n, ..., o)."""
        shape, own = self.f.trailing, self.likelihood
        own = own.likelihood if isinstance(own, Weighted) else own
        if len(shape) > 2 and self.f.select is None and not isinstance(own, (Gaussian, Bernoulli)):
            raise ValueError(
                "model: expected outputs whose last dimension is that of the likelihood, got shape "
                f"(n, {', '.join(map(str, shape))}), which may be channels first; say so with "
                "output=lambda r: r.movedim(1, -1), or output=lambda r: r if it is the last"
            )
        return r if len(shape) == 1 else r.reshape(len(r), *(shape or (1,)))

    def mean(self, r: torch.Tensor) -> torch.Tensor:
        return self.likelihood.mean(self._apart(r))

    def nll(self, r: torch.Tensor, t: Any) -> torch.Tensor:
        if not self.f.trailing and isinstance(t, torch.Tensor) and t.ndim == 1:
            t = t.unsqueeze(1)  # outputs (n,) have targets (n,)
        return self.likelihood.nll(self._apart(r), t)

    def kl(self, r: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        found = self.likelihood.kl(self._apart(r), self._apart(s))
        return found if found.ndim == 1 else found.flatten(1).sum(1)

    def fisher_product(self, r: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return self.likelihood.fisher_product(self._apart(r), self._apart(u)).reshape(u.shape)

    def fisher_root(self, r: torch.Tensor) -> torch.Tensor:
        affordable_root(r)  # of all positions of an example together
        root = self.likelihood.fisher_root(self._apart(r))
        if root.ndim == 3:
            return root
        root = root.flatten(1, -3)  # (n, T, o, k), to blocks on a diagonal
        n, T, o, k = root.shape
        whole = root.new_zeros(n, T, o, T, k)
        places = torch.arange(T, device=root.device)
        whole[:, places, :, places] = root.transpose(0, 1)
        return whole.reshape(n, T * o, T * k)

    def sample(self, r: torch.Tensor, *, generator: torch.Generator | None = None) -> Any:
        return self.likelihood.sample(self._apart(r), generator=generator)
