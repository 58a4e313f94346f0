"""The runtime of the pages against torch, in Chromium, from disk: every operation, functions of
the library as they are, and what happens when an operation is wrong.
"""

import gzip
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.func import grad, jacrev, vmap

from natcompanion import likelihoods, metrics, relative, solvers
from natcompanion.boltzmann import RBM
from natcompanion.chapters.page import Program, trace
from natcompanion.chapters.page._operations import NAMES
from natcompanion.models import LinearGaussian
from natcompanion.whitening import whitening_matrix

pytestmark = pytest.mark.browser

RUNTIME = Path(__file__).resolve().parents[2] / "book" / "_static" / "page" / "runtime.js"
PARITY = 1e-10
SPOILED = """name => {
  const {ops} = NC, {add, copy_} = ops, sound = ops[name];
  const off = x => Array.isArray(x) ? x.map(off) : add(x, 1e-6);
  ops[name] = name === 'copy_' ? (to, from) => copy_(to, add(from, 1e-6))
    : (...given) => off(sound(...given));
  return () => { ops[name] = sound; };
}"""


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """Return an empty page that has loaded the runtime from disk, and nothing else."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(f'<!doctype html><script src="{RUNTIME.as_uri()}"></script>')
    opened, problems = browser.new_page(), []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto(file.as_uri())
    yield opened
    opened.close()
    assert problems == []


def replay(page, program: Program, inputs) -> list[torch.Tensor]:
    """Return the outputs of a program in the page, flat."""
    given = [x if isinstance(x, float) else x.flatten().tolist() for x in inputs]
    outputs = page.evaluate(
        "([program, inputs]) => NC.load(JSON.parse(program))(...inputs).map(x => [...x])",
        [program.json(), given],
    )
    return [torch.tensor(values, dtype=torch.float64) for values in outputs]


def largest_difference(page, program: Program, function: Callable, inputs) -> float:
    """Return by how much page and library differ, relative to the largest value of a result."""
    results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    found = replay(page, program, inputs)
    return max(
        float((one - two.double().flatten()).abs().max() / two.double().abs().max().clamp_min(0.1))
        for one, two in zip(found, results, strict=True)
    )


def random(*shapes, seed: int = 0) -> list:
    """Return random tensors of these shapes; a shape () is a float between 0.1 and 1.1."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        if shape
        else 0.1 + float(torch.rand(1, generator=generator))
        for shape in shapes
    ]


def positive(a: torch.Tensor) -> torch.Tensor:
    """Return a positive definite matrix."""
    return a @ a.mT + torch.eye(len(a), dtype=torch.float64)


PICK = torch.tensor([[2, 0], [1, 1]])
TWICE = torch.tensor([0, 2, 0])
aten = torch.ops.aten


def root(u, s, vh):
    return (u * s.sqrt()) @ vh


def changed_diagonal(a):
    b = a.clone()
    b.diagonal().add_(a[0])
    return b.sum(0), b


def seen_through_a_view(a):
    b = a * 1
    row = b[1]
    before = b.sum() * 1
    row.mul_(2)
    return b.sum(), before, row


def filled(a):
    b = torch.zeros(3, 3, dtype=torch.float64)
    first = b.sum() + a.sum()
    b[:, 1] = a[0, :3]
    b[2].fill_(7)
    b[0, 0:2] += a[1, :2]
    return b, first + b.sum()


