"""Which parts of a block are attention, and what they are to it, by the operators that ran between and inside of them.

Attention is a product of two tensors that both follow from the data, of which a second product reads what it gives:
softmax(q kᵀ) v; or without a softmax q (kᵀ v), as linear attention and state spaces have it. It is one product where
its first factor is a softmax of scores that a linear map has made. A product with a weight is a linear map, and one of
features with features at each position is a gate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from normbench.hosts.tape import SOFTMAX, Call, Operand, Operator

# Operators that multiply two matrices, and which of their operands these are.
PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2)}

WHOLE = "_scaled_dot_product"  # how operators begin that are attention as a whole, of queries, keys and values
COPIES = ("clone", "_to_copy")  # operators that change the layout or the dtype alone

LETTERS = "qkv"


@dataclass(frozen=True)
class Reading:
    """What an operator of attention reads.

    Attributes:
        operand: the tensor.
        letter: `q`, `k` or `v`; empty where that cannot be told.
        size: how many features it has in each head; 0 where that cannot be told.
    """

    operand: Operand
    letter: str = ""
    size: int = 0


class Flow:
    """What flows between the maps and the norms of a block, operator by operator.

    Attributes:
        attention: the maps that have attention inside of them.
        letters: of each map and norm the letters of what it gives to attention with no map between.
        sizes: how many features queries, keys and values have in each head, by letter.
        feeding: the maps and norms that give something to attention with no map between, lettered or not.
        reading: the maps and norms that read what attention gives with no map between; of attention inside of a map
            the norms alone.
    """

    def __init__(self, block: Call, maps: Iterable[Call], norms: Iterable[Call]) -> None:
        self.operators = operators_in(block)
        self.inside = set(self.operators)
        self.map_of = by_operator(maps)
        self.norm_of = by_operator(norms)
        self.attention = set[Call]()
        self.letters = defaultdict[Call, set[str]](set)
        self.sizes: dict[str, int] = {}
        self.feeding = set[Call]()
        between = set[Operator]()  # those of attention that no map has inside of it
        for operator, readings in self.find_attention().items():
            if operator in self.map_of:
                self.attention.add(self.map_of[operator])
                continue
            between.add(operator)
            for reading in readings:
                self.note_reading(reading)
        self.reading = self.follow(between)
        for part in self.attention:
            readers = self.follow(operators_in(part))
            self.reading |= readers.intersection(self.norm_of.values())

    # ---- where attention is

    def find_attention(self) -> dict[Operator, list[Reading]]:
        """Return the operators of attention, each with what it reads; of attention inside of a map the first."""
        products = {operator for operator in self.operators if is_product(operator)}
        readings: dict[Operator, list[Reading]] = {}
        known = set[Call]()  # maps of which it is known
        for operator in self.operators:
            part = self.map_of.get(operator)
            if part in known:
                continue
            if operator.name.startswith(WHOLE):
                readings[operator] = read_whole(operator)
            elif operator in products:
                readings |= self.find_pairs(operator, products)
            if part is not None and operator in readings:
                known.add(part)
        return readings

    def find_pairs(self, product: Operator, products: Collection[Operator]) -> dict[Operator, list[Reading]]:
        """Return a product and those whose results it reads, each with what it reads; nothing where there are none."""
        readings: dict[Operator, list[Reading]] = {}
        for number, operand in enumerate(factors(product)):
            first, softmax = self.product_behind(operand, products)
            if first is None:
                if self.is_softmax(operand) and multiplies_matrices(product):
                    readings[product] = [Reading(factor) for factor in factors(product)]
            elif softmax is not None and first.name in PRODUCTS and product.name in PRODUCTS:
                readings[first] = read_scores(first, softmax)
                readings[product] = [read_values(product, 1 - number)]
            else:
                for attending in (first, product):
                    readings.setdefault(attending, [Reading(factor) for factor in factors(attending)])
        return readings

    def product_behind(
        self, operand: Operand, products: Collection[Operator]
    ) -> tuple[Operator | None, Operator | None]:
        """Return the product whose result an operand is made of, and the softmax between; None where there is none.

        No norm stands between, and a map only where a softmax does, as where attention mixes its heads.
        """
        seen = set[tuple[Operator, bool]]()
        waiting: list[tuple[Operator | None, Operator | None, bool]] = [(operand.source, None, False)]
        while waiting:
            operator, softmax, passed_map = waiting.pop()
            if operator is None or operator not in self.inside or operator in self.norm_of:
                continue
            may_end_here = softmax is not None or not passed_map
            if operator in products and may_end_here:
                return operator, softmax
            if (operator, may_end_here) in seen:
                continue
            seen.add((operator, may_end_here))
            if operator.name in SOFTMAX:
                softmax = operator
            passed_map = passed_map or is_map(operator)
            for each in operator.operands:
                if each.is_data:
                    waiting.append((each.source, softmax, passed_map))
        return None, None

    def is_softmax(self, operand: Operand) -> bool:
        """Tell whether an operand is a softmax, or a copy of one."""
        operator = operand.source
        while operator is not None and operator.name in COPIES:
            operator = operator.operands[0].source
        return operator is not None and operator in self.inside and operator.name in SOFTMAX

    # ---- what the parts are to it

    def note_reading(self, reading: Reading) -> None:
        """Note which maps and norms make what attention reads."""
        if reading.letter:
            self.sizes[reading.letter] = reading.size
        seen = set[Operator]()
        waiting = [reading.operand.source]
        while waiting:
            operator = waiting.pop()
            if operator is None or operator in seen or operator not in self.inside:
                continue
            seen.add(operator)
            for part in self.parts_of(operator):
                self.feeding.add(part)
                if reading.letter:
                    self.letters[part].add(reading.letter)
            if operator not in self.map_of:
                waiting += [operand.source for operand in operator.operands if operand.is_data]

    def parts_of(self, operator: Operator) -> list[Call]:
        """Return the map or the norm that an operator is of, if it is of one."""
        map_and_norm = (self.map_of.get(operator), self.norm_of.get(operator))
        return [part for part in map_and_norm if part is not None]

    def follow(self, start: Collection[Operator]) -> set[Call]:
        """Return the maps and norms that read what operators give, up to where it is added to something else."""
        readers = set[Call]()
        given = set(start)
        beside = set[Operator]()  # of what feeds attention, such as a second product of queries
        for operator in self.operators:
            sources = [operand.source for operand in operator.operands if operand.is_data]
            is_in_map = operator in self.map_of
            feeds = not self.feeding.isdisjoint(self.parts_of(operator))
            if feeds or (not is_in_map and any(source in beside for source in sources)):
                beside.add(operator)
            is_foreign = operator.name == "add" and not all(source in given or source in beside for source in sources)
            if operator in given or is_foreign or not any(source in given for source in sources):
                continue
            readers.update(self.parts_of(operator))
            if not is_in_map:
                given.add(operator)
        return readers

    def letters_beyond(self, norm: Call) -> set[str]:
        """Return the letters of what maps make of a norm's output."""
        letters = set[str]()
        given = set(operators_in(norm))
        for operator in self.operators:
            if operator in given or not any(operand.source in given for operand in operator.operands):
                continue
            part = self.map_of.get(operator)
            if part is not None and part in self.letters:
                letters |= self.letters[part]
            else:
                given.add(operator)
        return letters


