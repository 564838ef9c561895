// The status page.  It reads one stream (status/events): `fleet` has the names of pools and engines, `now` the figures in
// their order, once a second.  Whatever comes from there is text, never markup: elements are made here, and texts are put
// into them by textContent.
"use strict";

const KEPT = 60; // samples of a sparkline, and of the histograms' minute
const ALONE = 12; // engines of a role that are shown without groups
const GROUPS = 30; // groups of a role that are shown at first
const ROWS = 100; // engines of a group that are shown at first
const LINES = 60; // flows that are drawn or listed
const CHANGES = 30;
const QUIET_MS = 5000; // without an event: the stream is lost
const WAIT_MS = 1000, WAIT_MOST_MS = 30000; // before the next try
const SVG = "http://www.w3.org/2000/svg";
// the worst last
const STATES = ["up", "starting", "draining", "slow", "busy", "ejected", "misconfigured", "down"];

const $ = (id) => document.getElementById(id);
const seen = { coming: null, fleet: null, now: null, samples: [], arrived: 0 };
const opened = new Set(); // keys of groups that show their engines, and of lists that show all
let pools = []; // what is on the screen

// --- elements ---

function el(tag, attributes, ...children) {
	const e = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes || {})) {
		e.setAttribute(name, value);
	}
	e.append(...children);
	return e;
}

function svg(tag, attributes) {
	const e = document.createElementNS(SVG, tag);
	for (const [name, value] of Object.entries(attributes)) {
		e.setAttribute(name, value);
	}
	return e;
}

function say(e, text) {
	const t = String(text);
	if (e.textContent !== t) {
		e.textContent = t;
	}
}

function mark(e, name, value) {
	if (e.getAttribute(name) !== String(value)) {
		e.setAttribute(name, value);
	}
}

function count(n) {
	return n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : n >= 1e4 ? `${(n / 1e3).toFixed(1)}k` : String(Math.round(n));
}

function plural(n, word) {
	return `${n} ${word}${n === 1 ? "" : "s"}`;
}

function time_of(us) {
	return us >= 1e6 ? `${us / 1e6} s` : `${us / 1e3} ms`;
}

