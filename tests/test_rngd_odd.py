"""RNGD on odd models and in odd loops: what it sees, what it refuses, and what it must not
touch.
"""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from natcompanion.optim import RNGD
from natcompanion.optim._blocks import definite_inverse, uses
from natcompanion.optim.rngd import _over_processes

G = torch.Generator().manual_seed(0)
X = torch.randn(12, 5, generator=G, dtype=torch.float64)
T = torch.randint(3, (12,), generator=G)


def mlp(sizes=(5, 4, 4, 3), activation=nn.Tanh, dtype=torch.float64):
    torch.manual_seed(0)
    layers = [
        m for k in range(len(sizes) - 1) for m in (nn.Linear(*sizes[k : k + 2]), activation())
    ]
    return nn.Sequential(*layers[:-1]).to(dtype)


def backward(model, x=X, t=T):
    F.cross_entropy(model(x), t).backward()


def step(model, optimizer, x=X, t=T):
    optimizer.zero_grad()
    backward(model, x, t)
    optimizer.step()


def kept(optimizer, name):
    """What the state keeps of a layer."""
    return optimizer.state[optimizer.blocks[name].parts[0]]


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def seen(optimizer):
    return [len(block.pending) for block in optimizer.blocks.values()]


def made(make):
    torch.manual_seed(0)
    return make().double()


class Net(nn.Module):
    """Two layers and a rule for what lies between."""

    def __init__(self, between=torch.tanh, keyword=False):
        super().__init__()
        self.a, self.b, self.between, self.keyword = (
            nn.Linear(5, 4),
            nn.Linear(4, 3),
            between,
            keyword,
        )

    def forward(self, x):
        a = self.a(input=x) if self.keyword else self.a(x)
        return self.b(self.between(a))


# ---- Which layers


def test_layers_called_by_keyword():
    models = [made(lambda keyword=keyword: Net(keyword=keyword)) for keyword in (False, True)]
    for model in models:
        optimizer = RNGD(model, 0.1, period=1, sample=X)
        step(model, optimizer)
        step(model, optimizer)
    assert torch.equal(*map(flat, models))


def frozen(*layers):
    model = nn.Sequential(*layers).double()
    model[0].requires_grad_(False)
    return model


def test_a_layer_tied_to_an_embedding_takes_plain_steps():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.mix, self.out = nn.Embedding(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)
            self.out.weight = self.words.weight

        def forward(self, words):
            return self.out(torch.tanh(self.mix(self.words(words))))

    model = made(Words)
    optimizer = RNGD(model, 0.1, period=1)
    assert set(optimizer.plain) == {"out", "words"} and list(optimizer.blocks) == ["mix"]
    backward(model, T, T)
    before, g = model.words.weight.detach().clone(), model.words.weight.grad.clone()
    optimizer.step()
    torch.testing.assert_close(model.words.weight.detach(), before - 0.1 * g)


def test_layers_without_shapes_take_plain_steps_and_are_named():
    optimizer = RNGD(nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 3)), 0.1)
    assert "not initialized; run the model" in optimizer.plain["0"]


def test_parametrized_weights_take_plain_steps_and_their_bias_a_metric():
    model = mlp()
    nn.utils.spectral_norm(model[2])
    optimizer = RNGD(model, 0.1, period=1)
    backward(model)
    before, g = model[2].weight_orig.detach().clone(), model[2].weight_orig.grad.clone()
    optimizer.step()
    torch.testing.assert_close(model[2].weight_orig.detach(), before - 0.1 * g)
    assert optimizer.blocks["2"].dim == 1


@pytest.mark.parametrize(
    "between",
    [
        lambda a: torch.sigmoid(a) * a[:, :1],
        lambda a: torch.sigmoid(a) + a.T.sum(),
        lambda a: torch.sigmoid(a) + a,
    ],
)
def test_an_output_that_goes_past_its_activation_is_plain(between):
    with pytest.warns(UserWarning, match="'a', its output is used in several ways"):
        RNGD(Net(between), 0.1, blocks="neuron")


def test_asking_for_the_shape_is_no_use():
    for between in (
        lambda a: torch.sigmoid(a.view(a.size(0), -1)),
        lambda a: torch.sigmoid(a.view(a.shape[0], -1)),
    ):
        assert RNGD(Net(between), 0.1).activations["a"].name == "sigmoid"


