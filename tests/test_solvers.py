"""Iterative solvers against numpy.linalg.lstsq on random and constructed systems; no false
success.
"""

import math

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from natcompanion.solvers import Reason, conjugate_gradient, minres, minres_qlp
from natcompanion.solvers import lanczos as lanczos_module
from natcompanion.solvers import solution as solution_module

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
    yield (
        "diagonal 1e0 to 1e-8",
        torch.logspace(0, -8, 9, dtype=torch.float64).diag(),
        torch.ones(9).double(),
    )
    yield (
        "b in the null space",
        torch.tensor([1.0, 0]).double().diag(),
        torch.tensor([0.0, 1]).double(),
    )
    yield (
        "no curvature at first",
        torch.tensor([[0.0, 1], [1, 0]]).double(),
        torch.tensor([1.0, 0]).double(),
    )
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
        good = kind in (
            "definite",
            "semidefinite, consistent",
            "rank 1, consistent",
            "b tiny",
            "identity",
        )
        if not (
            good
            or (
                solver is not conjugate_gradient and kind in ("indefinite", "no curvature at first")
            )
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
    assert claimed == 72  # all of them


def hard_systems():
    """Yield 300 systems as (kind, A, b): condition 1e9 to 1e14, singular, and so close to it that
    nobody can say.
    """
    g = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def uniform(n=1):
        return torch.rand(n, generator=g, dtype=torch.float64)

    for i in range(300):
        n = int(torch.randint(3, 26, (1,), generator=g))
        rank = int(torch.randint(1, n, (1,), generator=g))
        low = -9 - 5 * float(uniform())
        kind = ("decaying", "scattered", "gap", "singular", "singular, one small")[i % 5]
        lam = torch.logspace(0, -6 * float(uniform()), n, dtype=torch.float64)
        if kind == "decaying":
            lam = torch.logspace(0, low, n, dtype=torch.float64)
        elif kind == "scattered":
            lam = 10 ** (low * uniform(n))
        elif kind == "gap":
            lam[rank:] *= 10**low
        else:
            lam[rank:] = 0
            lam[rank - 1] = 10**low if kind == "singular, one small" else lam[rank - 1]
        if i % 2:
            lam = lam * torch.sign(normal(n))
        q, b = torch.linalg.qr(normal(n, n))[0], normal(n)
        a = q @ lam.diag() @ q.mT
        nearly_zero = q @ (10 ** (-12 * uniform(n)) * b)  # in most directions
        b = (b, b, b, a @ b, nearly_zero)[i // 10 % 5]
        yield kind, (a + a.mT) / 2, b


@each
@pytest.mark.parametrize("exponent", [0, 30])
def test_a_matrix_of_zeros_leaves_the_start_as_it_is(solver, exponent):
    start = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64) * 2.0**exponent
    solution = solver(torch.zeros(3, 3, dtype=torch.float64), torch.ones(3).double(), x0=start)
    assert torch.equal(solution.x, start) and not solution.x.isnan().any()


HARD = list(hard_systems())


def truncated_solutions(a, b, x0):
    """Return, as columns, the solutions nearest to x0 that use the 0, 1, ..., n largest
    eigenvalues.
    """
    lam, q = torch.linalg.eigh(a)
    order = lam.abs().argsort(descending=True)
    terms = q[:, order] * ((q.mT @ (b - a @ x0)) / lam)[order]
    return torch.cat([x0[:, None], x0[:, None] + terms.cumsum(1)], 1)


@pytest.mark.parametrize("dtype, accuracy", [(torch.float64, 2e-5), (torch.float32, 3e-2)])
def test_hard_systems_bring_no_false_success(dtype, accuracy):
    """The old criterion took A r = rounding for enough, and was wrong by up to a factor of 3 in
    x.
    """
    claimed = dict.fromkeys((kind for kind, _, _ in HARD), 0)
    for i, (kind, a, b) in enumerate(HARD):
        a, b, rtol = a.to(dtype), b.to(dtype), (1e-1, 1e-4, 1e-8, 1e-12)[i % 4]
        x0 = torch.zeros_like(b) if i % 3 else torch.ones_like(b)
        exact = truncated_solutions(a.double(), b.double(), x0.double())
        for solver in SOLVERS:
            solution = solver(a, b, rtol=rtol, x0=x0)
            x = solution.x.double()
            if (
                solution.reason is Reason.CONVERGED
            ):  # up to what rounding does to a residual in this dtype
                rounding = torch.finfo(dtype).eps * (1 + float(a.norm() * x.norm() / b.norm()))
                assert relative_residual(a.double(), x, b.double()) <= rtol + rounding, (i, kind)
            elif solution.converged:
                assert solver is minres_qlp and solution.reason is Reason.LEAST_SQUARES
                errors = (exact - x[:, None]).norm(dim=0) / exact.norm(dim=0).clamp_min(1e-300)
                assert float(errors.min()) <= accuracy, (i, kind)
                claimed[kind] += 1
    assert claimed["singular"] >= 30  # of 60, most of the others are consistent
    assert claimed["decaying"] == 0 or dtype == torch.float32  # no gap between 1 and 1e-14


def test_a_system_of_condition_1e12_is_not_taken_for_a_singular_one():
    """Here 1e-9 is neither zero nor resolved: x was 3 times too long along it, and claimed."""
    rng = np.random.default_rng(48)
    n, _ = int(rng.integers(4, 13)), rng.choice([-11, -12, -13])
    q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    a = torch.from_numpy((q * np.logspace(0, -12, n)) @ q.T)
    for rtol in (1e-8, 1e-4, 1e-1):
        solution = minres_qlp((a + a.mT) / 2, torch.from_numpy(rng.normal(size=n)), rtol=rtol)
        assert not solution.converged
        assert solution.reason is Reason.STAGNATED


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
    """The residual of conjugate gradients may grow while the quadratic falls: the direction is a
    good one.
    """
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
    a = (
        scales.sqrt().diag()
        @ (torch.eye(60) + 0.05 * (noise @ noise.mT) / 60)
        @ scales.sqrt().diag()
    )
    b = torch.randn(60, generator=g, dtype=torch.float64)
    plain = solver(a, b, rtol=1e-8)
    helped = solver(a, b, rtol=1e-8, preconditioner=(1 / scales).diag())
    assert helped.converged
    torch.testing.assert_close(helped.x, torch.linalg.solve(a, b), rtol=1e-5, atol=1e-8)
    assert helped.iterations < plain.iterations / 2


class Applied:
    """A preconditioner given as a function."""

    def __init__(self, apply):
        self.apply = apply

    def __matmul__(self, v):
        return self.apply(v)


@each
def test_a_bad_preconditioner_is_named(solver):
    _, a, b = SYSTEMS[0]
    n, eye = len(b), torch.eye(len(b), dtype=torch.float64)
    for bad, reason in (
        (Applied(lambda v: v * float("nan")), Reason.NOT_FINITE),
        (float("inf") * eye.diag().diag(), Reason.NOT_FINITE),
        (0 * eye, Reason.NOT_POSITIVE_DEFINITE),
        (-eye, Reason.NOT_POSITIVE_DEFINITE),
        (torch.cat([eye[:1], -eye[1:]]), Reason.NOT_POSITIVE_DEFINITE),
    ):
        solution = solver(a, b, preconditioner=bad)
        assert solution.reason is reason
        assert not solution.converged and torch.isfinite(solution.x).all()
    with pytest.raises(
        ValueError, match=rf"preconditioner: expected its product .* \({n},\), got \(2,\)"
    ):
        solver(a, b, preconditioner=Applied(lambda v: v[:2]))
    with pytest.raises(
        ValueError, match=rf"preconditioner: expected shape \({n}, {n}\) to match b"
    ):
        solver(a, b, preconditioner=eye[:2, :2])


@each
@pytest.mark.parametrize("power", [-300, -160, 250])
def test_the_scale_of_the_matrix_does_not_matter(solver, power):
    _, a, b = SYSTEMS[0]
    scale, x = 10.0**power, torch.linalg.solve(a, b)
    inverse = torch.linalg.inv(a + 0.3 * torch.eye(len(a)))
    for matrix in (scale * a, Product(scale * a)):
        for options in (
            {},
            {"x0": 0 * x + 1 / scale},
            {"preconditioner": (inverse + inverse.mT) / scale},
        ):
            solution = solver(matrix, b, rtol=1e-8, **options)
            assert solution.reason is Reason.CONVERGED
            torch.testing.assert_close(solution.x * scale, x, rtol=1e-5, atol=1e-6)


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
        basis = torch.linalg.qr(
            torch.stack([torch.linalg.matrix_power(a, i) @ b for i in range(k)], 1)
        )[0]
        best = basis @ torch.linalg.lstsq(a @ basis, b.unsqueeze(1)).solution[:, 0]
        for solver in (minres, minres_qlp):
            torch.testing.assert_close(
                solver(a, b, rtol=0, max_iter=k).x, best, rtol=1e-9, atol=1e-12
            )
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
    x, seven = (
        torch.linalg.pinv(a.double(), hermitian=True, rtol=rtol) @ b.double()
        for rtol in (1e-5, 0.15)  # the second leaves out the smallest of the eight values
    )
    solution = minres_qlp(a, b)
    # A r = 0 is recognized to about the root of the precision, 3.5e-4: the error is of that size.
    bound = 10 * torch.finfo(torch.float32).eps ** 0.5
    assert float((solution.x.double() - x).norm() / x.norm()) < bound
    assert float((seven - x).norm() / x.norm()) > 10 * bound, "the negative control"


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
    A, b = (
        (2 * torch.eye(3, dtype=torch.float64)).requires_grad_(),
        torch.ones(3, dtype=torch.float64),
    )
    x = solver(A, b.requires_grad_(), x0=b).x
    assert x.tolist() == pytest.approx([0.5] * 3) and not x.requires_grad


def test_every_reason_has_words():
    assert all(len(reason.value) > 20 for reason in Reason)


class Fresh(TorchDispatchMode):
    """Count the results of length P that no argument provided."""

    def __init__(self, size):
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = [*args, *(kwargs or {}).values()]
        known = {t.untyped_storage().data_ptr() for t in given if isinstance(t, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.numel() == self.size:
            self.count += out.untyped_storage().data_ptr() not in known
        return out


class Spread:
    """A diagonal operator in float32 that makes one vector for each product."""

    dtype = torch.float32

    def __init__(self, size):
        self.shape, self.values = (size, size), torch.linspace(1, 1e4, size)

    def __matmul__(self, v):
        return self.values * v


@pytest.mark.parametrize("solver", SOLVERS)
def test_iterations_make_no_vectors_of_their_own(solver, monkeypatch):
    monkeypatch.setattr("natcompanion.solvers.lanczos.KEPT", 0)
    counts, size = [], 300
    for steps in (10, 30):
        with Fresh(size) as fresh:
            ran = solver(Spread(size), torch.ones(size), rtol=0.0, max_iter=steps).iterations
        counts.append(fresh.count)
        assert ran == steps
    assert counts[1] - counts[0] == 20  # the operator's


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_right_side_and_the_start_are_not_overwritten(solver):
    b, x0 = torch.ones(50).double(), torch.full((50,), 0.5).double()
    operator = torch.linspace(1, 9, 50).double().diag()
    solution = solver(operator, b, rtol=1e-10, x0=x0)
    assert bool((b == 1).all()) and bool((x0 == 0.5).all()) and solution.converged
    assert torch.equal(operator, torch.linspace(1, 9, 50).double().diag())


def test_few_vectors_are_kept_for_none(monkeypatch):
    r = torch.ones(100)
    assert len(lanczos_module._room(r)) == 100
    monkeypatch.setattr(lanczos_module, "KEPT", 6399)
    assert len(lanczos_module._room(r)) == 0
    monkeypatch.setattr(lanczos_module, "KEPT", 6400)
    assert len(lanczos_module._room(r)) == 64


@each
@pytest.mark.parametrize("block", [2**15, 7])
def test_long_systems_are_solved_in_their_own_dtype(solver, block, monkeypatch):
    """Vectors in float32, cut into blocks: the solution of the wide ones as far as float32 goes."""
    for kind, a, b in SYSTEMS[:150]:
        A, right = a.float(), b.float()
        wide = solver(A, right, rtol=1e-4)
        with monkeypatch.context() as patch:
            patch.setattr("natcompanion.solvers.solution.LONG", 0)
            patch.setattr("natcompanion.solvers.solution.BLOCK", block)
            narrow = solver(A, right, rtol=1e-4)
        true = relative_residual(A.double(), narrow.x.double(), right.double())
        assert narrow.residual == pytest.approx(true, rel=1e-2, abs=1e-5), kind
        if kind in ("definite", "semidefinite, consistent") or (
            kind == "indefinite" and solver is not conjugate_gradient
        ):
            assert narrow.converged and wide.converged, kind
            assert narrow.iterations <= 1.5 * wide.iterations + 3, kind
        if narrow.reason is Reason.CONVERGED:
            assert true <= 1e-4 * (1 + 1e-2), kind


@each
def test_long_systems_make_no_vectors_in_an_iteration(solver, monkeypatch):
    monkeypatch.setattr("natcompanion.solvers.solution.LONG", 0)
    test_iterations_make_no_vectors_of_their_own(solver, monkeypatch)


class Kept:
    """A diagonal operator that hands out the same vector for every product."""

    def __init__(self, values):
        self.shape, self.dtype, self.values = (len(values),) * 2, values.dtype, values
        self.out, self.last = torch.empty_like(values), None

    def __matmul__(self, v):
        if self.last is not None:
            assert torch.equal(self.out, self.last)  # nobody wrote into it
        torch.mul(self.values, v, out=self.out)
        self.last = self.out.clone()
        return self.out


@each
@pytest.mark.parametrize("long", [0, 2**17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_products_of_an_operator_are_not_overwritten(solver, long, dtype, monkeypatch):
    monkeypatch.setattr("natcompanion.solvers.solution.LONG", long)
    values = torch.linspace(1, 30, 60, dtype=dtype)
    solution = solver(Kept(values), torch.ones(60, dtype=dtype), rtol=1e-5)
    assert solution.converged
    torch.testing.assert_close(solution.x, 1 / values, rtol=1e-3, atol=1e-5)


@each
@pytest.mark.parametrize("size", [1e-37, 1e-30, 1e-3, 1e30])
def test_long_right_sides_of_any_size(solver, size, monkeypatch):
    monkeypatch.setattr("natcompanion.solvers.solution.LONG", 0)
    values = torch.linspace(1, 30, 60)
    solution = solver(values.diag(), torch.full((60,), size), rtol=1e-5)
    assert solution.converged
    torch.testing.assert_close(solution.x / size, 1 / values, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", [1e-300, 1e-7, 1e-3, 1.0, 3.0, 1e5, 1e7, 1e300])
def test_sizes_are_divided_by_powers_of_four(size):
    """Neither the quotient nor its square root is rounded."""
    power = solution_module.unit(size)
    assert math.frexp(math.sqrt(power))[0] == 0.5 and math.frexp(power)[0] == 0.5
    assert 1e-6 <= size / power <= 1e6 and (power == 1 or not 1e-6 < size < 1e6)
    assert solution_module.unit(0.0) == solution_module.unit(math.inf) == 0
