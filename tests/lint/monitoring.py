#!/usr/bin/env python3
"""etc/monitoring against the router: promtool takes its rules, the dashboard's expressions and the queries of etc/docs; Grafana's
schema takes the dashboard; each alert fires when what it speaks of happens, and on a healthy router none does; every metric and end reason named there exists,
and every metric of etc/docs; each alert names a section of the runbook.

Usage: monitoring.py; promtool comes with the package prometheus (tests/tools/deps.sh test).
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

import json_schema

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ALERTS = "etc/monitoring/alerts.yaml"
DASHBOARD = "etc/monitoring/dashboard.json"
SCRAPE = "etc/monitoring/prometheus.yml"
RUNBOOK = "etc/docs/runbook.md"
SCHEMA = "tests/lint/grafana_schema.json"
QUERIES = ["etc/docs/observing.md", "etc/docs/capacity.md"]
STEP, END = "15s", "20m"
SLOWLY = {"PdrouterNoEngineYet": ("1m", "75m"), "PdrouterEngineNotUpYet": ("1m", "75m")}  # alerts that wait longer than 20 minutes
SUFFIXES = r"(_bucket|_sum|_count)$"  # of a histogram's series
REQUESTS = "pdrouter_requests_total"
ENGINE = '{engine="http://p",role="prefill",pool="a"}'


def caused(cause):
    """Labels of the failures of ENGINE."""
    return ENGINE[:-1] + f",cause={json.dumps(cause)}" + "}"


def up(values):
    return {f"pdrouter_endpoint_up{ENGINE}": values}


def objective(metric, bound, within):
    """Of 150 requests, or gaps, so many are within the bound."""
    return {f'{metric}_bucket{{pool="a",le="{bound}"}}': f"0+{within}x80", f'{metric}_count{{pool="a"}}': "0+150x80"}


# a router that does 10 requests a second and has nothing to complain of
HEALTHY = {
    'up{job="pdrouter"}': "1x80",
    f'{REQUESTS}{{pool="a",path="/v1/completions",status="200",reason="ok"}}': "0+150x80",
    f'{REQUESTS}{{pool="a",path="/v1/completions",status="200",reason="client_gone"}}': "0+2x80",
    f'{REQUESTS}{{pool="a",path="/v1/completions",status="400",reason="engine_status"}}': "0+9x80",
    f'{REQUESTS}{{pool="",path="other",status="200",reason="local"}}': "0+1x80",
    **up("1x80"),
    'pdrouter_endpoint_up{engine="http://d",role="decode",pool="a"}': "1x80",
    'pdrouter_endpoint_up{engine="http://e",role="decode",pool="a"}': "0x80",  # its operator has drained it
    'pdrouter_endpoint_state{engine="http://e",role="decode",pool="a",state="draining"}': "1x80",
    **objective("pdrouter_time_to_first_token_seconds", "5.0", 149),  # of 150
    **objective("pdrouter_event_gap_seconds", "0.2", 149),
    f"pdrouter_endpoint_ejected{ENGINE}": "0x80",
    f"pdrouter_ejections_total{ENGINE}": "5x80",
    f"pdrouter_endpoint_slow{ENGINE}": "0x80",
    f"pdrouter_endpoint_load_absurd{ENGINE}": "0x80",
    f"pdrouter_endpoint_connect_seconds_count{ENGINE}": "0+20x80",
    f"pdrouter_endpoint_connect_seconds_bucket{ENGINE[:-1]},le=\"0.25\"}}": "0+19x80",
    "pdrouter_attempts_failed_total": "0+1x80",
    "pdrouter_retry_budget_spent_total": "7x80",
    "pdrouter_fallback_budget_spent_total": "7x80",
    'pdrouter_rescued_total{by="retry"}': "0+1x80",
    'pdrouter_rescued_total{by="fallback"}': "3x80",
    "pdrouter_clients_uncounted_total": "4x80",
    f"pdrouter_endpoint_requests_total{ENGINE}": "0+150x80",
    **{f"pdrouter_endpoint_failures_total{caused(cause)}": "0+1x80" for cause in ("refused", "reset", "timeout", "5xx", "4xx", "bad_answer", "kv_missing", "busy")},
    f"pdrouter_endpoint_failures_total{caused('kv_unusable')}": "3x80",
    'pdrouter_kv_failures_total{at_fault="neither"}': "0x40 3x40",  # an engine has restarted
    "pdrouter_kv_ready_timeouts_total": "2x80",
    "pdrouter_worker_restarts_total": "1x80",
    "pdrouter_notifier_restarts_total": "0x80",
    "pdrouter_siblings_silent": "0x30 1x8 0x42",  # another router was restarted
    "pdrouter_exporter_restarts_total": "0x80",
    'pdrouter_sandbox{process="worker"}': "1x80",
    "pdrouter_reloads_failed_total": "1x80",
    "pdrouter_upgrades_failed_total": "1x40 0x40",  # the next upgrade went well; a new instance counts from 0
    "pdrouter_log_lines_dropped_total": "3x80",
    "pdrouter_state_file_failures_total": "1x80",
    "pdrouter_out_of_memory_total": "2x80",
}
# what is different when an alert should fire, within the 20 minutes that are looked at
FAILING = {
    "PdrouterDown": {'up{job="pdrouter"}': "0x80"},
    "PdrouterNoEngine": up("1x10 0x70"),
    "PdrouterNoEngineYet": up("0x80"),
    "PdrouterCertificateExpires": {'pdrouter_tls_certificate_expiry_seconds{certificate="c"}': "1000000x80"},
    "PdrouterErrors": {f'{REQUESTS}{{pool="a",path="/v1/completions",status="502",reason="decode_broken"}}': "0+5x80"},
    "PdrouterStreamsCut": {f'{REQUESTS}{{pool="a",path="/v1/completions",status="200",reason="decode_broken"}}': "0+2x80"},
    "PdrouterRefusing": {f'{REQUESTS}{{pool="a",path="/v1/completions",status="429",reason="queue_full"}}': "0+3x80"},
    "PdrouterOverloaded": {f'{REQUESTS}{{pool="",path="/v1/completions",status="503",reason="overloaded"}}': "0+1x80"},
    "PdrouterEngineDown": up("1x10 0x70"),
    "PdrouterEngineNotUpYet": up("0x80"),
    "PdrouterEngineMisconfigured": {f"pdrouter_endpoint_state{ENGINE[:-1]},state=\"misconfigured\"}}": "1x80"},
    "PdrouterEngineEjected": {f"pdrouter_endpoint_ejected{ENGINE}": "1x80"},
    "PdrouterEngineLoadAbsurd": {f"pdrouter_endpoint_load_absurd{ENGINE}": "1x80"},
    "PdrouterEngineSlow": {f"pdrouter_endpoint_slow{ENGINE}": "1x80"},
    "PdrouterEngineConnectSlow": {f"pdrouter_endpoint_connect_seconds_bucket{ENGINE[:-1]},le=\"0.25\"}}": "0+17x80"},
    "PdrouterLoadUnknown": {"pdrouter_scrapes_failed_total": "0+15x80"},
    "PdrouterEngineFlaps": {f"pdrouter_ejections_total{ENGINE}": "0x10 1x10 2x10 3x10 4x10 5x40"},
    "PdrouterAttemptsFail": {"pdrouter_attempts_failed_total": "0+20x80"},
    "PdrouterRetryBudgetSpent": {"pdrouter_retry_budget_spent_total": "0+1x80"},
    "PdrouterFallbackBudgetSpent": {"pdrouter_fallback_budget_spent_total": "0+1x80"},
    "PdrouterPrefillByDecode": {'pdrouter_rescued_total{by="fallback"}': "0+5x80"},
    "PdrouterClientsUncounted": {"pdrouter_clients_uncounted_total": "0+1x80"},
    "PdrouterEngineFails": {f"pdrouter_endpoint_failures_total{caused('timeout')}": "0+20x80"},
    "PdrouterEngineRefuses": {f"pdrouter_endpoint_failures_total{caused('4xx')}": "0+80x80"},
    "PdrouterEngineBusy": {f"pdrouter_endpoint_failures_total{caused('busy')}": "0+40x80"},
    "PdrouterKvUnusable": {f"pdrouter_endpoint_failures_total{caused('kv_unusable')}": "0+1x80"},
    "PdrouterKvPairFails": {'pdrouter_kv_failures_total{at_fault="neither"}': "0+1x80"},
    "PdrouterHandoffMissing": {f"pdrouter_endpoint_failures_total{caused('kv_missing')}": "0+20x80"},
    "PdrouterKvLate": {"pdrouter_kv_ready_timeouts_total": "0+1x80"},
    "PdrouterWorkersDie": {"pdrouter_worker_restarts_total": "1x40 2x40"},
    "PdrouterNoSandbox": {'pdrouter_sandbox{process="worker"}': "0x80"},
    "PdrouterSiblingSilent": {"pdrouter_siblings_silent": "1x80"},
    "PdrouterMemoryRepaired": {'pdrouter_memory_repaired_total{where="rows"}': "0x40 3x40"},
    "PdrouterStateNotSaved": {"pdrouter_state_file_failures_total": "1x40 2+1x40"},
    "PdrouterOutOfMemory": {"pdrouter_out_of_memory_total": "2x40 3x40"},
    "PdrouterReloadRefused": {"pdrouter_reloads_failed_total": "1x40 2x40"},
    "PdrouterUpgradeFailed": {"pdrouter_upgrades_failed_total": "0x40 1x40"},
    "PdrouterLogDropped": {"pdrouter_log_lines_dropped_total": "3x40 9x40"},
    "PdrouterFirstTokenLate": objective("pdrouter_time_to_first_token_seconds", "5.0", 120),
    "PdrouterFirstTokenOftenLate": objective("pdrouter_time_to_first_token_seconds", "5.0", 139),
    "PdrouterGapsLong": objective("pdrouter_event_gap_seconds", "0.2", 120),
    "PdrouterGapsOftenLong": objective("pdrouter_event_gap_seconds", "0.2", 139),
}
# what is different when an alert should not fire although another one does, or might
QUIET = [
    ("PdrouterNoEngine", up("0x80")),  # weights are loaded for the first time
    ("PdrouterEngineDown", up("0x80")),
    ("PdrouterNoEngineYet", up("0x30 1x50")),
    ("PdrouterEngineNotUpYet", up("0x30 1x50")),
    ("PdrouterNoEngineYet", up("1x10 0x70")),  # the other alert is for this
    ("PdrouterEngineNotUpYet", up("1x10 0x70")),
    ("PdrouterEngineDown", up("1x10 0x70") | {f'pdrouter_endpoint_state{ENGINE[:-1]},state="draining"' + '}': "1x80"}),
    ("PdrouterEngineDown", up("1x10 0x56 1x14")),  # a restart of 14 minutes
    ("PdrouterFirstTokenLate", FAILING["PdrouterFirstTokenOftenLate"]),
    ("PdrouterGapsLong", FAILING["PdrouterGapsOftenLong"]),
    # a night: three requests in 20 minutes, one of them late
    ("PdrouterFirstTokenLate", {'pdrouter_time_to_first_token_seconds_bucket{pool="a",le="5.0"}': "0x20 1x40 2x20", 'pdrouter_time_to_first_token_seconds_count{pool="a"}': "0x20 1x20 2x20 3x20"}),
]
# what Grafana's schema refuses in a dashboard, or in its first panel, and the word for that
MISTAKES = [
    (lambda board, panel: board.update(schemaVersion="37"), "schemaVersion"),
    (lambda board, panel: board.update(pannels=[]), "pannels: unknown"),
    (lambda board, panel: panel["gridPos"].update(w="8"), "gridPos.w"),
    (lambda board, panel: panel["targets"][0].update(query="up"), "query: unknown"),
    (lambda board, panel: panel["options"]["legend"].update(displayMode="rows"), "displayMode"),
    (lambda board, panel: panel["fieldConfig"]["defaults"]["custom"]["stacking"].update(mode="pile"), "mode"),
]
faults = []


def read(path):
    with open(path) as f:
        return f.read()


def promtool(what, *args):
    done = subprocess.run(["promtool", *args], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        faults.append(f"{what}: {done.stdout}{done.stderr}".strip())


def case(alert, changes, firing):
    step, end = SLOWLY.get(alert, (STEP, END))
    return {"name": alert, "interval": step,
            "input_series": [{"series": s, "values": v} for s, v in {**HEALTHY, **changes}.items()],
            "promql_expr_test": [{"eval_time": end, "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                                  "exp_samples": [{"labels": "{}", "value": 1}] if firing else []}]}


def alerts(folder):
    """Each alert is tried without the other alerts: that is fast."""
    text = read(ALERTS)
    rules = {name: rule for rule, name in re.findall(r"^( +- alert: (\w+)\n.*?)(?=^ *#|^$|\Z)", text, re.M | re.S)}
    records = "".join(re.findall(r"^ +- record: .*?(?=^ +- |^$)", text, re.M | re.S))
    for name in set(rules) ^ set(FAILING):
        faults.append(f"{ALERTS}: {name}: no case here, or no such alert")
    promtool(ALERTS, "check", "rules", ALERTS)
    paths = []
    for name in set(rules) & set(FAILING):
        file, path = (os.path.join(folder, f"{name}.{kind}.yaml") for kind in ("rule", "test"))
        with open(file, "w") as f:
            f.write(f"groups:\n  - name: tried\n    rules:\n{records if ' pdrouter:' in rules[name] else ''}{rules[name]}")
        tests = [case(name, FAILING[name], True), case(name, {}, False), *(case(name, changes, False) for quiet, changes in QUIET if quiet == name)]
        with open(path, "w") as f:  # JSON is YAML
            json.dump({"rule_files": [file], "evaluation_interval": SLOWLY.get(name, (STEP,))[0], "tests": tests}, f)
        paths.append(path)
    promtool(ALERTS, "test", "rules", *paths)


def scrape(folder):
    """The file to copy: promtool takes it, with the rules where they are here, and the page shows the same."""
    text = read(SCRAPE)
    path = os.path.join(folder, "prometheus.yml")
    with open(path, "w") as f:
        f.write(text.replace("/usr/local/share/doc/pdrouter/monitoring/alerts.yaml", os.path.abspath(ALERTS)))
    promtool(SCRAPE, "check", "config", path)
    if text.partition("\n")[2] not in read(QUERIES[0]):
        faults.append(f"{QUERIES[0]}: does not show {SCRAPE}")


def runbook():
    """Each alert's runbook_url leads to the section of etc/docs/runbook.md that names the alert."""
    sections = {re.sub(r"[^\w -]", "", part.partition("\n")[0].lower()).replace(" ", "-"): part for part in read(RUNBOOK).split("\n## ")}
    for name, rule in re.findall(r"^ +- alert: (\w+)$(.*?)(?=^ +- alert|\Z)", read(ALERTS), re.M | re.S):
        m = re.search(r'runbook_url: "file:///usr/local/share/doc/pdrouter/runbook.md#([\w-]+)"', rule)
        if not m or not re.search(rf"\b{name}\b", sections.get(m[1], "")):
            faults.append(f"{ALERTS}: {name}: no runbook_url of the section of {RUNBOOK} that names it")


