"""The status page in a browser (browser.py): what is seen at each width, in light and dark, with a keyboard and without sight,
with nothing to show, without its stream, and with a thousand engines."""
import shutil
import signal

import pytest

from browser import Browser
from procs import MODEL, SLOW, free_port, wait
from test_api_keys import row, secret, write
from test_status_page import admin

HOSTILE = "<b>chat</b>\u2028x"  # and a character that ends lines in JavaScript
WIDTHS = 360, 800, 1400
# the text that is seen with less contrast than 4.5:1 to what is behind it (WCAG 2.1, 1.4.3)
FAINT = """(() => {
	const rgb = (s) => s.match(/[\\d.]+/g).map(Number);
	const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
		return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
		if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
	const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; (n = texts.nextNode());) {
		const e = n.parentElement, box = e.getBoundingClientRect();
		if (n.textContent.trim() === "" || e.closest(".hidden, .skip") || box.width === 0) continue;
		const a = light(rgb(getComputedStyle(e).color).slice(0, 3)), b = light(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) found.push(`${n.textContent.trim()}: ${ratio.toFixed(2)}`);
	}
	return found;
})()"""
# elements that reach beyond the window, but for what scrolls by itself
WIDE = """[...document.querySelectorAll("body *")].filter((e) => !e.closest(".hidden, .skip, .scroll *, svg *") &&
	e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chromium")
    b = Browser(folder)
    yield b
    b.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def browser(chromium, world):
    """It ends before the world does, which wants no request in flight."""
    with chromium.tab() as tab:
        yield tab


def see(browser, router, path="/", name=""):
    browser.show(f"http://{name}{router.config['admin']['listen'][0]}{path}")
    return live(browser)


def live(browser):
    wait("the first figures", lambda: browser.run("document.querySelector('#link')?.dataset.state") == "live", 30)
    return browser


def text(browser, where):
    return browser.run(f"document.querySelector({where!r}).innerText")


def fits(browser):
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.run(WIDE) == []


@pytest.fixture
def busy(world):
    """A router with requests in flight and failures, and an engine that is drained."""
    models = [MODEL, HOSTILE]
    p, d = ([world.engine(role, model=models) for _ in range(2)] for role in ("prefill", "decode"))
    pool = {"retries": 0, "fallback": "none", "name": "chat", "models": models}
    r = world.router(world.pool(p, d, **pool), admin=admin(), workers=1).wait_all_up()
    d[0].fault("fail")
    while r.complete(model=HOSTILE, headers=[("X-Request-Id", "<i>failed</i>")]).status == 200:
        pass
    for e in d:
        e.pause()
    r.streams = [r.open_stream() for _ in range(4)]
    wait("all of them", lambda: sum(e.metric("pdsim:running_requests") for e in d) == 4)
    r.gone = p[0].url
    yield r
    for e in d:
        e.go_on()
    for s in r.streams:
        assert s.read().status == 200
        s.close()


def test_requests_that_fail_alike_are_one_row(browser, world):
    r, (p,), _ = world.pd(admin=admin(), workers=1)
    p.tell("/sim/health", status=503)
    r.wait_metric("endpoint_up", 0, engine=p.url)
    assert [r.complete().status for _ in range(5)] == [503] * 5 and r.complete(headers=[("X-Request-Id", "newest")]).status == 503
    see(browser, r)
    rows = "[...document.querySelectorAll('#failures tbody tr')].map((e) => e.innerText)"
    wait("the last one", lambda: "newest" in str(browser.run(rows)))
    (row,) = browser.run(rows)
    assert "no_prefill_endpoint × 6" in row
    fits(browser)


def test_what_is_seen(browser, busy):
    see(browser, busy)
    assert text(browser, "#t-up") == "4 / 4" and text(browser, "#t-flight") == "4"
    assert text(browser, ".pool h2") == "chat"
    assert browser.run("document.querySelectorAll('main img, main i:not(.bar i, .bars i), main b:not(figcaption b)').length") == 0
    one = browser.run("document.querySelector('#failures tbody').textContent")
    assert "engine_status" in one and "500" in one and "<i>failed</i>" in one and HOSTILE in one, "names are text, not markup"
    assert browser.run("document.querySelector('#failures a').href").endswith("/status/runbook#:~:text=%23%23%20Errors%20and%20broken%20streams")
    assert browser.run("document.querySelectorAll('.flows path').length") > 0
    browser.run("document.querySelector('details').open = true")
    wait("flows in words", lambda: "→" in text(browser, "details ul"))
    assert busy.ctl("drain", busy.gone).returncode == 0
    wait("the drain", lambda: "draining" in text(browser, ".role"), 20)
    assert text(browser, "#t-up") == "3 / 4" and "draining, was up" in text(browser, "#changes")
    for dark in False, True:
        for width in WIDTHS:
            browser.view(width, dark=dark)
            browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            fits(browser)
            assert browser.run(FAINT) == [], (dark, width)
    assert browser.log == [], "nothing is said of the page's policy, and nothing was sought elsewhere"
    assert browser.run("performance.getEntriesByType('resource').every((e) => e.name.startsWith(location.origin + '/'))")


def test_without_sight_and_with_a_keyboard(browser, busy):
    see(browser, busy, "/status")
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = [n.get("role", {}).get("value") for n in tree if not n.get("ignored")]
    assert {"banner", "main", "contentinfo", "search", "table", "columnheader", "rowheader", "status"} <= set(roles)
    named = {(n["role"]["value"], n.get("name", {}).get("value")) for n in tree if not n.get("ignored")}
    assert {("table", "Prefill engines of chat"), ("table", "Decode engines of chat"), ("region", "Recent failures"),
            ("searchbox", "Find engines"), ("columnheader", "State"), ("heading", "chat")} <= named
    assert browser.run("document.querySelector('#say').getAttribute('aria-live')") == "polite"
    assert busy.ctl("drain", busy.gone).returncode == 0
    wait("words for it", lambda: "is draining" in browser.run("document.querySelector('#say').textContent"), 20)
    browser.key("Tab")
    assert browser.run("document.activeElement.className") == "skip"
    browser.key("/")
    assert browser.run("document.activeElement.id") == "find"
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is seen"
    browser.call("Input.insertText", text="draining")
    assert browser.run("document.querySelectorAll('.role tbody tr').length") == 1
    browser.key("Escape")
    assert browser.run("document.querySelectorAll('.role tbody tr').length") == 4
    moves = "document.querySelector('.flows path') && getComputedStyle(document.querySelector('.flows path')).animationName"
    assert browser.run(moves) == "none"
    browser.view(1400, calm=False)
    assert browser.run(moves) == "flow"


def test_with_nothing_to_show(browser, world):
    path = world.file("engines", "yaml")
    path.write_text("[]")
    r = world.router({"models": [MODEL], "connector": "nixl", "endpoints_file": str(path)}, admin=admin(), workers=1, wait_for="live")
    see(browser, r)
    wait("the pool", lambda: "No engine of this role." in text(browser, ".role"), 20)
    assert text(browser, "#t-up") == "0 / 0" and text(browser, "#no-failures") == "None."
    for width in WIDTHS:
        browser.view(width)
        fits(browser)
    r.reload(pools=[world.pool([world.engine("prefill")], [world.engine("decode")])])
    wait("its engines", lambda: text(browser, "#t-up") == "2 / 2", 20)


def test_without_its_stream(browser, world):
    """It says so, tries again less and less often, and goes on by itself."""
    r, _, _ = world.pd(admin=admin(), workers=1)
    see(browser, r)
    r.stop()
    wait("its loss", lambda: browser.run("document.querySelector('#lost').hidden") is False, 20)
    assert text(browser, "#link") == "no figures" and browser.run("document.querySelector('#lost').getAttribute('role')") == "alert"
    assert "The next try follows in" in text(browser, "#lost-text") and "as it was at" in text(browser, "#lost-text")
    assert text(browser, "#t-up") == "2 / 2", "the last figures stay"
    for width in WIDTHS:
        browser.view(width)
        fits(browser)
        assert browser.run(FAINT) == []
    assert browser.run("[0, 1, 2, 9].map((n) => { tries = n; lost(''); clearTimeout(timer); return +/in (\\d+) s/.exec($('lost-text').textContent)[1]; })"
                       ".every((s, i) => s >= [1, 1, 3, 22][i] && s <= [2, 3, 5, 38][i])")
    again = world.router(r.config["pools"][0], admin=r.config["admin"], workers=1)
    browser.run("document.querySelector('#retry').click()")
    live(browser)
    assert browser.run("document.querySelector('#lost').hidden") is True and again.complete().status == 200


def test_a_key_is_enough_for_the_browser(browser, world):
    keys = write(world, row("ops"))
    r = world.router(world.pool([world.engine("prefill")], [world.engine("decode")]), admin=admin(api_keys_file=keys))
    r.operator_headers = [("Authorization", f"Bearer {secret('ops')}")]
    see(browser, r, name=f"operator:{secret('ops')}@")
    wait("its engines", lambda: text(browser, "#t-up") == "2 / 2")


def test_a_thousand_engines(browser, world):
    """Every host of 127.0.0.0/8 is this one: two engines play five hundred each."""
    p, d = world.engine("prefill", host="0.0.0.0", port=free_port()), world.engine("decode", host="0.0.0.0", port=free_port())
    world.check_engines = False

    def hosts(e, net):
        return [f"http://127.{net}.{i // 200}.{i % 200 + 1}:{e.port}" for i in range(500)]
    prefill = [{"url": u, "group": f"rack-{i // 20}"} for i, u in enumerate(hosts(p, 1))]
    r = world.router(world.pool(prefill, hosts(d, 2)), admin=admin(), workers=1, shared_memory={"max_endpoints": 1024},
                     health_interval="60s")
    see(browser, r)
    wait("all of them", lambda: text(browser, "#t-up") == "1000 / 1000", 30 * SLOW)
    assert browser.run("[...document.querySelectorAll('.role')].map((r) => r.querySelectorAll('tbody tr').length)") == [25, 30]
    assert text(browser, ".role .group small") == "20 of 20 engines up"
    assert text(browser, ".role[data-role=decode] .more") == "Show 470 more groups"
    for width in WIDTHS:
        browser.view(width)
        fits(browser)
    browser.run("document.querySelector('.role .group button').focus()")
    browser.key("Enter")
    assert browser.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert browser.run("document.querySelectorAll('.role[data-role=prefill] tr.inner').length") == 20
    last = prefill[-1]["url"]
    assert r.ctl("drain", last).returncode == 0
    wait("the worst first", lambda: text(browser, ".role .group").startswith("rack-24"), 20)
    assert text(browser, ".role .group small") == "19 of 20 engines up" and text(browser, ".role .state") == "1 draining"
    browser.run("document.querySelector('#trouble').click()")
    assert browser.run("document.querySelectorAll('.role tbody tr').length") == 1
    assert text(browser, ".role tbody th") == last.removeprefix("http://")
    r.kill(signal.SIGTERM)  # not looked at: to read /metrics of a thousand engines takes Python seconds