OPERATIONS = {
    "add": lambda a, b: torch.add(a, b, alpha=2),
    "addmm": lambda a, b: (a.clone()[:, :3]).addmm_(a, b.mT, beta=0.5, alpha=2),
    "amax": lambda a, b: (a.amax(1, keepdim=True), b.amax((0, 1)), a.max()),
    "amin": lambda a, b: (a.amin(0), b.amin((0, 1)), b.min()),
    "any": lambda a, b: ((a > 1).any(1), (b > 9).any()),
    "argmax": lambda a, b: (a.argmax(), b.argmax(1, keepdim=True)),
    "argmin": lambda a, b: (a.argmin(), b.argmin(0)),
    "atan2": lambda a, b: torch.atan2(a, b),
    "abs": lambda a, b: a.abs(),
    "bmm": lambda a, b: torch.bmm(a.expand(2, 3, 4), b.mT.expand(2, 4, 3) * a[0, 0]),
    "cat": lambda a, b: torch.cat([a, b[:1], a * 2]) + torch.cat([a, b[:, :2]], 1).sum(),
    "ceil": lambda a, b: a.ceil() + b,
    "cholesky": lambda a, b: (
        torch.linalg.cholesky(positive(a)),
        torch.linalg.cholesky(positive(b), upper=True),
    ),
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(positive(a))),
    "clamp": lambda a, b: (a.clamp(-0.5, 0.5), b.clamp(min=0.1), torch.clamp(a, b, b + 1)),
    "clone": lambda a, b: a.mT.clone() + b.mT,
    "copy_": lambda a, b: (a.clone().copy_(b[0]), a),
    "cos": lambda a, b: a.cos(),
    "cumsum": lambda a, b: (a.cumsum(0), b.cumsum(-1)),
    "diagonal": lambda a, b: (a.diagonal() + 0, torch.stack([a, b]).diagonal(-1, 1, 2) + 0),
    "div": lambda a, b: a / b + 1 / a + b / 3,
    "eigh": lambda a, b: torch.linalg.eigvalsh(positive(a)),
    "eq": lambda a, b: (a == a[0], b.floor() == -1),
    "exp": lambda a, b: a.exp(),
    "expand": lambda a, b: a[:1].expand(5, -1).clone() + b[0],
    "expm1": lambda a, b: a.expm1(),
    "flip": lambda a, b: a.flip(0, 1) + b.flip(-1),
    "floor": lambda a, b: a.floor() + b,
    "gather": lambda a, b: a.gather(1, PICK) + b.gather(0, PICK),
    "ge": lambda a, b: (a >= b, a >= 0),
    "get": lambda a, b: torch.linalg.qr(a.mT)[1],
    "gt": lambda a, b: (a > b, a > 0),
    "index": lambda a, b: (
        a[:, TWICE],
        a[TWICE, TWICE],
        torch.stack([a, b])[TWICE % 2, :, PICK[:, :1]],
    ),
    "index_put": lambda a, b: (
        a.index_put((TWICE,), b, accumulate=True),
        aten.index_put(a, [None, TWICE[:2]], b[:, :2]),
    ),
    "index_select": lambda a, b: a.index_select(1, TWICE) * b[:, :3],
    "inv": lambda a, b: torch.linalg.inv(a[:, :3] @ b[:, :3]),
    "isnan": lambda a, b: torch.where(torch.isnan(a.log()), b, a),
    "le": lambda a, b: (a <= b, a <= 0),
    "log": lambda a, b: a.abs().log(),
    "log1p": lambda a, b: a.abs().log1p(),
    "log_softmax": lambda a, b: (a.log_softmax(0), b.log_softmax(1)),
    "logical_and": lambda a, b: (torch.logical_and(a > 0, b > 0), (a > 0) & (b < 1)),
    "logical_not": lambda a, b: torch.logical_not(a > 0),
    "logical_or": lambda a, b: torch.logical_or(a > 0, b > 0),
    "lt": lambda a, b: (a < b, a < 0),
    "maximum": lambda a, b: torch.maximum(a, b),
    "mean": lambda a, b: (a.mean(), b.mean(0, keepdim=True), a.mean((0, 1))),
    "minimum": lambda a, b: torch.minimum(a, b),
    "mm": lambda a, b: (a @ b.mT, a[:, ::2] @ b.mT[1:3]),
    "mul": lambda a, b: a * b + 2 * a[:, :1] * b,
    "ne": lambda a, b: (a != a[0], b.floor() != -1),
    "neg": lambda a, b: -a,
    "permute": lambda a, b: torch.stack([a, b]).permute(2, 0, 1) + 0,
    "pow": lambda a, b: (a**3, a.abs() ** b, 2**a, a.square()),
    "prod": lambda a, b: (a.prod(), b.prod(0)),
    "qr": lambda a, b: (*torch.linalg.qr(a.mT), *torch.linalg.qr(b[:, :3])),
    "reciprocal": lambda a, b: a.reciprocal(),
    "relu": lambda a, b: a.relu(),
    "remainder": lambda a, b: torch.remainder(a, 0.3) + torch.remainder(a, b),
    "rsqrt": lambda a, b: a.abs().rsqrt(),
    "scatter_add": lambda a, b: (a.scatter_add(0, PICK, b), a.scatter_add(1, PICK, b)),
    "select": lambda a, b: a[1] + b.select(0, -1),
    "sigmoid": lambda a, b: a.sigmoid(),
    "sign": lambda a, b: a.sign(),
    "sin": lambda a, b: a.sin(),
    "slice": lambda a, b: a[1:, 0:4:2] + b[:-1, -2:],
    "softmax": lambda a, b: (a.softmax(0), b.softmax(-1)),
    "solve": lambda a, b: (
        torch.linalg.solve(a[:, :3], b),
        torch.linalg.solve(a[:, 1:], b[:, 0]),
        torch.linalg.solve(torch.stack([a[:, :3], b[:, :3]]), torch.stack([b, a])),
    ),
    "solve_triangular": lambda a, b: (
        torch.linalg.solve_triangular(positive(a).triu(), b, upper=True),
        torch.linalg.solve_triangular(positive(b).tril(), a, upper=False, unitriangular=True),
        torch.linalg.solve_triangular(positive(a).triu(), b[:, :3], upper=True, left=False),
    ),
    "split": lambda a, b: torch.split(a, [1, 3], dim=1)[1] * torch.split(b, [3, 1], dim=1)[0],
    "sqrt": lambda a, b: a.abs().sqrt(),
    "squeeze": lambda a, b: a[:, :1].squeeze() + b[:, None, :1].squeeze((1, 2)),
    "sub": lambda a, b: torch.sub(a, b, alpha=2) - 1 + (1 - b),
    "sum": lambda a, b: (a.sum(), b.sum(0, keepdim=True), a.sum((-1, 0)), (a > 0).sum(1)),
    "svd": lambda a, b: (
        torch.linalg.svdvals(a),
        root(*torch.linalg.svd(b.mT, full_matrices=False)),
    ),
    "tanh": lambda a, b: a.tanh(),
    "trunc": lambda a, b: a.trunc() + b,
    "unsqueeze": lambda a, b: a[:, None] * b[None, :, :, None].squeeze(-1),
    "view": lambda a, b: a.reshape(2, 6) + b.mT.reshape(2, -1),
    "where": lambda a, b: torch.where(a > 0, a, b[:1]),
}
"""A function of two (3, 4) tensors for each operation of the runtime."""