def test_looking_for_the_activations_leaves_the_model_as_it_was():
    class Noting(Net):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            self.last = self.a(x)
            return self.b(torch.tanh(self.last))

    model = made(Noting)
    optimizer = RNGD(model, 0.1, period=1)
    assert not hasattr(model, "calls") and not hasattr(model, "last")
    twin = copy.deepcopy(model)
    step(twin, RNGD(twin, 0.1, period=1))
    step(model, optimizer)
    assert model.calls == 1 and torch.equal(flat(model), flat(twin))


def test_a_change_of_layout_or_dtype_comes_between():
    for between in (
        lambda a: torch.sigmoid(a.unsqueeze(1)).squeeze(1),
        lambda a: torch.sigmoid(torch.squeeze(a.float().to(torch.float64), 1)),
    ):
        assert RNGD(Net(between), 0.1).activations["a"].name == "sigmoid"
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1), nn.Flatten(0)).double()
    optimizer = RNGD(model, 0.1, period=1)
    F.mse_loss(model(X), X[:, 0]).backward()
    optimizer.step()
    assert optimizer.activations["2"].name == "linear"


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Dropout(0.5)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("training", [True, False])
def test_norms_after_the_activation_and_both_modes(norm, training):
    model = (
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(), copy.deepcopy(norm), nn.Linear(4, 3))
        .double()
        .train(training)
    )
    before = flat(model)
    optimizer = RNGD(model, 0.1, period=2)
    for _ in range(3):
        step(model, optimizer)
    assert torch.isfinite(flat(model)).all() and not torch.equal(flat(model), before)


class Block(nn.Module):
    """A norm, an activation that has no metric, and a residual sum; torch.fx may fail on it."""

    def __init__(self, traceable=True):
        super().__init__()
        self.traceable = traceable
        self.a, self.b, self.out = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        if not self.traceable and x.sum() > 1e9:
            return x
        h = self.norm(self.a(x))
        return self.out(h + F.gelu(self.b(h)))


@pytest.mark.parametrize("traceable", [True, False])
def test_by_default_an_unknown_activation_makes_a_metric_of_linear_layers(traceable):
    model = made(lambda: Block(traceable))
    with pytest.warns(
        UserWarning, match="module 'a', its (output goes into|activation is unknown)"
    ):
        wanted = RNGD(model, 0.1, blocks="mean")
    assert {"a", "b", "norm"} <= set(wanted.plain)  # the control: that kind needs an activation
    assert set(RNGD(model, 0.1, blocks={"b": "neuron"}).plain) == {"b", "norm"}
    optimizer = RNGD(model, 0.1, period=1, decay=0.5, eps=0.2)
    assert set(optimizer.plain) == {"norm"}
    h = model.norm(model.a(X)).detach()
    received = {"a": X, "b": h, "out": h + F.gelu(model.b(h)).detach()}
    backward(model)
    before = copy.deepcopy(model)
    optimizer.step()
    for name, x in received.items():
        old, new, metric = before.get_submodule(name), model.get_submodule(name), 0
        for row in x:  # by brute force, one example after the other
            extended = torch.cat([row, torch.ones(1)])
            metric = metric + torch.outer(extended, extended) / len(x)
        metric = 0.5 * torch.eye(len(metric)) + 0.5 * (metric + 0.2 * torch.eye(len(metric)))
        torch.testing.assert_close(optimizer.metric(name), metric)
        g = torch.cat([new.weight.grad, new.bias.grad[:, None]], 1)
        step = 0.1 * torch.linalg.solve(metric, g.mT).mT
        torch.testing.assert_close(new.weight, old.weight - step[:, :-1])
        torch.testing.assert_close(new.bias, old.bias - step[:, -1])
        assert not torch.allclose(new.weight, old.weight - 0.1 * new.weight.grad)
    torch.testing.assert_close(model.norm.weight, before.norm.weight - 0.1 * model.norm.weight.grad)


