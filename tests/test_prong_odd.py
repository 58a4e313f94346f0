"""PRONG on models and in loops that are out of the ordinary: right, or refused in a sentence."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from natcompanion.layers import whiten_model, whitened_initialization
from natcompanion.optim import PRONG, RNGD
from natcompanion.optim._prong_layers import PlainLayer

LR, EPS = 0.05, 0.1


def mlp(*sizes, bias=True):
    torch.manual_seed(0)
    layers = [
        m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b, bias=bias), nn.Tanh())
    ]
    return nn.Sequential(*layers[:-1]).double()


def data(n=30, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g, dtype=torch.float64)
    return x @ torch.randn(6, 6, generator=g, dtype=torch.float64) + 1, torch.randint(
        3, (n,), generator=g
    )


X, LABELS = data()
SAMPLE, _ = data(50, seed=3)


def loss_of(model, x=X, t=LABELS):
    return cross_entropy(model(x), t)


def by_hand(model, loss, sample, names):
    """Return the parameters after one step, from statistics and gradients of a copy; what is not
    named goes plainly.
    """
    model, seen = copy.deepcopy(model), {}

    def noting(name):
        def note(module, args, kwargs, output):
            h = args[0] if args else kwargs["input"]
            flat = (
                h.movedim(1, -1).flatten(0, -2)
                if isinstance(module, nn.Conv2d)
                else h.flatten(0, -2)
            )
            seen.setdefault(name, []).append(flat.detach())

        return note

    handles = [
        model.get_submodule(n).register_forward_hook(noting(n), with_kwargs=True, prepend=True)
        for n in names
    ]
    with torch.no_grad():
        model(sample)
    for handle in handles:
        handle.remove()
    loss(model).backward()
    moves = {p: p.grad for p in model.parameters() if p.grad is not None}
    for name in names:
        layer, h = model.get_submodule(name), torch.cat(seen[name])
        if layer.weight.grad is None:
            continue
        G = (
            layer.weight.grad.flatten(2)
            if layer.weight.ndim == 4
            else layer.weight.grad[:, :, None]
        )
        centred = layer.bias is not None and layer.bias.requires_grad
        c = h.mean(0) if centred else torch.zeros_like(h[0])
        b = layer.bias.grad if centred else torch.zeros_like(G[:, 0, 0])
        P = torch.linalg.inv((h - c).mT @ (h - c) / len(h) + EPS * torch.eye(len(c), dtype=h.dtype))
        W = torch.einsum("oit,ij->ojt", G - torch.outer(b, c)[:, :, None], P)
        moves[layer.weight] = W.reshape(layer.weight.shape)
        if centred:
            moves[layer.bias] = b - W.sum(2) @ c
    return {
        n: p.detach() - LR * moves[p] if p in moves else p.detach()
        for n, p in model.named_parameters()
    }


def step(model, optimizer, loss=loss_of):
    optimizer.zero_grad()
    loss(model).backward()
    optimizer.step()


def vector(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def check(model, loss=loss_of, sample=SAMPLE, names=None, optimizer=None):
    optimizer = optimizer or PRONG(model, LR, eps=EPS, sample=sample)
    expected = by_hand(model, loss, sample, list(optimizer.layers) if names is None else names)
    step(model, optimizer, loss)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=1e-9, atol=1e-10, msg=name)


# ---- Models


class Named(nn.Module):
    """Calls its layers by keyword."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.two(input=torch.tanh(self.one(input=x)))


class Twice(nn.Module):
    """Uses one layer twice, under two names."""

    def __init__(self):
        super().__init__()
        self.one, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        self.again = self.one

    def forward(self, x):
        return self.out(torch.tanh(self.again(torch.tanh(self.one(x)))))


def made(make):
    torch.manual_seed(0)
    return make().double()


