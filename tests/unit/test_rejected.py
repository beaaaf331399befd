"""What the kernel says about a program that it does not take: short to the user, in full kept."""

from __future__ import annotations

import pytest
from core_kit import Core, SetValue

from nodeagent.backends.bpf_object import last_words
from nodeagent.backends.libbpf import VerifierRejected

LOG = (
    "func#0 @0\n0: R1=ctx() R10=fp0\n"
    + "0: (b7) r0 = 0\n" * 5000
    + (
        "R2 unbounded memory access, use 'var &= const'\n"
        "processed 5001 insns (limit 1000000) max_states_per_insn 0 total_states 0\n"
    )
)


@pytest.mark.parametrize(
    ("at", "event"), [("observe:a", "program-rejected"), ("apply:a", "apply-failed")]
)
def test_the_full_log_is_in_the_event(core: Core, at: str, event: str) -> None:
    rejected = VerifierRejected("the program cannot be loaded", last_words(LOG), LOG)
    core.kernel.fail[at] = [rejected]
    with pytest.raises(VerifierRejected) as caught:
        core.apply("f-1", SetValue(name="a", value="x"))
    assert len(str(caught.value)) < 200
    assert "R2 unbounded memory access" in str(caught.value)
    assert "faultctl events" in caught.value.hint
    (found,) = [e for e in core.journal.events(fault_id="f-1") if e.type == event]
    assert found.data["log"] == LOG
    assert found.data["error"] == str(caught.value)


def test_the_words_that_say_most() -> None:
    for log, words in (
        (LOG, "R2 unbounded memory access, use 'var &= const'"),
        ("", "no log"),
        ("libbpf: prog 'x': failed\nlibbpf: -- END PROG LOAD LOG --\n", "libbpf: -- END PROG LOAD"),
        ("a" * 1000, "a" * 200),
    ):
        assert last_words(log).startswith(words)
        assert len(last_words(log)) <= 200