class Loop(nn.Module):
    """Out of sight of torch.fx; calls a layer so often, perhaps in a checkpoint."""

    def __init__(self, times=1, reentrant=None):
        super().__init__()
        self.times, self.reentrant = times, reentrant
        self.mix, self.out = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        if x.sum() > 1e9:
            return x
        for _ in range(self.times):
            if self.reentrant is None:
                x = F.gelu(self.mix(x))
            else:
                x = F.gelu(checkpoint(self.mix, x, use_reentrant=self.reentrant))
        return {"made": (self.out(x),)}["made"][0]


def test_a_layer_that_is_called_twice_out_of_sight_takes_plain_steps():
    model = made(lambda: Loop(2))
    optimizer = RNGD(model, 0.1, period=2, decay=0.5, statistics_every=1)
    assert not optimizer.plain and set(optimizer.blocks) == {"mix", "out"}
    with pytest.warns(UserWarning, match="62%.*'mix', it is used twice"):
        step(model, optimizer)
    clones = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    for one in (optimizer, *clones):
        assert one.plain == {"mix": "it is used twice"}
        assert len(one.model._forward_hooks) == len(one.model._forward_pre_hooks) == 1
        for _ in range(4):
            before = copy.deepcopy(one.model)
            step(one.model, one)
            new, old = one.model, before
            plain = old.mix.weight - 0.1 * new.mix.weight.grad
            torch.testing.assert_close(new.mix.weight, plain)
        assert not torch.allclose(new.out.weight, old.out.weight - 0.1 * new.out.weight.grad)
    part = RNGD(model, 0.1, period=1, parameters=model.mix.parameters())
    with pytest.warns(UserWarning, match="100%"):
        step(model, part)
    part.add_param_group({"params": model.out.parameters()})
    assert part.plain == {"mix": "it is used twice"} and list(part.blocks) == ["mix", "out"]
    del part, one, clones, optimizer
    gc.collect()
    assert not (model._forward_hooks or model._forward_pre_hooks or model.mix._forward_hooks)


@pytest.mark.filterwarnings("ignore:None of the inputs")  # torch's, on checkpoints
@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("way", ["once", "accumulated", "together", "after a failure", "asked"])
def test_a_layer_that_is_called_once_a_pass_keeps_its_metric(way, reentrant):
    model = made(lambda: Loop(2 if way == "asked" else 1, reentrant))
    kind = "linear" if way == "asked" else None  # what was asked for stays
    optimizer = RNGD(model, 0.1, period=1, blocks=kind)
    x = X.clone().requires_grad_(reentrant is True)
    if way == "after a failure":
        handle = model.out.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(x)
        handle.remove()
    losses = [F.cross_entropy(model(part), T[:6]) for part in (x[:6], x[6:])]
    if way == "together":
        sum(losses).backward()
    else:
        for loss in losses:
            loss.backward()
    with torch.no_grad():
        model(x), model(x)
    optimizer.step()
    assert optimizer.plain == {} and "inverse" in kept(optimizer, "mix")


def test_uses_counts_how_often_a_parameter_enters_a_graph():
    a, b, c = (nn.Parameter(torch.ones(2, 2)) for _ in range(3))
    h = F.linear(a * a, b)
    made = {"one": h.sum(), "two": [h + b.detach(), None, "text"], "leaf": c}
    assert uses(made) == {id(a): 2, id(b): 1}
    with torch.no_grad():
        assert uses(a @ b) == {}


def test_one_example_without_a_batch_is_a_batch_of_one():
    models = [mlp(), mlp()]
    for model, x, t in zip(models, (X[0], X[:1]), (T[0], T[:1]), strict=True):
        optimizer = RNGD(model, 0.1, period=1, decay=0.5)
        step(model, optimizer, x, t)
        step(model, optimizer, x, t)
    torch.testing.assert_close(*map(flat, models))


# ---- Which passes


def reference():
    model = mlp()
    optimizer = RNGD(model, 0.1, period=1, decay=0.5)
    step(model, optimizer)
    step(model, optimizer)
    return flat(model)


def transforms(model):
    torch.func.vmap(torch.func.jacrev(model))(X)
    p = dict(model.named_parameters())
    torch.func.grad(lambda p: F.cross_entropy(torch.func.functional_call(model, p, (X,)), T))(p)