function age_of(ms) {
	const s = Math.floor(ms / 1000);
	return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h`;
}

// --- the fleet: names become groups ---

function short(url) {
	return url.replace(/^https?:\/\//, "");
}

function host_of(url) {
	return short(url).replace(/\/.*$/, "").replace(/:\d+$/, "");
}

// Engines of a role in a pool: by their group, where they have one, else by their host.
function groups_of(engines) {
	const found = new Map();
	for (const e of engines) {
		const name = e.group || host_of(e.url);
		if (!found.has(name)) {
			found.set(name, []);
		}
		found.get(name).push(e);
	}
	return [...found].map(([name, members]) => ({ name, members }));
}

function take_fleet(fleet) {
	const before = new Map((seen.fleet ? seen.fleet.list : []).map((e) => [e.key, e]));
	seen.fleet = fleet;
	fleet.list = fleet.engines.map(([pool, role, url, group]) => {
		const key = JSON.stringify([fleet.pools[pool], role, url]);
		const old = before.get(key);
		return { pool, role, url, group, key, line: old ? old.line : [], state: old ? old.state : null };
	});
	seen.samples = []; // pools may have other numbers now
	say($("version"), fleet.version);
}

// --- the screen: one card for each pool ---

const HEADS = [["c-name", "Engine"], ["c-state", "State"], ["c-load", "In flight"], ["c-kv", "KV"], ["c-line", "Last minute"]];

function build_role(pool, role) {
	const title = role === "prefill" ? "Prefill" : "Decode";
	const sum = el("span");
	const table = el("table", {}, el("caption", { class: "hidden" }, `${title} engines of ${pool.name}`),
		el("thead", {}, el("tr", {}, ...HEADS.map(([c, text]) => el("th", { scope: "col", class: c }, text)))));
	const more = el("button", { type: "button", class: "more", hidden: "" });
	const none = el("p", { class: "empty", hidden: "" });
	const box = el("section", { class: "role", "data-role": role }, el("h3", {}, title, sum), table, none, more);
	const engines = seen.fleet.list.filter((e) => e.pool === pool.number && e.role === role);
	const key = JSON.stringify([pool.name, role]);
	more.addEventListener("click", () => {
		opened.add(key);
		draw();
	});
	return { role, box, sum, table, more, none, engines, key, groups: groups_of(engines), rows: new Map() };
}

function build_figure(title) {
	const text = el("span");
	const bars = el("div", { class: "bars", "aria-hidden": "true" });
	const bounds = seen.fleet.bounds_us;
	for (let i = 0; i <= bounds.length; i++) {
		bars.append(el("i"));
	}
	const axis = el("div", { class: "axis", "aria-hidden": "true" });
	for (const i of [0, Math.floor(bounds.length / 3), Math.floor(2 * bounds.length / 3), bounds.length - 1]) {
		axis.append(el("span", {}, time_of(bounds[i])));
	}
	return { text, bars, figure: el("figure", {}, el("figcaption", {}, el("b", {}, title), " ", text), bars, axis) };
}

function build_pool(name, number) {
	const pool = { name, number, sum: el("p"), id: `pool-${number}` };
	const heading = el("h2", { id: pool.id }, name);
	pool.roles = ["prefill", "decode"].map((role) => build_role(pool, role));
	pool.lines = svg("svg", { class: "flows", "aria-hidden": "true" });
	pool.list = el("ul");
	pool.details = el("details", opened.has(`flows ${name}`) ? { open: "" } : {}, el("summary", {}, "Flows as a list"), pool.list);
	pool.details.addEventListener("toggle", () => {
		if (pool.details.open) {
			opened.add(`flows ${name}`);
		} else {
			opened.delete(`flows ${name}`);
		}
		draw();
	});
	pool.ttft = build_figure("Time to the first token");
	pool.gap = build_figure("Between two events of a stream");
	pool.card = el("section", { class: "pool", "aria-labelledby": pool.id },
		el("div", { class: "pool-head" }, heading, pool.sum),
		el("div", { class: "roles" }, pool.lines, ...pool.roles.map((r) => r.box)),
		pool.details,
		el("div", { class: "figures" }, pool.ttft.figure, pool.gap.figure));
	return pool;
}

function build() {
	const at = document.activeElement ? document.activeElement.dataset.key : undefined;
	pools = seen.fleet.pools.map(build_pool);
	$("pools").replaceChildren($("no-pools"), ...pools.map((p) => p.card));
	$("no-pools").hidden = pools.length > 0;
	say($("no-pools"), "No pool is known yet: the router's configuration names none, or is being read.");
	draw();
	if (at !== undefined) { // what had the focus is there again
		const again = [...document.querySelectorAll("[data-key]")].find((e) => e.dataset.key === at);
		if (again) {
			again.focus({ preventScroll: true });
		}
	}
}

// --- rows ---

function new_row(name_cell, inner) {
	const row = { state: el("span", { class: "state" }), load: el("span"), fill: el("i"), kv: el("td", { class: "c-kv" }),
		line: svg("polyline", { points: "" }) };
	const spark = svg("svg", { class: "spark", viewBox: "0 0 60 20", preserveAspectRatio: "none", "aria-hidden": "true" });
	spark.append(row.line);
	row.tr = el("tr", inner ? { class: "inner" } : {}, name_cell, el("td", {}, row.state),
		el("td", {}, el("div", { class: "load" }, row.load, el("div", { class: "bar", "aria-hidden": "true" }, row.fill))),
		row.kv, el("td", { class: "c-line" }, spark));
	return row;
}

function engine_row(e, inner) {
	return new_row(el("th", { scope: "row", class: "name", title: e.url }, short(e.url)), inner);
}

function group_row(group, key) {
	const button = el("button", { type: "button", "aria-expanded": "false", "data-key": key }, group.name);
	const small = el("small");
	const row = new_row(el("th", { scope: "rowgroup", class: "name group" }, button, small), false);
	button.addEventListener("click", () => {
		if (!opened.delete(key)) {
			opened.add(key);
		}
		draw();
	});
	return Object.assign(row, { button, small });
}

function points_of(line, most) {
	const from = KEPT - line.length;
	return line.map((n, i) => `${from + i + 1},${(18.5 - 17 * n / most).toFixed(1)}`).join(" ");
}

function draw_row(row, what, most) {
	say(row.state, what.word);
	mark(row.state, "data-state", what.state);
	say(row.load, count(what.load));
	row.fill.style.width = `${Math.min(100, 100 * what.load / Math.max(1, most))}%`;
	say(row.kv, what.kv < 0 ? "–" : `${Math.round(what.kv / 10)}%`);
	mark(row.line, "points", points_of(what.line, Math.max(1, ...what.line)));
}

function worst(engines) {
	return engines.reduce((w, e) => (STATES.indexOf(e.state) > STATES.indexOf(w) ? e.state : w), "up");
}

function sum_line(engines) {
	const line = [];
	for (const e of engines) {
		for (let i = 1; i <= e.line.length; i++) {
			line[KEPT - i] = (line[KEPT - i] || 0) + e.line[e.line.length - i];
		}
	}
	return line.filter((n) => n !== undefined);
}

function whole(group) {
	const state = worst(group.members);
	const n = group.members.filter((e) => e.state === state).length;
	return { state, word: state === "up" ? "up" : `${n} ${state}`, load: group.members.reduce((s, e) => s + e.load, 0),
		kv: Math.max(...group.members.map((e) => e.kv)), line: sum_line(group.members) };
}

function wanted(e) {
	const text = $("find").value.trim().toLowerCase();
	return (!$("trouble").checked || e.state !== "up") &&
		(text === "" || e.url.toLowerCase().includes(text) || e.group.toLowerCase().includes(text) || e.state === text);
}

// The rows that are to be seen, each with the engines that it stands for.
function rows_of(role) {
	const rows = [];
	const chosen = role.engines.filter(wanted);
	if (chosen.length <= ALONE) {
		return chosen.map((e) => ({ key: e.key, engine: e, members: [e] }));
	}
	const all = groups_of(chosen).sort((a, b) => STATES.indexOf(worst(b.members)) - STATES.indexOf(worst(a.members)));
	const shown = opened.has(role.key) ? all : all.slice(0, GROUPS);
	for (const group of shown) {
		const key = JSON.stringify([role.key, group.name]);
		if (group.members.length === 1) {
			rows.push({ key: group.members[0].key, engine: group.members[0], members: group.members });
			continue;
		}
		const is_open = opened.has(key);
		rows.push({ key, group, members: is_open ? [] : group.members, is_open });
		if (is_open) {
			const inner = opened.has(role.key) ? group.members : group.members.slice(0, ROWS);
			rows.push(...inner.map((e) => ({ key: e.key, engine: e, inner: true, members: [e] })));
		}
	}
	rows.rest = all.length - shown.length;
	rows.clipped = shown.some((g) => opened.has(JSON.stringify([role.key, g.name])) && g.members.length > ROWS && !opened.has(role.key));
	return rows;
}

function place(role, list) {
	const used = new Map();
	const body = [];
	for (const r of list) {
		const name = `${r.inner ? "inner" : ""}${r.key}`;
		const row = role.rows.get(name) || (r.group ? group_row(r.group, r.key) : engine_row(r.engine, r.inner));
		used.set(name, row);
		if (r.group || !r.inner) {
			body.push([]);
		}
		body[body.length - 1].push(row.tr);
		r.row = row;
	}
	role.rows = used;
	const old = [...role.table.tBodies];
	const same = old.length === body.length && body.every((trs, i) => old[i].rows.length === trs.length && trs.every((tr, k) => old[i].rows[k] === tr));
	if (same) {
		return;
	}
	const focus = document.activeElement;
	old.forEach((b) => b.remove());
	role.table.append(...body.map((trs) => el("tbody", {}, ...trs)));
	if (focus && focus !== document.activeElement && role.table.contains(focus)) {
		focus.focus({ preventScroll: true });
	}
}

function draw_role(role) {
	const list = rows_of(role);
	const most = Math.max(1, ...role.engines.map((e) => e.load));
	place(role, list);
	for (const r of list) {
		if (r.group) {
			const up = r.group.members.filter((e) => e.state === "up").length;
			mark(r.row.button, "aria-expanded", r.is_open);
			say(r.row.small, `${up} of ${plural(r.group.members.length, "engine")} up`);
			draw_row(r.row, whole(r.group), most * r.group.members.length);
		} else {
			draw_row(r.row, { ...r.engine, word: r.engine.state }, most);
		}
	}
	const up = role.engines.filter((e) => e.state === "up").length;
	say(role.sum, `${up} of ${role.engines.length} up · ${count(role.engines.reduce((s, e) => s + e.load, 0))} in flight`);
	role.table.hidden = list.length === 0;
	role.none.hidden = list.length > 0;
	say(role.none, role.engines.length === 0 ? "No engine of this role." : "No engine fits the search.");
	role.more.hidden = !(list.rest > 0 || list.clipped);
	say(role.more, list.rest > 0 ? `Show ${list.rest} more groups` : "Show all engines of open groups");
	return list;
}

// --- flows ---

// Requests in flight, from the row of one engine to the row of the other.
function flows_between(lists) {
	const at = lists.map((list) => new Map(list.flatMap((r) => r.members.map((e) => [e, r]))));
	const found = new Map();
	for (const [p, d, n] of seen.now.flows) {
		const from = at[0].get(seen.fleet.list[p]), to = at[1].get(seen.fleet.list[d]);
		if (!from || !to) {
			continue;
		}
		const key = `${from.key}\n${to.key}`;
		const f = found.get(key) || { from, to, n: 0 };
		f.n += n;
		found.set(key, f);
	}
	return [...found.values()].sort((a, b) => b.n - a.n).slice(0, LINES);
}

function name_of(r) {
	return r.group ? r.group.name : short(r.engine.url);
}

function draw_flows(pool, lists) {
	const flows = flows_between(lists);
	const box = pool.lines.getBoundingClientRect();
	const tables = pool.roles.map((r) => r.table.getBoundingClientRect());
	const paths = box.width === 0 ? [] : flows.map((f) => { // no width: a narrow screen shows none
		const a = f.from.row.tr.getBoundingClientRect(), b = f.to.row.tr.getBoundingClientRect();
		const x1 = tables[0].right - box.left + 4, x2 = tables[1].left - box.left - 8;
		const y1 = (a.top + a.bottom) / 2 - box.top, y2 = (b.top + b.bottom) / 2 - box.top, mid = (x1 + x2) / 2;
		return [`M${x1},${y1}C${mid},${y1} ${mid},${y2} ${x2},${y2}`, Math.min(8, 1 + Math.log2(f.n))];
	});
	while (pool.lines.childElementCount > paths.length) {
		pool.lines.lastChild.remove();
	}
	paths.forEach(([d, width], i) => {
		const path = pool.lines.children[i] || pool.lines.appendChild(svg("path", {}));
		mark(path, "d", d);
		mark(path, "stroke-width", width.toFixed(1));
	});
	pool.details.hidden = flows.length === 0;
	if (pool.details.open) {
		pool.list.replaceChildren(...flows.map((f) => el("li", {}, `${name_of(f.from)} → ${name_of(f.to)}: ${plural(f.n, "request")}`)));
	}
}

// --- figures of a pool ---

function sum_of(counts) {
	return counts.reduce((a, b) => a + b, 0);
}

// The bound below which that part of all is.
function quantile(counts, part) {
	const bounds = seen.fleet.bounds_us;
	let left = part * sum_of(counts);
	for (let i = 0; i < bounds.length; i++) {
		left -= counts[i];
		if (left <= 0) {
			return `≤ ${time_of(bounds[i])}`;
		}
	}
	return `> ${time_of(bounds[bounds.length - 1])}`;
}

function draw_figure(f, name, pool) {
	const now = seen.now.pools[pool.number][name];
	const first = seen.samples[0];
	const diff = now.map((n, i) => Math.max(0, n - first.pools[pool.number][name][i]));
	const lately = sum_of(diff) > 0;
	const counts = lately ? diff : now;
	const total = sum_of(counts), most = Math.max(1, ...counts);
	[...f.bars.children].forEach((bar, i) => {
		bar.style.height = counts[i] > 0 ? `${Math.max(4, 100 * counts[i] / most)}%` : "0";
	});
	say(f.text, total === 0 ? "none yet" :
		`half ${quantile(counts, 0.5)}, 99% ${quantile(counts, 0.99)} · ${count(total)} ${lately ? "in the last minute" : "since the start"}`);
}

function rate(get) {
	const last = seen.samples[seen.samples.length - 1];
	const from = seen.samples[Math.max(0, seen.samples.length - 11)];
	const s = (last.at_ms - from.at_ms) / 1000;
	return s > 0 ? Math.max(0, get(last) - get(from)) / s : 0;
}

function draw_pool(pool) {
	const p = seen.now.pools[pool.number];
	const lists = pool.roles.map(draw_role);
	const tokens = rate((s) => s.pools[pool.number].tokens); // 0: none has ended, or its engine does not say
	say(pool.sum, `${plural(p.waiting, "request")} queued${tokens > 0 ? ` · ${count(tokens)} tokens/s in finished answers` : ""}`);
	draw_figure(pool.ttft, "ttft", pool);
	draw_figure(pool.gap, "gap", pool);
	return () => draw_flows(pool, lists);
}

// --- failures and changes ---

// Headings of the runbook.
function section_of(f) {
	if (f.status === 429) {
		return "429";
	}
	if (f.reason === "shutdown") {
		return "Reload and upgrade";
	}
	return f.status === 503 ? "503" : /timeout/.test(f.reason) ? "Slow" : "Errors and broken streams";
}

function engine_name(row) {
	return row >= 0 && seen.fleet.list[row] ? short(seen.fleet.list[row].url) : "";
}

// Requests that failed alike are one row, with the newest of them.
function grouped(failures) {
	const groups = new Map();
	for (const f of failures) {
		const key = JSON.stringify([f.reason, f.status, f.model, f.prefill, f.decode]);
		const group = groups.get(key) ?? { ...f, n: 0 };
		group.n++;
		groups.set(key, group);
	}
	return [...groups.values()];
}

function draw_failures() {
	const rows = grouped(seen.now.failures).map((f) => {
		const engines = [f.prefill, f.decode].map(engine_name).filter((n) => n !== "").join(" → ");
		const section = section_of(f);
		const link = el("a", { href: `status/runbook#:~:text=${encodeURIComponent(`## ${section}`)}`, target: "_blank", rel: "noopener" }, section);
		const cells = [`${age_of(f.age_ms)} ago`, el("span", {}, el("code", {}, f.reason), f.n > 1 ? ` × ${f.n}` : ""), f.status || "none", f.model || "–", engines || "–",
			el("span", { class: "name" }, f.id), link];
		return el("tr", { role: "row" }, ...cells.map((c) => el("td", { role: "cell" }, c, " ")));
	});
	const body = $("failures").tBodies[0];
	const same = rows.length === body.rows.length && rows.every((tr, i) => [...tr.cells].slice(1).every((c, k) => c.textContent === body.rows[i].cells[k + 1].textContent));
	$("no-failures").hidden = rows.length > 0;
	$("failures-box").hidden = rows.length === 0;
	if (same) { // the reader's selection and focus stay
		rows.forEach((tr, i) => say(body.rows[i].cells[0], tr.cells[0].textContent));
	} else {
		body.replaceChildren(...rows);
	}
}