ODD = {
    "without bias": lambda: mlp(6, 5, 3, bias=False),
    "by keyword": lambda: made(Named),
    "one layer twice": lambda: made(Twice),
    "nested": lambda: nn.Sequential(
        nn.Sequential(mlp(6, 5), nn.Tanh()), nn.ModuleDict({"a": mlp(5, 3)})["a"]
    ),
    "in evaluation mode": lambda: nn.Sequential(mlp(6, 5, 3), nn.Dropout(0.5)).eval(),
    "batch normalization": lambda: made(
        lambda: nn.Sequential(
            nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Linear(5, 3)
        )
    ),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_odd_models(make):
    check(make())


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.bias"])
def test_frozen_parameters(frozen):
    model = mlp(6, 5, 3)
    model.get_parameter(frozen).requires_grad_(False)
    before = model.get_parameter(frozen).clone()
    check(model)
    assert torch.equal(model.get_parameter(frozen), before)


def test_tied_layers_get_plain_steps():
    model = mlp(6, 6, 6, 3)
    model[2].weight = model[0].weight
    with pytest.warns(UserWarning, match="plain gradient steps"):
        check(model, names=["4"])


def test_embeddings_norms_and_recurrent_layers_get_plain_steps():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.norm = nn.Embedding(9, 4), nn.LayerNorm(4)
            self.read, self.out = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, words):
            return self.out(self.read(self.norm(self.words(words)))[0][:, -1])

    words = torch.randint(9, (30, 7), generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="plain gradient steps"):
        check(made(Reader), lambda model: loss_of(model, words), words, ["out"])


def test_hooks_of_the_user_that_change_inputs_and_outputs():
    for before in (True, False):
        model = mlp(6, 5, 3)
        optimizer = None if before else PRONG(model, LR, eps=EPS, sample=SAMPLE)
        model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        model[2].register_forward_hook(lambda module, args, output: output * 3)
        check(model, optimizer=optimizer)


def test_whitened_layers_and_initialization_of_odd_models():
    model = made(Named)
    twin = whiten_model(model)
    torch.testing.assert_close(twin(X), model(X))
    plain = whitened_initialization(copy.deepcopy(model), SAMPLE, EPS)
    torch.testing.assert_close(whitened_initialization(twin, SAMPLE, EPS)(X), plain(X))
    assert not torch.allclose(plain(X), model(X), atol=0.1)
    tied = mlp(6, 6, 6, 3)
    tied[2].weight = tied[0].weight
    before = tied[0].weight.clone()
    whitened_initialization(tied, SAMPLE, EPS)
    assert torch.equal(tied[0].weight, before) and tied[2].weight is tied[0].weight


# ---- Parameter groups


def test_a_bias_that_another_optimizer_trains_is_not_used_for_centring():
    """Else the step of the weights would rely on a move of the bias that nobody makes, and could
    lead uphill.
    """
    model = mlp(6, 5, 3)
    rest = [p for name, p in model.named_parameters() if name != "0.bias"]
    optimizer = PRONG(model, LR, eps=EPS, sample=SAMPLE, parameters=rest)
    twin = copy.deepcopy(model)
    twin[0].bias.requires_grad_(False)
    expected = by_hand(twin, loss_of, SAMPLE, ["0", "2"])
    gradient = torch.autograd.grad(loss_of(twin), twin[0].weight)[0]
    before, bias = model[0].weight.detach().clone(), model[0].bias.detach().clone()
    step(model, optimizer)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=1e-9, atol=1e-10)
    assert float((gradient * (model[0].weight.detach() - before)).sum()) < 0
    assert torch.equal(model[0].bias, bias)


def test_weight_and_bias_of_a_layer_go_together():
    model = mlp(6, 5, 3)
    weights, biases = (
        [p for name, p in model.named_parameters() if name.endswith(kind)]
        for kind in ("weight", "bias")
    )
    for option, value in (("lr", 0.0), ("momentum", 0.5)):
        groups = [{"params": weights}, {"params": biases, option: value}]
        optimizer = PRONG(model, LR, eps=EPS, sample=SAMPLE, parameters=groups)
        before = vector(model)
        with pytest.raises(ValueError, match=f"one {option} for weight and bias of layer '0'"):
            step(model, optimizer)
        assert torch.equal(vector(model), before)
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases}]
    step(model, PRONG(model, LR, eps=EPS, sample=SAMPLE, parameters=groups))


def test_layers_that_are_unfrozen_later():
    model = mlp(6, 5, 3)
    model[0].requires_grad_(False)
    optimizer = PRONG(model, LR, eps=EPS, sample=SAMPLE, period=1)
    step(model, optimizer)
    model[0].requires_grad_(True)
    check(model, optimizer=optimizer, names=["0", "2"])