def substitutes(model):
    p = {name: q.detach().clone().requires_grad_() for name, q in model.named_parameters()}
    F.cross_entropy(torch.func.functional_call(model, p, (2 * X,)), T).backward()


def by_inputs(model):
    x = (3 * X).requires_grad_()
    (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    torch.autograd.grad(g.square().sum(), x)


def evaluation(model):
    model(2 * X)
    with torch.no_grad():
        model(2 * X)
    with torch.inference_mode():
        model(2 * X)


def skipped(model):
    backward(
        model, X * torch.nan
    )  # as a gradient scaler does: no step, and the next gradients start from none
    model.zero_grad()


def broken(model):
    handle = model[2].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(X)
    handle.remove()


@pytest.mark.parametrize("other", [transforms, substitutes, by_inputs, evaluation, skipped, broken])
def test_other_passes_leave_no_trace(other):
    model = mlp()
    optimizer = RNGD(model, 0.1, period=1, decay=0.5)
    for _ in range(2):
        model.zero_grad()
        other(model)
        backward(model)
        if other is not skipped:
            other(model)
        assert seen(optimizer) == [1, 1, 1]
        optimizer.step()
    assert torch.equal(flat(model), reference())


def parts(model):
    return [
        F.cross_entropy(model(X[k : k + 4]), T[k : k + 4], reduction="sum") / 12 for k in (0, 4, 8)
    ]


def separate(model):
    for k in range(3):
        parts(model)[k].backward()


def together(model):
    sum(parts(model)).backward()


def twice(model):
    loss = F.cross_entropy(model(X), T) / 2
    loss.backward(retain_graph=True)
    loss.backward()


def assigned(model):
    total = [0.0] * 6
    for k in range(3):
        total = [
            a + b
            for a, b in zip(
                total, torch.autograd.grad(parts(model)[k], list(model.parameters())), strict=True
            )
        ]
    for p, g in zip(model.parameters(), total, strict=True):
        p.grad = g


def refilled(model):
    x = X.clone()
    backward(model, x)
    x.zero_()  # the place for the next batch


def checkpointed(model, reentrant=False):
    x = X.clone().requires_grad_()
    h = checkpoint(model[:3], x, use_reentrant=reentrant)
    F.cross_entropy(model[3:](h), T).backward()


@pytest.mark.parametrize(
    "way",
    [separate, together, twice, assigned, refilled, checkpointed, lambda m: checkpointed(m, True)],
)
def test_ways_to_the_same_statistics(way):
    model = mlp()
    optimizer = RNGD(model, 0.1, period=1, decay=0.5)
    for _ in range(2):
        model.zero_grad()
        way(model)
        optimizer.step()
    torch.testing.assert_close(flat(model), reference(), rtol=1e-11, atol=1e-13)


def test_a_pass_without_examples_changes_nothing():
    model = mlp()
    optimizer = RNGD(model, 0.1, period=1, decay=0.5)
    F.cross_entropy(model(X[:0]), T[:0], reduction="sum").backward()
    optimizer.step()
    assert torch.equal(flat(model), flat(mlp()))
    model, twin = mlp(), mlp()
    for net in (model, twin):
        optimizer = RNGD(net, 0.1, period=1, decay=0.5)
        backward(net)
        if net is model:
            F.cross_entropy(net(X[:0]), T[:0], reduction="sum").backward()
        optimizer.step()
    assert torch.equal(flat(model), flat(twin))


@pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # torch's own, on gradients of tensors inside the graph
def test_a_compiled_model_trains_alike():
    model = mlp()
    optimizer = RNGD(model, 0.1, period=1, decay=0.5)
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        model.zero_grad()
        backward(compiled)
        optimizer.step()
    torch.testing.assert_close(flat(model), reference(), rtol=1e-12, atol=1e-14)


def test_sparse_gradients_of_other_parameters():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(3, 4, sparse=True), nn.Linear(4, 3)

        def forward(self, words):
            return self.out(self.words(words))

    model = made(Words)
    optimizer = RNGD(model, 0.1, period=1)
    step(model, optimizer, T, T)
    model.zero_grad()
    backward(model, T, T)
    before, g = model.words.weight.detach().clone(), model.words.weight.grad.to_dense()
    model.zero_grad()
    step(model, optimizer, T, T)
    torch.testing.assert_close(model.words.weight.detach(), before - 0.1 * g)


def test_a_branch_without_part_in_the_loss_stands_still_with_zero_gradients():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.one, self.two = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            h = torch.relu(self.body(x))
            return self.one(h), self.two(h)

    ends = []
    for to_none in (True, False):
        model = made(Heads)
        optimizer = RNGD(model, 0.1, period=1)
        for k in (0, 1, 0, 1):
            optimizer.zero_grad(set_to_none=to_none)
            F.cross_entropy(model(X)[k], T).backward()
            optimizer.step()
        ends.append(flat(model))
    assert torch.equal(*ends)


def test_a_step_without_a_backward_pass_changes_no_parameter():
    model = mlp()
    optimizer = RNGD(model, 0.1, period=1)
    before = flat(model)
    optimizer.step()
    assert torch.equal(flat(model), before)


def test_two_optimizers_on_parts_of_a_model():
    model, twin = mlp(), mlp()
    both = [
        RNGD(model, 0.1, period=1, parameters=model[:3].parameters()),
        RNGD(model, 0.1, period=1, parameters=model[4].parameters()),
    ]
    one = RNGD(twin, 0.1, period=1)
    for _ in range(3):
        model.zero_grad()
        backward(model)
        for optimizer in both:
            optimizer.step()
        step(twin, one)
    assert torch.equal(flat(model), flat(twin))


# ---- Precision


@pytest.mark.parametrize("blocks", ["neuron", "mean", "linear"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_kind_in_half_precision(blocks, dtype):
    model = mlp(dtype=dtype)
    optimizer = RNGD(model, 0.1, period=1, blocks=blocks)
    step(model, optimizer, X.to(dtype))
    assert {kept(optimizer, name)["inverse"].dtype for name in optimizer.blocks} == {torch.float32}


@pytest.mark.parametrize("blocks", ["neuron", "mean", "linear"])
def test_autocast_is_close_to_full_precision(blocks):
    low, full = mlp(dtype=torch.float32), mlp()
    start = flat(full)
    for model in (low, full):
        optimizer = RNGD(model, 0.1, period=1, decay=0.5, blocks=blocks)

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            backward(model, X.to(model[0].weight.dtype))

        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, enabled=model is low):
                optimizer.step(closure)
        assert {kept(optimizer, name)["S"].dtype for name in optimizer.blocks} == {
            model[0].weight.dtype
        }
    assert float((flat(low).double() - flat(full)).norm() / (flat(full) - start).norm()) < 0.03


def test_finite_gradients_may_be_large():
    model = mlp(dtype=torch.float16)
    optimizer = RNGD(model, 1e-6, period=1)
    backward(model, X.half())
    for p in model.parameters():
        p.grad.fill_(30000.0)  # their sum is not finite in half precision
    optimizer.step()
    assert torch.isfinite(flat(model)).all()
    model = mlp(dtype=torch.float32)
    optimizer = RNGD(model, 1e-40, period=1)
    backward(model, X.float())
    for p in model.parameters():
        p.grad.fill_(3e38)  # nor is that of these in single precision
    optimizer.step()


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-25, 1e-20, 1e-16, 1e-8, 1e8, 1e15, 1e18])
@pytest.mark.parametrize("options", [{}, {"eps": 0.0}, {"eps": 0.0, "relative_eps": 0.01}])
def test_inputs_of_any_scale(scale, options):
    model = mlp(dtype=torch.float32)
    optimizer = RNGD(model, 0.01, period=1, decay=0.0, **options)
    for _ in range(3):
        step(model, optimizer, (scale * X).float())
    assert torch.isfinite(flat(model)).all()