function note_changes(changed) {
	if (changed.length === 0) {
		return;
	}
	const at = new Date().toLocaleTimeString();
	for (const e of changed.slice(0, CHANGES)) {
		$("changes").prepend(el("li", {}, el("time", {}, at), `${e.role} ${short(e.url)}: ${e.state}, was ${e.before}`));
	}
	while ($("changes").childElementCount > CHANGES) {
		$("changes").lastChild.remove();
	}
	$("no-changes").hidden = true;
	const first = changed.slice(0, 3).map((e) => `${e.role} engine ${short(e.url)} is ${e.state}`);
	say($("say"), first.join(", ") + (changed.length > 3 ? `, and ${changed.length - 3} more have changed` : ""));
}

// --- once a second ---

function take_now(now) {
	const changed = [];
	const fresh = seen.coming !== null;
	if (fresh) { // names are shown with their first figures
		take_fleet(seen.coming);
		seen.coming = null;
	}
	now.engines.forEach(([state, load, running, waiting, kv, requests, failed], i) => {
		const e = seen.fleet.list[i];
		if (e.state !== null && e.state !== state) {
			changed.push({ role: e.role, url: e.url, state, before: e.state });
		}
		Object.assign(e, { state, load, running, waiting, kv, requests, failed });
		e.line.push(load);
		if (e.line.length > KEPT) {
			e.line.shift();
		}
	});
	seen.now = now;
	seen.samples.push({ at_ms: now.at_ms, events: now.events, pools: now.pools, failed: sum_of(now.engines.map((r) => r[6])) });
	if (seen.samples.length > KEPT) {
		seen.samples.shift();
	}
	seen.arrived = Date.now();
	note_changes(changed);
	if (fresh) {
		build();
	} else {
		draw();
	}
}

