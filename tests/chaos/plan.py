"""The plan: one row for each step that the storm can take.  To add a step, write its function and its row; README.md ("Steps")
says what a step owes to the ledger."""
from typing import Callable, NamedTuple

import step_client
import step_drain
import step_engine
import step_reload
import step_router


class Step(NamedTuple):
    weight: float  # how often, beside the others
    run: Callable  # async def step(storm)
    asked: bool = False  # only where ONLY names it


PLAN = (
    # engines, and how they are reached
    Step(14, step_engine.fail_requests),
    Step(4, step_engine.misbehave),
    Step(1, step_engine.shed),
    Step(1, step_engine.absurd_load),
    Step(2, step_engine.next_life),
    Step(4, step_engine.stop_engine),
    Step(3, step_engine.kill_engine),
    Step(2, step_engine.fail_probes),
    Step(2, step_engine.bad_wire),
    Step(1, step_engine.host_vanishes),
    # clients
    Step(1, step_client.client_vanishes),
    # the router's processes
    Step(2, step_router.stop_worker),
    Step(1, step_router.kill_worker),
    Step(1, step_router.stop_notifier),
    Step(1, step_router.kill_notifier),
    Step(1, step_router.scribble, asked=True),
    # the configuration
    Step(1.5, step_reload.reload_live),
    Step(1.5, step_reload.reload_pools),
    Step(1.5, step_reload.reload_engines),
    Step(0.5, step_reload.exchange),
    Step(0.3, step_reload.new_generation),
    Step(1, step_reload.wrong_file),
    Step(1, step_router.upgrade),
    # what an operator does
    Step(2, step_drain.drain),
    Step(1, step_drain.drain_and_stop),
)
