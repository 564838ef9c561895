"""When the storm is over: is everything as it was?"""
import asyncio
import json
import os
import re
import time
from collections import Counter

from fleet import fds, private_kib
from procs import BAD_WORDS, metric_sum, parse_metrics

AT_REST = 20  # seconds until everything must be back; no engine's own timeout ends in that time
VIOLATIONS = ("duplicate_request_ids", "request_id_mismatch", "prefill_violations", "role_violations", "rooms_missing", "rooms_invalid",
              "rooms_shared", "duplicate_rooms", "rank_mismatch", "kv_foreign", "kv_replayed", "kv_expired", "spec_violations", "bad_requests",
              "controlled", "unauthorized")
AT_ZERO = ("endpoint_in_flight", "endpoint_kv_outstanding", "endpoint_inflight", "kv_flags_armed", "endpoint_prefill_tokens", "endpoint_reserved_tokens", "queue_waiting",
           "queue_length", "queued_requests", "client_inflight", "clients_in_flight", "send_queue_bytes", "endpoints_draining", "request_buffer_bytes", "old_instances")
NOTIFYING = 2  # sockets by which a prefill engine of LMCache notifies, one a rank
REPAIRED = re.compile("had impossible values|invariant broken")  # what stray stores lead to
EXPECTED = re.compile("configuration|reload")  # errors of the log that are of our making
UNNAMED = {("lmcache", "decode"), ("p2p_nccl", "decode"), ("mooncake", "prefill")}
CLEANUP = 10  # seconds a worker may need to have blocks freed
AFTER_SECONDS, AFTER_RATE = 3, 40  # of load before everybody must be back, and again to see it
GROWTH_KIB = 4096  # of a worker over the run, beyond which it must not grow with time