def test_two_optimizers_on_parts_of_a_model():
    model = mlp(6, 5, 3)
    optimizers = [
        PRONG(model, LR, eps=EPS, sample=SAMPLE, parameters=list(model[k].parameters()))
        for k in (0, 2)
    ]
    expected = by_hand(model, loss_of, SAMPLE, ["0", "2"])
    for optimizer in optimizers:
        optimizer.refresh()  # else the second measures what the first has moved
    loss_of(model).backward()
    for optimizer in optimizers:
        optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=1e-9, atol=1e-10)


# ---- Loops


def parts(model):
    return [
        cross_entropy(model(X[k : k + 10]), LABELS[k : k + 10], reduction="sum") / 30
        for k in (0, 10, 20)
    ]


def test_the_ways_to_the_same_gradient():
    """Parts, a graph used twice, other passes in between, a closure, gradients from autograd or
    from a copy.
    """

    def separate(model, optimizer):
        for k in range(3):
            parts(model)[k].backward()
        optimizer.step()

    def together(model, optimizer):
        sum(parts(model)).backward()
        optimizer.step()

    def twice(model, optimizer):
        loss = loss_of(model) / 2
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()

    def passes_between(model, optimizer):
        loss = loss_of(model)
        with torch.no_grad():
            model(X[:3])
        loss_of(model, X[:5], LABELS[:5])
        loss.backward()
        optimizer.step()

    def closure(model, optimizer):
        def call():
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        assert optimizer.step(call).requires_grad

    def assigned(model, optimizer):
        gradients = torch.autograd.grad(loss_of(model), list(model.parameters()))
        for p, g in zip(model.parameters(), gradients, strict=True):
            p.grad = g
        optimizer.step()

    def from_a_copy(model, optimizer):
        twin = copy.deepcopy(model)
        loss_of(twin).backward()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            p.grad = q.grad
        optimizer.step()

    expected = by_hand(mlp(6, 5, 3), loss_of, SAMPLE, ["0", "2"])
    for way in (separate, together, twice, passes_between, closure, assigned, from_a_copy):
        model = mlp(6, 5, 3)
        way(model, PRONG(model, LR, eps=EPS, sample=SAMPLE))
        for name, p in model.named_parameters():
            torch.testing.assert_close(
                p.detach(), expected[name], rtol=1e-9, atol=1e-10, msg=way.__name__
            )


def test_gradients_that_are_set_to_zero_in_place():
    ends = []
    for to_none in (True, False):
        model = mlp(6, 5, 3)
        optimizer = PRONG(model, LR, eps=EPS, sample=SAMPLE)
        for _ in range(3):
            model.zero_grad(set_to_none=to_none)
            loss_of(model).backward()
            optimizer.step()
        ends.append(vector(model))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("sample", [SAMPLE, None], ids=["sample", "training batches"])
def test_activation_checkpointing_changes_nothing(sample):
    class Long(nn.Module):
        def __init__(self, cheap):
            super().__init__()
            self.body, self.out, self.cheap = mlp(6, 5, 5), mlp(5, 3), cheap

        def forward(self, x):
            h = checkpoint(self.body, x, use_reentrant=False) if self.cheap else self.body(x)
            return self.out(torch.tanh(h))

    ends = []
    for cheap in (False, True):
        model = Long(cheap)
        optimizer = PRONG(model, LR, eps=EPS, period=2, sample=sample)
        for k in range(4):
            step(
                model,
                optimizer,
                lambda model, k=k: loss_of(model, X[5 * k : 5 * k + 9], LABELS[5 * k : 5 * k + 9]),
            )
        ends.append(vector(model))
    assert torch.equal(*ends)


@pytest.mark.parametrize("sample", [SAMPLE, None], ids=["sample", "training batches"])
def test_function_transforms_see_the_plain_model_and_leave_no_trace(sample):
    model = mlp(6, 5, 3)
    optimizer = PRONG(model, LR, eps=EPS, sample=sample)
    step(model, optimizer)
    twin = copy.deepcopy(model)
    other = PRONG(twin, LR, eps=EPS, sample=sample)
    other.load_state_dict(optimizer.state_dict())
    plain = copy.deepcopy(model)
    found, expected = (torch.func.vmap(torch.func.jacrev(net))(X) for net in (model, plain))
    torch.testing.assert_close(found, expected)
    step(model, optimizer)
    step(twin, other)
    assert torch.equal(vector(model), vector(twin))