def expressions(path, found, folder):
    """As rules that promtool reads."""
    if not found:
        faults.append(f"{path}: no expressions found")
    rules = [{"record": f"x:{i}", "expr": e.replace("$__rate_interval", "5m")} for i, e in enumerate(found)]
    file = os.path.join(folder, "expressions.yaml")
    with open(file, "w") as f:
        json.dump({"groups": [{"name": "expressions", "rules": rules}]}, f)
    promtool(path, "check", "rules", file)


def dashboard(folder):
    found = []

    def look(o):
        if isinstance(o, dict) and isinstance(o.get("expr"), str):
            found.append(o["expr"])
        for v in o.values() if isinstance(o, dict) else o if isinstance(o, list) else []:
            look(v)

    board = json.loads(read(DASHBOARD))
    look(board)
    expressions(DASHBOARD, found, folder)
    panels(board["panels"])
    grafana(board)


def grafana(board):
    """Grafana's own schema takes it, and sees what it should see."""
    schema = json.loads(read(SCHEMA))["definitions"]

    def against(x):
        return list(json_schema.faults(x, schema["Dashboard"], schema))

    faults.extend(f"{DASHBOARD}: Grafana's schema: {fault}" for fault in against(board))
    for change, said in MISTAKES:
        bad = json.loads(json.dumps(board))
        change(bad, next(p for p in bad["panels"] if p["type"] == "timeseries"))
        if not any(said in fault for fault in against(bad)):
            faults.append(f"{SCHEMA}: does not see a wrong {said}")


