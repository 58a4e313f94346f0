"""What the figure on the first screen of Revisiting computes: steps, loops and basins."""

import math

import pytest
import torch

from natcompanion.chapters.experiments import _revisiting_autoencoder as autoencoder
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.revisiting import landscape
from natcompanion.chapters.page import trace

X = torch.linspace(-1, 1, 11, dtype=torch.float64)


def says(w: float, b: float) -> list[float]:
    """Return the outputs of the auto-encoder, one input after the other."""
    return [w / (1 + math.exp(-(w * x + b))) - b for x in X.tolist()]


def divergence(one: tuple[float, float], two: tuple[float, float]) -> float:
    """Return the KL divergence between Gaussians of standard deviation 1, mean over the inputs."""
    gaps = zip(says(*one), says(*two), strict=True)
    return sum((a - b) ** 2 / 2 for a, b in gaps) / len(X)


def points(seed: int, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 8 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 4


def outputs(theta: torch.Tensor) -> torch.Tensor:
    """Return the outputs as a function that can be differentiated, (11,)."""
    return theta[0] * torch.sigmoid(theta[0] * X + theta[1]) - theta[1]


def loss(theta: torch.Tensor) -> torch.Tensor:
    return (X - outputs(theta)).square().mean()


def matrix(method: str, theta: torch.Tensor) -> torch.Tensor:
    """Return what a method divides by, by automatic differentiation."""
    J = torch.func.jacrev(outputs)(theta)
    if method == "newton":
        return torch.func.jacrev(torch.func.grad(loss))(theta)
    if method == "natural":
        return J.mT @ J / len(X)
    each = 2 * (outputs(theta) - X)[:, None] * J
    return torch.cov(each.mT, correction=0)


@pytest.mark.parametrize("method", ["newton", "natural", "leroux"])
def test_a_step_divides_the_gradient_by_the_matrix_of_its_method(method):
    theta = points(0, 5)
    after, before, kl = landscape.advance(theta, method, 0.3, 0.05)
    for k in range(5):
        g = torch.func.grad(loss)(theta[k])
        damped = matrix(method, theta[k]) + 0.05 * torch.eye(2, dtype=torch.float64)
        torch.testing.assert_close(after[k], theta[k] - 0.3 * torch.linalg.solve(damped, g))
        torch.testing.assert_close(before[k], loss(theta[k]))
        wanted = divergence(tuple(theta[k].tolist()), tuple(after[k].tolist()))
        assert float(kl[k]) == pytest.approx(wanted, rel=1e-9)
    assert landscape.moved(theta, method, 0.3, 0.05).equal(after)
    wrong = landscape.moved(theta, method, 0.3, 0.5)
    assert float((wrong - after).abs().max()) > 1e-3


def test_the_plain_step_follows_the_gradient():
    theta = points(1, 4)
    after = landscape.moved(theta, "gradient", 0.2, None)
    wanted = theta - 0.2 * torch.stack([torch.func.grad(loss)(row) for row in theta])
    torch.testing.assert_close(after, wanted)


def test_the_surface_is_the_loss_and_the_loops_are_the_divergence():
    theta, here = points(2, 6), points(3, 1)
    said, height = landscape.surface(theta)
    torch.testing.assert_close(said, torch.stack([outputs(row) for row in theta]))
    torch.testing.assert_close(height.exp(), torch.stack([loss(row) for row in theta]))
    roots = landscape.loops(said, here)
    for row, root in zip(theta.tolist(), roots.tolist(), strict=True):
        assert root**2 == pytest.approx(divergence(tuple(here[0].tolist()), tuple(row)), rel=1e-9)
    model = autoencoder.example()
    torch.testing.assert_close(roots.square(), model.kl(here, theta - here))


def test_a_minimum_is_reached_within_its_circle():
    _, wells, losses = landscape.drawn()
    assert float(losses[0]) < float(losses[1])
    for well in wells:
        assert float(torch.func.grad(loss)(well).norm()) < 1e-7
        assert (
            float(torch.linalg.eigvalsh(torch.func.jacrev(torch.func.grad(loss))(well)).min())
            > 0.01
        )
    inside, outside = (torch.tensor([0.0, r], dtype=torch.float64) for r in (0.49, 0.51))
    places = torch.stack([wells[0] + inside, wells[1] - inside, wells[0] + outside, 0 * wells[0]])
    assert landscape.reached(places).tolist() == [0, 1, -1, -1]
    assert landscape.reached(places.new_full((1, 2), torch.nan)).tolist() == [-1]


@pytest.mark.parametrize("method", ["natural", "gradient", "newton"])
def test_starts_end_where_the_stored_runs_did(method):
    record = stored("revisiting_figure1.quick").records[0]
    theta = landscape.starts(9, 4.0)
    for _ in range(300):
        theta = landscape.moved(theta, method, landscape.RATES[method], landscape.DAMPING[method])
    ends = landscape.reached(theta)
    differ = int((ends != torch.tensor(record[f"end_{method}"], dtype=torch.float64)).sum())
    assert differ <= (2 if method == "newton" else 0)
    assert int((ends != ends.flip(0)).sum()) > 20


def test_the_starts_are_the_middles_of_cells_that_fill_the_square():
    starts = landscape.starts()
    assert starts.shape == (32**2, 2)
    step = 10 / 32
    assert starts[0].tolist() == [-5 + step / 2] * 2
    assert starts[1].tolist() == pytest.approx([-5 + step / 2, -5 + 1.5 * step])
    assert starts[-1].tolist() == pytest.approx([5 - step / 2] * 2)


def test_basins_are_those_of_their_starts_and_settings():
    for method, options in (("natural", ()), ("natural", (0.1, 1.0)), ("gradient", ())):
        basin, starts = landscape.basin(method, *options), landscape.starts()
        for k in (17, 333, 512, 900):
            path = autoencoder.example().path(
                starts[k : k + 1], method, 100, *(options or (landscape.RATES[method],))
            )
            assert float(basin[k]) == float(landscape.reached(path[-1]))
    stacked = landscape.drawn()[0]
    for row, method in enumerate(landscape.METHODS):
        assert stacked[row].equal(landscape.basin(method))


def test_the_figure_shows_what_the_chapter_says_about_it():
    assert landscape.reaching("natural", -1) == 0
    assert landscape.reaching("gradient", -1) > 35
    assert 20 < landscape.reaching("leroux", -1) < 36
    assert landscape.reaching("natural", -1, 0.1, 1.0) > 35
    assert landscape.reaching("natural", -1, 0.5, 0.01) == 0
    for method in landscape.METHODS:
        assert sum(landscape.reaching(method, end) for end in (0, 1, -1)) == pytest.approx(100)
    first = [landscape.step_divergence(m) for m in ("natural", "gradient", "newton", "leroux")]
    assert first == sorted(first)
    after = landscape.moved(torch.tensor([[-1.0, 3.0]]).double(), "natural", 0.1, 0.01)[0]
    wanted = divergence((-1.0, 3.0), tuple(after.tolist()))
    assert first[0] == pytest.approx(wanted, rel=1e-9)
    ends = {}
    for start in ((-1.0, 3.0), (1.0, -3.0)):
        for method in landscape.METHODS:
            rate, damping = landscape.RATES[method], landscape.DAMPING[method]
            theta = torch.tensor([start], dtype=torch.float64)
            for _ in range(100):
                theta = landscape.moved(theta, method, rate, damping)
            ends[start, method] = float(landscape.reached(theta))
    assert [ends[(-1.0, 3.0), m] for m in ("natural", "newton", "leroux")] == [0, 1, 1]
    assert ends[(-1.0, 3.0), "gradient"] == -1
    assert [ends[(1.0, -3.0), m] for m in ("natural", "newton")] == [1, 0]


def test_what_a_traced_function_keeps_is_made_of_numbers():
    kept = []

    def keeping(x: torch.Tensor) -> torch.Tensor:
        if not kept:
            kept.append(torch.ones(2, dtype=torch.float64).cumsum(0))
        return x + kept[0]

    program = trace(keeping, [torch.zeros(2).double()], [torch.ones(2).double()])
    assert [line[0] for line in program.code] == ["add"]
    assert type(kept[0]) is torch.Tensor
