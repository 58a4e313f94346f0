"""Reading a class from a Boltzmann machine: label units, or a softmax on the hidden units."""

from typing import Any

import torch

from natcompanion import _checks
from natcompanion.boltzmann.enumeration import softplus
from natcompanion.boltzmann.rbm import RBM


def one_hot(labels: torch.Tensor, classes: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return (n, classes) label units for integer ``labels`` (n,); ValueError if one is out of
    range.

    Parameters
    ----------
    labels : Tensor, shape (n,)
    classes : int
    dtype : torch.dtype

    Examples
    --------
    >>> one_hot(torch.tensor([2, 0]), 3)
    tensor([[0., 0., 1.],
            [1., 0., 0.]], dtype=torch.float64)
    """
    return torch.nn.functional.one_hot(_checked(labels, classes).long(), classes).to(dtype)


def _checked(labels: torch.Tensor, classes: int, rows: int | None = None) -> torch.Tensor:
    """Return ``labels`` if they are integers from 0 to ``classes`` - 1, as many as ``rows``."""
    tensor = isinstance(labels, torch.Tensor)
    good = tensor and not labels.is_floating_point() and labels.ndim == 1 and len(labels) > 0
    if not good or len(labels) != (rows or len(labels)):
        got = f"{labels.dtype} {tuple(labels.shape)}" if tensor else type(labels).__name__
        raise ValueError(
            f"labels: expected a tensor of integers ({rows or 'n'},), n >= 1, got {got}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"labels: expected 0 to {classes - 1}, got minimum {low} and maximum {high}"
        )
    return labels


class ClassificationRBM:
    r"""A Boltzmann machine over (x, y): pixels x and one softmax group of label units y.

    .. math:: p(y \mid x) \propto \exp\Big(d_y + \sum_j \log(1 + e^{b_j + U_{yj} + x^T
              W_{\cdot j}})\Big)

    Parameters
    ----------
    W
        (pixels, H)
    U
        (classes, H)
    a, b, d
        Biases of the pixels, the hidden units and the classes.

    Notes
    -----
    The paper gives accuracies but no classifier; this is one of two readings, `fit_softmax` is the
    other.

    Examples
    --------
    >>> W, U, a, b = torch.zeros(2, 1), torch.zeros(3, 1), torch.zeros(2), torch.zeros(1)
    >>> machine = ClassificationRBM(W, U, a, b, torch.tensor([0.0, 9.0, 0.0]))
    >>> machine.predict(torch.zeros(1, 2))
    tensor([1])
    """

    def __init__(
        self, W: torch.Tensor, U: torch.Tensor, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor
    ):
        self.machine = RBM(torch.cat([W, U]), torch.cat([a, d]), b)
        self.pixels, self.classes = len(W), len(U)

    @classmethod
    def from_machine(cls, machine: RBM, classes: int) -> "ClassificationRBM":
        """Return the classifier whose last ``classes`` visible units are the label units; at least
        one is a pixel.
        """
        n = machine.visible - _checks.whole(classes, "classes", 1, machine.visible - 1)
        W, U, a, d = machine.W[:n], machine.W[n:], machine.a[:n], machine.a[n:]
        return cls(W, U, a, machine.b, d)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the unnormalized log p(y|x), (n, classes), exactly: the hidden units are summed
        out.
        """
        n = self.pixels
        W, a, b = self.machine.double()
        drive = b + RBM(W[:n], a[:n], b).check_visible(x).double() @ W[:n]
        return (a[n:] + softplus(drive[:, None, :] + W[n:]).sum(2)).to(x.dtype)

    def probabilities(self, x: torch.Tensor) -> torch.Tensor:
        """Return p(y|x), (n, classes)."""
        return torch.softmax(self.logits(x), 1)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Return the most probable class of each row, (n,)."""
        return self.logits(x).argmax(1)

    def error(self, x: torch.Tensor, labels: torch.Tensor) -> float:
        """Return the fraction of wrong predictions for integer ``labels`` (n,)."""
        predicted = self.predict(x)
        return float((predicted != _checked(labels, self.classes, len(predicted))).double().mean())

    def cd_gradient(
        self, x: torch.Tensor, labels: torch.Tensor, *, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Return the CD-1 gradient of the mean log p(x, y); the label group is sampled as a
        softmax, (P,).
        """
        v = torch.cat(
            [x, one_hot(_checked(labels, self.classes, len(x)), self.classes, x.dtype)], 1
        )
        q = self.machine.hidden_mean(v)
        like: dict[str, Any] = {"generator": generator, "dtype": q.dtype, "device": q.device}
        h = (torch.rand(q.shape, **like) < q).to(q.dtype)
        pixels = self.machine.visible_mean(h)[:, : self.pixels]
        x_model = (torch.rand(pixels.shape, **like) < pixels).to(q.dtype)
        group = torch.softmax(
            h @ self.machine.W[self.pixels :].mT + self.machine.a[self.pixels :], 1
        )
        y_model = one_hot(
            torch.multinomial(group, 1, generator=generator)[:, 0], self.classes, q.dtype
        )
        return self.machine.contrast(v, torch.cat([x_model, y_model], 1))


def fit_softmax(
    features: torch.Tensor,
    labels: torch.Tensor,
    classes: int,
    *,
    l2: float = 1e-3,
    steps: int = 100,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (weights, bias) of a softmax on ``features`` (n, H), fitted by L-BFGS to the mean
    cross-entropy.

    Parameters
    ----------
    features
        Hidden probabilities (n, H).
    labels
        Integers (n,).
    classes
        Number of classes.
    l2
        Half the squared norm of the weights is added with this factor.
    steps
        Largest number of L-BFGS iterations.

    Returns
    -------
    tuple
        (H, classes) and (classes,)

    Examples
    --------
    >>> features = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    >>> weights, bias = fit_softmax(features, torch.tensor([0, 1]), 2)
    >>> (features @ weights + bias).argmax(1)
    tensor([0, 1])
    """
    features = _checks.matrix(features, "features").detach()
    target = one_hot(_checked(labels, classes, len(features)), classes, features.dtype)
    weights = features.new_zeros(features.shape[1], classes).requires_grad_()
    bias = features.new_zeros(classes).requires_grad_()
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits = features @ weights + bias
        value = -(target * torch.log_softmax(logits, 1)).sum(1).mean() + l2 / 2 * (weights**2).sum()
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach(), bias.detach()