def by_operator(parts: Iterable[Call]) -> dict[Operator, Call]:
    """Return the part that each operator inside of some parts is of."""
    part_of_operator: dict[Operator, Call] = {}
    for part in parts:
        for operator in operators_in(part):
            part_of_operator[operator] = part
    return part_of_operator


def in_order(letters: Iterable[str]) -> str:
    """Return letters as one word, as `kv`."""
    return "".join(sorted(letters, key=LETTERS.index))


# ---- operators


def operators_in(call: Call) -> list[Operator]:
    """Return the operators that ran inside of a call, in order."""
    operators = [operator for inner_call in call.inside() for operator in inner_call.operators]
    return sorted(operators, key=lambda operator: operator.number)


def has_operator(call: Call, word: str) -> bool:
    """Tell whether an operator ran inside of a call that has a word in its name."""
    return any(word in operator.name for inner_call in call.inside() for operator in inner_call.operators)


def multiplies_data(call: Call) -> bool:
    """Tell whether a product of two tensors that both follow from the data was taken inside of a call."""
    return any(is_product(operator) or operator.name.startswith(WHOLE) for operator in operators_in(call))


def count_residual_sums(call: Call) -> int:
    """Return how often a module's own forward adds something to its input, or to such a sum of its input."""
    inside = set(operators_in(call))
    count = 0
    for operator in call.operators:
        shapes = {operand.shape for operand in operator.operands}
        is_sum_of_data = operator.name == "add" and all(operand.is_data for operand in operator.operands)
        if not is_sum_of_data or len(operator.operands) < 2 or len(shapes) > 1:
            continue
        passed_on = [comes_from_outside(operand, inside) for operand in operator.operands]
        count += any(passed_on) and not all(passed_on)
    return count


