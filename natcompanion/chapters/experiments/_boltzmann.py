"""Many classification Boltzmann machines at once: one tensor operation moves every setting of a
grid.
"""

from dataclasses import dataclass
from typing import Any

import torch

from natcompanion.boltzmann import one_hot, states
from natcompanion.data import mnist


@dataclass(frozen=True)
class Split:
    """Digits and labels of one split: images as rows, labels as integers and, if wanted, as label
    units.
    """

    x: torch.Tensor
    y: torch.Tensor
    labels: bool = True

    @property
    def visible(self) -> torch.Tensor:
        """Pixels and label units side by side, (n, D + 10); pixels alone without label units."""
        return torch.cat([self.x, one_hot(self.y, 10, self.x.dtype)], 1) if self.labels else self.x


LEVEL = 0.3
"""A pixel of the binary digits is on if its grey value is above this."""


def digits(
    size: int,
    seed: int,
    grey: bool = False,
    labels: bool = True,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Split]:
    """Return small digits, binary or grey: 3,000 for training, 1,000 for validation, 1,000 for the
    test.
    """
    out = {}
    for split in ("train", "validation", "test"):
        x, y = mnist(size=size, split=split, seed=seed, dtype=dtype)
        x = x.flatten(1)
        out[split] = Split(x if grey else (x > LEVEL).to(dtype), y, labels)
    return out