class Oracle:
    def __init__(self, fleet, clients, storm, clock):
        self.fleet, self.clients, self.storm, self.clock = fleet, clients, storm, clock
        self.fds, self.engine_fds, self.rss, self.bad = {}, {}, [], []
        self.described = {}  # {kind: what the descriptors were at the beginning}

    async def begin(self):
        for _ in range(30):  # the master's probes come and go
            for kind, pids in (await self.fleet.processes()).items():
                self.fds[kind] = max(self.fds.get(kind, 0), *(fds(p) for p in pids))
                self.described[kind] = self.describe(pids[0])
            await asyncio.sleep(0.05)
        self.engine_fds = {e.name: fds(e.p.pid) for e in self.fleet.engines}

    async def watch(self, until):
        """Memory of each process of the router, every few seconds."""
        while self.clock() < until:
            await asyncio.sleep(2)
            for kind, pids in (await self.fleet.processes()).items():
                for pid in pids:
                    try:
                        self.rss.append((self.clock(), kind, pid, private_kib(pid)))
                    except (OSError, AttributeError):
                        pass

    def wrong(self, what, *evidence):
        self.bad.append({"oracle": what, "evidence": evidence})

    async def until(self, what, look):
        """look() says what is left over, and nothing at last."""
        end, left = self.clock() + AT_REST, None
        while self.clock() < end:
            try:
                left = await look()
            except (OSError, asyncio.TimeoutError, AssertionError) as e:
                left = repr(e)
            if not left:
                return
            await asyncio.sleep(0.1)
        self.wrong(what, left)

    async def router_metrics(self):
        from fleet import ask
        return parse_metrics((await ask(self.fleet.router.address, "GET", "/metrics")).decode())

    async def in_flight(self):
        rows = await self.router_metrics()
        left = {n: metric_sum(rows, "pdrouter_" + n, {}) for n in AT_ZERO}
        left["requests_in_flight"] = metric_sum(rows, "pdrouter_requests_in_flight", {}) - 1  # this very request
        return {k: v for k, v in left.items() if v}

    # --- held blocks ---
    def ends(self):
        """{client's id: [the router's lines about it]}"""
        out = {}
        with open(self.fleet.router.log_path, errors="replace") as f:
            for line in f:
                if '"req":"c' in line:
                    obj = json.loads(line)
                    out.setdefault(obj["req"], []).append(obj)
        return out

    async def left_at_engines(self):
        """What engines hold and run.  Blocks of a request whose worker was killed are for the engine's timeout: the only one who knew their
        names is dead.  Such a request has no line in the log, its worker would have written one."""
        left, orphans, unread, unreachable, in_vain, off, waiting, ends = [], 0, 0, 0, 0, 0, 0, None
        for e in self.fleet.engines:
            asked = self.clock()  # what follows may take seconds
            here = json.loads(await e.ask("GET", "/sim/held"))
            for h in here["held"]:
                h["born"] = asked - h["age_ms"] / 1000
            rooms = (await e.metrics())["pdsim:open_rooms"]
            unreachable += sum(h["unreachable"] for h in here["held"])
            here["held"] = [h for h in here["held"] if not h["unreachable"]]
            if here["held"]:
                ends = ends or self.ends()
                mine = [h for h in here["held"] if not self.orphan(h, ends)]
                orphans += len(here["held"]) - len(mine)
                here["held"] = [h for h in mine if not self.left_with_the_failing(e, h, ends)]
                unread += len(mine) - len(here["held"])
                kept, left_to_lease = self.left_to_lease(), len(here["held"])
                here["held"] = [h for h in here["held"] if h["request_id"] not in kept]
                in_vain += left_to_lease - len(here["held"])
                mine, here["held"] = here["held"], [h for h in here["held"] if not self.of_a_host_that_was_off(e, h, ends)]
                off += len(mine) - len(here["held"])
            running, here["running"] = here["running"], [g for g in here["running"] if not self.unaware(e, g)]
            waiting += len(running) - len(here["running"])
            rooms = max(0, rooms - len(running) + len(here["running"]))
            if here["held"] or here["running"] or rooms:
                left.append({"engine": e.name, "held": len(here["held"]), "running": here["running"][:5], "open_rooms": rooms,
                             "whose": self.by_end(here["held"], ends)})
        self.orphans, self.unread, self.unreachable, self.in_vain, self.off, self.waiting = orphans, unread, unreachable, in_vain, off, waiting
        return left

    def left_to_lease(self):
        """Ids of attempts whose KV was named to engines that failed, or that answered for another: the router says so when it gives up."""
        with open(self.fleet.router.log_path, errors="replace") as f:
            return {json.loads(line)["attempt"] for line in f if '"KV not released: the engine frees it when its lease ends"' in line}

    def by_end(self, held, ends):
        """Held blocks by how their requests ended: {end: [how many, one of them, its line]}"""
        found = {}
        for h in held:
            lines = ends.get(self.client_id(h), [{}])
            key = " ".join(str(lines[-1].get(k)) for k in ("reason", "states", "tries", "rescued"))
            found.setdefault(key, [0, h, lines])[0] += 1
        return found

    @staticmethod
    def client_id(held):
        m = re.match(r"(c\d+-\d+)", held["request_id"])
        return m and m[1]

    def left_with_the_failing(self, engine, held, ends):
        """Where no word of a router frees KV: what was pushed is in the decode engine's own store and ends there by being read (LMCache, P2pNccl),
        or with the prefill engine until it is pulled (Mooncake).  A decode engine that fails when it should read leaves it, and so does one that
        was sent a part of it when prefill was given up."""
        if (engine.pool, engine.role) not in UNNAMED:
            return False
        born, sides = held["born"], {e.name for e in self.fleet.engines if e.pool == engine.pool}
        unread = any(born - CLEANUP <= at <= born + CLEANUP and sides & set(who) for at, _, *who in self.storm.log)
        given_up = {line.get("reason") for line in ends.get(self.client_id(held), [])} & {"client_gone", "request_timeout"}
        return unread or bool(given_up)

    def host_was_off(self, engine, born):
        """... or its packets were lost, while what came at that time was under way.  A packet is sent again after as long a time as passed
        since it was first sent: it may come when the host has been back for as long as it was off."""
        return engine.ns is not None and any(at - CLEANUP <= born <= at + 2 * float(whom[0].split()[0]) + 1 for at, what, *whom in self.storm.log
                                             if what == "host vanished" or what.startswith(self.fleet.wire.kind + " "))

    def unaware(self, engine, running):
        """The host was off when the router closed the connection and sent /abort_request: the engine learned of neither.  It waits for the other
        engine (SGLang) or is stalled (a fault), writes nothing, and learns nothing until its own timeout."""
        born = self.clock() - (time.time() - running["created"])
        return (running["stalled"] or running["state"] in ("travel", "rest")) and self.host_was_off(engine, born)

    def of_a_host_that_was_off(self, engine, held, ends):
        """The prefill engine's answer was lost with its host: only that answer named the blocks.  The router has given that attempt up."""
        off = self.host_was_off(engine, held["born"])
        return off and engine.role == "prefill" and any(
            line["msg"] == "attempt failed" and line["role"] == "prefill" and line["attempt"] in held["request_id"]
            for line in ends.get(self.client_id(held), []))

    def orphan(self, held, ends):
        client = self.client_id(held)
        if client is None or not self.storm.killed:
            return False
        ended = [line for line in ends.get(client, []) if line["msg"] == "request"]
        if not ended:
            return True
        # its client had its end, and what was to free the KV of a failed attempt, or for one that had gone, died with a worker
        born, last = held["born"], ended[-1]
        failed = last["reason"] != "ok" or last["attempt"] not in held["request_id"]
        within = CLEANUP + self.storm.longest_shed()  # engines without room are not asked to free blocks
        return any(born <= at <= born + within for at in self.storm.killed.values()) and (failed or client in self.clients.gone)

    async def recovered(self):
        """Fair weather again: nobody is left out, and nobody gets an error."""
        self.clients.calm = True
        await self.clients.run(AFTER_RATE, self.clock() + AFTER_SECONDS)
        await self.clients.settle()
        self.clients.calm_outcomes.clear()
        await self.clients.run(AFTER_RATE, self.clock() + AFTER_SECONDS)
        await self.clients.settle()
        if set(self.clients.calm_outcomes) != {"ok"}:
            self.wrong("not all is well after the storm", dict(self.clients.calm_outcomes), dict(self.clients.errors))
        rows = await self.router_metrics()
        if out := metric_sum(rows, "pdrouter_endpoint_ejected", {}):
            self.wrong("engines that are well are still ejected", out)

    # --- all of it ---
    async def end(self):
        await self.until("something is in flight, reserved, armed or queued", self.in_flight)
        await self.until("engines hold blocks, run requests or have open rooms", self.left_at_engines)
        await self.violations()
        await self.check_segment()
        await self.until("file descriptors are not back", self.more_fds)
        self.memory()
        self.crashes()
        for one in self.storm.wrong:
            self.wrong(*one)
        for one in self.clients.bad:
            self.bad.append(self.with_lines(one))

    async def violations(self):
        found, ids, ends = Counter(), [], self.ends()
        for e in self.fleet.engines:
            m, twice = await e.metrics(), json.loads(await e.ask("GET", "/sim/held"))["twice"]
            for name in VIOLATIONS:
                n = int(m.get(f"pdsim:{name}_total") or 0)
                if n and not (name == "kv_replayed" and n >= len(twice) > 0 and all(self.fetched_late(e, x, ends) for x in twice)):
                    found[f"{e.name} {name}"] += n
            ids += twice
        if found:
            lines = {x: ends.get(m[1]) for x in ids if (m := re.search(r"(c\d+-\d+)", x))}
            self.wrong("engines were asked what they may not be asked", dict(found), lines)

    def fetched_late(self, engine, kv, ends):
        """A fetch waits for a host that is off, at either end.  When the host is back the router has given the attempt up, and had its
        blocks freed."""
        m = re.search(r"(c\d+-\d+)-[0-9a-f]{16}", kv)
        lines = [x for x in ends.get(m[1], []) if x["attempt"] in kv] if m else []
        urls = {x.get(k) for x in lines for k in ("url", "prefill", "decode")}
        either = {engine.name} | {e.name for e in self.fleet.engines if e.url in urls}
        off = any(what == "host vanished" and either & set(whom) for _, what, *whom in self.storm.log)
        return off and any(x["msg"] == "attempt failed" or x["reason"] != "ok" for x in lines)

    async def check_segment(self):
        async def broken():
            code, out = await self.fleet.ctl("check")
            return None if (code, out) == (0, "ok\n") else out
        if self.storm.counts["scribble"]:
            await self.until("shared memory", broken)  # a check that finds something makes the master look everywhere
        elif out := await broken():
            self.wrong("shared memory", out)

    async def more_fds(self):
        left, most = {}, dict(self.fds)
        most["notifier"] = most.get("notifier", 0) + NOTIFYING * len(self.fleet.of("lmcache", "prefill"))  # each connects with its first notice
        for kind, pids in (await self.fleet.processes()).items():
            for pid in pids:
                if fds(pid) > most[kind]:
                    left[f"{kind} {pid}"] = f"{fds(pid)} > {most[kind]}: {self.describe(pid)}; before: {self.described.get(kind)}"
        for e in self.fleet.engines:
            if fds(e.p.pid) > self.engine_fds.setdefault(e.name, fds(e.p.pid)) + 20:  # idle connections of probes come and go
                left[e.name] = f"{fds(e.p.pid)} > {self.engine_fds[e.name]}"
        return left

    @staticmethod
    def describe(pid):
        kinds = Counter()
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                kinds[re.sub(r"\d+", "N", os.readlink(f"/proc/{pid}/fd/{fd}"))] += 1
            except OSError:
                pass
        return str(dict(kinds))

    def slopes(self):
        """KiB per minute of the second half of each long life, by least squares: [(kind, pid, slope, first, last)]"""
        lives, out = {}, []
        for at, kind, pid, kib in self.rss:
            lives.setdefault((kind, pid), []).append((at, kib))
        for (kind, pid), points in lives.items():
            late = points[len(points) // 2:]
            if len(late) < 8:
                continue
            n, sx, sy = len(late), sum(x for x, _ in late), sum(y for _, y in late)
            sxx, sxy = sum(x * x for x, _ in late), sum(x * y for x, y in late)
            slope = (n * sxy - sx * sy) / max(n * sxx - sx * sx, 1e-9) * 60
            out.append((kind, pid, round(slope), points[0][1], points[-1][1], round(late[-1][0] - late[0][0])))
        return out

    def memory(self):
        for kind, pid, slope, first, last, seconds in self.slopes():
            if seconds >= 60 and slope * seconds / 60 > GROWTH_KIB:
                self.wrong("memory grows", f"{kind} {pid}: {slope} KiB a minute over {seconds} s, from {first} to {last} KiB")

    def crashes(self):
        log = self.fleet.router.log_path.read_text(errors="replace")
        for line in log.splitlines():
            if (found := BAD_WORDS.search(line)) and not (self.storm.counts["scribble"] and REPAIRED.fullmatch(found[0])):
                self.wrong("the router's log", line)
        for p in self.fleet.world.dir.glob("*.log"):
            text = p.read_text(errors="replace")
            if p != self.fleet.router.log_path and text.strip():
                self.wrong("an engine's log", p.name, text[:300])
        died = [json.loads(x) for x in log.splitlines() if '"level":"error"' in x]
        for line in died:
            if line.get("pid") not in self.storm.dead and not EXPECTED.search(line["msg"] + line.get("error", "")):
                self.wrong("the router's log has an error", line)

    def with_lines(self, one):
        """A client's complaint with what the router wrote about it."""
        with open(self.fleet.router.log_path, errors="replace") as f:
            lines = [x.strip() for x in f if f'"{one["req"]}"' in x]
        near = [x for x in self.storm.log if one["at"] - 8 <= x[0] <= one["at"] + 0.1]
        return {"oracle": "a client got what it must not get", **one, "lines": lines[-5:], "steps before": near[-12:]}
