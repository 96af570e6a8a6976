"""Effects: the language in which a claim says what it compares, such as `log(ln / rms)` or `slope(bn - gn, depth)`.

An expression is read with `ast` and never evaluated as Python. It is over the arms of a claim, and gives a number for
each seed.
"""

from __future__ import annotations

import ast
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

# Values by coordinate: the values of the keys over which a slope or a mean goes; one number is a constant.
Coordinate = tuple[str, ...]
Values = Mapping[Coordinate, float] | float


class EffectError(ValueError):
    """An effect that cannot be read, or that the measured values do not fit."""


@dataclass(frozen=True)
class Descent:
    """How the validation loss of a run fell.

    Attributes:
        steps: at which it was evaluated on the same data, increasing.
        losses: of these evaluations.
        length: steps of the run.
    """

    steps: Sequence[int]
    losses: Sequence[float]
    length: int

    def first_step(self, target: float) -> int | None:
        """Return the first evaluated step with at most this loss; None where there is none."""
        for step, loss in zip(self.steps, self.losses, strict=True):
            if loss <= target:
                return step
        return None


@dataclass(frozen=True)
class Point:
    """One measured value of an arm, at one seed.

    Attributes:
        keys: settings or columns that tell it from others of the arm.
        descent: of the run, where the measure is a run's.
    """

    keys: Mapping[str, str]
    value: float
    descent: Descent | None = None


Points = Mapping[str, Sequence[Point]]  # of one seed, by arm


class Node(ABC):
    """A part of an effect."""

    @abstractmethod
    def values(self, points: Points, keys: Sequence[str]) -> Values:
        """Return the values at one seed, by the values of keys; nan where a function is not defined.

        Raises:
            EffectError: the points leave a key open, lack one, or are none.
        """

    def parts(self) -> Sequence[Node]:
        """Return the parts that it consists of."""
        return ()

    def find_unreached(self, points: Points, keys: Sequence[str]) -> set[str]:
        """Return the arms that, at one seed, never come down to the loss of their reference in `steps`."""
        found = set[str]()
        for part in self.parts():
            found |= part.find_unreached(points, keys)
        return found

    def walk(self) -> Iterator[Node]:
        """Yield it, and all that it consists of."""
        yield self
        for part in self.parts():
            yield from part.walk()


@dataclass(frozen=True)
class Number(Node):
    """A constant."""

    value: float

    def values(self, points: Points, keys: Sequence[str]) -> Values:
        return self.value


@dataclass(frozen=True)
class ArmValue(Node):
    """What was measured of an arm."""

    name: str

    def values(self, points: Points, keys: Sequence[str]) -> Values:
        found: dict[Coordinate, float] = {}
        for coordinate, own in self.gather(points, keys).items():
            if len(own) > 1:
                differing = " and ".join(differing_keys(own)) or "no key"
                cure = "name them in the arm, or take slope(…, KEY) or mean(…, KEY)"
                raise EffectError(f"{self.name} has {len(own)} values for a seed, which differ in {differing}: {cure}")
            found[coordinate] = own[0].value
        return found

    def gather(self, points: Points, keys: Sequence[str]) -> dict[Coordinate, list[Point]]:
        """Return the points of the arm by the values of keys."""
        own = points.get(self.name, ())
        if not own:
            raise EffectError(f"{self.name} has no value")
        found: dict[Coordinate, list[Point]] = {}
        for point in own:
            for key in keys:
                if key not in point.keys:
                    known = ", ".join(point.keys) or "none"
                    raise EffectError(f"{key} does not vary in {self.name}, whose keys are {known}")
            coordinate = tuple(point.keys[key] for key in keys)
            found.setdefault(coordinate, []).append(point)
        return found


def differing_keys(points: Sequence[Point]) -> list[str]:
    """Return the keys in which points differ."""
    first, *others = points
    differing = []
    for key, value in first.keys.items():
        if any(other.keys.get(key) != value for other in others):
            differing.append(key)
    return differing