@pytest.mark.parametrize("scale", [1e-19, 1e-20, 1e-21])
def test_a_metric_of_subnormal_numbers_is_damped_as_one_of_zeros(scale):
    """Whether a processor keeps such numbers or flushes them to 0 does not decide the step."""
    x = torch.cat([scale * X, torch.ones(12, 1)], 1).float()
    G = x.mT @ x / 12
    kept = definite_inverse(G, 0.0)
    flushed = definite_inverse(torch.where(G.abs() < 1e-37, 0.0, G), 0.0)
    torch.testing.assert_close(kept, flushed, rtol=1e-5, atol=1.0)
    assert 1e6 < float(kept.max()) < 1e9, "the damping is near the precision times the trace"
    normal = torch.diag(
        torch.tensor([1e-30, 1e-30, 1.0])
    )  # kept as it is: its digits are all there
    torch.testing.assert_close(definite_inverse(normal, 0.0).diag(), 1 / normal.diag())


def test_inputs_whose_squares_overflow_are_refused_by_that_name():
    model = mlp(dtype=torch.float32)
    optimizer = RNGD(model, 0.01, period=1)
    before = flat(model)
    with pytest.raises(ValueError, match=r"squares of the inputs of layer '0' overflow .*double"):
        step(model, optimizer, (1e20 * X).float())
    assert torch.equal(flat(model), before) and optimizer.steps == 0
    step(model.double(), RNGD(model, 0.01, period=1), 1e20 * X)
    assert torch.isfinite(flat(model)).all()


