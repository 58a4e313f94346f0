"""The plane between the parameters and the natural parameters."""

import pytest
import torch

from natcompanion import metrics
from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.chapters.numbers.whitening import plane as numbers

CASES = [(50.0, 0.0, 0.01), (50.0, 1.0, 0.01), (6890.0, 0.3, 1e-4), (1.2, 0.7, 0.5)]


@pytest.mark.parametrize(("condition", "t", "eps"), CASES)
def test_the_metric_of_the_plane_is_a_power_of_the_fisher_matrix(condition, t, eps):
    M, root, whitening, inverses, _ = numbers.plane(condition, t, eps)
    G, identity = M.mT @ M, torch.eye(2, dtype=torch.float64)
    assert metrics.condition_number(G) == pytest.approx(condition)
    back = torch.linalg.inv(root)
    scale = torch.linalg.eigvalsh(G)[-1] ** t
    torch.testing.assert_close(back.mT @ G @ back / scale, numbers.power(G, 1 - t))
    torch.testing.assert_close(inverses[2] @ numbers.power(G, t), identity)
    torch.testing.assert_close(inverses[1] @ G, identity)
    torch.testing.assert_close(whitening @ G @ whitening.mT, identity)


@pytest.mark.parametrize("condition", [1.2, 50.0])
def test_another_condition_number_keeps_the_eigenvectors_and_the_largest_eigenvalue(condition):
    F, G = problems.example().fisher(), numbers.model(condition).fisher()
    torch.testing.assert_close(F @ G, G @ F)
    torch.testing.assert_close(torch.linalg.eigvalsh(G)[-1], torch.linalg.eigvalsh(F)[-1])
    assert (F - G).abs().max() > 0.01 * F.abs().max()


def test_a_matrix_has_the_eigenvectors_of_its_columns():
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    right = torch.tensor([[1.64, -0.48], [-0.48, 1.36]], dtype=torch.float64)  # by hand
    torch.testing.assert_close(numbers.symmetric(torch.tensor([1.0, 2.0]).double(), turn), right)


def test_the_ends_of_the_plane_are_the_parameters_and_the_natural_parameters():
    M, root, _, inverses, _ = numbers.plane(50.0, 0.0, 0.01)
    torch.testing.assert_close(root, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(inverses[2], inverses[0])
    _, root, whitening, inverses, _ = numbers.plane(50.0, 1.0, 0.01)
    torch.testing.assert_close(
        root * torch.linalg.eigvalsh(M.mT @ M)[-1].sqrt() @ whitening,
        torch.eye(2, dtype=torch.float64),
    )
    torch.testing.assert_close(inverses[2], inverses[1])


@pytest.mark.parametrize(("condition", "t", "eps"), CASES)
def test_the_limits_part_what_converges_from_what_diverges(condition, t, eps):
    M, _, _, inverses, limits = numbers.plane(condition, t, eps)
    for share, grows in ((0.95, False), (1.05, True)):
        for rule in range(len(numbers.RULES)):
            theta = torch.linalg.eigh(inverses[rule] @ M.mT @ M)[1][:, -1].repeat(5, 1)
            first = numbers.step(M, inverses, theta, 0.0)[1][rule]
            for _ in range(30):
                theta, _ = numbers.step(M, inverses, theta, share * float(limits[rule]))
            last = numbers.step(M, inverses, theta, 0.0)[1][rule]
            assert (last > first) == grows