@dataclass(frozen=True)
class Elementwise(Node):
    """A function of numbers, applied at each coordinate."""

    name: str
    function: Callable[..., float]
    of: Sequence[Node]

    def parts(self) -> Sequence[Node]:
        return self.of

    def values(self, points: Points, keys: Sequence[str]) -> Values:
        given = [part.values(points, keys) for part in self.of]
        constants = []
        places: dict[Coordinate, None] = {}
        for one in given:
            if isinstance(one, float):
                constants.append(one)
            else:
                places.update(dict.fromkeys(one))
        if not places:
            return self.apply(constants)
        found = {}
        for place in places:
            found[place] = self.apply([value_at(one, place, keys) for one in given])
        return found

    def apply(self, numbers: Sequence[float]) -> float:
        """Return the function of numbers; nan where it is not defined."""
        try:
            return float(self.function(*numbers))
        except (ValueError, ZeroDivisionError, OverflowError):
            return math.nan


def value_at(values: Values, place: Coordinate, keys: Sequence[str]) -> float:
    """Return the value at a place; a constant is the same at all.

    Raises:
        EffectError: there is none, with the place by its keys.
    """
    if isinstance(values, float):
        return values
    if place not in values:
        where = ", ".join(f"{key}={value}" for key, value in zip(keys, place, strict=True))
        raise EffectError(f"not all arms have a value at {where}")
    return values[place]


@dataclass(frozen=True)
class Key:
    """A setting or a column that arms leave open. in_doublings: whether its binary logarithm is taken."""

    name: str
    in_doublings: bool = False

    def number(self, text: str) -> float:
        """Return a value of the key.

        Raises:
            EffectError: it is not a number.
        """
        try:
            value = float(text)
            return math.log2(value) if self.in_doublings else value
        except ValueError:
            what = f"log2({self.name})" if self.in_doublings else self.name
            raise EffectError(f"slope over {what}: {self.name} has the value {text}, which is not a number") from None


@dataclass(frozen=True)
class OverKeys(Node):
    """What takes the values over some keys to one number."""

    of: Node
    keys: Sequence[Key]

    def parts(self) -> Sequence[Node]:
        return (self.of,)

    def values(self, points: Points, keys: Sequence[str]) -> Values:
        inner = self.of.values(points, self.inner_keys(keys))
        if isinstance(inner, float):
            raise EffectError("slope and mean are of arms, not of a number")
        grouped: dict[Coordinate, dict[Coordinate, float]] = {}
        for coordinate, value in inner.items():
            outer = coordinate[: len(keys)]
            grouped.setdefault(outer, {})[coordinate[len(keys) :]] = value
        return {outer: self.reduce(values) for outer, values in grouped.items()}

    def find_unreached(self, points: Points, keys: Sequence[str]) -> set[str]:
        return self.of.find_unreached(points, self.inner_keys(keys))

    def inner_keys(self, keys: Sequence[str]) -> list[str]:
        """Return the keys by which its part is measured: those around it, and its own."""
        return [*keys, *(key.name for key in self.keys)]

    @abstractmethod
    def reduce(self, values: Mapping[Coordinate, float]) -> float:
        """Return one number for the values at some coordinates."""


class Slope(OverKeys):
    """The slope of a line through the values over a key, by least squares."""

    def reduce(self, values: Mapping[Coordinate, float]) -> float:
        (key,) = self.keys
        x = np.array([key.number(coordinate[0]) for coordinate in values])
        y = np.array(list(values.values()))
        if len(set(x)) < 2:
            raise EffectError(f"slope over {key.name} needs two values of it or more")
        centred = x - x.mean()
        return float(centred @ (y - y.mean()) / (centred @ centred))


class MeanOver(OverKeys):
    """The mean of the values over some keys."""

    def reduce(self, values: Mapping[Coordinate, float]) -> float:
        return float(np.mean(list(values.values())))


