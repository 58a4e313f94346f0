"""From a graph of torch to a program: constants are folded, dead code dropped, the rest named."""

import json
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map_only

from natcompanion.chapters.page._operations import NAMES, PLACEMENT, RESULTS, SAME, SHAPE_ALONE

KINDS = (torch.float64, torch.int64, torch.bool)
"""What the runtime, which stores numbers in float64, computes as torch does."""

LARGE = 64
"""Elements of a constant from which on repetition is looked for."""


@dataclass
class Program:
    """Operations on arrays of fixed shapes.

    Registers are numbered: inputs, constants, then the result of each line of code. A line is the
    name of an operation and its arguments, among which ``"3"`` is a register and ``3`` a number.

    Attributes
    ----------
    inputs : list of list of int
        Shapes.
    constants : list of [shape, values]
    code : list of [name, argument, ...]
    outputs : list of str
        Registers.
    """

    inputs: list[list[int]]
    constants: list[list[list]] = field(default_factory=list)
    code: list[list[Any]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def json(self) -> str:
        """Return the program as a page reads it."""
        return json.dumps(vars(self), separators=(",", ":"), allow_nan=False)

    @property
    def operations(self) -> set[str]:
        """The operations that it needs of the runtime."""
        return {line[0] for line in self.code}


def write(graph: GraphModule, inputs: Sequence[torch.Tensor]) -> Program:
    """Return the program of a graph that was traced at ``inputs``."""
    events = list(_run(graph, inputs))
    code, outputs = _merged(*_lines(events, _moving(events)))
    given = [line for line in code if line.name == "input"]
    return _numbered(_live(code, outputs), outputs, given)


# ---- One run on real tensors


@dataclass
class _Event:
    """One node as it was run: its arguments before it, its result, the memory it changed."""

    node: Any
    arguments: tuple[tuple, dict]
    result: Any
    after: Any
    changed: set[int]

    @property
    def name(self) -> str:
        """The name in torch."""
        return str(self.node.target)

    @property
    def sources(self) -> set[Node]:
        """The nodes whose values decide the result."""
        return set() if self.name.startswith(SHAPE_ALONE) else set(self.node.all_input_nodes)

    @property
    def memory(self) -> set[int]:
        """The storages of the results."""
        return _memory(self.result)


def _memory(values: Any) -> set[int]:
    tensors = (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))
    return {value.untyped_storage()._cdata for value in tensors}


def _copied(values: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda value: value.detach().clone(), values)


def _run(graph: GraphModule, inputs: Sequence[torch.Tensor]) -> Iterator[_Event]:
    """Run a graph, and yield what happened at each node."""
    values: dict[Node, Any] = {}
    given = iter(_copied(tuple(inputs)))
    for node in graph.graph.nodes:
        used = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        before, changed = _copied(used), set()
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = getattr(graph, node.target).detach().clone()
        elif node.op == "output":
            values[node] = used[0][0]
        else:
            _refuse_chance(node)
            values[node] = _functional_view(node)(*used[0], **used[1])
            if ".empty" in str(node.target) or "new_empty" in str(node.target):
                values[node].zero_()  # what memory held before is no constant
            changed = _memory([value for value, writes in _schema(node, used) if writes])
        yield _Event(node, before, values[node], _copied(values[node]), changed)


def _refuse_chance(node: Any) -> None:
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise ValueError(f"{node.target}: random numbers would be the same in every run of a page")


def _functional_view(node: Any) -> Any:
    """Return what a node calls; instead of a view that changes its argument, the view."""
    tags = getattr(node.target, "tags", ())
    return _twin(node.target) if torch.Tag.inplace_view in tags else node.target


def _twin(target: Any) -> Any:
    """Return the operation that does not work in place, of one that does."""
    packet, overload = target._schema.name.removeprefix("aten::"), target._overloadname
    return getattr(getattr(torch.ops.aten, packet.removesuffix("_")), overload)


def _schema(node: Any, used: tuple[tuple, dict]) -> Iterator[tuple[Any, bool]]:
    """Yield the arguments of an operation of torch in its order, and whether it writes to them."""
    schema = getattr(node.target, "_schema", None)
    in_place = torch.Tag.inplace_view not in getattr(node.target, "tags", ())
    for place, argument in enumerate(schema.arguments if schema else ()):
        default = argument.default_value if argument.has_default_value() else None
        value = used[1].get(argument.name, default) if place >= len(used[0]) else used[0][place]
        yield value, in_place and argument.alias_info is not None and argument.alias_info.is_write


def _moving(events: Sequence[_Event]) -> set[Node]:
    """Return the nodes that the inputs decide, and those whose memory is written by such."""
    nodes: set[Node] = set()
    memory: set[int] = set()
    while True:
        before = len(nodes), len(memory)
        for event in events:
            reached = event.node.op == "placeholder" or nodes & event.sources
            if reached or event.memory & memory:
                nodes.add(event.node)
                memory |= event.memory | event.changed
        if before == (len(nodes), len(memory)):
            return nodes


