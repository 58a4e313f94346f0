"""What every optimizer of this library keeps of torch's contract, in one class."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from natcompanion import _checks as check
from natcompanion import _distributed

Parameters = Iterable[Any] | None
Directions = dict[nn.Parameter, torch.Tensor]

DESCENT = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
"""Options of the step itself, which mean the same in every optimizer."""

UNKNOWN = {
    "maximize": "minimize the negative of the loss",
    "dampening": "the velocity is not damped here",
    "differentiable": "no derivative goes through a step",
}
"""Options of torch's optimizers that would change a step and that there are not here."""


class Preconditioned(Optimizer):
    r"""Descent along preconditioned gradients, with torch's habits.

    .. math:: v \leftarrow \mu v + d, \qquad
              \theta \leftarrow (1 - \mathrm{lr}\, w)\, \theta - \mathrm{lr}\, v

    ``d`` is the preconditioned gradient, :math:`\mu` the momentum and ``w`` the weight decay, which
    is decoupled as in AdamW. A subclass says what ``d`` is, in :meth:`_directions`.

    * ``.grad`` stays the gradient: preconditioning happens in :meth:`step`.
    * All that the next step needs is in ``state`` and ``param_groups``, options included, so that
      hooks, ``torch.distributed.checkpoint`` and ``state_dict`` see it whole. What is loaded keeps
      its precision. A state that does not fit is refused, and nothing is changed.
    * Without ``parameters``, all of the model's are followed: one that is frozen now may be trained
      later.
    * Copies and pickles of model and optimizer together go on as the original would.
    * A step on numbers that are not finite is refused and changes nothing; one that would overflow
      is refused and changes no parameter.

    Parameters
    ----------
    model : Module or None
        The model to train; None for an optimizer of parameters that may belong to no model.
    parameters : iterable or None
        What to train of it: parameters, their names, pairs as from ``named_parameters()``, or
        groups of these with options of their own; all parameters if None.
    defaults : dict
        Options of the groups: ``lr`` at least.

    Raises
    ------
    ValueError
        If ``model`` is no module, a parameter is not one of its, is sharded over processes, or an
        option is out of range.
    """

    def __init__(
        self, model: nn.Module | None, parameters: Parameters, defaults: dict[str, Any]
    ) -> None:
        if model is not None or parameters is None:
            check.model(model)
        self.model: Any = model
        super().__init__(_groups(model, parameters), {**DESCENT, **defaults, "steps": 0})

    # ---- Groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of the model's parameters with options of its own.

        Raises
        ------
        ValueError
            If a parameter is not the model's or is there already, or an option is out of range.
            Nothing is changed then.
        """
        if not isinstance(param_group, dict) or "params" not in param_group:
            got = list(param_group) if isinstance(param_group, dict) else check.got(param_group)
            raise ValueError(f'param_group: expected a dict with "params" and options, got {got}')
        group = {**param_group, "params": resolved(self.model, param_group["params"])}
        if self.param_groups:
            group.setdefault("steps", self.steps)
        super().add_param_group(group)
        try:
            _refuse_repeated(self.param_groups[-1]["params"])
            for p in self.param_groups[-1]["params"]:
                refuse_sharded(p, type(self).__name__)
                if p.requires_grad and not is_lazy(p):
                    refuse_unreal(p, type(self).__name__)
            self._check_group(self.param_groups[-1])
            self._changed()
        except ValueError:
            self.param_groups.pop()
            if self.param_groups:
                self._changed()
            raise

    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuse options out of range; a subclass adds its own."""
        for key in ("lr", "weight_decay"):
            check.non_negative(number(group[key], key), key)
        if not 0 <= number(group["momentum"], "momentum") < 1:
            raise ValueError(
                f"momentum: expected a number from 0 to below 1, got {group['momentum']!r}"
            )
        if group["nesterov"] and not group["momentum"]:
            raise ValueError("nesterov: expected a momentum above 0 with it, got 0")
        for key, instead in UNKNOWN.items():
            if group.get(key):
                raise ValueError(f"{key}: expected it off, got {group[key]!r}; {instead}")

    def _check_groups(self) -> None:
        """Refuse options that were set out of range since the last step."""
        for group in self.param_groups:
            self._check_group(group)

    def _changed(self) -> None:
        """Look at the groups again; a subclass that knows layers finds them here."""

    def _leaves(self) -> list[nn.Parameter]:
        """Return the parameters of all groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def _group_of(self) -> dict[nn.Parameter, dict[str, Any]]:
        """Return the group of every parameter."""
        return {p: group for group in self.param_groups for p in group["params"]}

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return max((group["steps"] for group in self.param_groups), default=0)

    # ---- The step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step and return the loss of ``closure``, if there is one.

        Parameters
        ----------
        closure : callable, optional
            Clears the gradients, computes the loss, calls ``backward`` and returns the loss.

        Raises
        ------
        ValueError
            If a gradient is not finite, an option of a group was set out of range, or the metric
            cannot be had. Nothing is changed then. If the step would overflow: no parameter is
            changed then.
        """
        self._check_groups()
        check.function(closure, "closure")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if gradients := self._gradients():
            device = next(iter(gradients)).device.type
            if torch.is_autocast_enabled(device):
                with torch.autocast(device, enabled=False):
                    self._descend(self._directions(gradients))
            else:
                self._descend(self._directions(gradients))
        for group in self.param_groups:
            group["steps"] += 1
        return loss

    def _gradients(self) -> Directions:
        """Return the gradient of every parameter that has one.

        Raises
        ------
        ValueError
            If one is not finite.
        """
        found = {p: p.grad for p in self._leaves() if p.grad is not None}
        for p in found:  # one that was frozen when the optimizer was made
            refuse_unreal(p, type(self).__name__)
        refuse_not_finite(found.values(), type(self).__name__)
        return found

    def _directions(self, gradients: Directions) -> Directions:
        """Return the preconditioned gradient of every parameter that shall move."""
        raise NotImplementedError

    def _descend(self, directions: Directions) -> None:
        """Move along the directions, with the momentum and the weight decay of each group."""
        self._refuse_overflow(directions)
        for group in self.param_groups:
            lr, decay = float(group["lr"]), float(group["weight_decay"])
            for p in group["params"]:
                if (d := directions.get(p)) is None:
                    continue
                if group["momentum"]:
                    d = self._with_momentum(p, d, group)
                if decay:
                    p.mul_(1 - lr * decay)
                p.add_(d, alpha=-lr)

    def _refuse_overflow(self, directions: Directions) -> None:
        """Raise ValueError if parameters or velocities would not be finite after the step.

        Norms show that they will be, but for numbers near the largest; those are computed.
        """
        if not directions:
            return
        velocities = [self.state.get(p, {}).get("momentum_buffer") for p in directions]
        parts = [*directions.values(), *(v for v in velocities if v is not None)]
        lr = max(float(group["lr"]) for group in self.param_groups)
        largest = min(torch.finfo(p.dtype).max for p in directions)
        if norms(parts) * (1 + lr) < largest / 4:
            return
        for group in self.param_groups:
            for p in group["params"]:
                if (d := directions.get(p)) is None:
                    continue
                d = d.to_dense() if d.is_sparse else d
                v = self.state.get(p, {}).get("momentum_buffer")
                v = d if v is None else group["momentum"] * v + d
                ahead = d + group["momentum"] * v if group["nesterov"] else v
                if not bool((p - float(group["lr"]) * ahead).isfinite().all() & v.isfinite().all()):
                    raise ValueError(
                        f"{type(self).__name__}: expected a finite step, got NaN or infinity; no "
                        "parameter was changed. Lower lr, raise the damping, or clip the gradient"
                    )

    def _with_momentum(
        self, p: nn.Parameter, d: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor:
        """Return the direction with momentum, as in ``torch.optim.SGD``."""
        mu = float(group["momentum"])
        d = d.to_dense() if d.is_sparse else d
        velocity = self.state[p].get("momentum_buffer")
        if velocity is None:
            velocity = self.state[p]["momentum_buffer"] = d.detach().clone()
        else:
            velocity.mul_(mu).add_(d)
        return d + mu * velocity if group["nesterov"] else velocity

    # ---- Saving, loading, copying

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step needs beside the model.

        Once a parameter has a state, all have an entry: ``torch.distributed.checkpoint`` wants it.
        """
        for p in self._leaves() if self.state else ():
            self.state.setdefault(p, {})
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state from :meth:`state_dict`, in the precision that it has.

        Raises
        ------
        ValueError
            If it is not one of this optimizer on this model. Nothing is changed then.
        """
        keep: list[dict] = []
        name = type(self).__name__
        check.entries(state_dict, set(), name)

        def take(_: Any, saved: dict) -> None:  # after other hooks, which may unwrap it
            check.entries(saved, {"state", "param_groups"}, name)
            keep.append(saved)

        # torch casts every tensor of a state to the dtype of its parameter; the originals undo that
        handle = self.register_load_state_dict_pre_hook(take)
        self._originals = keep
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            del self._originals

    def __setstate__(self, state: dict[str, Any]) -> None:
        if (originals := self.__dict__.get("_originals")) is None:
            super().__setstate__(state)
            self._changed()
            self._restored()
            return
        exact = _in_own_precision(originals[0], state)
        try:
            for group, old in zip(state["param_groups"], self.param_groups, strict=True):
                for key in old.keys() - {"param_names"} - group.keys():
                    raise ValueError(f"no option {key!r}")
                self._check_group(group)
            self._check_state(exact)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"state_dict: expected one of {type(self).__name__} on this model, got another "
                f"({error}); build model and optimizer as they were when it was saved"
            ) from None
        super().__setstate__({**state, "state": exact})
        self._restored()

    def __getstate__(self) -> dict[str, Any]:
        # a scheduler puts a wrapped ``step`` on the object, which belongs to this one alone
        return {key: value for key, value in self.__dict__.items() if key not in ("step", *HOOKS)}

    def _check_state(self, state: dict[nn.Parameter, dict[str, Any]]) -> None:
        """Refuse a state whose tensors do not fit; a subclass adds the shapes of its own."""
        for p, entries in state.items():
            velocity = entries.get("momentum_buffer") if isinstance(entries, dict) else None
            if isinstance(p, torch.Tensor) and velocity is not None and velocity.shape != p.shape:
                raise ValueError(
                    f"a momentum of shape {tuple(velocity.shape)} for a parameter of shape "
                    f"{tuple(p.shape)}"
                )

    def _restored(self) -> None:
        """Follow a state that was loaded or unpickled; a subclass drops what it had derived."""