def test_a_second_derivative_is_refused_where_the_backward_pass_is_changed():
    model = mlp(6, 5, 3)
    step(model, optimizer := PRONG(model, LR, eps=EPS, sample=SAMPLE, in_backward=True))
    x = X[:2].clone().requires_grad_()
    (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        g.square().sum().backward()
    optimizer.close()
    (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    g.square().sum().backward()


def test_mixed_precision_is_close_to_full_precision():
    low, full = mlp(6, 5, 3).float(), mlp(6, 5, 3)
    for model, dtype, sample in (
        (low, torch.float32, SAMPLE.float()),
        (full, torch.float64, SAMPLE),
    ):
        optimizer = PRONG(model, LR, eps=EPS, sample=sample)
        start = vector(model)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
                r = model(X.to(dtype))
            cross_entropy(r.to(dtype), LABELS).backward()
            optimizer.step()
        assert all(p.dtype == dtype for p in model.parameters())
    moved = (vector(full) - start).norm()
    assert float((vector(low).double() - vector(full)).norm() / moved) < 0.02


@pytest.mark.parametrize("options", [{}, {"backward_eps": 0.1}], ids=["plain", "footnote 4"])
def test_products_of_the_optimizer_keep_their_precision_in_an_autocast_block(options):
    """Of gradients of the backward pass, and of those from elsewhere."""
    for elsewhere in (False, True):
        ends = []
        for inside in (False, True):
            model = mlp(6, 3).float()
            optimizer = PRONG(model, LR, eps=EPS, sample=SAMPLE.float(), **options)
            for _ in range(2):
                optimizer.zero_grad()
                used = copy.deepcopy(model) if elsewhere else model
                loss_of(used, X.float()).backward()
                for p, q in zip(model.parameters(), used.parameters(), strict=True):
                    p.grad = q.grad
                with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                    optimizer.step()
            ends.append(vector(model))
        assert torch.equal(*ends)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at all inputs
@pytest.mark.parametrize("how", ["whole", "in place", "a layer"])
@pytest.mark.parametrize("in_backward", [False, True])
def test_a_compiled_model_has_the_statistics_of_its_sample(how, in_backward):
    torch.compiler.reset()
    ends = []
    for compiled in (False, True):
        model = mlp(6, 5, 3)
        used = model
        if compiled and how == "whole":
            used = torch.compile(model, backend="aot_eager")
        elif compiled:
            (model if how == "in place" else model[0]).compile(backend="aot_eager")
        optimizer = PRONG(used, LR, eps=EPS, sample=SAMPLE, period=1, in_backward=in_backward)
        for _ in range(2):
            step(used, optimizer)
        assert len(optimizer.state) >= 2
        ends.append(vector(model))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cleared", [False, True])
def test_a_graph_that_is_used_twice_counts_after_its_gradients_were_cleared(cleared):
    """As where gradients of several losses are combined by hand."""
    ends = []
    for twice in (False, True):
        model = mlp(6, 5, 3)
        optimizer = PRONG(model, LR, eps=EPS, period=1)
        loss = loss_of(model)
        if twice:
            loss.backward(retain_graph=True)
            if cleared:
                optimizer.zero_grad()
        loss.backward()
        if twice and not cleared:
            for p in model.parameters():
                p.grad /= 2
        before, gradient = vector(model), vector_of_gradients(model)
        optimizer.step()
        assert not torch.allclose(
            vector(model), before - LR * gradient
        )  # the control: a plain step
        ends.append(vector(model))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-13)


def vector_of_gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("make", [lambda: mlp(6, 5, 3), lambda: nn.Conv2d(2, 3, 2).double()])
def test_an_example_without_a_batch_is_a_batch_of_one(make):
    """The errors of footnote 4 are in units of an example."""
    x = X[0] if isinstance(make(), nn.Sequential) else X[:3].reshape(2, 3, 3)
    ends = []
    for unbatched in (False, True):
        model = make()
        with torch.no_grad():
            for k, p in enumerate(model.parameters()):
                p.copy_(torch.sin(torch.arange(p.numel()) + k).view_as(p) / 2)
        optimizer = PRONG(model, LR, eps=EPS, period=1, backward_eps=0.1)
        model(x if unbatched else x[None]).square().sum().backward()
        optimizer.step()
        ends.append(vector(model))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-13)


