"""Iterative solvers against numpy.linalg.lstsq on random and constructed systems; no false success."""

import numpy as np
import pytest
import scipy.sparse.linalg
import torch

from natcompanion.solvers import Reason, conjugate_gradient, minres, minres_qlp

SOLVERS = [conjugate_gradient, minres, minres_qlp]
each = pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.__name__)


def systems():
    """Yield 200 systems as (kind, A, b)."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def size(low=4, high=40):
        return int(torch.randint(low, high, (1,), generator=g))

    def spectral(eigenvalues):
        q = torch.linalg.qr(normal(len(eigenvalues), len(eigenvalues)))[0]
        a = q @ torch.diag(eigenvalues) @ q.mT
        return (a + a.mT) / 2

    def away_from_zero(n):
        lam = normal(n)
        return torch.sign(lam) * (lam.abs() + 0.1)

    for _ in range(30):
        n = size()
        factor = normal(n, n)
        yield "definite", factor @ factor.mT / n + 0.1 * torch.eye(n), normal(n)
        yield "indefinite", spectral(away_from_zero(n)), normal(n)
        half = normal(n, n // 2)
        yield "semidefinite, consistent", half @ half.mT, half @ normal(n // 2)
        yield "semidefinite, inconsistent", half @ half.mT, normal(n)
        lam = away_from_zero(n)
        lam[: n // 2] = 0
        yield "indefinite, inconsistent", spectral(lam), normal(n)
    for _ in range(10):
        v = normal(size())
        yield "rank 1, consistent", torch.outer(v, v), 3 * v
        yield "rank 1, inconsistent", torch.outer(v, v), normal(len(v))
        a = spectral(torch.logspace(0, -8, size(), dtype=torch.float64))
        yield "condition 1e8", a, normal(len(a))
        yield "condition 1e8, smooth", a, a @ normal(len(a))
    eye = torch.eye(3, dtype=torch.float64)
    yield "diagonal 1e0 to 1e-8", torch.logspace(0, -8, 9, dtype=torch.float64).diag(), torch.ones(9).double()
    yield "b in the null space", torch.tensor([1.0, 0]).double().diag(), torch.tensor([0.0, 1]).double()
    yield "no curvature at first", torch.tensor([[0.0, 1], [1, 0]]).double(), torch.tensor([1.0, 0]).double()
    yield "zero matrix", 0 * eye, torch.ones(3).double()
    yield "b = 0", eye, torch.zeros(3).double()
    yield "b tiny", 2 * eye, torch.full((3,), 1e-200).double()
    yield "b subnormal", 2 * eye, torch.full((3,), 1e-310).double()
    yield "one unknown", torch.tensor([[4.0]]).double(), torch.tensor([2.0]).double()
    yield "negative definite", -2 * eye, torch.tensor([1.0, 2, 3]).double()
    yield "identity", eye, torch.tensor([1.0, 2, 3]).double()


SYSTEMS = list(systems())


def least_squares(a, b):
    return torch.from_numpy(np.linalg.lstsq(a.numpy(), b.numpy(), rcond=1e-11)[0])


def relative_residual(a, x, b):
    return float((b - a @ x).norm() / b.norm()) if bool(b.any()) else 0.0


def test_there_are_two_hundred_systems():
    assert len(SYSTEMS) == 200


@each
@pytest.mark.parametrize("rtol", [1e-4, 1e-10])
def test_no_false_success(solver, rtol):
    for kind, a, b in SYSTEMS:
        solution = solver(a, b, rtol=rtol)
        assert torch.isfinite(solution.x).all(), kind
        true = relative_residual(a, solution.x, b)
        assert solution.residual == pytest.approx(true, rel=1e-5, abs=1e-8), kind
        if solution.converged:
            best = relative_residual(a, least_squares(a, b), b)
            assert true <= max(rtol * (1 + 1e-6), best * (1 + 1e-8)), kind
        assert solution.converged or solution.reason is not Reason.CONVERGED


@each
def test_solvable_systems_are_solved(solver):
    for kind, a, b in SYSTEMS:
        good = kind in ("definite", "semidefinite, consistent", "rank 1, consistent", "b tiny", "identity")
        if not (
            good or (solver is not conjugate_gradient and kind in ("indefinite", "no curvature at first"))
        ):
            continue
        solution = solver(a, b, rtol=1e-10)
        assert solution.converged, kind
        x = least_squares(a, b)
        assert float((solution.x - x).norm()) <= 1e-6 * float(x.norm()), kind


def test_minres_qlp_finds_the_shortest_least_squares_solution():
    claimed = 0
    for kind, a, b in SYSTEMS:
        if kind.startswith("condition"):
            continue
        solution = minres_qlp(a, b, rtol=1e-10)
        x = least_squares(a, b)
        assert float((solution.x - x).norm()) <= 1e-7 * max(float(x.norm()), 1e-12), kind
        if "inconsistent" in kind or kind in ("b in the null space", "zero matrix"):
            claimed += solution.converged
            assert solution.reason in (Reason.LEAST_SQUARES, Reason.STAGNATED), kind
    assert claimed >= 50  # of 72; the others are right, too, but too badly conditioned to be claimed


def test_minres_alone_does_not_claim_a_least_squares_solution():
    for kind, a, b in SYSTEMS:
        if "inconsistent" in kind:
            solution = minres(a, b, rtol=1e-10)
            assert not solution.converged
            assert solution.residual <= relative_residual(a, least_squares(a, b), b) * (1 + 1e-6)
            assert float(solution.x.norm()) < 1e8


def test_conjugate_gradient_names_missing_curvature():
    for kind, a, b in SYSTEMS:
        if "inconsistent" in kind or kind == "negative definite":
            assert conjugate_gradient(a, b).reason is Reason.NOT_POSITIVE_DEFINITE, kind


def test_scipy_claims_success_where_we_do_not_have_to():
    """The false success of a well-known program, and ours on the same two systems."""
    a, b = torch.logspace(0, -8, 9, dtype=torch.float64).diag(), torch.ones(9, dtype=torch.float64)
    x, info = scipy.sparse.linalg.minres(a.numpy(), b.numpy())
    assert info == 0  # "successful exit"
    assert relative_residual(a, torch.from_numpy(x), b) > 0.3
    ours = minres(a, b)
    assert ours.converged
    assert relative_residual(a, ours.x, b) <= 1e-4

    singular, b = next((a, b) for kind, a, b in SYSTEMS if kind == "semidefinite, inconsistent")
    x, _ = scipy.sparse.linalg.cg(singular.numpy(), b.numpy(), maxiter=200)
    shortest = float(least_squares(singular, b).norm())
    assert float(np.linalg.norm(x)) > 1e6 * shortest  # drifts along the null space
    ours = conjugate_gradient(singular, b, max_iter=200)
    assert float(ours.x.norm()) < 100 * shortest
    assert not ours.converged


def test_a_truncated_run_keeps_its_progress():
    """The residual of conjugate gradients may grow while the quadratic falls: the direction is a good one."""
    a = torch.logspace(0, 6, 40, dtype=torch.float64).diag()
    b = torch.logspace(0, 5.5, 40, dtype=torch.float64).flip(0)
    solution = conjugate_gradient(a, b, rtol=1e-6, max_iter=10)
    assert solution.residual > 1
    assert float(solution.x @ a @ solution.x / 2 - b @ solution.x) < 0
    assert solution.reason is Reason.MAX_ITERATIONS


@each
def test_start_vector(solver):
    _, a, b = SYSTEMS[0]
    x = torch.linalg.solve(a, b)
    exact = solver(a, b, x0=x, rtol=1e-8)
    assert exact.converged
    assert exact.iterations == 0
    near = solver(a, b, x0=x + 1e-3 * torch.ones_like(x), rtol=1e-10)
    torch.testing.assert_close(near.x, x, rtol=1e-7, atol=1e-9)
    before = torch.zeros_like(b)
    solver(a, b, x0=before)
    assert not before.any()


@each
def test_preconditioner_saves_steps(solver):
    g = torch.Generator().manual_seed(1)
    scales = torch.logspace(0, 4, 60, dtype=torch.float64)
    noise = torch.randn(60, 60, generator=g, dtype=torch.float64)
    a = scales.sqrt().diag() @ (torch.eye(60) + 0.05 * (noise @ noise.mT) / 60) @ scales.sqrt().diag()
    b = torch.randn(60, generator=g, dtype=torch.float64)
    plain = solver(a, b, rtol=1e-8)
    helped = solver(a, b, rtol=1e-8, preconditioner=(1 / scales).diag())
    assert helped.converged
    torch.testing.assert_close(helped.x, torch.linalg.solve(a, b), rtol=1e-5, atol=1e-8)
    assert helped.iterations < plain.iterations / 2


@each
def test_rtol_and_max_iter_change_the_result(solver):
    _, a, b = SYSTEMS[0]
    loose, tight = solver(a, b, rtol=1e-1), solver(a, b, rtol=1e-8)
    assert loose.iterations < tight.iterations
    assert loose.residual > tight.residual
    few = solver(a, b, rtol=1e-8, max_iter=2)
    assert few.iterations == 2
    assert not few.converged
    assert few.reason is Reason.MAX_ITERATIONS
    none = solver(a, b, max_iter=0)
    assert none.reason is Reason.MAX_ITERATIONS
    assert not none.x.any()


def test_minres_has_the_smallest_residual_of_each_krylov_space():
    _, a, b = SYSTEMS[0]
    for k in (1, 2, 3):
        basis = torch.linalg.qr(torch.stack([torch.linalg.matrix_power(a, i) @ b for i in range(k)], 1))[0]
        best = basis @ torch.linalg.lstsq(a @ basis, b.unsqueeze(1)).solution[:, 0]
        for solver in (minres, minres_qlp):
            torch.testing.assert_close(solver(a, b, rtol=0, max_iter=k).x, best, rtol=1e-9, atol=1e-12)
        cg = conjugate_gradient(a, b, rtol=0, max_iter=k).x  # minimizes another norm: must differ
        assert float((cg - best).norm() / best.norm()) > 1e-3


class Product:
    """A matrix known only by its products, in the dtype it was given, counting them."""

    def __init__(self, a):
        self.a, self.dtype, self.count = a, a.dtype, 0

    def __matmul__(self, v):
        assert v.dtype == self.dtype
        self.count += 1
        return self.a @ v


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_anything_with_products(solver, dtype):
    _, a, b = SYSTEMS[0]
    operator = Product(a.to(dtype))
    solution = solver(operator, b.to(dtype), rtol=1e-4)
    assert solution.converged
    assert solution.x.dtype == dtype
    assert operator.count <= solution.iterations + 2
    torch.testing.assert_close(solution.x.double(), torch.linalg.solve(a, b), rtol=1e-2, atol=1e-3)


@each
def test_float32_never_claims_what_it_cannot_hold(solver):
    _, a, b = SYSTEMS[0]
    solution = solver(a.float(), b.float(), rtol=1e-12)
    assert not solution.converged
    assert solution.residual < 1e-5


def test_float32_singular_system():
    g = torch.Generator().manual_seed(3)
    half = torch.randn(30, 8, generator=g)
    a, b = half @ half.mT, torch.randn(30, generator=g)
    x = torch.from_numpy(np.linalg.lstsq(a.double().numpy(), b.double().numpy(), rcond=1e-5)[0])
    solution = minres_qlp(a, b)
    assert float((solution.x.double() - x).norm() / x.norm()) < 1e-3


@each
def test_products_that_fail(solver):
    class Broken(Product):
        def __matmul__(self, v):
            return super().__matmul__(v) * (float("nan") if self.count > 3 else 1)

    _, a, b = SYSTEMS[0]
    solution = solver(Broken(a), b, rtol=1e-10)
    assert solution.reason is Reason.NOT_FINITE
    assert not solution.converged
    assert torch.isfinite(solution.x).all()


@each
def test_bad_input_is_named(solver):
    a, b = torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="symmetric"):
        solver(torch.tensor([[1.0, 2], [0, 1]]), torch.ones(2))
    with pytest.raises(ValueError, match=r"A: expected shape \(3, 3\)"):
        solver(torch.eye(2), b)
    with pytest.raises(ValueError, match="b: expected a vector"):
        solver(a, a)
    with pytest.raises(ValueError, match="b: expected finite"):
        solver(a, b * float("nan"))
    with pytest.raises(ValueError, match="operator with a torch dtype, got ndarray"):
        solver(a.numpy(), b)
    for x0 in (torch.ones(2), [1.0, 1.0, 1.0], torch.full((3,), float("nan"))):
        with pytest.raises(ValueError, match="x0"):
            solver(a, b, x0=x0)
    with pytest.raises(ValueError, match="rtol"):
        solver(a, b, rtol=-1.0)
    with pytest.raises(ValueError, match="max_iter"):
        solver(a, b, max_iter=-1)


@each
def test_systems_that_require_gradients_are_solved_without_them(solver):
    A, b = (2 * torch.eye(3, dtype=torch.float64)).requires_grad_(), torch.ones(3, dtype=torch.float64)
    x = solver(A, b.requires_grad_(), x0=b).x
    assert x.tolist() == pytest.approx([0.5] * 3) and not x.requires_grad


def test_every_reason_has_words():
    assert all(len(reason.value) > 20 for reason in Reason)
