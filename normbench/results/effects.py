"""Effects: what is compared, as expressions over arms, such as `log(ln / rms)` or `slope(bn - gn, depth)`.

An expression is read with `ast`, piece by piece, and is never run as Python. Its values are Series, aligned by seed and
by the keys that are left open where it stands, so that all seeds are computed at once.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import combinations
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:  # takes a third of a second, and whoever only reads an effect does without
    import pandas as pd

Values: TypeAlias = "pd.Series | float"  # by seed and by the values of the keys left open; one number is a constant


class EffectError(ValueError):
    """An effect that cannot be read, or that the measured values do not fit."""


# ---- what was measured of an arm


@dataclass(frozen=True)
class Descent:
    """How the validation loss of a run fell.

    Attributes:
        steps: at which it was evaluated on the same data, increasing.
        losses: of these evaluations.
        length: steps of the run.
        is_lost: whether the run was, so that it says nothing of how far it would have come.
    """

    steps: Sequence[int]
    losses: Sequence[float]
    length: int
    is_lost: bool = False

    def first_step(self, target: float) -> int | None:
        """Return the first evaluated step with at most this loss; None where there is none."""
        for step, loss in zip(self.steps, self.losses, strict=True):
            if loss <= target:
                return step
        return None

    def steps_to(self, target: float) -> float | None:
        """Return after how many steps the loss first is no more than a target; None where it never is.

        Between two evaluations the loss is a line over the logarithm of the step. Where it is there at the first one,
        that is the answer, which may be too many.
        """
        for place, loss in enumerate(self.losses):
            if loss > target:
                continue
            if place == 0:
                return float(self.steps[0])
            above = self.losses[place - 1]
            share = (above - target) / (above - loss)
            before, after = math.log(self.steps[place - 1]), math.log(self.steps[place])
            return math.exp(before + share * (after - before))
        return None


FEWEST_EVALUATIONS = 2  # of a descent, between which its loss is known


def common_loss(one: Descent, other: Descent) -> float:
    """Return the lowest loss at which neither of two descents ends above: the higher one of their last losses."""
    return max(one.losses[-1], other.losses[-1])


def doublings_of_steps(one: Descent, other: Descent) -> float:
    """Return the logarithm to base 2 of the steps of one descent over those of another, to their common loss.

    That is 0 on average where both are drawn alike, whichever comes further, as no seed is left out or cut short.
    """
    target = common_loss(one, other)
    steps_of_one, steps_of_other = one.steps_to(target), other.steps_to(target)
    assert steps_of_one is not None and steps_of_other is not None  # as neither ends above it
    return math.log2(steps_of_one / steps_of_other)


@dataclass(frozen=True)
class ArmValue:
    """What was measured once of an arm.

    Attributes:
        seed: of the run.
        keys: settings or columns that tell it from other values of the arm at its seed.
        value: in the unit of the measure.
        descent: of the run, where runs were measured.
    """

    seed: int
    keys: Mapping[str, str]
    value: float
    descent: Descent | None = None


# ---- arithmetic of aligned values


def slope_weights(x: np.ndarray) -> np.ndarray:
    """Return what weighs values at places in the slope of their line by least squares. x: (n,) places."""
    from_middle = x - x.mean()
    return np.asarray(from_middle / (from_middle @ from_middle))


def smallest(*values: Values) -> Values:
    """Return the smallest of values."""
    return reduce(np.minimum, values)


def largest(*values: Values) -> Values:
    """Return the largest of values."""
    return reduce(np.maximum, values)


def mean_of(*values: Values) -> Values:
    """Return the mean of values."""
    return sum(values) / len(values)


def kendall(*values: Values) -> Values:
    """Return Kendall's τ_b between the order in which values are given, the smallest first, and the values.

    0 where they are all the same.
    """
    signs = [np.sign(later - earlier) for earlier, later in combinations(values, 2)]
    differing = sum(np.abs(sign) for sign in signs)
    return sum(signs) / np.sqrt(len(signs) * np.maximum(differing, 1))


FUNCTIONS: dict[str, Callable[..., Values]] = {  # of values at each place
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "log": np.log,
    "log2": np.log2,
    "abs": np.abs,
    "min": smallest,
    "max": largest,
    "kendall": kendall,
    "mean": mean_of,
}
OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
ARGUMENTS: dict[str, tuple[int, int | None]] = {  # the fewest and the most that each function takes
    "log": (1, 1),
    "log2": (1, 1),
    "abs": (1, 1),
    "min": (2, None),
    "max": (2, None),
    "kendall": (3, None),
    "mean": (1, None),
    "slope": (2, 2),
    "steps": (2, 2),
    "speedup": (2, 2),
}
OF_DESCENTS = ("steps", "speedup")  # functions of how the losses of two arms fell
NAMES = tuple(ARGUMENTS)


# ---- effects


@dataclass(frozen=True)
class Key:
    """A setting or a column that arms leave open. in_doublings: whether its binary logarithm is taken."""

    name: str
    in_doublings: bool = False

    def number(self, text: str) -> float:
        """Return a value of the key."""
        try:
            value = float(text)
            return math.log2(value) if self.in_doublings else value
        except ValueError:
            what = f"log2({self.name})" if self.in_doublings else self.name
            raise EffectError(f"slope over {what}: {self.name} has the value {text}, which is not a number") from None


@dataclass(frozen=True)
class Operation:
    """A function of expressions. function: its name, or an operator. keys: over which a slope or a mean goes."""

    function: str
    of: tuple[Expression, ...]
    keys: tuple[Key, ...] = ()


Expression = float | str | Operation  # a constant, the name of an arm, or a function of expressions


@dataclass(frozen=True)
class EffectBySeed:
    """An effect that was computed.

    Attributes:
        values: by seed; NaN where a function is not defined.
        unreached: by arm the seeds at which it never comes down to the loss of its reference in `steps`.
    """

    values: Mapping[int, float]
    unreached: Mapping[str, Collection[int]]


@dataclass(frozen=True)
class Effect:
    """An effect that was read. text: as it is written."""

    text: str
    expression: Expression = field(compare=False)

    @property
    def arms(self) -> set[str]:
        """Return the arms that it names."""
        return arms_in(self.expression)

    @property
    def functions(self) -> set[str]:
        """Return the functions and operators that it has."""
        return functions_in(self.expression)

    def of(self, points: Mapping[str, Sequence[ArmValue]]) -> EffectBySeed:
        """Return the effect at each seed. points: by arm, all arms with the same seeds.

        Raises:
            EffectError: the points do not fit the expression.
        """
        computation = Computation(points)
        values = computation.values_of(self.expression)
        assert not isinstance(values, float)  # as it names an arm
        return EffectBySeed(values.to_dict(), computation.unreached)


def arms_in(expression: Expression) -> set[str]:
    """Return the arms that an expression names."""
    if isinstance(expression, str):
        return {expression}
    names = set[str]()
    if isinstance(expression, Operation):
        for part in expression.of:
            names |= arms_in(part)
    return names


def functions_in(expression: Expression) -> set[str]:
    """Return the functions and operators of an expression."""
    if not isinstance(expression, Operation):
        return set()
    return {expression.function}.union(*map(functions_in, expression.of))


# ---- computing


@dataclass(frozen=True)
class Computation:
    """Computes expressions from what was measured, in Series by seed and by the values of the keys that stay open.

    Attributes:
        points: by arm.
        unreached: as `EffectBySeed` has it, filled on the way.
    """

    points: Mapping[str, Sequence[ArmValue]]
    unreached: dict[str, set[int]] = field(default_factory=dict)

    def values_of(self, expression: Expression, keys: Sequence[str] = ()) -> Values:
        """Return the values of an expression; NaN where a function is not defined. keys: that stay open.

        Raises:
            EffectError: the points leave another key open, lack one, or are none.
        """
        match expression:
            case float():
                return expression
            case str():
                return self.read_single_points(expression, keys).map(attrgetter("value"))
            case Operation("steps", (str(arm), str(reference))):
                return self.count_steps(arm, reference, keys)
            case Operation("speedup", (str(arm), str(reference))):
                return self.compare_steps(arm, reference, keys)
            case Operation("slope", (of,), (key,)):
                return reduce_to(keys, self.values_of(of, [*keys, key.name]), partial(slope_over, key))
            case Operation(reduction, (str(arm),), ()) if reduction in REDUCTIONS:
                return reduce_to(keys, self.read_points(arm, keys).map(attrgetter("value")), REDUCTIONS[reduction])
            case Operation(reduction, (of,), over) if reduction in REDUCTIONS:
                inner_keys = [*keys, *(key.name for key in over)]
                return reduce_to(keys, self.values_of(of, inner_keys), REDUCTIONS[reduction])
        parts = [self.values_of(part, keys) for part in expression.of]
        check_places(parts, keys)
        with np.errstate(all="ignore"):
            values = FUNCTIONS[expression.function](*parts)
        if isinstance(values, float):
            return values if np.isfinite(values) else math.nan
        return values.where(np.isfinite(values))

    def read_points(self, arm: str, keys: Sequence[str]) -> pd.Series:
        """Return the points of an arm, several at one place where they differ in other keys."""
        import pandas as pd

        points = self.points.get(arm, ())
        if not points:
            raise EffectError(f"{arm} has no value")
        places: list[list[int | str]] = [[point.seed for point in points]]
        for key in keys:
            for point in points:
                if key not in point.keys:
                    known = ", ".join(point.keys) or "none"
                    raise EffectError(f"{key} does not vary in {arm}, whose keys are {known}")
            places.append([point.keys[key] for point in points])
        index = pd.MultiIndex.from_arrays(places) if keys else pd.Index(places[0])
        return pd.Series(points, index, dtype=object)

    def read_single_points(self, arm: str, keys: Sequence[str]) -> pd.Series:
        """Return the points of an arm, one at each place."""
        points = self.read_points(arm, keys)
        repeated = points.index[points.index.duplicated()]
        if len(repeated):
            several = list(points[points.index == repeated[0]])
            differing = " and ".join(differing_keys(several)) or "no key"
            cure = "name them in the arm, or take slope(…, KEY) or mean(…, KEY)"
            raise EffectError(f"{arm} has {len(several)} values for a seed, which differ in {differing}: {cure}")
        return points

    def count_steps(self, arm: str, reference: str, keys: Sequence[str]) -> pd.Series:
        """Return the first evaluated step at which an arm's validation loss is at or below the last of a reference.

        Where it never is, the length of the run stands for it: the arm would need more steps than that, and by how many
        is not known.
        """
        import pandas as pd

        descents, references = self.pair_descents("steps", arm, reference, keys)
        seeds = descents.index.get_level_values(0)
        steps = []
        for seed, descent, reference_descent in zip(seeds, descents, references, strict=True):
            first = descent.first_step(reference_descent.losses[-1])
            if first is None:
                self.unreached.setdefault(arm, set()).add(seed)
            steps.append(float(descent.length if first is None else first))
        return pd.Series(steps, descents.index)

    def compare_steps(self, arm: str, reference: str, keys: Sequence[str]) -> pd.Series:
        """Return in how many doublings fewer steps an arm comes to the loss that it and a reference have in common.

        NaN where a run was lost.
        """
        import pandas as pd

        descents, references = self.pair_descents("speedup", arm, reference, keys, FEWEST_EVALUATIONS)
        doublings = []
        for descent, reference_descent in zip(descents, references, strict=True):
            is_lost = descent.is_lost or reference_descent.is_lost
            doublings.append(math.nan if is_lost else doublings_of_steps(reference_descent, descent))
        return pd.Series(doublings, descents.index)

    def pair_descents(
        self, function: str, arm: str, reference: str, keys: Sequence[str], fewest: int = 1
    ) -> tuple[pd.Series, pd.Series]:
        """Return how the losses of the runs of an arm fell, and those of a reference. fewest: evaluations of each."""
        descents = self.read_descents(function, arm, keys, fewest)
        references = self.read_descents(function, reference, keys, fewest)
        if not descents.index.isin(references.index).all():
            raise EffectError(f"{reference} has no value to which {arm} is compared")
        return descents, references.reindex(descents.index)

    def read_descents(self, function: str, arm: str, keys: Sequence[str], fewest: int) -> pd.Series:
        """Return how the losses of an arm's runs fell. fewest: evaluations, which a lost run may lack, but for one."""
        points = self.read_single_points(arm, keys)
        for point in points:
            evaluations = 0 if point.descent is None else len(point.descent.losses)
            is_lost = point.descent is not None and point.descent.is_lost
            if evaluations < (1 if is_lost else fewest):
                raise EffectError(f"{function}() needs evaluations on the way, and {arm} has {evaluations or 'none'}")
        return points.map(attrgetter("descent"))


