"""Predicates over the arguments of a system call: `count >= 4096 && fd > 2`. Pure.

    or      := and ('||' and)*
    and     := compare ('&&' compare)*
    compare := mask (('==' | '!=' | '<' | '<=' | '>' | '>=') mask)?
    mask    := unary ('&' unary | '|' unary)*          '&' binds tighter than '|'
    unary   := '!' unary | '-' NUMBER | NUMBER | NAME | '(' or ')'

Unlike in C, `&` and `|` bind tighter than comparisons: `flags & O_DIRECT != 0` is meant as
it reads. Numbers are whole numbers of any sign, compared by their value (never by how a
machine wraps them); one that stands where a truth is asked is true when it is not 0. `|`
joins constants only. Nothing of the text is ever handed to a compiler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_TEXT = 1000
MAX_DEPTH = 32
MIN_NUMBER, MAX_NUMBER = -(1 << 63), (1 << 64) - 1
COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9][0-9a-zA-Z_]*)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!&|()\-])|(?P<end>$)|(?P<odd>.))",
    re.DOTALL,
)


class PredicateError(ValueError):
    """What is wrong with a predicate, and at which column (from 0)."""

    def __init__(self, why: str, text: str, at: int) -> None:
        shown = text.replace("\n", " ").replace("\t", " ")
        start = max(0, at - 60)
        super().__init__(f"{why}\n  {shown[start : at + 60]}\n  {' ' * (at - start)}^")
        self.why = why
        self.at = at


@dataclass(frozen=True)
class Number:
    """A whole number."""

    value: int
    at: int = 0


@dataclass(frozen=True)
class Name:
    """An argument of the call, or a constant such as O_DIRECT."""

    name: str
    at: int = 0


@dataclass(frozen=True)
class Mask:
    """Bits that all of them have (`&`), or that any has (`|`)."""

    sign: str
    left: Int
    right: Int
    at: int = 0


@dataclass(frozen=True)
class Compare:
    """Two numbers, one of COMPARISONS between them."""

    sign: str
    left: Int
    right: Int
    at: int = 0


@dataclass(frozen=True)
class Both:
    """`&&` or `||`."""

    sign: str
    left: Truth
    right: Truth
    at: int = 0


@dataclass(frozen=True)
class Not:
    """`!`."""

    of: Truth
    at: int = 0


Int = Number | Name | Mask
Truth = Compare | Both | Not
Node = Int | Truth


def parse(text: str) -> Truth:
    """The typed tree of a predicate. Raises PredicateError at the first thing that is wrong."""
    if len(text) > MAX_TEXT:
        raise PredicateError(f"more than {MAX_TEXT} characters", text, MAX_TEXT)
    parser = _Parser(text)
    found = parser.truth(parser.any_of(0))
    parser.expect("", "one of && || or the end")
    return found


class _Parser:
    """One token ahead; each method takes what its rule in the module's text says."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._advance()

    def _advance(self) -> None:
        found = _TOKEN.match(self._text, self._end)
        assert found is not None and found.lastgroup is not None  # noqa: S101 - `odd` takes all
        self._group = found.lastgroup
        self._word, self._at = found[self._group], found.start(self._group)
        self._end = found.end()
        if self._group == "odd":
            raise self.error(f"{self._word!r} means nothing here{_instead(self._word)}")

    def error(self, why: str, at: int | None = None) -> PredicateError:
        return PredicateError(why, self._text, self._at if at is None else at)

    def expect(self, word: str, wanted: str) -> None:
        if self._word != word:
            raise self.error(f"{wanted} is missing here")
        if word:
            self._advance()

    def _sign(self, *signs: str) -> str:
        """The sign if it comes now, and past it; else nothing."""
        if self._group != "sign" or self._word not in signs:
            return ""
        found = self._word
        self._advance()
        return found

    def truth(self, node: Node) -> Truth:
        return node if isinstance(node, Compare | Both | Not) else Compare(
            "!=", node, Number(0, node.at), node.at
        )  # fmt: skip

    def _number(self, node: Node, sign: str) -> Int:
        if isinstance(node, Compare | Both | Not):
            raise self.error(f"{sign} takes numbers, and this is true or false", node.at)
        return node

    def any_of(self, depth: int) -> Node:
        return self._joined("||", self._all_of, depth)

    def _all_of(self, depth: int) -> Node:
        return self._joined("&&", self._compare, depth)

    def _joined(self, sign: str, rule: Callable[[int], Node], depth: int) -> Node:
        found = rule(depth)
        while at := self._at_sign(sign):
            right = self.truth(rule(depth))
            found = Both(sign, self.truth(found), right, at - 1)
        return found

    def _at_sign(self, *signs: str) -> int:
        """Column plus 1 of a sign that comes now, and past it; else 0."""
        at = self._at
        return at + 1 if self._sign(*signs) else 0

    def _compare(self, depth: int) -> Node:
        found = self._bits("|", depth)
        at = self._at
        if not (sign := self._sign(*COMPARISONS)):
            return found
        left = self._number(found, sign)
        right = self._number(self._bits("|", depth), sign)
        if self._group == "sign" and self._word in COMPARISONS:
            raise self.error("one comparison ends here: join two with &&")
        return Compare(sign, left, right, at)

    def _bits(self, sign: str, depth: int) -> Node:
        def lower() -> Node:
            return self._bits("&", depth) if sign == "|" else self._unary(depth)

        found = lower()
        while at := self._at_sign(sign):
            right = self._number(lower(), sign)
            found = Mask(sign, self._number(found, sign), right, at - 1)
            if sign == "|" and not _is_constant(found):
                raise self.error("| joins constants only", at - 1)
        return found

    def _unary(self, depth: int) -> Node:
        at = self._at
        if depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH}")
        if self._sign("!"):
            return Not(self.truth(self._unary(depth + 1)), at)
        if self._sign("("):
            found = self.any_of(depth + 1)
            self.expect(")", "a closing ) (or an operator)")
            return found
        negative = bool(self._sign("-"))
        if self._group == "number":
            return self._literal(negative, at)
        if negative or self._group != "name":
            raise self.error("a number is missing here" if negative else "a value is missing here")
        name = Name(self._word, at)
        self._advance()
        return name

    def _literal(self, negative: bool, at: int) -> Number:
        word = self._word
        if word[0] == "0" and word.isdigit():
            word = "0o" + word  # as in C; 0o is Python's own
        try:
            value = int(word, 0)
        except ValueError:
            raise self.error(f"{self._word!r} is no whole number") from None
        value = -value if negative else value
        if not MIN_NUMBER <= value <= MAX_NUMBER:
            raise self.error("a number of more than 64 bits", at)
        self._advance()
        return Number(value, at)