# ---- Refusals


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias"])
def test_a_nan_in_any_gradient_is_refused(name):
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    optimizer = RNGD(model, 0.1, period=1)
    backward(model)
    before = flat(model)
    model.get_parameter(name).grad.view(-1)[0] = torch.nan
    with pytest.raises(ValueError, match="finite gradients"):
        optimizer.step()
    assert torch.equal(flat(model), before) and optimizer.steps == 0
    step(model, optimizer)


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    model = mlp()
    optimizer = RNGD(model, 0.7, period=1, blocks="neuron")
    step(model, optimizer)
    inverse = kept(optimizer, "2")["inverse"].clone()
    others = [(mlp(), "mean"), (mlp((5, 6, 4, 3)), "neuron")]
    for other, blocks in others:
        another = RNGD(other, 0.1, period=1, blocks=blocks)
        step(other, another)
        with pytest.raises(
            ValueError, match="expected (metrics of layer '[02]' for 4|one of RNGD)"
        ):
            optimizer.load_state_dict(another.state_dict())
    with pytest.raises(ValueError, match="expected one of RNGD"):
        optimizer.load_state_dict(torch.optim.SGD(model.parameters(), 0.1).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.7 and torch.equal(
        kept(optimizer, "2")["inverse"], inverse
    )


@pytest.mark.parametrize(
    ("option", "value"), [("blocks", 3), ("activations", "relu"), ("activations", ["relu"])]
)
def test_options_of_another_kind(option, value):
    with pytest.raises(ValueError, match=f"{option}: expected"):
        RNGD(mlp(), 0.1, **{option: value})


@pytest.mark.parametrize(
    "inputs", [X[0], X[:, :3], X.float()], ids=["one example", "shape", "dtype"]
)
def test_sample_that_the_model_cannot_take(inputs):
    model = mlp()
    with pytest.raises(ValueError, match=r"sample: expected (a batch|inputs of the model)"):
        RNGD(model, 0.1, sample=inputs)
    assert (
        all(not (m._forward_hooks or m._forward_pre_hooks) for m in model.modules())
        and model.training
    )


def test_one_singular_block_of_a_stack_is_damped_and_the_others_are_not():
    G = torch.stack([torch.diag(torch.tensor([1.0, 2.0])), torch.diag(torch.tensor([1.0, 0.0]))])
    good, bad = definite_inverse(G, 0.0)
    torch.testing.assert_close(good.diagonal(), torch.tensor([1.0, 0.5]))
    assert bad[0, 0] == pytest.approx(1, rel=1e-3) and 1e3 < bad[1, 1] < torch.inf


def test_what_one_process_finds_holds_for_all():
    """A layer that one process leaves plain has no statistics, whatever the others saw of it."""
    model = mlp()
    optimizer = RNGD(model, 0.1, period=1)
    blocks, counts = dict(optimizer.blocks), {"0": 12.0, "2": -torch.inf, "4": 0.0}
    ones = {"0": torch.ones(6, 6), "2": torch.ones(4, 15)}
    found, examples = _over_processes(blocks, ones, counts)
    assert list(found) == ["0"] and examples["2"] < 0
    torch.testing.assert_close(found["0"], ones["0"])
