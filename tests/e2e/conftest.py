"""Fixtures: `world` starts what one test needs and checks it afterwards; `shared` is one router with
one engine of each role for a whole file of tests that change nothing; `fleet` is a file's own `fleet_of`."""
import contextlib
import os
import resource
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).parents[1] / "lint"))  # json_schema

pytest.register_assert_rewrite("fleets", "legs", "rows", "stages")

import paced  # noqa: E402
from procs import LIBC, PR_SET_CHILD_SUBREAPER, World, tree  # noqa: E402
from quick import LONGEST, QUICK  # noqa: E402
from stages import Stage, lasting  # noqa: E402

# A report ends the process at once and is seen by Process.check_log().
os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:exitcode=99")
os.environ.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")

# This process plays many engines and clients: 1,024 descriptors, as some systems give, are too few.
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
most = 20000 if hard == resource.RLIM_INFINITY else min(hard, 20000)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="one test of each file, those of quick.py")


def keep_only(config, items, kept):
    chosen = set(kept)
    config.hook.pytest_deselected(items=[i for i in items if i not in chosen])
    items[:] = kept


def pytest_collection_modifyitems(config, items):
    """The longest files come first.  Under the sanitizers a test runs in the first of its cases; one that has more than a dozen
    in two, and in a twelfth of the others, spread over them.  PDR_ALL=1 for all, which release has."""
    place = {name: n for n, name in enumerate(LONGEST)}
    items.sort(key=lambda i: place.get(i.path.name, len(place)))
    if config.getoption("quick"):
        first = {}
        for i in items:
            if QUICK.get(i.path.name) == i.originalname:
                first.setdefault(i.path.name, i)
        return keep_only(config, items, list(first.values()))
    if os.environ.get("PDR_VARIANT", "release") == "release" or os.environ.get("PDR_ALL"):
        return

    def name(i):
        return i.location[0] + i.originalname
    cases = Counter(map(name, items))
    seen, kept = Counter(), []
    for i in items:
        n, at = cases[name(i)], seen[name(i)]
        seen[name(i)] += 1
        most = 1 if n < 14 else 2 + (n - 2) // 12
        if at * most // n != (at - 1) * most // n:
            kept.append(i)
    keep_only(config, items, kept)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    setattr(item, "report_" + report.when, report)
    args = getattr(item, "funcargs", {})
    if report.failed and "world" in args:
        report.sections.append(("logs", args["world"].logs()))
    for stage in filter(None, map(args.get, ("desk", "desks"))):
        if report.failed and hasattr(stage, "forget"):
            stage.forget()


def pytest_terminal_summary(terminalreporter):
    """For run_tests.sh, which tries them again alone."""
    if "PDR_FAILED" in os.environ:
        failed = terminalreporter.stats.get("failed", [])
        Path(os.environ["PDR_FAILED"]).write_text("".join(f"tests/e2e/{r.nodeid}\n" for r in failed))
    rows = [(r.nodeid.split("::")[1], dict(r.user_properties)["figures"]) for name in ("passed", "failed")
            for r in terminalreporter.stats.get(name, []) if "figures" in dict(r.user_properties)]
    for line in paced.table(rows):
        terminalreporter.write_line(line)


@pytest.fixture
def world(request):
    w = World()
    try:
        yield w
        if not request.node.report_call.failed:  # a test that failed has said enough
            w.finish()
    finally:
        w.close()


class Shared(Stage):
    def __init__(self):
        super().__init__()
        self.router, (self.p,), (self.d,) = self.world.pd()


@pytest.fixture(scope="module")
def shared(request):
    yield from lasting(request, Shared())


@pytest.fixture
def router(shared):
    yield shared.router
    shared.router.lives()
    shared.router.look_over()


@pytest.fixture
def fleet(fleet_of):
    """One test's loan of its file's BaseFleet."""
    fleet_of.mark()
    yield fleet_of
    fleet_of.settled()
    fleet_of.router.look_over()


@pytest.fixture
def reaper():
    """New instances become children of the run, as they become children of systemd.  None outlives its test."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    for pid in tree(os.getpid()):
        with contextlib.suppress(OSError):
            if b"-pdrouter" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 0)