def differing_keys(points: Sequence[ArmValue]) -> list[str]:
    """Return the keys in which points differ."""
    first, *others = points
    differing = []
    for key, value in first.keys.items():
        if any(other.keys.get(key) != value for other in others):
            differing.append(key)
    return differing


def check_places(parts: Sequence[Values], keys: Sequence[str]) -> None:
    """Refuse parts of which one has a seed, or a value of keys, that another lacks."""
    indices = [part.index for part in parts if not isinstance(part, float)]
    for index in indices[1:]:
        alone = indices[0].symmetric_difference(index)
        if not len(alone):
            continue
        where = f"seed {alone[0]}"
        if keys:
            _, *values = alone[0]
            where = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
        raise EffectError(f"not all arms have a value at {where}")


def reduce_to(keys: Sequence[str], values: pd.Series, function: Callable[[pd.Series], float]) -> pd.Series:
    """Return one number for all values of a seed and of each value of keys, the first levels of the index."""
    levels = list(range(1 + len(keys)))
    return values.groupby(level=levels, sort=False).apply(function)


def mean_over(values: pd.Series) -> float:
    """Return the mean of values; NaN where one is."""
    return float(np.mean(values.to_numpy()))


REDUCTIONS: dict[str, Callable[[pd.Series], float]] = {"mean": mean_over}  # of all values over some keys, or of an arm