def panels(found):
    """Each panel has a number and a rectangle of its own, and says what it shows."""
    taken = {}
    for p in found:
        x, y, w, h = (p["gridPos"][k] for k in "xywh")
        for at in [(i, j) for i in range(x, x + w) for j in range(y, y + h)]:
            if at in taken or at[0] >= 24:
                faults.append(f"{DASHBOARD}: {p['title']}: no room at {at}, where {taken.get(at, 'the edge')} is")
                break
            taken[at] = p["title"]
        if p["type"] != "row" and not (p.get("description") and p.get("targets")):
            faults.append(f"{DASHBOARD}: {p['title']}: no description, or nothing to show")
    ids = [p["id"] for p in found]
    if len(set(ids)) != len(ids):
        faults.append(f"{DASHBOARD}: two panels have one id")


def queries(path, folder):
    """The queries of a page about metrics: the second cells of its tables of them."""
    tables = [part.partition("\n\n")[0] for part in read(path).split("\n| question | query |\n")[1:]]
    expressions(path, [e for table in tables for row in table.split("\n")[1:] for e in re.findall("`([^`]+)`", row.split(" | ")[1])], folder)


def words(text, label):
    """What the label is compared with."""
    for m in re.finditer(rf'{label}(?:=|!=|=~|!~)\\?"([^"\\]*)\\?"', text):
        yield from m[1].split("|")