def comes_from_outside(operand: Operand, inside: Collection[Operator]) -> bool:
    """Tell whether an operand is made of what came from outside of some operators by none that is a map."""
    seen = set[Operator]()
    waiting = [operand.source]
    while waiting:
        operator = waiting.pop()
        if operator is None or operator not in inside:
            return True
        if operator in seen or is_map(operator):
            continue
        seen.add(operator)
        waiting += [operand.source for operand in operator.operands if operand.is_data]
    return False


def factors(operator: Operator) -> tuple[Operand, Operand]:
    """Return what a product multiplies."""
    first, second = PRODUCTS.get(operator.name, (0, 1))
    return operator.operands[first], operator.operands[second]


def is_product(operator: Operator) -> bool:
    """Tell whether an operator multiplies, not number by number, two tensors that both follow from the data."""
    if operator.name not in PRODUCTS and operator.name != "mul":
        return False
    if len(operator.operands) < 2:
        return False
    first, second = factors(operator)
    if not (first.is_data and second.is_data):
        return False
    return operator.name in PRODUCTS or is_outer(first.shape, second.shape)


def multiplies_matrices(product: Operator) -> bool:
    """Tell whether a product is one of matrices, and neither is a single vector, as where positions are pooled."""
    if product.name not in PRODUCTS:
        return False
    first, second = factors(product)
    return first.shape[-2] > 1 and second.shape[-1] > 1


def is_outer(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Tell whether each of two shapes that are multiplied is repeated along an axis of the other."""
    pairs = list(zip(reversed(first), reversed(second), strict=False))
    return any(a == 1 < b for a, b in pairs) and any(b == 1 < a for a, b in pairs)


def is_map(operator: Operator) -> bool:
    """Tell whether an operator multiplies data by a matrix or a kernel that is a weight."""
    if operator.name not in PRODUCTS and "conv" not in operator.name:
        return False
    return any(not operand.is_data and len(operand.shape) > 1 for operand in operator.operands)


def read_whole(operator: Operator) -> list[Reading]:
    """Return what an operator reads that is attention as a whole."""
    readings = zip(operator.operands, LETTERS, strict=False)
    return [Reading(operand, letter, operand.shape[-1]) for operand, letter in readings]


def read_scores(product: Operator, softmax: Operator) -> list[Reading]:
    """Return what the product reads of queries and keys: the softmax is over keys."""
    first, second = factors(product)
    is_last = softmax.axis in (-1, len(softmax.operands[0].shape) - 1)
    letters = "qk" if is_last else "kq"
    return [Reading(first, letters[0], first.shape[-1]), Reading(second, letters[1], second.shape[-2])]


def read_values(product: Operator, number: int) -> Reading:
    """Return what the product of scores and values reads of the latter, which are one of its two factors."""
    values = factors(product)[number]
    return Reading(values, "v", values.shape[-1] if number == 1 else values.shape[-2])
