"""Several models wait in one pool's queue: one model's flood neither refuses nor starves another, whether each has engines of
its own or all share one."""
from procs import Load, wait

URL = "/v1/completions"


class Models:
    """Decode engines of one slot, each with the models that it serves, and a prefill engine that answers by itself."""

    def __init__(self, world, *served, workers=3, **keys):
        names = sorted({m for models in served for m in models})
        p = world.script(probes={URL: lambda ex: ex.prefilled()})
        self.d = [world.script() for _ in served]
        for e, models in zip([p, *self.d], [names, *served]):
            e.probes["/v1/models"] = ('{"data":[%s]}' % ",".join(f'{{"id":"{m}"}}' for m in models)).encode()
        pool = world.pool([p], [{"url": e.url, "max_inflight": 1} for e in self.d], queue_timeout="30s", **keys)
        self.r = world.router({**pool, "models": [], "name": "all"}, workers=workers)
        self.r.wait_all_up()
        self.clients = []

    def ask(self, prompt, **members):
        """The model's name is the prompt's first letter."""
        c = self.r.client()
        self.clients.append(c)
        return c.request("POST", URL, {"model": "m" + prompt[0], "prompt": prompt, "max_tokens": 4, **members})

    def line_up(self, prompts, **members):
        for prompt in prompts:
            had = self.r.metric("queue_waiting")
            self.ask(prompt, **members)
            wait(f"{prompt} waits", lambda had=had: self.r.metric("queue_waiting") == had + 1)

    def refused(self, prompt):
        a = self.ask(prompt).read()
        self.clients.pop()
        return (a.status, a.error["code"]) == (429, "queue_full")

    def serve(self, at, n):
        """The prompts of the next n requests at an engine; each is answered before the next one comes."""
        return [self.answer(self.d[at].expect()) for _ in range(n)]

    def answer(self, ex):
        ex.reply(body={"choices": []})
        return ex.json()["prompt"]

    def done(self):
        assert all(c.read().status == 200 for c in self.clients)
        self.r.wait_idle()
        assert self.r.metric("queue_waiting") == 0
        self.r.look_over()


# --- how many may wait ---
def test_one_models_waiters_leave_entries_for_another(world):
    q = Models(world, ["ma"], ["mb"], queue_size=8)
    q.ask("a")
    a = q.d[0].expect()
    q.line_up(["a1", "a2", "a3", "a4"])
    assert q.refused("a5")
    q.ask("b")
    b = q.d[1].expect()
    q.line_up(["b1", "b2"])
    assert q.refused("b3") and q.refused("a5")
    q.answer(a), q.answer(b)
    assert q.serve(1, 2) == ["b1", "b2"] and q.serve(0, 4) == ["a1", "a2", "a3", "a4"]
    q.done()


def test_a_model_that_has_no_waiter_finds_the_last_entry(world):
    q = Models(world, ["ma"], ["mb"], ["mc"], queue_size=2)
    q.ask("a"), q.ask("b"), q.ask("c")
    held = [d.expect() for d in q.d]
    q.line_up(["a1"])
    assert q.refused("a2")
    q.line_up(["b1"])
    assert q.refused("a2") and q.refused("b2") and q.refused("c1")  # no more models than entries
    for ex in held:
        q.answer(ex)
    assert q.serve(0, 1) + q.serve(1, 1) == ["a1", "b1"]
    q.done()


def test_the_only_model_of_a_pool_may_fill_the_queue(world):
    q = Models(world, ["ma"], queue_size=4)
    q.ask("a")
    a = q.d[0].expect()
    q.line_up(["a1", "a2", "a3", "a4"])
    assert q.refused("a5")
    q.answer(a)
    assert q.serve(0, 4) == ["a1", "a2", "a3", "a4"]
    q.done()


# --- who goes first ---
# One worker, so that the order is exact.  A waiter tries also when another of its model is served (worker/schedule/wait.c).
# In a worker that gets no CPU for a while this try may come when the next slot is free, and take it: one turn too early.
def test_models_that_share_an_engine_take_turns(world):
    q = Models(world, ["ma", "mb"], queue_size=50, workers=1)
    q.ask("a")
    a = q.d[0].expect()
    q.line_up(["a1", "a2", "a3", "a4", "a5"])
    q.line_up(["b1", "b2"])
    q.answer(a)
    assert q.serve(0, 7) == ["a1", "b1", "a2", "b2", "a3", "a4", "a5"]
    q.done()


def test_turns_are_counted_in_tokens(world):
    """A request of model b is as long as three of model a's."""
    q = Models(world, ["ma", "mb"], queue_size=50, workers=1)
    long = ["b" * 1200, "b" * 1199 + "2"]
    q.ask("a")
    a = q.d[0].expect()
    q.line_up([f"a{i}".ljust(400) for i in range(6)])
    q.line_up(long)
    q.answer(a)
    assert [x[:2].strip() for x in q.serve(0, 8)] == ["a0", "bb", "a1", "a2", "a3", "bb", "a4", "a5"]
    q.done()


def test_priority_goes_before_a_models_turn(world):
    q = Models(world, ["ma", "mb"], queue_size=50, allow_priority=True)
    q.ask("a")
    a = q.d[0].expect()
    q.line_up(["a1", "b1"])
    q.line_up(["a2", "a3"], priority=-1)
    q.answer(a)
    assert q.serve(0, 4) == ["a2", "a3", "a1", "b1"]
    q.done()


# --- a flood ---
def test_a_flood_of_one_model_refuses_nobody_else(world):
    """Forty clients of model a at four slots; two clients of model b, whose engine has four too."""
    p, d = [[world.engine(role, model=m, token_delay=5) for m in ("ma", "mb")] for role in ("prefill", "decode")]
    r = world.router({**world.pool(p, [{"url": e.url, "max_inflight": 4} for e in d], queue_size=12, queue_timeout="30s"),
                      "models": [], "name": "all"}, workers=2)
    r.wait_all_up()
    refused, served = [], []

    def ask(i):
        a = r.complete(f"{i}", model="mb" if i < 2 else "ma")
        if i < 2:
            assert a.status == 200, a.body
            served.append(i)
        elif a.status != 200:
            refused.append(a.error["code"])

    load = Load(42, ask)
    wait("a flood, and b is served", lambda: load.bad or (len(served) > 50 and len(refused) > 200))
    assert not load.stop().bad and set(refused) == {"queue_full"}
