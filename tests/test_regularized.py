"""Damping, Eq. 35, and ridge regression."""

import pytest
import torch

from natcompanion.solvers import damped_solve, ridge_solve, stochastic_robust_inverse


def test_case(cases):
    case = cases("whitening")["sra"]
    for name, result in (("G", "inverse"), ("G_nonsymmetric", "inverse_nonsymmetric")):
        G = torch.tensor(case["inputs"][name], dtype=torch.float64)
        expected = torch.tensor(case["expected"][result], dtype=torch.float64)
        got = stochastic_robust_inverse(G, case["inputs"]["eps"])
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)
        g = torch.ones(len(G), dtype=torch.float64)
        torch.testing.assert_close(
            ridge_solve(G, g, case["inputs"]["eps"]), expected @ g, rtol=1e-8, atol=1e-10
        )
        assert not torch.allclose(
            damped_solve(G, g, case["inputs"]["eps"]), expected @ g, rtol=1e-2
        )
    # Negative control: without the transpose the non-symmetric matrix comes out wrong.
    wrong = torch.linalg.solve(
        G.mT @ G + case["inputs"]["eps"] * torch.eye(2, dtype=torch.float64), G
    )
    assert not torch.allclose(wrong, expected, rtol=1e-2)


def matrices() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    return [a, a @ a.mT, a + a.mT, a[:, :2] @ a[:2]]


@pytest.mark.parametrize("G", matrices(), ids=["general", "definite", "indefinite", "singular"])
@pytest.mark.parametrize("eps", [1e-2, 1.0])
def test_eq35_is_ridge_regression(G, eps):
    g = torch.linspace(-1, 2, 5, dtype=torch.float64)
    by_inverse, by_ridge = stochastic_robust_inverse(G, eps) @ g, ridge_solve(G, g, eps)
    assert float((by_inverse - by_ridge).abs().max()) < 1e-12

    # Both are where the gradient of |G x - g|^2 + eps |x|^2 vanishes; the plainly damped solution
    # is not.
    def slope(x):
        return float((G.mT @ (G @ x - g) + eps * x).abs().max())

    assert slope(by_ridge) < 1e-12
    assert slope(damped_solve(G, g, eps)) > 1e-3


@pytest.mark.parametrize("G", matrices()[:3], ids=["general", "definite", "indefinite"])
def test_without_regularization_all_three_are_the_plain_solution(G):
    g = torch.linspace(-1, 2, 5, dtype=torch.float64)
    plain = torch.linalg.solve(G, g)
    for got in (
        damped_solve(G, g, 0.0),
        stochastic_robust_inverse(G, 0.0) @ g,
        ridge_solve(G, g, 0.0),
    ):
        torch.testing.assert_close(got, plain, rtol=1e-10, atol=1e-10)