def slope_over(key: Key, values: pd.Series) -> float:
    """Return the slope of the line through values over a key, the last level of their index, by least squares."""
    x = np.array([key.number(text) for text in values.index.get_level_values(-1)])
    if len(set(x)) < 2:
        raise EffectError(f"slope over {key.name} needs two values of it or more")
    y = values.to_numpy()
    return float(slope_weights(x) @ (y - y.mean()))


# ---- reading


def parse_effect(text: str, arms: Sequence[str]) -> Effect:
    """Read an effect over arms.

    Raises:
        EffectError: it is not an expression, or has a name, a function or an operator that there is not.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        raise EffectError(f"{text} is not an expression: write one such as ln - rms or log(a / b)") from None
    effect = Effect(text, read(tree.body, arms))
    if not effect.arms:
        raise EffectError(f"{text} names no arm: arms are {', '.join(arms)}")
    return effect


def read(node: ast.expr, arms: Sequence[str]) -> Expression:
    """Return the expression that a part of Python's syntax tree stands for. arms: which it may name."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name():
            return read_arm(node, arms)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Operation("-", (0.0, read(operand, arms)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return Operation(OPERATORS[type(op)], (read(left, arms), read(right, arms)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return read_call(name, arguments, arms)
    what = ast.unparse(node)
    raise EffectError(f"{what} is not allowed here: use arms, numbers, + - * / and {', '.join(NAMES)}")


def read_arm(node: ast.expr, arms: Sequence[str]) -> str:
    """Return the arm that is named."""
    name = ast.unparse(node)
    if name not in arms:
        raise EffectError(f"{name} is not an arm: arms are {', '.join(arms)}")
    return name


def read_call(name: str, given: Sequence[ast.expr], arms: Sequence[str]) -> Operation:
    """Return a function of arguments."""
    if name not in NAMES:
        raise EffectError(f"{name} is not a function: there are {', '.join(NAMES)}")
    fewest, most = ARGUMENTS[name]
    if len(given) < fewest or (most is not None and len(given) > most):
        allowed = str(fewest) if fewest == most else f"{fewest} or more"
        raise EffectError(f"{name}() has {len(given)} arguments, and takes {allowed}")
    first, *others = given
    if name in OF_DESCENTS or (name in REDUCTIONS and not others):
        return Operation(name, tuple(read_arm(argument, arms) for argument in given))
    is_over_keys = name == "slope" or (name in REDUCTIONS and all(is_key(argument, arms) for argument in others))
    if not is_over_keys:
        return Operation(name, tuple(read(argument, arms) for argument in given))
    of = read(first, arms)
    if not arms_in(of):
        raise EffectError("slope and mean are of arms, not of a number")
    return Operation(name, (of,), tuple(read_key(argument, arms) for argument in others))


def is_key(node: ast.expr, arms: Sequence[str]) -> bool:
    """Tell whether a part is the name of a key, and of no arm."""
    is_name = isinstance(node, ast.Name | ast.Attribute)
    return is_name and ast.unparse(node) not in arms


def read_key(node: ast.expr, arms: Sequence[str]) -> Key:
    """Return a key, or its binary logarithm."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "log2" and len(node.args) == 1:
        return Key(read_key(node.args[0], arms).name, in_doublings=True)
    if not is_key(node, arms):
        raise EffectError(f"{ast.unparse(node)} is not a key: give a setting or a column, such as model.depth")
    return Key(ast.unparse(node))