function draw_totals() {
	const engines = seen.fleet.list;
	const up = engines.filter((e) => e.state === "up").length;
	say($("t-up"), `${up} / ${engines.length}`);
	document.title = up === engines.length ? "pdrouter" : `(${engines.length - up}) pdrouter`;
	say($("t-flight"), count(seen.now.in_flight));
	say($("t-queue"), count(sum_of(seen.now.pools.map((p) => p.waiting))));
	say($("t-events"), count(rate((s) => s.events)));
	const n = seen.now.failures.filter((f) => f.age_ms < 60000).length;
	say($("t-failures"), n >= 20 ? "20+" : n);
}

function draw() {
	if (!seen.now || document.hidden) {
		return;
	}
	draw_totals();
	const flows = pools.map(draw_pool); // first all that moves rows, then what is drawn between them
	draw_failures();
	flows.forEach((f) => f());
}

// --- the stream ---

let tries = 0, timer = 0, abort = null;

function link(state, text) {
	mark($("link"), "data-state", state);
	say($("link-text"), text);
}

function lost(why) {
	const wait = Math.min(WAIT_MOST_MS, WAIT_MS * 2 ** tries) * (0.75 + Math.random() / 2);
	const until = Date.now() + wait;
	tries++;
	link("lost", "no figures");
	$("lost").hidden = false;
	const old = seen.arrived ? ` What is shown is as it was at ${new Date(seen.arrived).toLocaleTimeString()}.` : "";
	say($("lost-text"), `${why}${old} The next try follows in ${Math.max(1, Math.round((until - Date.now()) / 1000))} s.`);
	clearTimeout(timer);
	timer = setTimeout(connect, wait);
}