def test_a_sample_that_is_used_up_or_empty_is_refused():
    used = iter([SAMPLE])
    optimizer = PRONG(mlp(6, 3), LR, eps=EPS, sample=lambda: used, period=1)
    step(optimizer.model, optimizer)
    before = vector(optimizer.model)
    with pytest.raises(
        ValueError, match="sample: expected at least one example that reaches a layer"
    ):
        step(optimizer.model, optimizer)
    assert torch.equal(vector(optimizer.model), before)
    pair = PRONG(mlp(6, 3), LR, eps=EPS, sample=lambda: (X, LABELS))
    with pytest.raises(ValueError, match="of a pair of inputs and targets, the inputs alone"):
        pair.refresh()


class Experts(nn.Module):
    """Two layers, of which a batch may leave one without examples."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        first = x[:, 0] > -1e9
        return torch.cat([self.a(x[first]), self.b(x[~first])])


def test_a_layer_that_no_example_of_the_sample_reaches_takes_plain_steps():
    torch.manual_seed(0)
    model = Experts().double()
    optimizer = PRONG(model, LR, eps=EPS, sample=SAMPLE, period=1)
    before = model.b.weight.detach().clone()
    loss_of(model).backward()
    optimizer.step()
    torch.testing.assert_close(model.b.weight.detach(), before - LR * model.b.weight.grad)
    assert "inverse" in optimizer.state[model.a.weight]


def test_errors_of_a_layer_that_is_too_wide_for_their_matrix_are_refused():
    with pytest.raises(ValueError, match="backward_eps: layer '0': its output has 9 features"):
        PRONG(mlp(6, 9, 3), LR, backward_eps=0.1, max_features=8)
    PRONG(mlp(6, 8, 3), LR, backward_eps=0.1, max_features=8)


def test_a_model_that_was_compiled_and_run_before_is_refused_without_a_sample():
    """Its code has no hooks, so that every step would be a plain one."""
    model = mlp(6, 3)
    compiled = torch.compile(model, backend="eager")
    compiled(X)
    optimizer = PRONG(model, LR, eps=EPS)
    before = vector(model)
    for _ in range(2):
        with pytest.raises(ValueError, match="layer '0' has a gradient and saw neither"):
            step(compiled, optimizer)
    assert torch.equal(vector(model), before) and optimizer.steps == 0
    step(model, optimizer)
    check(compiled, optimizer=PRONG(model, LR, eps=EPS, sample=SAMPLE), names=["0"])


@pytest.mark.parametrize("options", [{}, {"backward_eps": 0.1}], ids=["plain", "footnote 4"])
def test_an_empty_batch_changes_nothing(options):
    model = mlp(6, 5, 3)
    optimizer = PRONG(model, LR, eps=EPS, sample=SAMPLE, **options)
    before = vector(model)
    step(model, optimizer, lambda model: cross_entropy(model(X[:0]), LABELS[:0], reduction="sum"))
    assert torch.equal(vector(model), before)
    step(model, optimizer)
    assert torch.isfinite(vector(model)).all() and not torch.equal(vector(model), before)


def test_statistics_of_an_empty_sample_are_refused():
    model = mlp(6, 5, 3)
    optimizer = PRONG(model, LR, eps=EPS, sample=lambda: X[:0])
    with pytest.raises(ValueError, match="sample: expected at least one example"):
        step(model, optimizer)
    optimizer.sample = SAMPLE
    check(model, optimizer=optimizer)


@pytest.mark.parametrize("sample", [SAMPLE, None], ids=["sample", "training batches"])
def test_a_forward_pass_that_fails_leaves_no_trace(sample):
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.out, self.broken = mlp(6, 5), mlp(5, 3), False

        def forward(self, x):
            h = self.body(x)
            if self.broken:
                raise RuntimeError("broken")
            return self.out(torch.tanh(h))

    model = Fragile()
    optimizer = PRONG(model, LR, eps=EPS, sample=sample)
    model.broken = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            model(X)
    model.broken = False
    check(model, optimizer=optimizer, sample=X if sample is None else sample)


# ---- Where the step comes from


def wide(*sizes, options=None):
    """Return a model whose layers have more outputs than a batch has rows, and its optimizer."""
    model = mlp(*(sizes or (6, 90, 80, 3)))
    return model, PRONG(model, LR, eps=EPS, sample=SAMPLE, **(options or {}))


@pytest.mark.parametrize("bias", [True, False])
def test_passes_and_gradient_give_the_same_step(bias, monkeypatch):
    """Also where the bias is frozen; the passes are used unless they are hidden."""
    ends, used = [], []
    for hidden in (False, True):
        model, optimizer = wide()
        for layer in optimizer.layers.values():
            layer.bias.requires_grad_(bias)
        if hidden:
            monkeypatch.setattr(PlainLayer, "cheap", lambda self, n: False)
        whole = PlainLayer.from_passes
        monkeypatch.setattr(
            PlainLayer, "from_passes", lambda *a, h=hidden, whole=whole: used.append(h) or whole(*a)
        )
        for _ in range(3):
            step(model, optimizer)
        monkeypatch.undo()
        ends.append(vector(model))
    assert used.count(False) > 0 and used.count(True) == 0
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-11)


def test_what_else_the_gradient_holds_is_not_lost():
    """A penalty on the weights, a gradient that was clipped, added to, or put in place."""

    def penalty(model):
        return loss_of(model) + 1e-6 * sum(p.square().sum() for p in model.parameters())

    def changed(change):
        def made(model, optimizer):
            loss_of(model).backward()
            for p in model.parameters():
                change(p)
            optimizer.step()

        return made

    def penalized(model, optimizer):
        penalty(model).backward()
        optimizer.step()

    def nudge(p):
        p.grad.view(-1)[0] += 1e-6

    def replace(p):
        p.grad = p.grad * 0.999999

    for way in (penalized, changed(nudge), changed(replace)):
        ends = []
        for capture in (True, False):
            model, optimizer = wide()
            if not capture:
                for layer in optimizer.layers.values():
                    layer.cheap = lambda n: False
            way(model, optimizer)
            ends.append(vector(model))
        torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-14)
        plain, other = wide()
        step(plain, other)
        assert float((vector(plain) - ends[0]).abs().max()) > 1e-9


def test_the_backward_pass_of_the_option_gives_the_same_steps_and_another_gradient():
    ends = []
    for inside in (False, True):
        model, optimizer = wide(options={"in_backward": inside, "period": 2, "momentum": 0.5})
        for _ in range(4):
            step(model, optimizer)
        ends.append(vector(model))
        gradient = model[0].weight.grad.clone()
        free = copy.deepcopy(model)
        optimizer.zero_grad()
        loss_of(model).backward()
        loss_of(free).backward()
        gap = (model[0].weight.grad - free[0].weight.grad).norm() / free[0].weight.grad.norm()
        assert (float(gap) > 0.1) == inside and torch.isfinite(gradient).all()
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("sizes", [(6, 90, 3), (6, 4, 3)], ids=["passes", "gradient"])
def test_parts_of_a_batch_without_a_sample(sizes):
    """The statistics are those of all passes that made the gradient."""
    ends = []
    for parts in (1, 3):
        model = mlp(*sizes)
        optimizer = PRONG(model, LR, eps=EPS, period=2)
        for _ in range(3):
            optimizer.zero_grad()
            for x, t in zip(X.chunk(parts), LABELS.chunk(parts), strict=True):
                (loss_of(model, x, t) / parts).backward()
            optimizer.step()
        ends.append(vector(model))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-11)


def test_passes_without_a_backward_pass_do_not_count():
    ends = []
    for others in (False, True):
        model = mlp(6, 5, 3)
        optimizer = PRONG(model, LR, eps=EPS, period=1)
        for _ in range(2):
            if others:
                loss_of(model, X[:3] * 7, LABELS[:3])
            step(model, optimizer)
        ends.append(vector(model))
    assert torch.equal(*ends)


# ---- Models of others


class Conv1D(nn.Module):
    """A linear layer with its weight as (in, out), as in GPT-2."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(0.3 * torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return x @ self.weight + self.bias