@dataclass(frozen=True)
class MeanOfArm(Node):
    """The mean of all that was measured of an arm."""

    arm: ArmValue

    def parts(self) -> Sequence[Node]:
        return (self.arm,)

    def values(self, points: Points, keys: Sequence[str]) -> Values:
        found = {}
        for coordinate, own in self.arm.gather(points, keys).items():
            found[coordinate] = float(np.mean([point.value for point in own]))
        return found


@dataclass(frozen=True)
class Steps(Node):
    """The first evaluated step at which an arm's validation loss is at or below the last one of a reference.

    Where it never is, the length of the run stands for it: the arm would need more steps than that, and by how many is
    not known. `find_unreached` tells where.
    """

    arm: ArmValue
    reference: ArmValue

    def parts(self) -> Sequence[Node]:
        return (self.arm, self.reference)

    def values(self, points: Points, keys: Sequence[str]) -> Values:
        lengths = self.descents(self.arm, points, keys)
        found = {}
        for coordinate, step in self.find_first(points, keys).items():
            found[coordinate] = float(lengths[coordinate].length if step is None else step)
        return found

    def find_unreached(self, points: Points, keys: Sequence[str]) -> set[str]:
        is_unreached = None in self.find_first(points, keys).values()
        return {self.arm.name} if is_unreached else set()

    def find_first(self, points: Points, keys: Sequence[str]) -> dict[Coordinate, int | None]:
        """Return the first step with the loss of the reference by coordinate, None where there is none."""
        references = self.descents(self.reference, points, keys)
        found: dict[Coordinate, int | None] = {}
        for coordinate, own in self.descents(self.arm, points, keys).items():
            if coordinate not in references:
                raise EffectError(f"{self.reference.name} has no value to which {self.arm.name} is compared")
            target = references[coordinate].losses[-1]
            found[coordinate] = own.first_step(target)
        return found

    def descents(self, arm: ArmValue, points: Points, keys: Sequence[str]) -> dict[Coordinate, Descent]:
        """Return how the loss of an arm's runs fell, by coordinate."""
        arm.values(points, keys)  # refuses several runs
        found = {}
        for coordinate, own in arm.gather(points, keys).items():
            descent = own[0].descent
            if descent is None or not len(descent.losses):
                raise EffectError(f"steps() needs evaluations on the way, and {arm.name} has none")
            found[coordinate] = descent
        return found


@dataclass(frozen=True)
class Effect:
    """An effect that was read. text: as it is written."""

    text: str
    root: Node = field(compare=False)

    def of(self, points: Points) -> float:
        """Return the effect at one seed; nan where a function is not defined there.

        Raises:
            EffectError: the points do not fit the expression.
        """
        found = self.root.values(points, ())
        if isinstance(found, float):
            return found
        return found[()]

    def find_unreached(self, points: Points) -> set[str]:
        """Return the arms that, at one seed, never come down to the loss of their reference in `steps`.

        Raises:
            EffectError: the points do not fit the expression.
        """
        return self.root.find_unreached(points, ())

    @property
    def arms(self) -> set[str]:
        """Return the arms that it names."""
        return {node.name for node in self.root.walk() if isinstance(node, ArmValue)}


# ---- reading


def mean_of(*values: float) -> float:
    """Return the mean of values."""
    return sum(values) / len(values)


def kendall(*values: float) -> float:
    """Return Kendall's τ_b between the order in which values are given, the smallest first, and the values."""
    if len(set(values)) < 2:
        return 0.0
    from scipy import stats  # takes a second, and few claims are about ranks

    return float(stats.kendalltau(range(len(values)), values).statistic)