def damped(G, g, damping):
    return solvers.damped_solve(positive(G), g, damping)


def eq35(G, eps):
    return solvers.stochastic_robust_inverse(G, eps)


def ridge(G, g, eps):
    return solvers.ridge_solve(G, g, eps)


def whiten(G):
    return tuple(whitening_matrix(positive(G), kind) for kind in ("zca", "pca", "cholesky"))


def gaussian(M, theta, mean):
    model = LinearGaussian(M)
    return model.gradient(theta, mean), model.kl(theta, mean), model.fisher()


def machine(W, a, b, x, damping):
    rbm, v = RBM(W, a, b), (x > 0).double()
    return rbm.fisher(), rbm.gradient(v), rbm.natural_gradient(v, damping=damping)


def neuron(w, x):
    return relative.neuron_rfim(w, x, "tanh"), relative.neuron_rfim(w, x, "relu")


def layers(W, C, x):
    return relative.two_layer_rfim(W, C, x, "tanh")


def network_metric(x):
    return metrics.fisher(NETWORK, x, likelihoods.Categorical())


def metric_of_weights(theta, x):
    """The library's metric of a module whose parameters are inputs of the program."""
    with torch.no_grad():
        sizes = [p.numel() for p in NETWORK.parameters()]
        for parameter, part in zip(NETWORK.parameters(), theta.split(sizes), strict=True):
            parameter.copy_(part.reshape(parameter.shape))
    return metrics.fisher(NETWORK, x, likelihoods.Categorical()), NETWORK(x).detach()


def output(theta, x):
    W, b, V, c = (
        part.reshape(s) for part, s in zip(theta.split([10, 5, 15, 3]), SIZES, strict=True)
    )
    return torch.tanh(x @ W.mT + b) @ V.mT + c


def natural_step(theta, rate, damping):
    """A natural gradient step of a small network: exact Fisher by one Jacobian an example."""

    def loss(theta):
        return -output(theta, POINTS).log_softmax(1).gather(1, LABELS[:, None]).mean()

    J, p = vmap(jacrev(output), (None, 0))(theta, POINTS), output(theta, POINTS).softmax(1)
    G = torch.einsum("nia,nij,njb->ab", J, torch.diag_embed(p) - p[:, :, None] * p[:, None], J) / 20
    return theta - rate * solvers.damped_solve(G, grad(loss)(theta), damping), loss(theta)