# ---- Lines of code


class _Line:
    """A line of code: a name, arguments (other lines among them), the memory of its result, and
    why a page cannot run it, which matters if the line is needed.
    """

    def __init__(
        self, name: str, arguments: Sequence[Any] = (), memory: Any = (), problem: str = ""
    ) -> None:
        self.name, self.arguments, self.memory = name, list(arguments), set(memory)
        self.problem = problem

    @property
    def needs(self) -> list["_Line"]:
        """The lines among the arguments."""
        return [argument for argument in tree_leaves(self.arguments) if isinstance(argument, _Line)]


def _constant(value: torch.Tensor) -> _Line:
    numbers = [_number(number) for number in value.double().flatten().tolist()]
    return _Line("constant", [list(value.shape), numbers])


def _unrepeated(value: torch.Tensor) -> torch.Tensor:
    """Return a large tensor without what is the same all along a dimension."""
    few = value
    for dim in range(value.dim() if value.numel() > LARGE else 0):
        first = few.narrow(dim, 0, 1)
        few = first if few.shape[dim] > 1 and bool((few == first).all()) else few
    return few


def _number(x: Any) -> Any:
    """Return a number that JSON can hold, as short as it can be; other things as they are."""
    if not isinstance(x, float):
        return x
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"
    negative_zero = x == 0 and math.copysign(1, x) < 0
    return int(x) if x.is_integer() and abs(x) < 1e15 and not negative_zero else x


