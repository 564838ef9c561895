"""What the tests of a file share: engines and a router that are started once, left as they were found, and looked at again
when all tests are over."""
from collections import Counter
from contextlib import contextmanager

from procs import World, wait


class Stage:
    """`world` owns the processes, `router` is the one that is asked."""

    def __init__(self, world=None):
        self.world, self.router = world or World(), None

    def at_rest(self):
        """After a test: the router lives, nothing is in flight, no flag is armed."""
        self.router.lives()
        wait("nothing in flight", lambda: self.router.metric("endpoint_in_flight") == 0)
        assert not self.router.metric("kv_flags_armed")

    def finish(self):
        self.world.finish()

    def close(self):
        self.world.close()


class BaseFleet(Stage):
    """Several engines of each role, `p` and `d`, and one that is asked directly."""

    def __init__(self):
        super().__init__()
        self.p, self.d, self.direct, self.seen = [], [], None, set()

    @staticmethod
    def view(answer):
        """What is compared of what the SDK makes of an answer."""
        return answer

    def legs(self):
        """What each role's engines were sent since last asked, oldest first for each engine."""
        new = [[r for e in role for r in e.requests() if r["x-request-id"] not in self.seen] for role in (self.p, self.d)]
        self.seen |= {r["x-request-id"] for leg in new for r in leg}
        return new

    def mark(self):
        """What is counted is counted from here."""
        self.legs()

    def settled(self):
        self.at_rest()

    def used(self):
        """How often which branch of engines has served, since legs() was last asked."""
        at = [{r["x-request-id"]: i for i, e in enumerate(role) for r in e.requests()} for role in (self.p, self.d)]
        return Counter((at[0][rid], at[1][rid]) for rid in at[0] if rid not in self.seen)


def lasting(request, stage, shown=None):
    """The body of a fixture of a whole file.  What tests have broken is not looked at once more."""
    try:
        yield stage if shown is None else shown
        if request.session.testsfailed == 0:
            stage.finish()
    finally:
        stage.close()


@contextmanager
def staged(stage):
    """For one test."""
    try:
        yield stage
        stage.finish()
    finally:
        stage.close()