SIZES = [(5, 2), (5,), (3, 5), (3,)]
POINTS, LABELS = *random((20, 2), seed=5), torch.arange(20) % 3
NETWORK = torch.nn.Sequential(
    torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3)
).double()
LIBRARY = {
    damped: [(4, 4), (4,), ()],
    eq35: [(4, 4), ()],
    ridge: [(4, 4), (4,), ()],
    whiten: [(4, 4)],
    gaussian: [(2, 3), (5, 3), (2,)],
    machine: [(4, 3), (4,), (3,), (5, 4), ()],
    neuron: [(3,), (6, 2)],
    layers: [(3, 3), (2, 3), (4, 2)],
    network_metric: [(5, 2)],
    metric_of_weights: [(21,), (5, 2)],
    changed_diagonal: [(4, 4)],
    seen_through_a_view: [(4, 4)],
    filled: [(4, 4)],
}


def traced(function: Callable, shapes) -> Program:
    """Return the program of a function, traced at other inputs than those of the tests."""
    return trace(function, random(*shapes, seed=1), random(*shapes, seed=2))


def test_the_runtime_has_the_operations_that_the_tracer_writes(page):
    known = set(page.evaluate("Object.keys(NC.ops)"))
    assert known == {name for name, _ in NAMES.values()} | {"get"} == set(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_that_of_torch_and_a_wrong_one_is_noticed(page, name):
    function, shapes = OPERATIONS[name], [(3, 4), (3, 4)]
    program = traced(function, shapes)
    assert name in program.operations
    for seed in (3, 4):
        inputs = random(*shapes, seed=seed)
        assert largest_difference(page, program, function, inputs) < PARITY
    repair = page.evaluate_handle(SPOILED, name)
    try:
        assert largest_difference(page, program, function, inputs) > 100 * PARITY
    finally:
        page.evaluate("repair => repair()", repair)


@pytest.mark.parametrize("function", LIBRARY, ids=lambda function: function.__name__)
def test_a_function_of_the_library_is_the_same_in_the_page(page, function):
    program = traced(function, LIBRARY[function])
    for seed in (3, 4, 5):
        inputs = random(*LIBRARY[function], seed=seed)
        assert largest_difference(page, program, function, inputs) < PARITY


def test_fifty_steps_are_the_same_in_the_page(page):
    program = traced(natural_step, [(33,), (), ()])
    (theta,) = random((33,), seed=3)
    ours = page.evaluate(
        """([program, theta]) => {
          const step = NC.load(JSON.parse(program)), losses = [];
          for (let k = 0; k < 50; k++) {
            const [next, loss] = step(theta, 0.5, 0.1);
            losses.push(loss[0]);
            theta = next;
          }
          return [[...theta], losses];
        }""",
        [program.json(), theta.tolist()],
    )
    losses = []
    for _ in range(50):
        theta, loss = natural_step(theta, 0.5, 0.1)
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]
    for one, two in zip(ours, (theta.tolist(), losses), strict=True):
        assert max(map(lambda x, y: abs(x - y), one, two)) < PARITY


def test_numbers_that_are_not_finite_arrive(page):
    infinite = torch.tensor([math.inf, -math.inf, -0.0], dtype=torch.float64)
    program = traced(lambda x: (x[:3] * infinite, x.clamp(max=math.inf)), [(4,)])
    inputs = [torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)]
    assert replay(page, program, inputs)[0].tolist() == [math.inf, -math.inf, -0.0]
    assert replay(page, program, inputs)[1].tolist() == [1, 2, 3, 4]


def test_a_program_can_be_run_again_with_other_inputs(page):
    program = traced(filled, [(4, 4)])
    one, two = (random((4, 4), seed=seed) for seed in (6, 7))
    expression = """([program, ...inputs]) => {
      const run = NC.load(JSON.parse(program));
      return inputs.map(x => [...run(x)[0]]);
    }"""
    runs = page.evaluate(
        expression, [program.json(), *(x[0].flatten().tolist() for x in (one, two, one))]
    )
    assert runs[0] == runs[2] != runs[1]


def test_an_unknown_operation_is_an_error_of_the_page_too(page):
    program = Program([[2]], [], [["nothing", "0"]], ["1"])
    with pytest.raises(Exception, match="the runtime has no operation nothing"):
        replay(page, program, random((2,)))


def test_the_runtime_is_light():
    assert len(gzip.compress(RUNTIME.read_bytes())) < 10_000