def _lines(events: Sequence[_Event], moving: set[Node]) -> tuple[list[_Line], list[_Line]]:
    """Return the code for all nodes that move, and the lines of the results."""
    code: list[_Line] = []
    lines: dict[Node, _Line] = {}

    def add(*line: Any) -> _Line:
        code.append(_Line(*line))
        return code[-1]

    def argument(given: Any, value: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return [argument(*pair) for pair in zip(given, value, strict=True)]
        if not isinstance(given, Node):
            return _number(given)
        if given in moving:
            return lines[given]
        return constant(value) if isinstance(value, torch.Tensor) else _number(value)

    def constant(value: torch.Tensor) -> _Line:
        few = _unrepeated(value)
        return (
            add("expand", [_constant(few), list(value.shape)])
            if few is not value
            else _constant(few)
        )

    for event in events:
        node, used = event.node, event.arguments
        if node.op == "output":
            return code, argument(node.args[0], used[0][0])
        if node not in moving:
            continue
        if node.op == "placeholder":
            lines[node] = add("input", [list(event.result.shape)], event.memory)
        elif not moving & event.sources:
            lines[node] = add("clone", [constant(event.after)], event.memory)
        elif node.target is operator.getitem:
            lines[node] = add("get", [lines[node.args[0]], node.args[1]], event.memory)
            lines[node].problem = _no_result(node, lines[node])
        elif event.name in SAME:
            lines[node] = lines[node.args[0]]
        elif event.memory:
            given = [argument(*pair) for pair in _arguments(node, used)]
            lines[node] = _translated(event, given, add)
            lines[node].problem = lines[node].problem or _unlike_torch(event)
    raise ValueError("the graph has no output")


def _arguments(node: Any, used: tuple[tuple, dict]) -> list[tuple[Any, Any]]:
    """Return the arguments in the order of torch, with their values; defaults at the end and what
    concerns storage are left out.
    """
    found = []
    for place, argument in enumerate(node.target._schema.arguments):
        if place < len(node.args):
            pair = node.args[place], used[0][place]
        elif argument.name in node.kwargs:
            pair = node.kwargs[argument.name], used[1][argument.name]
        else:
            pair = argument.default_value, argument.default_value
        if argument.name not in PLACEMENT:
            found.append((pair, argument))
    while found and found[-1][1].has_default_value() and _default(*found[-1]):
        found.pop()
    return [pair for pair, _ in found]


def _default(pair: tuple[Any, Any], argument: Any) -> bool:
    given, default = pair[0], argument.default_value
    return not isinstance(given, Node) and type(given) is type(default) and given == default


def _translated(event: _Event, given: list[Any], add: Callable[..., _Line]) -> _Line:
    """Return the line of an operation; one in place is the operation, copied to the place."""
    target = _functional_view(event.node)
    if event.name == "aten._to_copy.default":
        return add(*_converted(event, given[0]), event.memory)
    if not target._schema.is_mutable or event.name.startswith("aten.copy_."):
        return add(*_named(target, given, event.memory))
    filled = event.name.startswith(("aten.fill_.", "aten.zero_."))
    value = (given[1:] or [0])[0] if filled else add(*_named(_twin(target), given))
    return add("copy_", [given[0], value], event.memory)


def _named(target: Any, given: list[Any], memory: Any = ()) -> tuple[str, list[Any], Any, str]:
    """Return an operation of torch as the runtime calls it; if it has none, this is the problem."""
    name, heeded = NAMES.get(str(target), ("", len(given)))
    advice = "write the step with others, or add it to runtime.js and _operations.py, with a test"
    problem = "" if name else f"{target}: the runtime of a page has no such operation; {advice}"
    if len(given) > heeded:
        problem = f"{target}: the runtime heeds {heeded} arguments, got {len(given)}; {advice}"
    return name or str(target), given, memory, problem


def _converted(event: _Event, given: Any) -> tuple[str, list]:
    """Return a change of dtype as the runtime does it: all its numbers are float64."""
    before, after = event.arguments[0][0].dtype, event.result.dtype
    if after == torch.bool:
        return "ne", [given, 0]
    return ("trunc" if before.is_floating_point and after == torch.int64 else "clone"), [given]


def _unlike_torch(event: _Event) -> str:
    """Say what the runtime would compute in another precision or in another way than torch."""
    made = [x for x in tree_leaves(event.result) if isinstance(x, torch.Tensor)]
    used = [x for x in tree_leaves(event.arguments) if isinstance(x, torch.Tensor)]
    name, problems = NAMES.get(event.name, ("",))[0], []
    if not {x.dtype for x in made} <= {*KINDS, torch.int32}:
        problems.append(f"expected float64, got {', '.join(str(x.dtype) for x in made)}")
    if name in ("index", "index_put") and any(x.dtype == torch.bool for x in used[1:]):
        problems.append("a mask as an index has no fixed shape; use where")
    if name == "add" and made[0].dtype == torch.bool:
        problems.append("truth values would be counted; use | or torch.logical_or")
    if name == "svd" and made[0].numel() and made[0].shape[-1] != made[1].shape[-1]:
        problems.append("expected full_matrices=False of a matrix that is not square")
    return f"{event.name}: {problems[0]}" if problems else ""


def _no_result(node: Any, line: _Line) -> str:
    """Say that the runtime does not compute a result of an operation that has several."""
    operation, place = line.arguments[0].name, line.arguments[1]
    lacks = place >= RESULTS.get(operation, place + 1)
    return f"{node.args[0].target}: the runtime does not compute its result {place}" * lacks


# ---- Simplification


def _written(code: Sequence[_Line]) -> set[int]:
    """Return the memory that is changed after it was made."""
    return {place for line in code if line.name == "copy_" for place in line.memory}


def _merged(code: Sequence[_Line], outputs: Sequence[_Line]) -> tuple[list[_Line], list[_Line]]:
    """Return the code in which the same operation on the same things stands once."""
    known: dict[str, _Line] = {}
    instead: dict[int, _Line] = {}
    written, kept = _written(code), []

    def now(line: _Line) -> _Line:
        if line.name == "constant":
            return known.setdefault(json.dumps(line.arguments), line)
        return instead.get(id(line), line)

    for line in code:
        line.arguments = tree_map_only(_Line, now, line.arguments)
        memory = line.memory.union(*(needed.memory for needed in line.needs))
        key = json.dumps([line.name, tree_map_only(_Line, lambda x: f"@{id(x)}", line.arguments)])
        if line.name in ("input", "copy_") or memory & written:
            kept.append(line)
        elif key in known:
            instead[id(line)] = known[key]
        else:
            known[key] = line
            kept.append(line)
    return kept, [now(line) for line in outputs]


def _live(code: Sequence[_Line], outputs: Sequence[_Line]) -> list[_Line]:
    """Return the lines that the outputs need, and the changes of memory that these lie in."""
    needed: dict[int, _Line] = {}
    wanted = list(outputs)
    while wanted:
        while wanted:
            line = wanted.pop()
            if id(line) not in needed:
                needed[id(line)] = line
                wanted += line.needs
        memory = {place for line in needed.values() for place in line.memory}
        wanted = [
            line
            for line in code
            if line.name == "copy_" and id(line) not in needed and line.memory & memory
        ]
    return [line for line in code if id(line) in needed]


def _numbered(code: Sequence[_Line], outputs: Sequence[_Line], inputs: Sequence[_Line]) -> Program:
    """Return the program: every line has a register."""
    operations = [line for line in code if line.name != "input"]
    used = [line for part in operations for line in part.needs] + list(outputs)
    constants = list({id(line): line for line in used if line.name == "constant"}.values())
    places = {id(line): str(n) for n, line in enumerate([*inputs, *constants, *operations])}

    def name(line: _Line) -> str:
        return places[id(line)]

    if problems := [line.problem for line in operations if line.problem]:
        raise ValueError(problems[0])
    return Program(
        [line.arguments[0] for line in inputs],
        [line.arguments for line in constants],
        [[line.name, *tree_map_only(_Line, name, line.arguments)] for line in operations],
        [name(line) for line in outputs],
    )