class Share:
    """The part of a batch that this process holds, and means over the whole of it."""

    def __init__(self, examples: int) -> None:
        self.several = _distributed.world_size() > 1
        self.examples = examples
        self.weight = 1.0
        if self.several:
            total = torch.tensor([float(examples)], dtype=torch.float64)
            _distributed.reduce_sum([total])
            self.weight = examples / float(total)

    def mean(self, *values: Any) -> tuple:
        """Return numbers and tensors averaged over all examples of all processes."""
        if not self.several:
            return values
        parts = [
            self.weight * v
            if isinstance(v, torch.Tensor)
            else torch.tensor([self.weight * v], dtype=torch.float64)
            for v in values
        ]
        _distributed.reduce_sum(parts)
        return tuple(
            part if isinstance(v, torch.Tensor) else float(part)
            for part, v in zip(parts, values, strict=True)
        )


HOOKS = tuple(
    f"_optimizer_{kind}_hooks"
    for kind in (
        "state_dict_pre",
        "state_dict_post",
        "load_state_dict_pre",
        "load_state_dict_post",
        "step_pre",
        "step_post",
    )
)


def require_module(model: Any, name: str) -> None:
    """Raise ValueError if this is no module."""
    check.model(model)


def warn_if_plain(optimizer: Any) -> None:
    """Warn if over half of what is trained takes plain gradient steps: the parameters of the
    modules that ``optimizer.plain`` names, with the reason of each.
    """
    modules = dict(optimizer.model.named_modules())
    mine = {id(p): p.numel() for p in trainable(optimizer._leaves()) if not is_lazy(p)}
    plain = {id(p) for name in optimizer.plain for p in modules[name].parameters(recurse=False)}
    share = sum(size for key, size in mine.items() if key in plain) / max(sum(mine.values()), 1)
    if share > 0.5:
        name, reason = next(iter(optimizer.plain.items()))
        warnings.warn(
            f"{type(optimizer).__name__}: {share:.0%} of the parameters take plain gradient steps; "
            f"see .plain for the reasons. The first: module {name!r}, {reason}",
            stacklevel=3,
        )