@pytest.mark.parametrize("width", [5, 90])
def test_a_linear_layer_with_a_transposed_weight(width):
    model = made(lambda: nn.Sequential(Conv1D(width, 6), nn.Tanh(), Conv1D(3, width)))
    twin = mlp(6, width, 3)
    with torch.no_grad():
        for k in (0, 2):
            twin[k].weight.copy_(model[k].weight.mT)
            twin[k].bias.copy_(model[k].bias)
    for net in (model, twin):
        optimizer = PRONG(net, LR, eps=EPS, sample=SAMPLE, period=2)
        assert not optimizer.plain
        for _ in range(3):
            step(net, optimizer)
    for k in (0, 2):
        torch.testing.assert_close(model[k].weight.mT, twin[k].weight, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(model[k].bias, twin[k].bias, rtol=1e-9, atol=1e-11)


def test_a_layer_with_too_many_inputs_gets_plain_steps_and_says_so():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(5000, 4), nn.Linear(4, 3))
    with pytest.warns(UserWarning, match="PRONG: 100% of the parameters take plain gradient steps"):
        optimizer = PRONG(model, LR)
    assert (
        "5000 features, more than max_features=4096: the statistics would take 0.6 GB"
        in (optimizer.plain["2"])
    )
    assert sorted(optimizer.layers) == ["0", "3"]
    assert not PRONG(model, LR, max_features=5000).plain