def _instead(word: str) -> str:
    if word == "=":
        return ": == compares"
    return ": arguments are numbers" if word in ("'", '"') else ""


def _is_constant(node: Int) -> bool:
    """Constants are written in capitals, arguments are not."""
    if isinstance(node, Mask):
        return _is_constant(node.left) and _is_constant(node.right)
    return isinstance(node, Number) or node.name.isupper()


def names(node: Node) -> tuple[Name, ...]:
    """All names in a tree, from left to right."""
    match node:
        case Name():
            return (node,)
        case Number():
            return ()
        case Not():
            return names(node.of)
        case _:
            return names(node.left) + names(node.right)


def evaluate(node: Node, values: Mapping[str, int]) -> int:
    """What a tree comes to; truths are 1 or 0. The meaning of the language, as a reference.

    Raises KeyError for a name without a value.
    """
    match node:
        case Number():
            return node.value
        case Name():
            return values[node.name]
        case Not():
            return int(not evaluate(node.of, values))
        case Both():
            first = bool(evaluate(node.left, values))
            if first is (node.sign == "||"):
                return int(first)
            return int(bool(evaluate(node.right, values)))
        case _:
            return _apply(node.sign, evaluate(node.left, values), evaluate(node.right, values))


def _apply(sign: str, left: int, right: int) -> int:
    match sign:
        case "&":
            return left & right
        case "|":
            return left | right
        case "==":
            return int(left == right)
        case "!=":
            return int(left != right)
        case "<":
            return int(left < right)
        case "<=":
            return int(left <= right)
        case ">":
            return int(left > right)
        case _:
            return int(left >= right)
