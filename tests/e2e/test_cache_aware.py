"""policy: cache_aware: a prompt goes to the engine that has its beginning, unless waiting there would cost more than computing
it elsewhere."""
import json
import re

import pytest

from procs import MODEL, free_port, wait

POOL = {"policy": "cache_aware", "decode_policy": "round_robin"}
CACHE = {"cache_blocks": 4096}  # without it an engine says that it keeps nothing
QUIET = {"stats_interval": "1h", "workers": 2}  # no figures of other routers


def talk(name, chars):
    """A conversation so far: about chars / 4 tokens, no other one begins like it."""
    return (f"{name} says: " + f"{name} and so on. " * (chars // len(name)))[:chars]


def at(engines, word):
    """The engines that have seen a prompt that begins with the word."""
    return {i for i, e in enumerate(engines) if any(s.json()["prompt"].startswith(word) for s in e.requests())}


def one(engines, word):
    (i,) = at(engines, word)
    return i


def forget(engines):
    for e in engines:
        e.tell("/sim/reset")


@pytest.fixture
def hold(world):
    """Requests that their prefill engine does not answer: its load.  The prompts begin with `held`."""
    clients = []

    def begin(r, engines, n):
        before = sum(len(e.requests()) for e in engines)
        clients.append(r.open_stream("held" + str(len(clients)) + "x" * (4 * n - 5)))
        wait("it is held", lambda: sum(len(e.requests()) for e in engines) > before)

    def arm(engines):
        for e in engines:
            e.fault("no_answer", contains='"held', count=-1, delay_ms=60000)
    begin.arm = arm
    yield begin
    for c in clients:
        c.reset()


def test_turns_go_to_the_engine_that_has_the_conversation(world):
    """Through both workers; a new conversation begins where the load is least."""
    r, p, d = world.pd(4, 1, engine=CACHE, pool=POOL, **QUIET)
    names = [f"client{i}" for i in range(8)]
    texts = {n: talk(n, 2000) for n in names}
    for turn in range(4):
        for n in names:
            assert r.complete(texts[n]).status == 200
            texts[n] += talk(f"{n}-turn{turn}", 1000)
    homes = {n: at(p, n) for n in names}
    assert all(len(h) == 1 for h in homes.values()), homes
    assert len(set.union(*homes.values())) == 4, homes


def test_a_loaded_engine_is_left_when_waiting_would_cost_more(world, hold):
    """The conversation has 2,000 tokens of cache at one engine."""
    r, p, d = world.pd(2, 1, engine=CACHE, pool=POOL, **{**QUIET, "workers": 1})
    hold.arm(p)
    text = talk("conversation", 8000)
    assert r.complete(text).status == 200
    home = one(p, "conversation")
    hold(r, p, 2500)  # in turn: the other engine
    hold(r, p, 1000)
    assert one(p, "held0") != home and one(p, "held1") == home
    for e in p:
        wait("one request each", lambda e=e: r.metric("endpoint_in_flight", engine=e.url) == 1)
    forget_but_hold(p, hold)
    assert r.complete(text + " second").status == 200
    assert one(p, "conversation") == home, "1,000 tokens in front of it cost less than 2,000 to compute"
    hold(r, p, 4000)  # where 1,000 are
    assert one(p, "held2") == home
    forget_but_hold(p, hold)
    assert r.complete(text + " third").status == 200
    assert one(p, "conversation") != home, "5,000 tokens in front of it cost more than 2,500 and 2,000 to compute"


def forget_but_hold(engines, hold):
    forget(engines)
    hold.arm(engines)


def test_only_what_is_not_cached_is_reserved(world, hold):
    r, p, d = world.pd(2, 1, engine=CACHE, pool=POOL, **QUIET)
    text = "held " + talk("conversation", 16384 - 5 - 2)  # and quotes
    assert r.complete(text).status == 200
    home = p[one(p, "held")].url
    hold.arm(p)
    c = r.open_stream(text + "x" * 4000)
    wait("it is held", lambda: r.metric("endpoint_in_flight", engine=home) == 1)
    tokens = r.metric("endpoint_prompt_tokens", engine=home)
    assert 900 < tokens < 1900, tokens  # of 5,100; a cut comes after an eighth more
    c.reset()
    wait("it is given back", lambda: r.metric("endpoint_prompt_tokens", engine=home) == 0)


def test_a_restart_voids_what_the_engine_had(world, hold):
    world.check_engines = False  # a killed engine loses its blocks
    p = [world.engine("prefill", port=free_port(), **CACHE) for _ in range(2)]
    d = world.engine("decode")
    r = world.router(world.pool(p, [d], **POOL), **{**QUIET, "workers": 1})
    r.wait_all_up()
    text = talk("conversation", 8000)
    assert r.complete(text).status == 200
    home = one(p, "conversation")
    p[home].stop()
    r.wait_metric("endpoint_up", 0, engine=p[home].url)
    p[home] = p[home].next_life()
    r.wait_metric("endpoint_up", 1, engine=p[home].url)
    hold.arm(p)
    for _ in range(2):  # 100 tokens at each: with its cache it would be chosen, as the test above shows
        hold(r, p, 100)
    hold(r, p, 10)
    hold(r, p, 50)
    light = min((0, 1), key=lambda i: r.metric("endpoint_prompt_tokens", engine=p[i].url))
    assert r.complete(text + " second").status == 200
    seen = {i for i, e in enumerate(p) if any(s.json()["prompt"].endswith(" second") for s in e.requests())}
    assert seen == {light}


def test_another_salt_or_model_has_no_cache(world):
    """A new conversation each: they go round."""
    r, p, d = world.pd(3, 1, engine=CACHE, pool=POOL, **{**QUIET, "workers": 1})
    text = talk("conversation", 8000)
    for salt in "a", "b", "c":
        for _ in range(3):
            assert r.complete(text, cache_salt=salt).status == 200
    by_salt = [{s.json()["cache_salt"] for s in e.requests()} for e in p]
    assert sorted(len(x) for x in by_salt) == [1, 1, 1], by_salt
    assert all(len(e.requests()) == 3 for e in p)


def test_decode_engines_are_chosen_by_what_they_need_not_fetch(world):
    r, p, d = world.pd(1, 3, engine=CACHE, pool={"policy": "cache_aware"}, **{**QUIET, "workers": 1})
    names = [f"client{i}" for i in range(3)]
    for turn in range(3):
        for n in names:
            assert r.complete(talk(n, 4000) + "x" * turn).status == 200
    assert sorted(len(e.requests()) for e in d) == [3, 3, 3]
    assert all(len(at(d, n)) == 1 for n in names)


def test_tokens_that_engines_say_are_cached_are_compared(world):
    r, p, d = world.pd(2, 1, engine={**CACHE, "prompt_tokens_details": True}, pool=POOL, **QUIET)
    text = talk("conversation", 8192 - 2)
    for said in 0, 100, 100, 0:  # vLLM and the simulator do not say 0
        assert r.complete(text, pdsim={"cached_tokens": said}).status == 200
    url = p[one(p, "conversation")].url
    wait("three answers", lambda: r.metric("endpoint_prefix_answers_total", engine=url) == 3)
    prompt, expected, cached = [r.metric(f"endpoint_prefix_{x}_tokens_total", engine=url) for x in ("prompt", "expected", "cached")]
    assert prompt == 3 * (8190 // 4)
    assert 0.8 * 3 * 2047 < expected <= 3 * 2047
    assert 0 < cached < expected
    assert 0.5 < r.metric("endpoint_prefix_kept_ratio", engine=url) < 1
    index, title, *rows = r.ctl("prefix").stdout.splitlines()
    (row,) = [x for x in rows if url in x]
    assert re.fullmatch(r"prefix index: 8388608 words, 0.0% in use, 0 lost to other prompts", index), index
    shown = dict(zip(title.split(), row.split()))
    assert (shown["role"], shown["url"], shown["answers"], shown["tokens"]) == ("prefill", url, "3", str(int(prompt))), row
    assert float(shown["expect%"]) > float(shown["cached%"]) > 0


def explain(r, prompt, *args):
    file = r.world.file("prompt")
    file.write_text(prompt)
    said = r.ctl("explain", MODEL, *args, "--prompt", str(file))
    assert said.returncode == 0, said.stderr
    return said.stdout


def explained(r, prompt):
    """What pdctl explain says of each prefill engine."""
    return json.loads(explain(r, prompt, "--json"))


def hits(r, prompt, what="expected_hit"):
    return {e["url"]: e[what] for e in explained(r, prompt)["roles"]["prefill"]["engines"]}


def test_explain_shows_what_is_expected_in_each_cache(world):
    """Of a text and of bodies, quotes and all; nothing once the engine came up again.  Explaining changes nothing."""
    world.check_engines = False  # a killed engine loses its blocks
    p = [world.engine("prefill", port=free_port(), **CACHE) for _ in range(2)]
    r = world.router(world.pool(p, [world.engine("decode")], **POOL), **QUIET).wait_all_up()
    text = talk('a "quoted"\nconversation', 8000)
    assert hits(r, text) == {e.url: 0 for e in p}
    assert r.complete(text).status == 200
    home = one(p, 'a "quoted"')
    for prompt in text + " and on", json.dumps({"prompt": text + " and on"}):
        for _ in range(2):
            got = hits(r, prompt)
            assert 1700 < got[p[home].url] <= 2002 and got[p[1 - home].url] == 0, got
    assert explained(r, text)["tokens"] == 2000
    assert explained(r, text[:2000])["roles"]["prefill"]["engines"][home]["expected_hit"] in range(400, 501)
    assert set(hits(r, json.dumps({"prompt": text, "cache_salt": "s"})).values()) == {0}
    shown = explain(r, "another one")
    assert all(re.search(rf"  yes +{e.url} .*, hit 0, cost \d+\n", shown) for e in p), shown
    assert "hit" not in r.ctl("explain", MODEL).stdout
    for name, why in (("/dev/null", "it is empty"), ("/", "Is a directory"), ("/none", "No such file or directory")):
        assert r.ctl("explain", MODEL, "--prompt", name).stderr == f"pdctl: {name}: {why}\n"
    long = world.file("long")
    long.write_text("x" * (4 << 20))
    assert json.loads(r.ctl("explain", MODEL, "--json", "--prompt", str(long)).stdout)["tokens"] == 1 << 20
    long.write_text("x" * ((4 << 20) + 1))
    assert "longer than 4 MiB" in r.ctl("explain", MODEL, "--prompt", str(long)).stderr
    p[home].stop()
    r.wait_metric("endpoint_up", 0, engine=p[home].url)
    p[home] = p[home].next_life()
    r.wait_metric("endpoint_up", 1, engine=p[home].url)
    assert hits(r, text) == {e.url: 0 for e in p}


def test_explain_shows_the_costs_that_are_compared(world, hold):
    """The lowest gets the request."""
    r, p, d = world.pd(3, 1, engine=CACHE, pool=POOL, **{**QUIET, "workers": 1})
    hold.arm(p)
    text = talk("conversation", 8000)
    assert r.complete(text).status == 200
    home = one(p, "conversation")
    for n in 100, 3000, 3000:
        hold(r, p, n)
    hit, cost = hits(r, text), hits(r, text, "cost")
    assert [hit[e.url] > 0 for e in p] == [i == home for i in range(3)]
    assert 1500 <= cost[p[home].url] < 1900, "half of 3,000, and what the engine does not have"
    forget_but_hold(p, hold)
    assert r.complete(text).status == 200
    assert p[one(p, "conversation")].url == min(cost, key=cost.get)
    assert r.ctl("drain", p[home].url).returncode == 0
    engines = explained(r, text)["roles"]["prefill"]["engines"]
    assert [(e["cost"] is None, e["expected_hit"] > 0) for e in engines] == [(i == home, i == home) for i in range(3)]


def test_explain_shows_the_home_of_what_no_engine_has(world):
    """Another router has a request at each engine.  The lowest cost gets the request."""
    r, p, d = world.pd(3, 1, engine={"load": 1}, pool=POOL, **{**QUIET, "workers": 1, "stats_interval": "200ms"})
    homes = set()
    for k in range(6):
        wait("the foreign load", lambda: set(hits(r, "x", "foreign").values()) == {1})
        prompt = f"{k}" + talk("conversation", 8000)
        cost = hits(r, prompt, "cost")
        home, low, high = min(cost, key=cost.get), min(cost.values()), max(cost.values())
        assert sorted(cost.values()) == [low, high, high] and 990 <= high - low <= 1001, cost
        assert r.complete(prompt).status == 200
        assert p[one(p, f"{k}conversation")].url == home
        homes.add(home)
    assert len(homes) > 1


def test_explain_reads_the_body_of_a_chat(world):
    r, p, d = world.pd(2, 1, engine=CACHE, pool=POOL, **QUIET)
    body = {"model": MODEL, "messages": [{"role": "system", "content": talk("system", 4000)}, {"role": "user", "content": "hello"}]}
    assert r.post("/v1/chat/completions", body).status == 200
    (home,) = [e.url for e in p if e.requests()]
    body["messages"][1]["content"] = "good bye"
    got = hits(r, json.dumps(body))
    assert 850 < got.pop(home) <= 1010 and set(got.values()) == {0}


@pytest.mark.parametrize("path, first, turns", [("/v1/messages", "system", "messages"), ("/v1/responses", "instructions", "input")])
def test_a_system_prompt_beside_the_turns_is_a_beginning(world, path, first, turns):
    """Other turns behind it go to the engine that has it."""
    r, p, d = world.pd(1, 4, engine=CACHE, pool={"policy": "cache_aware"}, **{**QUIET, "workers": 1})

    def ask(system, text):
        """The engine that has served it, and what is expected of each now."""
        body = {"model": MODEL, "max_tokens": 4, first: system, turns: [{"role": "user", "content": text}]}
        answer = r.post(path, body)
        assert answer.status == 200
        line = wait("its line", lambda: [x for x in r.lines("request") if x["req"] == answer["x-request-id"]])[0]
        roles = explained(r, json.dumps(body))["roles"]
        return line["decode"], {e["url"]: e["expected_hit"] for e in roles["decode"]["engines"]}
    home, _ = ask(talk("system", 8000), "hello")
    for text in "good morning", "good bye", "again":
        where, got = ask(talk("system", 8000), text)
        assert where == home and 1900 < got.pop(home) <= 2010 and set(got.values()) == {0}
    assert ask(talk("other", 8000), "hello")[0] != home


def test_without_an_index_it_is_least_loaded(world):
    r, p, d = world.pd(2, 1, pool=POOL, shared_memory={"prefix_index": "0B"}, **{**QUIET, "workers": 1})
    for _ in range(4):
        assert r.complete(talk("conversation", 8000)).status == 200
    assert [len(e.requests()) for e in p] == [2, 2]
    assert r.ctl("prefix").stdout.startswith("prefix index: none")


@pytest.mark.parametrize("policy, want", [(None, [0, 4]), ("least_loaded", [2, 2])])
def test_it_is_the_default_of_prefill_engines(world, policy, want):
    """A conversation stays at its engine; decode engines are chosen by load, and so are prefill engines where `policy` says so."""
    p, d = ([world.engine(role, **CACHE) for _ in range(2)] for role in ("prefill", "decode"))
    pool = world.pool(p, d, policy=policy)
    if policy is None:
        del pool["policy"]
    r = world.router(pool, **{**QUIET, "workers": 1}).wait_all_up()
    for _ in range(4):
        assert r.complete(talk("conversation", 8000)).status == 200
    assert sorted(len(e.requests()) for e in p) == want
    assert sorted(len(e.requests()) for e in d) == [2, 2]


def test_an_engine_without_a_prefix_cache_gets_no_words(world):
    """vLLM --no-enable-prefix-caching: what it computed is not expected there again."""
    r, p, d = world.pd(2, 1, pool=POOL, **{**QUIET, "workers": 1})
    wait("the engines have said it", lambda: len(re.findall(r"  1  +0  ", r.ctl("prefix").stdout)) == 2)
    for _ in range(4):
        assert r.complete(talk("conversation", 8000)).status == 200
    assert [len(e.requests()) for e in p] == [2, 2]