class Residual(nn.Module):
    """The residual of a differential equation, as physics-informed networks compute it."""

    def __init__(self):
        super().__init__()
        self.net = mlp(6, 9, 1)

    def forward(self, x):
        x = x.detach().requires_grad_()
        u = self.net(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return slope.sum(1) + u[:, 0]


@pytest.mark.parametrize("sample", [SAMPLE, None], ids=["sample", "training batches"])
def test_a_model_that_differentiates_in_its_pass(sample):
    model = Residual()
    losses = []
    optimizer = PRONG(model, LR, eps=EPS, sample=sample, period=5)
    free = copy.deepcopy(model)
    for k in range(12):
        optimizer.zero_grad()
        loss = (model(X) - 1).square().mean()
        loss.backward()
        if k == 0:
            (free(X) - 1).square().mean().backward()
            for p, q in zip(model.parameters(), free.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_model_that_asks_for_gradients_of_its_inputs_in_place():
    """A sample that the model has marked is measured like a fresh one."""

    class InPlace(Residual):
        def forward(self, x):
            return super().forward(x.requires_grad_())

    marked, paths = X.clone(), []
    for sample in (marked, X.clone()):
        model = InPlace()
        optimizer = PRONG(model, LR, eps=EPS, sample=sample, period=2)
        for _ in range(4):
            optimizer.zero_grad()
            (model(marked) - 1).square().mean().backward()
            optimizer.step()
        paths.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(paths[0], paths[1], rtol=1e-12, atol=1e-14)


def test_a_compiled_model_is_whole():
    """With a sample the hooks leave no break in the graph."""
    model = mlp(6, 5, 3)
    optimizer = PRONG(model, LR, eps=EPS, sample=SAMPLE)
    assert torch._dynamo.explain(model)(X).graph_break_count == 0
    check(torch.compile(model, backend="eager")._orig_mod, optimizer=optimizer)
    torch._dynamo.reset()


def test_a_compiled_step_measures_its_sample():
    ends = []
    for compiled in (False, True):
        model = mlp(6, 5, 3)
        optimizer = PRONG(model, LR, eps=EPS, sample=SAMPLE)
        make = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        loss_of(model).backward()
        make()
        ends.append(vector(model))
    torch._dynamo.reset()
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-14)


def test_options_come_with_the_state():
    model = mlp(6, 5, 3)
    given = {"eps": 0.3, "period": 2, "decay": 0.2, "backward_eps": 0.5, "constant_inputs": ["0"]}
    optimizer = PRONG(model, LR, **given)
    step(model, optimizer)
    twin = copy.deepcopy(model)
    other = PRONG(twin, 1.0)
    other.load_state_dict(optimizer.state_dict())
    for _ in range(4):
        step(model, optimizer)
        step(twin, other)
    assert torch.equal(vector(model), vector(twin))


@pytest.mark.parametrize("to_none", [True, False], ids=["to None", "to zeros"])
@pytest.mark.parametrize("kind", [PRONG, RNGD])
def test_gradients_that_the_model_cleared_leave_no_trace(kind, to_none):
    paths = []
    for skipped in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        optimizer = kind(model, 0.1, period=1)
        g = torch.Generator().manual_seed(1)
        for _ in range(3):
            x = torch.randn(12, 5, generator=g, dtype=torch.float64)
            t = torch.randint(3, (12,), generator=g)
            if skipped:
                cross_entropy(model(x * 3 + 1), t).backward()
                model.zero_grad(set_to_none=to_none)
            cross_entropy(model(x), t).backward()
            optimizer.step()
            model.zero_grad(set_to_none=to_none)
        paths.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*paths)