@dataclass
class Machines:
    """S machines with D pixels, at most one softmax group of labels and H hidden units: W (S, V,
    H), a (S, V), b (S, H).
    """

    W: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    pixels: int

    @classmethod
    def random(cls, S: int, split: Split, hidden: int, generator: torch.Generator) -> "Machines":
        """Return S different starts: weights of standard deviation 0.01, visible biases that give
        the data means.
        """
        v = split.visible
        a = torch.logit((v.sum(0) + 1) / (len(v) + 2)).expand(S, -1).clone()
        W = 0.01 * torch.randn(S, v.shape[1], hidden, generator=generator)
        return cls(W, a, torch.zeros(S, hidden), split.x.shape[1])

    def hidden_mean(self, v: torch.Tensor) -> torch.Tensor:
        """Return p(h = 1 | v), (S, n, H), for ``v`` (n, V) or (S, n, V)."""
        return torch.baddbmm(
            self.b[:, None], v.expand(len(self.W), *v.shape[-2:]), self.W
        ).sigmoid_()

    def visible_mean(self, h: torch.Tensor) -> torch.Tensor:
        """Return E[v | h], (S, n, V): logistic pixels, softmax labels."""
        drive = torch.baddbmm(self.a[:, None], h, self.W.mT)
        return torch.cat(
            [drive[..., : self.pixels].sigmoid(), drive[..., self.pixels :].softmax(-1)], -1
        )

    def sample_visible(self, mean: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return binary pixels and one label each, (S, n, V)."""
        pixels, group = mean[..., : self.pixels], mean[..., self.pixels :]
        x = torch.rand(pixels.shape, generator=generator).lt_(pixels)
        if group.shape[-1] == 0:
            return x
        place = group.cumsum(-1).lt(torch.rand(*group.shape[:-1], 1, generator=generator)).sum(-1)
        y = torch.nn.functional.one_hot(place.clamp_max_(group.shape[-1] - 1), group.shape[-1])
        return torch.cat([x, y.to(x.dtype)], -1)

    def errors(self, split: Split) -> torch.Tensor:
        """Return the share of wrong labels, (S,), by the exact free energy of each label."""
        x, D = split.x, self.pixels
        drive = torch.baddbmm(self.b[:, None], x.expand(len(self.W), *x.shape), self.W[:, :D])
        score = self.a[:, None, D:] + sum(
            torch.nn.functional.softplus(drive[..., j, None] + self.W[:, None, D:, j])
            for j in range(drive.shape[-1])
        )
        return (score.argmax(-1) != split.y).float().mean(1)

    def covariance_norms(self) -> torch.Tensor:
        """Return the exact squared norm of cov(v, h) under each model, (S,), summing over the
        hidden states.
        """
        h = states(self.W.shape[2]).to(self.W)
        drive = torch.baddbmm(self.a[:, None], h.expand(len(self.W), *h.shape), self.W.mT)
        pixels, labels = drive[..., : self.pixels], drive[..., self.pixels :]
        log_p = h @ self.b[..., None]
        log_p = log_p[..., 0] + torch.nn.functional.softplus(pixels).sum(-1)
        log_p = log_p + (labels.logsumexp(-1) if labels.shape[-1] else 0)
        p = torch.softmax(log_p, 1)[..., None]
        m = torch.cat([pixels.sigmoid(), labels.softmax(-1)], -1)
        C = (p * m).mT @ h - (p * m).sum(1)[..., None] * (p * h).sum(1)[:, None]
        return C.square().sum((1, 2))


class SoftmaxOnHidden:
    """The second classifier: a softmax on p(h = 1 | x) of each machine, fitted anew to the training
    digits.

    The cross-entropies of all machines, each with the squared norm of its weights times ``l2 / 2``,
    are minimized together; every call starts where the last one ended.
    """

    def __init__(self, S: int, hidden: int, l2: float = 1e-3, steps: int = 60):
        self.l2, self.steps = l2, steps
        self.weights, self.bias = torch.zeros(S, hidden, 10), torch.zeros(S, 1, 10)

    def fit(self, machines: Machines, split: Split) -> "SoftmaxOnHidden":
        """Fit all classifiers by L-BFGS and return them."""
        q, y = machines.hidden_mean(split.x), split.y.expand(len(machines.W), -1)
        parts = [self.weights.requires_grad_(), self.bias.requires_grad_()]
        optimizer = torch.optim.LBFGS(
            parts, max_iter=self.steps, history_size=20, line_search_fn="strong_wolfe"
        )

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            nll = torch.nn.functional.cross_entropy(
                (q @ parts[0] + parts[1]).mT, y, reduction="none"
            ).mean(1)
            value = nll.sum() + self.l2 / 2 * parts[0].square().sum()
            value.backward()
            return value

        optimizer.step(loss)
        self.weights, self.bias = (x.detach() for x in parts)
        return self

    def errors(self, machines: Machines, split: Split) -> torch.Tensor:
        """Return the share of wrong labels, (S,)."""
        scores = machines.hidden_mean(split.x) @ self.weights + self.bias
        return (scores.argmax(-1) != split.y).float().mean(1)


@dataclass(frozen=True)
class Phases:
    """One CD-1 step of S machines: data and reconstruction, hidden units as probabilities and as
    states.
    """

    v: torch.Tensor
    q: torch.Tensor
    v_model: torch.Tensor
    v_mean: torch.Tensor
    q_model: torch.Tensor

    def gradient(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the contrastive divergence (W, a, b), for ascent."""
        n = self.v.shape[-2]
        dW = (self.v.mT @ self.q - self.v_model.mT @ self.q_model) / n
        return dW, (self.v - self.v_model).mean(-2), (self.q - self.q_model).mean(1)

    def of(self, machines: torch.Tensor) -> "Phases":
        """Return the step of some of the machines, by their numbers."""
        return Phases(
            self.v, *(x[machines] for x in (self.q, self.v_model, self.v_mean, self.q_model))
        )


def contrast(machines: Machines, v: torch.Tensor, generator: torch.Generator) -> Phases:
    """Run CD-1 from the batch ``v`` (n, V) in all machines."""
    q = machines.hidden_mean(v)
    mean = machines.visible_mean(torch.rand(q.shape, generator=generator).lt_(q))
    v_model = machines.sample_visible(mean, generator)
    return Phases(v, q, v_model, mean, machines.hidden_mean(v_model))


def moments(
    phases: Phases, kind: str, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return E[v], E[h], E[v h^T] of the reconstructions, by ``"probabilities"`` or by binary
    ``"states"``.
    """
    if kind == "probabilities":
        v, h = phases.v_mean, phases.q_model
    else:
        v, h = (
            phases.v_model,
            torch.rand(phases.q_model.shape, generator=generator).lt_(phases.q_model),
        )
    return v.mean(1), h.mean(1), v.mT @ h / v.shape[1]


class MovingDifference:
    """Eq. 4 with dW := 1 for S machines, averaged over the last steps; the batched twin of
    `boltzmann.PaperPenalty`.
    """

    def __init__(self, window: int, rule: str):
        self.window, self.rule = window, rule
        self.last: Any
        self.terms: list[Any]
        self.total: Any  # tensors after the first step
        self.last, self.terms, self.total = None, [], 0.0

    def update(self, now: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Take the moments of one step and return the average, (S, V, H)."""
        v, h, vh = now
        if self.last is None:
            self.last = now
            return torch.zeros_like(vh)
        v0, h0, vh0 = self.last
        left = v if self.rule == "printed" else v0
        term = vh - vh0 - (v - v0)[..., None] * h[:, None] - left[..., None] * (h - h0)[:, None]
        self.last, self.total = now, self.total + term
        self.terms.append(term)
        if len(self.terms) > self.window:
            self.total = self.total - self.terms.pop(0)
        return self.total / len(self.terms)


def next_gamma(
    gamma: torch.Tensor,
    penalty: torch.Tensor,
    v: torch.Tensor,
    p: torch.Tensor,
    cap: float = 1.0,
) -> torch.Tensor:
    """Return the weights of S penalties (S, D, H) after one step, (S,); the batched twin of
    `boltzmann.ThresholdController`.
    """
    share = (penalty.abs() > v[:, None, None]).float().mean((1, 2))
    return (gamma * torch.where(share > p, 1.1, 0.9)).clamp(1e-5, cap)


def sample_covariance(phases: Phases) -> torch.Tensor:
    """Return cov(v, h) over the reconstructions, (S, V, H); h may be its mean given v, but v not
    its mean given h.
    """
    v, h = phases.v_model, phases.q_model
    return (v - v.mean(1, keepdim=True)).mT @ (h - h.mean(1, keepdim=True)) / v.shape[1]


def exact_rule(
    phases: Phases, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sample estimate 2 Cov(g, g.u) of the gradient of the squared norm of cov(v, h): W,
    a, b parts.
    """
    v, h = phases.v_model, torch.rand(phases.q_model.shape, generator=generator).lt_(phases.q_model)
    mean_v, mean_h, n = v.mean(1, keepdim=True), h.mean(1, keepdim=True), v.shape[1]
    C = (v - mean_v).mT @ (h - mean_h) / n
    along = (((v - mean_v) @ C) * (h - mean_h)).sum(-1)
    along = 2 * (along - along.mean(1, keepdim=True))[..., None] / n
    return (along * v).mT @ h, (along * v).sum(1), (along * h).sum(1)


def decorrelation(phases: Phases) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient (W, b) of the squared off-diagonal covariances of the hidden
    probabilities over the batch.
    """
    q = phases.q
    centred = q - q.mean(1, keepdim=True)
    C = centred.mT @ centred / q.shape[1]
    C = C - torch.diag_embed(C.diagonal(dim1=1, dim2=2))
    slope = 4 * centred @ C * q * (1 - q) / q.shape[1]
    return phases.v.mT @ slope, slope.sum(1)