def number(value: Any, name: str) -> float:
    """Return a number, a zero-dimensional tensor or a NumPy scalar as a float.

    Raises
    ------
    ValueError
        If it is none of these.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name}: expected a number, got {value!r}") from None


def resolved(model: nn.Module | None, chosen: Any) -> list[Any]:
    """Return parameters of a model from parameters, names or pairs of both, in their order.

    Pairs stay pairs, as torch keeps their names.

    Raises
    ------
    ValueError
        If one is not of this model, or is a name and there is no model.
    """
    items = check.listed(chosen)
    if model is None:
        for item in items:
            pair = isinstance(item, tuple) and len(item) == 2
            if not isinstance(item[1] if pair else item, torch.Tensor):
                raise ValueError(f"params: expected tensors, got {check.got(item)}")
        return items
    named = dict(model.named_parameters(remove_duplicate=False))
    own = {id(p) for p in named.values()}
    found = []
    for item in items:
        p = named.get(item) if isinstance(item, str) else item
        tensor = p[1] if isinstance(p, tuple) and len(p) == 2 else p
        if id(tensor) not in own:
            raise ValueError(
                "parameters: expected parameters of the model, their names or groups of these, "
                f"of {list(named)[:20]}; got {check.got(item)}, which is none of them"
            )
        found.append(p)
    return found


def _groups(model: nn.Module | None, parameters: Parameters) -> list[dict[str, Any]]:
    """Return parameter groups from what the user chose."""
    if parameters is None:
        chosen: list[Any] = [] if model is None else list(model.parameters())
    else:
        chosen = check.listed(parameters)
    if not chosen:
        raise ValueError("parameters: expected at least one parameter, got none")
    if all(isinstance(item, dict) for item in chosen):
        return [dict(group) for group in chosen]
    return [{"params": chosen}]


def _refuse_repeated(params: list[Any]) -> None:
    """Raise ValueError if a parameter is in a group twice: it would move twice in a step."""
    if len({id(p) for p in params}) < len(params):
        raise ValueError(
            "parameters: expected every parameter once, got one twice; one that modules share "
            "has several names"
        )


def refuse_sharded(p: torch.Tensor, name: str) -> None:
    """Raise ValueError for a parameter of which a process holds a part only."""
    if hasattr(p, "full_tensor") or hasattr(p, "_local_tensor"):
        raise ValueError(
            f"{name}: expected whole parameters, got one that is sharded over processes "
            f"({type(p).__name__}); use DistributedDataParallel instead of fully_shard"
        )


def refuse_unreal(p: torch.Tensor, name: str) -> None:
    """Raise ValueError for a parameter that is trained and not a dense tensor of real numbers."""
    if p.is_complex() or p.layout != torch.strided:
        check.numbers(p, f"{name}: parameters")


def refuse_not_finite(gradients: Iterable[torch.Tensor], name: str) -> None:
    """Raise ValueError if a gradient has NaN or infinite entries.

    The norms decide, because one is not finite where an entry is not; only then are entries looked
    at.
    """
    numbers = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    if not isfinite(norms(numbers)) and not all(bool(g.isfinite().all()) for g in numbers):
        raise ValueError(
            f"{name}: expected finite gradients, got NaN or infinity; nothing was changed. "
            "Lower lr, raise the damping, or clip the gradient"
        )


def norms(tensors: list[torch.Tensor]) -> float:
    """Return the sum of the norms, which bounds every entry; 0 for none."""
    dense = [t.coalesce().values() if t.is_sparse else t for t in tensors]
    return sum(map(float, torch._foreach_norm(dense))) if dense else 0.0


def _in_own_precision(
    saved: dict[str, Any], loaded: dict[str, Any]
) -> dict[nn.Parameter, dict[str, Any]]:
    """Return the loaded state with every tensor in the dtype in which it was saved."""
    keys = [key for group in saved["param_groups"] for key in group["params"]]
    params = [p for group in loaded["param_groups"] for p in group["params"]]
    exact = dict(loaded["state"])
    for key, p in zip(keys, params, strict=True):
        if key in saved["state"]:
            exact[p] = _copied(saved["state"][key], p.device)
    state = type(loaded["state"])(dict) if hasattr(loaded["state"], "default_factory") else {}
    state.update(exact)
    return state


def _copied(value: Any, device: torch.device) -> Any:
    """Return a copy of a tree of tensors on a device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, dict):
        return {key: _copied(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item, device) for item in value)
    return value


def trainable(parameters: Iterable[nn.Parameter]) -> Iterator[nn.Parameter]:
    """Yield those that are trained now."""
    return (p for p in parameters if p.requires_grad)
