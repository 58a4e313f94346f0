"""The numbers of *In your own code*: what spectra suggest for a small network on digits."""

from functools import cache

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from natcompanion.data import mnist
from natcompanion.likelihoods import Categorical
from natcompanion.metrics import fisher
from natcompanion.whitening import staleness, suggest_eps, suggest_period

EXAMPLES, SIDE, HIDDEN, STEPS, EVERY, LR = 1000, 7, 16, 400, 10, 0.5
START = 100
"""The first steps change the inputs of the last layer too fast for any period."""
SONNET = """Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st;
Nor shall death brag thou wander'st in his shade,
When in eternal lines to time thou grow'st:
So long as men can breathe or eyes can see,
So long lives this, and this gives life to thee.
"""
"""Shakespeare, 1609."""
SHARES = (0.9, 0.99, 0.999)
PLACES = ("pixels", "hidden layer", "Fisher matrix")


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return pixels (1000, 49) of small digits, and their labels (1000,)."""
    x, t = mnist(EXAMPLES, size=SIDE, dtype=torch.float64)
    return x.flatten(1), t


def public_example() -> tuple[nn.Sequential, DataLoader]:
    """Return the network of PyTorch's MNIST example for images of half the side, and batches of 50
    out of 1,000 digits.
    """
    images, labels = mnist(1000, size=14, dtype=torch.float32)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(1600, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
    return model, DataLoader(TensorDataset(images[:, None], labels), 50, shuffle=True)


def accuracy(model: nn.Module, x: torch.Tensor, t: torch.Tensor) -> float:
    """Return the percentage of labels (n,) that the largest of the outputs (n, k) names."""
    with torch.no_grad():
        return 100 * float((model(x).argmax(1) == t).double().mean())


def sonnet() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return eight characters (n, 8) and the next one (n,), as numbers, and how many there are."""
    alphabet = sorted(set(SONNET))
    text = torch.tensor([alphabet.index(character) for character in SONNET])
    windows = text.unfold(0, 9, 1)
    return windows[:, :8], windows[:, 8], len(alphabet)


def two_tasks() -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return pixels (n, 196) and labels: 500 digits from 0 to 4, 100 from 5 to 9, and the rest of
    those.
    """
    images, labels = mnist(size=14, dtype=torch.float32)
    x, t, new = images.flatten(1), labels % 5, labels >= 5
    return (
        (x[~new][:500], t[~new][:500]),
        (x[new][:100], t[new][:100]),
        (x[new][100:], t[new][100:]),
    )


def network() -> nn.Sequential:
    """Return the network, its weights drawn with seed 0."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(SIDE**2, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10)).double()
    for p in model.parameters():
        bound = p.shape[-1] ** -0.5 if p.ndim == 2 else 0.0
        nn.init.uniform_(p, -bound, bound, generator=generator)
    return model


def covariance(h: torch.Tensor) -> torch.Tensor:
    """Return the covariance (d, d) of the rows of ``h``."""
    return torch.cov(h.mT, correction=0)


@cache
def measured() -> dict[int, torch.Tensor]:
    """Return the covariance of what the last layer takes in, every tenth step of gradient
    descent.
    """
    (x, t), model, found = digits(), network(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            found[step] = covariance(model[:-1](x).detach())
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), t).backward()
        optimizer.step()
    return found


@cache
def matrix(place: str) -> torch.Tensor:
    """Return the covariance of the inputs of a layer at START, or the first Fisher matrix."""
    if place == "pixels":
        return covariance(digits()[0])
    if place == "hidden layer":
        return measured()[START]
    return fisher(network(), digits()[0], Categorical())


@cache
def spectrum(place: str) -> torch.Tensor:
    """Return the eigenvalues, the largest first."""
    return torch.linalg.eigvalsh(matrix(place)).flip(0)


def eps(place: str, share: float = 0.99) -> float:
    """Return the eigenvalue at which the larger ones hold this share."""
    return suggest_eps(matrix(place), share)


def kept(place: str, share: float = 0.99) -> int:
    """Return how many eigenvalues are at least that one."""
    return int((spectrum(place) >= eps(place, share) * (1 - 1e-9)).sum())


def since(start: int) -> dict[int, torch.Tensor]:
    """Return the covariances that were measured from that step on."""
    return {step: cov for step, cov in measured().items() if step >= start}


def period(share: float = 0.99, start: int = START) -> int:
    """Return for how many steps the inputs whitened at the start keep a variance of at most 2."""
    return suggest_period(since(start), suggest_eps(measured()[start], share))


def soonest() -> int:
    """Return after how many steps the covariance is measured for the first time again."""
    return EVERY


def stale_variances(share: float = 0.99) -> list[tuple[int, float]]:
    """Return by step since then the largest variance of the last layer's inputs, in the coordinates
    of START.
    """
    largest = staleness(since(START), eps("hidden layer", share))
    return [(step - START, variance) for step, variance in largest.items()]
