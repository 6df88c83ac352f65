"""The store against the plain model, call by call, through cuts, kills and faults.

`StoreMachine` walks: calls of the public interface, moves of the clock, accidents.
After each step all that can be seen is compared. A power cut takes what was not
durable, in the order of the log; so the machine remembers the model as it was after
each event, and finds the moment to which the store has come back.

The steps are in `machine_requests`, `machine_calls` and `machine_accidents`, what they
are drawn from in `machine_draws`.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from machine_accidents import Accidents
from machine_checks import count_differences
from machine_draws import ALWAYS, ARGUMENTS, WITH_LEASE
from machine_walk import TROUBLE

from wheeldb.testing.faults import AFTER_FAILED_SYNC

# How often a disk that fails is healed before the next step.
HEALED = 0.25


class StoreMachine(RuleBasedStateMachine, Accidents):
    """Draws the steps of a walk, and looks at the store after each."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = False

    @initialize(flash=st.booleans(), failed_sync=st.sampled_from(AFTER_FAILED_SYNC))
    def start_walk(self, flash: bool, failed_sync: str) -> None:
        self.begin(flash=flash, failed_sync=failed_sync)
        self.has_begun = True

    @rule(seed=st.integers(0, 2**32 - 1), data=st.data())
    def step(self, seed: int, data: st.DataObject) -> None:
        """Take one step. All of it follows from the seed, so that others can be left
        out when a failing walk is made shorter; but what a power cut takes is drawn."""
        self.data = data
        random = Random(seed)
        if self.is_armed and random.random() < HEALED:
            note("heal()")
            self.heal()
        names = ALWAYS + (WITH_LEASE if self.leases else [])
        name = data.draw(st.sampled_from(names), label="step")
        arguments = {key: pick(random) for key, pick in ARGUMENTS[name].items()}
        note(f"{name}({arguments})")
        if "random" in getattr(self, name).__annotations__:
            arguments["random"] = random
        self.take_step(name, arguments)

    @invariant()
    def agrees(self) -> None:
        if self.is_armed:
            return  # the step has looked, as far as the faults let it
        self.now()
        findings = self.differences()
        assert not findings, findings
        findings = count_differences(self.db, self.model)
        assert not findings, findings

    def teardown(self) -> None:
        # A walk that has failed may have left the store closed.
        if self.has_begun and not self.db._is_closed:
            self.heal()
            try:
                findings = self.db.check()
                assert not findings, findings
                self.db.close()
            except TROUBLE as error:
                self.judge_trouble(error)


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_store_does_what_the_model_does() -> None:
    _run(examples=20, steps=25)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_store_does_what_the_model_does_for_long() -> None:
    _run(examples=500, steps=40)