function refusal(status) {
	if (status === 401) {
		return "The router does not take this key any more: load the page again to give another one.";
	}
	return status === 503 ? "As many pages as may view this router now." : `The router answered with status ${status}.`;
}

function take_event(text) {
	const [kind, data] = text.split("\n"); // at line feeds alone: names may have what a pattern takes for an end of line
	if (!data || !data.startsWith("data: ")) {
		return; // a comment
	}
	const value = JSON.parse(data.slice(6));
	if (kind === "event: fleet") {
		seen.coming = value;
	} else if (kind === "event: now") {
		tries = 0;
		link("live", "live");
		$("lost").hidden = true;
		take_now(value);
	}
}

async function read(body, alive) {
	const reader = body.pipeThrough(new TextDecoderStream()).getReader();
	let pending = "";
	for (;;) {
		const { value, done } = await reader.read();
		if (done) {
			return;
		}
		alive();
		pending += value;
		for (let end; (end = pending.indexOf("\n\n")) >= 0; pending = pending.slice(end + 2)) {
			take_event(pending.slice(0, end));
		}
	}
}

function leave() {
	const was = abort;
	abort = null;
	clearTimeout(timer);
	if (was) {
		was.abort();
	}
}

async function connect() {
	const mine = new AbortController();
	let quiet = 0;
	const alive = () => {
		clearTimeout(quiet);
		quiet = setTimeout(() => mine.abort(), QUIET_MS);
	};
	leave();
	abort = mine;
	alive();
	try {
		// where the page is, without a name and key that its address may have: fetch() takes none
		const answer = await fetch(new URL("status/events", location.origin + location.pathname), { signal: mine.signal, cache: "no-store", headers: { Accept: "text/event-stream" } });
		if (!answer.ok) {
			throw new Error(refusal(answer.status));
		}
		await read(answer.body, alive);
		throw new Error("The router has ended the stream.");
	} catch (e) {
		if (abort === mine) { // else the next try runs already
			lost(e instanceof TypeError || e.name === "AbortError" ? "The router does not answer." : e.message);
		}
	} finally {
		clearTimeout(quiet);
	}
}

$("retry").addEventListener("click", () => {
	tries = 0;
	link("wait", "connecting");
	connect();
});
$("filter").addEventListener("submit", (e) => e.preventDefault());
$("find").addEventListener("input", draw);
$("trouble").addEventListener("change", draw);
document.addEventListener("visibilitychange", draw);
window.addEventListener("resize", draw);
window.addEventListener("pagehide", leave); // the place of a viewer is another one's
window.addEventListener("pageshow", (e) => e.persisted && connect());
document.addEventListener("keydown", (e) => {
	if (e.key === "/" && !e.ctrlKey && !e.metaKey && !e.altKey && e.target !== $("find")) {
		e.preventDefault();
		$("find").focus();
	} else if (e.key === "Escape" && e.target === $("find")) {
		$("find").value = "";
		draw();
	}
});
connect();
