"""The small trainings behind the live figures: each control counts; each run is what it says."""

import itertools

import pytest
import torch

from natcompanion import boltzmann, reference
from natcompanion.chapters.numbers import small_training
from natcompanion.chapters.numbers.boltzmann import knobs as machines
from natcompanion.chapters.numbers.prong import knobs as prong
from natcompanion.chapters.numbers.revisiting import knobs as damping
from natcompanion.chapters.numbers.rfim import knobs as rfim
from natcompanion.chapters.numbers.whitening import example
from natcompanion.chapters.numbers.whitening import knobs as inverses


@pytest.mark.parametrize(
    "run, start, others",
    [
        (prong.live_prong, (0.01, 10, 0.03), [(0.1, 10, 0.03), (0.01, 40, 0.03), (0.01, 10, 0.01)]),
        (rfim.live_rngd, (0.03, 20), [(0.3, 20), (0.03, 60)]),
    ],
)
def test_every_control_of_a_training_counts(run, start, others):
    runs = [run(*point) for point in (start, *others)]
    assert all(len(losses) == small_training.UPDATES for losses in runs)
    for one, other in itertools.combinations(runs, 2):
        assert one[0] == other[0], "the start is the same"
        assert abs(one[60] / other[60] - 1) > 1e-6


RUNS = [
    lambda: prong.live_prong.__wrapped__(0.01, 10, 0.03),
    lambda: rfim.live_rngd.__wrapped__(0.03, 20),
    lambda: damping.live_damping.__wrapped__(0.1, damping.HELD, 1.0),
    lambda: machines.live_scheme.__wrapped__(1e-4, 0.05, 1.0),
    lambda: machines.live_whitening.__wrapped__(0.01),
    lambda: inverses.live_descent.__wrapped__(0.01, 1.0),
]


@pytest.mark.parametrize("run", RUNS)
def test_a_training_does_not_depend_on_the_default_dtype(run):
    found = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            found.append(run())
        finally:
            torch.set_default_dtype(torch.float32)
    assert found[0] == found[1]


def test_prong_is_algorithm_1_and_not_gradient_descent():
    model = small_training.small_network(torch.nn.Tanh)
    x, t = small_training.images_and_labels()
    linear = model[::2]
    net = reference.prong.whitened_network((m.weight for m in linear), (m.bias for m in linear))
    few = [(x[100 * k : 100 * k + 100], t[100 * k : 100 * k + 100]) for k in range(6)]
    loss = torch.nn.functional.cross_entropy
    reference.prong.prong(net, few, loss, x[:500], alpha=0.03, eps=0.01, T=3)
    after = float(loss(reference.prong.activations(net, x[600:700])[3], t[600:700]))
    assert after == pytest.approx(prong.live_prong(0.01, 3, 0.03)[6], rel=1e-6)
    assert abs(after / prong.live_sgd(0.03)[6] - 1) > 0.01


def test_a_run_that_diverges_ends_and_has_no_last_loss():
    losses = prong.live_prong(1e-4, 100, 1.0)
    assert 0 < len(losses) < small_training.UPDATES and small_training.last_loss(losses) is None


def test_damping_stays_or_adapts():
    held = damping.live_damping(0.1, damping.HELD, 1.0)
    adapted = damping.live_damping(0.1, damping.ADAPTED, 1.0)
    slow = damping.live_damping(10.0, damping.HELD, 1.0)
    assert set(held["damping"]) == {0.1} and len(set(adapted["damping"])) > 2
    assert held["loss"][0] == adapted["loss"][0] == slow["loss"][0]
    assert held["loss"][-1] < 0.5 * slow["loss"][-1]


def test_the_scheme_is_that_of_the_paper_below_the_cap():
    run = machines.live_scheme(1e-4, 0.05, 1.0)
    rbm = machines.live_machine()
    steps = reference.natural_boltzmann_scheme(
        rbm.W, rbm.a, rbm.b, machines.batches(), 1e-4, 0.05, alpha=0.1
    )
    W, a, b, gamma = zip(*steps, strict=True)
    assert run["gamma"] == pytest.approx(list(gamma), rel=1e-9)
    last = boltzmann.RBM(W[-1], a[-1], b[-1]).log_likelihood(machines.live_digits()).mean()
    assert run["likelihood"][-1] == pytest.approx(float(last), rel=1e-9)
    capped = machines.live_scheme(1e-4, 0.05, 0.1)
    assert max(capped["gamma"]) <= 0.1 < max(run["gamma"])
    assert capped["likelihood"][-1] > run["likelihood"][-1]
    assert machines.live_scheme(1e-2, 0.05, 1.0)["gamma"][-1] < 1e-4


def test_learned_whitening_helps_until_its_ridge_takes_over():
    sharp, blunt = machines.live_whitening(1e-3), machines.live_whitening(10.0)
    assert sharp["plain"] == blunt["plain"]
    assert sharp["whitened"][-1] > sharp["plain"][-1] > blunt["whitened"][-1]
    rbm = machines.live_machine()
    data = machines.live_digits()
    first = rbm.moved(0.1 * rbm.gradient(data)).log_likelihood(data).mean()
    assert sharp["plain"][0] == pytest.approx(float(first))


def test_regularized_descent_follows_the_closed_form():
    steps = torch.arange(inverses.LIVE_STEPS, dtype=torch.float64)
    start = torch.tensor([1.0, -1.0], dtype=torch.float64)
    paths = example.gaussian_paths(1.0, 0.01, start, steps)
    curves = inverses.live_descent(0.01, 1.0)
    assert curves["Eq. 35"] == pytest.approx(example.example_kl(paths["eq35"]).tolist(), rel=1e-6)
    assert curves["damping"][-1] < 1e-3 * curves["Eq. 35"][-1]
