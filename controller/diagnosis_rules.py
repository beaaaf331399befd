"""The rule judge: answers by comparing words with the ground truth, the same every time.

A field that the submission fills (`service`, `artifact`, `category`, `mechanism`,
`symptom`, `node`, `scope`) is compared as it stands. What it leaves out is looked for in
its free `text`, where only a statement that is unambiguous counts, with confidence 1/2: a
text that names every service blames none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from controller.diagnosis import Answer, Case

HALF = Fraction(1, 2)
_WORD = re.compile(r"[^\W_]+")
_DENIALS = frozenset({"no", "not", "never", "isn", "wasn", "aren", "healthy", "innocent", "fine"})
_REACH = 3
"""How many words before a name a denial still denies it."""
_SMALL = frozenset(
    _WORD.findall("a an and are at by for from in is it its of on or that the to under with")
)
CATEGORIES = ("disk", "network", "process", "load", "kernel", "memory", "cpu", "time", "config")


def words(text: object) -> list[str]:
    """Lower-case words and numbers of a text, without plural s."""
    found = _WORD.findall(str(text).casefold())
    return [w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in found]


def same(one: object, other: object) -> bool:
    """Equal names, whatever their case, blanks and punctuation; nothing equals nothing."""
    return bool(words(one)) and words(one) == words(other)


def names(text: Sequence[str], phrase: object) -> bool:
    """Whether words contain a phrase that is not denied just before or after."""
    wanted = words(phrase)
    if not wanted:
        return False
    for at in range(len(text) - len(wanted) + 1):
        if text[at : at + len(wanted)] == wanted:
            after = text[at + len(wanted) : at + len(wanted) + 2]
            if not _DENIALS & {*text[max(0, at - _REACH) : at], *after}:
                return True
    return False


def covers(said: Iterable[str], truth: object) -> bool:
    """Whether at least two thirds of the words that matter in `truth` were said."""
    wanted = {w for w in words(truth) if w not in _SMALL}
    return bool(wanted) and 3 * len(wanted & set(said)) >= 2 * len(wanted)


def _listed(value: Any) -> list[str] | None:
    if value is None:
        return None
    return [str(v) for v in value] if isinstance(value, list | tuple) else [str(value)]


@dataclass(frozen=True)
class RuleJudge:
    """The deterministic judge that ships with faultctl."""

    name: str = "rules 1"

    def answer(self, case: Case) -> Sequence[Answer]:
        """All nine answers."""
        said = case.submission
        text = words(said.get("text", ""))
        truth = case.truth
        vocabulary = tuple({*case.services, truth.service})
        kinds = tuple({*CATEGORIES, *case.categories, truth.category})
        return (
            _one("service", said, text, truth.service, vocabulary),
            _artifact(said, text, truth.artifact),
            _nothing_else(case, text),
            _one("category", said, text, truth.category, kinds),
            _mechanism(case, text),
            _symptom(said, text, truth.symptom_probe),
            _one("node", said, text, case.node, tuple({*case.nodes, case.node})),
            *_scope(case, text),
        )


def _one(
    question: str, said: Mapping[str, Any], text: list[str], truth: str, known: Sequence[str]
) -> Answer:
    """A name that must be the true one, and in free text the only one of its sort."""
    given = _listed(said.get(question))
    if given is not None:
        yes = len(given) == 1 and same(given[0], truth)
        return Answer(question, yes, f"said {', '.join(given) or 'nothing'}; it is {truth}")
    found = sorted(name for name in known if names(text, name))
    yes = found == [truth]
    shown = ", ".join(found) or "none"
    return Answer(question, yes, f"its text names {shown}; it is {truth}", HALF)


def _artifact(said: Mapping[str, Any], text: list[str], truth: str) -> Answer:
    if not truth:
        return Answer("artifact", bool(said), "the experiment names no object to be found")
    given = said.get("artifact")
    if given is not None:
        yes = same(given, truth) or names(words(given), truth) or covers(words(given), truth)
        return Answer("artifact", yes, f"said {given}; it is {truth}")
    return Answer("artifact", names(text, truth), f"looked in its text for {truth}", HALF)


def _nothing_else(case: Case, text: list[str]) -> Answer:
    """Innocent: every known service that neither causes nor feels the fault."""
    feels = {case.truth.service, *case.truth.scope}
    given = _listed(case.submission.get("service"))
    if given is not None:
        wrong = sorted(s for s in given if not same(s, case.truth.service))
        return Answer("nothing-else", bool(given) and not wrong, f"also blames: {wrong or 'none'}")
    named = any(names(text, s) for s in feels)
    wrong = sorted(s for s in case.services if s not in feels and names(text, s))
    shown = ", ".join(wrong) or ("none" if named else "nobody is named at all")
    return Answer("nothing-else", named and not wrong, f"also named: {shown}", HALF)


def _mechanism(case: Case, text: list[str]) -> Answer:
    truth = case.truth.mechanism
    given = case.submission.get("mechanism")
    looked = text if given is None else words(given)
    yes = names(looked, case.kind) or covers(looked, truth)
    source = "its text" if given is None else f"said {given}"
    confidence = HALF if given is None else Fraction(1)
    return Answer("mechanism", yes, f"{source}; it is {case.kind}: {truth}", confidence)


def _symptom(said: Mapping[str, Any], text: list[str], truth: str) -> Answer:
    if not truth:
        return Answer("symptom", bool(said), "the experiment names no symptom probe")
    given = said.get("symptom")
    looked = text if given is None else words(given)
    yes = names(looked, truth)
    source = "its text" if given is None else f"said {given}"
    confidence = HALF if given is None else Fraction(1)
    return Answer("symptom", yes, f"{source}; the probe is {truth}", confidence)


def _scope(case: Case, text: list[str]) -> tuple[Answer, Answer]:
    """All that feel it are named, and nobody else; a scope that is not given is no scope."""
    truth = list(case.truth.scope) or [case.truth.service]
    known = {*case.services, *case.nodes, *truth} - {case.node, case.truth.service}
    given = _listed(case.submission.get("scope"))
    confidence = Fraction(1)
    if given is None:
        given, confidence = sorted(n for n in {*known, *truth} if names(text, n)), HALF
    missed = [t for t in truth if not any(same(t, g) for g in given)]
    allowed = [*truth, case.truth.service, case.node]
    extra = [g for g in given if not any(same(g, t) for t in allowed)]
    missing = f"missing: {', '.join(missed) or 'none'}"
    too_many = f"too many: {', '.join(extra) or 'none'}" if given else "no scope is given"
    return (
        Answer("reached", not missed, missing, confidence),
        Answer("spared", bool(given) and not extra, too_many, confidence),
    )