def test_damped_solve_solves_the_damped_system():
    G = matrices()[0]
    g = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = damped_solve(G, g, 0.3)
    torch.testing.assert_close(G @ x + 0.3 * x, g, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(damped_solve(G.mT, g, 0.3), x, rtol=1e-2)
    torch.testing.assert_close(damped_solve(G, g[:, 1], 0.3), x[:, 1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        ridge_solve(G, g, 0.3)[:, 1], ridge_solve(G, g[:, 1], 0.3), rtol=1e-12, atol=1e-12
    )


def test_gain_of_each_eigenvalue():
    values = torch.tensor([1e-4, 1e-2, 1e-1, 1.0, 10.0], dtype=torch.float64)
    ones, eps = torch.ones(5, dtype=torch.float64), 0.01
    G = torch.diag(values)
    torch.testing.assert_close(
        stochastic_robust_inverse(G, eps).diagonal(), values / (values**2 + eps)
    )
    torch.testing.assert_close(damped_solve(G, ones, eps), 1 / (values + eps))


def test_ill_conditioned_ridge_does_not_square_the_condition():
    values = torch.tensor([1e-9, 1.0], dtype=torch.float64)
    x = ridge_solve(torch.diag(values), torch.ones(2, dtype=torch.float64), 1e-18)
    torch.testing.assert_close(x, values / (values**2 + 1e-18), rtol=1e-10, atol=0)
    # Negative control: the normal equations as printed lose it to rounding when the matrix is
    # rotated.
    c, s = 0.6, 0.8
    Q = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    G, g = Q @ torch.diag(values) @ Q.mT, Q @ torch.tensor([1e-9, 1.0], dtype=torch.float64)
    right = Q @ torch.tensor([0.5, 1.0], dtype=torch.float64)
    torch.testing.assert_close(ridge_solve(G, g, 1e-18), right, rtol=1e-5, atol=0)
    torch.testing.assert_close(stochastic_robust_inverse(G, 1e-18) @ g, right, rtol=1e-5, atol=0)
    normal, info = torch.linalg.solve_ex(
        G.mT @ G + 1e-18 * torch.eye(2, dtype=torch.float64), G.mT @ g
    )
    assert info != 0 or not torch.allclose(normal, right, rtol=1e-2)


SOLVES = [damped_solve, ridge_solve, lambda G, g, eps: stochastic_robust_inverse(G, eps)]


@pytest.mark.parametrize("solve", SOLVES, ids=["damped", "ridge", "robust"])
def test_refuses_bad_input(solve):
    g = torch.ones(2)
    for G, message in [
        (torch.full((2, 2), float("nan")), "G: expected finite"),
        (torch.zeros(0, 0), "G: expected at least one"),
        (torch.ones(2), "G: expected a matrix"),
        (torch.ones(2, 3), "G: expected a square"),
        (torch.eye(2, dtype=torch.int64), "G: expected a floating-point"),
    ]:
        with pytest.raises(ValueError, match=message):
            solve(G, g, 0.1)
    for eps in (-1.0, float("nan"), float("inf"), "0.1"):
        with pytest.raises(ValueError, match="expected a finite number >= 0"):
            solve(torch.eye(2), g, eps)
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    with pytest.raises(ValueError, match="numerical rank 1 of 2; increase (damping|eps)"):
        solve(singular, g, 0.0)
    with pytest.raises(
        ValueError, match="numerical rank 1 of 2"
    ):  # singular to float32, though not to float64
        solve(singular + torch.tensor([[0.0, 0.0], [0.0, 4e-7]]), g, 0.0)
    assert bool(solve(singular, g, 1e-3).isfinite().all())


@pytest.mark.parametrize("solve", [damped_solve, ridge_solve])
def test_refuses_a_right_side_that_does_not_match(solve):
    for g in (
        torch.ones(3),
        torch.ones(2, 2, 2),
        torch.tensor(1.0),
        torch.tensor([1.0, float("nan")]),
        torch.ones(2).long(),
    ):
        with pytest.raises(ValueError, match="g: expected"):
            solve(torch.eye(2), g, 0.1)


def test_damping_can_make_a_matrix_singular():
    with pytest.raises(ValueError, match=r"G \+ damping I: expected an invertible matrix"):
        damped_solve(torch.diag(torch.tensor([1.0, -0.5])), torch.ones(2), 0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_float64(dtype):
    G, g = (t.to(dtype) for t in (matrices()[1] + torch.eye(5, dtype=torch.float64), torch.ones(5)))
    for solve in SOLVES:
        got, wide = solve(G, g, 0.1), solve(G.double(), g.double(), 0.1)
        assert got.dtype == dtype
        torch.testing.assert_close(got, wide.to(dtype), rtol=0, atol=0)


def test_solutions_can_be_differentiated():
    G = (matrices()[1] + torch.eye(5, dtype=torch.float64)).requires_grad_()
    g = torch.ones(5, dtype=torch.float64, requires_grad=True)
    for solve in SOLVES:
        assert torch.autograd.gradcheck(lambda G, g, solve=solve: solve(G, g, 0.1), (G, g))