FUNCTIONS: dict[str, tuple[int, Callable[..., float]]] = {  # with the fewest arguments
    "log": (1, math.log),
    "log2": (1, math.log2),
    "abs": (1, abs),
    "min": (2, min),
    "max": (2, max),
    "kendall": (3, kendall),
}
ONE_ARGUMENT = ("log", "log2", "abs")
OPERATORS: dict[type[ast.operator], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
NAMES = (*FUNCTIONS, "mean", "slope", "steps")


def parse_effect(text: str, arms: Sequence[str]) -> Effect:
    """Read an effect over arms.

    Raises:
        EffectError: it is not an expression, or has a name, a function or an operator that there is not.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        raise EffectError(f"{text} is not an expression: write one such as ln - rms or log(a / b)") from None
    effect = Effect(text, Parser(text, arms).read(tree.body))
    if not effect.arms:
        raise EffectError(f"{text} names no arm: arms are {', '.join(arms)}")
    return effect


@dataclass(frozen=True)
class Parser:
    """Turns Python's syntax tree into nodes of an effect. text: the effect. arms: which it may name."""

    text: str
    arms: Sequence[str]

    def read(self, node: ast.expr) -> Node:
        """Return the node for a part of the syntax tree."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return Number(float(node.value))
        if isinstance(node, ast.Name):
            return self.read_arm(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return Elementwise("-", operator.neg, [self.read(node.operand)])
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            sides = [self.read(node.left), self.read(node.right)]
            return Elementwise(type(node.op).__name__, OPERATORS[type(node.op)], sides)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self.read_call(node.func.id, node.args)
        what = ast.unparse(node)
        raise EffectError(f"{what} is not allowed here: use arms, numbers, + - * / and {', '.join(NAMES)}")

    def read_arm(self, node: ast.expr) -> ArmValue:
        """Return an arm that is named."""
        name = ast.unparse(node)
        if name not in self.arms:
            raise EffectError(f"{name} is not an arm: arms are {', '.join(self.arms)}")
        return ArmValue(name)

    def read_call(self, name: str, given: Sequence[ast.expr]) -> Node:
        """Return a function of parts."""
        if name == "slope":
            self.check_count(name, given, 2, 2)
            return Slope(self.read(given[0]), [self.read_key(given[1])])
        if name == "steps":
            self.check_count(name, given, 2, 2)
            return Steps(self.read_arm(given[0]), self.read_arm(given[1]))
        if name == "mean":
            self.check_count(name, given, 1)
            return self.read_mean(given)
        if name not in FUNCTIONS:
            raise EffectError(f"{name} is not a function: there are {', '.join(NAMES)}")
        fewest, function = FUNCTIONS[name]
        self.check_count(name, given, fewest, 1 if name in ONE_ARGUMENT else None)
        return Elementwise(name, function, [self.read(one) for one in given])

    def read_mean(self, given: Sequence[ast.expr]) -> Node:
        """Return a mean: of all values of an arm, over keys, or of several expressions."""
        first, *others = given
        if not others:
            return MeanOfArm(self.read_arm(first))
        if all(self.is_key(one) for one in others):
            keys = [self.read_key(one) for one in others]
            return MeanOver(self.read(first), keys)
        return Elementwise("mean", mean_of, [self.read(one) for one in given])

    def is_key(self, node: ast.expr) -> bool:
        """Tell whether a part is the name of a key, and of no arm."""
        is_name = isinstance(node, ast.Name | ast.Attribute)
        return is_name and ast.unparse(node) not in self.arms

    def read_key(self, node: ast.expr) -> Key:
        """Return a key, or its binary logarithm."""
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "log2" and len(node.args) == 1:
            return Key(self.read_key(node.args[0]).name, in_doublings=True)
        if not self.is_key(node):
            raise EffectError(f"{ast.unparse(node)} is not a key: give a setting or a column, such as model.depth")
        return Key(ast.unparse(node))

    def check_count(self, name: str, given: Sequence[ast.expr], fewest: int, most: int | None = None) -> None:
        """Refuse a call with too few or too many arguments."""
        if len(given) < fewest or (most is not None and len(given) > most):
            wanted = str(fewest) if fewest == most else f"{fewest} or more"
            raise EffectError(f"{name}() has {len(given)} arguments, and takes {wanted}")
