"""The algorithms of *Natural Boltzmann Machines* in its own letters, against the library; and the
order of the modules of the machine.
"""

import ast
import graphlib
import itertools
from pathlib import Path

import pytest
import torch

from natcompanion import boltzmann, reference
from natcompanion.boltzmann import RBM


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def machine(D=4, H=3, seed=0):
    return RBM.random(D, H, scale=1.0, bias_scale=0.7, generator=rng(seed))


def distance(actual, expected):
    return float((actual - expected).abs().max())


@pytest.mark.parametrize("D,H", [(4, 3), (2, 4), (1, 1), (5, 2)])
def test_section_3_gives_the_fisher_matrix(D, H):
    rbm = machine(D, H)
    found = reference.hidden_state_fisher(rbm.W, rbm.a, rbm.b)
    assert distance(found, rbm.fisher()) < 1e-14
    assert distance(found, reference.rbm_fisher(rbm.W, rbm.a, rbm.b)) < 1e-14


def test_each_part_of_section_3_matters():
    """Without Cov(g|h), and with the weights p(h|v) of one v, it is another matrix."""
    rbm = machine()
    h = boltzmann.states(3)
    g, p = boltzmann.conditional_statistics(h, rbm.visible_mean(h)), rbm.hidden_probabilities()
    exact = reference.hidden_state_fisher(rbm.W, rbm.a, rbm.b)
    between = (p[:, None] * (g - p @ g)).mT @ (g - p @ g)
    assert distance(exact, between) > 0.1
    assert distance(exact.diagonal(), (p @ g) * (1 - p @ g)) < 1e-14
    q = rbm.hidden_mean(torch.ones(1, 4, dtype=torch.float64))
    given_v = (h * q + (1 - h) * (1 - q)).prod(1)
    assert distance(exact.diagonal(), (given_v @ g) * (1 - given_v @ g)) > 0.05


def batches(steps=40, n=20, D=4, H=3):
    def uniform(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    generator = rng(7)
    return [((uniform(n, D) < 0.5).double(), uniform(n, H), uniform(n, D)) for _ in range(steps)]


def library_scheme(rbm, data, v, p, alpha, rule="printed", window=15):
    """The same scheme put together from the library's parts."""
    penalty = boltzmann.PaperPenalty(window, rule=rule)
    controller = boltzmann.ThresholdController(v, p)
    for x, u_h, u_v in data:
        h, model = rbm.sweep(x, u_h, u_v)
        now = boltzmann.sample_moments(rbm.visible_mean(h), rbm.hidden_mean(model))
        P = penalty.update(now)
        gamma = controller.update(P)
        step = (1 - gamma) * rbm.contrast(x, model)
        step[rbm.visible + rbm.hidden :] -= gamma * P.reshape(-1)
        rbm = rbm.moved(alpha * step)
        yield rbm, gamma


@pytest.mark.parametrize("v,p", [(0.001, 0.05), (0.003, 0.3), (0.2, 0.8)])
def test_the_scheme_equals_the_library_step_by_step(v, p):
    rbm, data = machine(), batches()
    found = reference.natural_boltzmann_scheme(rbm.W, rbm.a, rbm.b, data, v, p, alpha=0.3)
    gammas = []
    for (W, a, b, gamma), (expected, weight) in zip(
        found, library_scheme(rbm, data, v, p, 0.3), strict=True
    ):
        assert distance(torch.cat([a, b, W.reshape(-1)]), expected.vector()) < 1e-12
        assert gamma == pytest.approx(weight, rel=1e-12)
        gammas.append(gamma)
    assert len(gammas) == 40 and min(gammas) < 0.01
    assert any(later > now for now, later in itertools.pairwise(gammas)) == (v < 0.2)


@pytest.mark.parametrize("change", [{"rule": "product"}, {"window": 14}, {"window": 16}])
def test_another_scheme_moves_elsewhere(change):
    rbm, data = machine(), batches()
    *_, (W, _, _, _) = reference.natural_boltzmann_scheme(
        rbm.W, rbm.a, rbm.b, data, 0.001, 0.05, alpha=0.3
    )
    *_, (other, _) = library_scheme(rbm, data, 0.001, 0.05, 0.3, **change)
    assert distance(W, other.W) > 1e-6


def test_gamma_by_hand():
    P = torch.tensor([[0.3, -0.3], [0.1, 0.0]])
    assert reference.next_gamma(0.5, P, 0.2, 0.4) == pytest.approx(0.55)
    assert reference.next_gamma(0.5, P, 0.2, 0.5) == pytest.approx(0.45)  # not more than half
    assert reference.next_gamma(0.95, P, 0.2, 0.4) == 1.0
    assert reference.next_gamma(1.05e-5, P, 0.2, 0.5) == 1e-5


def test_equation_4_by_hand():
    """One pixel, one hidden unit: 0.5 - 0.2 - (0.6 - 0.5) 0.7 - 0.6 (0.7 - 0.4)."""
    before, after = (
        tuple(
            torch.tensor(x).reshape(shape) for x, shape in zip(m, [(1,), (1,), (1, 1)], strict=True)
        )
        for m in ((0.5, 0.4, 0.2), (0.6, 0.7, 0.5))
    )
    assert float(reference.equation_4(before, after)) == pytest.approx(0.05)


def test_no_module_of_the_machine_imports_in_a_circle():
    """Imports for type checking count too."""
    folder = Path(boltzmann.__file__).parent
    graph = {}
    for path in folder.glob("[!_]*.py"):
        names = {
            node.module.split(".")[2]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
            and str(node.module).startswith("natcompanion.boltzmann.")
        }
        graph[path.stem] = names
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert order.index("sums") < order.index("rbm") < order.index("fisher")
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter({**graph, "sums": {"rbm"}}).static_order())