def names():
    sources = "".join(read(p) for p in ["shm/metrics_list.h", *glob.glob("worker/*/*.c")])
    have = set(re.findall(r'"((?:pdrouter|process)_\w+)', sources))
    reasons = set(re.findall(r'^\tX\(\w+, "(\w+)"', read("worker/base/end_list.h"), re.M))
    causes = set(re.findall(r'^\tX\(\w+, "(\w+)"', read("shm/core/layout.h"), re.M))
    by = set(re.findall(r'pdrouter_rescued_total\{by=\\"(\w+)', sources))
    for path in sorted(glob.glob("etc/docs/*.md")):  # which also search for the beginning of a name
        for name in sorted(set(re.findall(r"\bpdrouter_\w+", read(path)))):
            if not any(full.startswith(re.sub(SUFFIXES, "", name)) for full in have):
                faults.append(f"{path}: the router has no metric {name}")
    for path in (ALERTS, DASHBOARD, "tests/lint/monitoring.py"):
        text = read(path)
        for name in sorted(set(re.findall(r"\b(?:pdrouter|process)_\w+", text))):
            if name not in have and re.sub(SUFFIXES, "", name) not in have:
                faults.append(f"{path}: the router has no metric {name}")
        for word in set(words(text, "reason")) - reasons:
            faults.append(f"{path}: worker/base/end_list.h has no reason {word}")
        for word in set(words(text, "cause")) - causes:
            faults.append(f"{path}: shm/core/layout.h has no cause {word}")
        for word in set(words(text, "by")) - by:
            faults.append(f"{path}: no pdrouter_rescued_total is by {word}")


def main():
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        alerts(folder)
        scrape(folder)
        dashboard(folder)
        for path in QUERIES:
            queries(path, folder)
    runbook()
    names()
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
