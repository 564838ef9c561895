#!/usr/bin/env python3
"""etc/monitoring against the router: promtool takes its rules, the dashboard's expressions and the queries of etc/docs; each
alert fires when what it speaks of happens, and on a healthy router none does; every metric and end reason named there exists,
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

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ALERTS = "etc/monitoring/alerts.yaml"
DASHBOARD = "etc/monitoring/dashboard.json"
RUNBOOK = "etc/docs/runbook.md"
QUERIES = "etc/docs/observing.md"
STEP = "15s"
SUFFIXES = r"(_bucket|_sum|_count)$"  # of a histogram's series
REQUESTS = "pdrouter_requests_total"
ENGINE = '{engine="http://p",role="prefill",pool="a"}'


def caused(cause):
    """Labels of the failures of ENGINE."""
    return ENGINE[:-1] + f",cause={json.dumps(cause)}" + "}"


# a router that does 10 requests a second and has nothing to complain of
HEALTHY = {
    'up{job="pdrouter"}': "1x80",
    f'{REQUESTS}{{pool="a",path="/v1/completions",status="200",reason="ok"}}': "0+150x80",
    f'{REQUESTS}{{pool="a",path="/v1/completions",status="200",reason="client_gone"}}': "0+2x80",
    f'{REQUESTS}{{pool="a",path="/v1/completions",status="400",reason="engine_status"}}': "0+9x80",
    f'{REQUESTS}{{pool="",path="other",status="200",reason="local"}}': "0+1x80",
    f"pdrouter_endpoint_up{ENGINE}": "1x80",
    'pdrouter_endpoint_up{engine="http://d",role="decode",pool="a"}': "1x80",
    'pdrouter_endpoint_up{engine="http://e",role="decode",pool="a"}': "0x80",  # its operator has drained it
    'pdrouter_endpoint_state{engine="http://e",role="decode",pool="a",state="draining"}': "1x80",
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
    "PdrouterNoEngine": {f"pdrouter_endpoint_up{ENGINE}": "0x80"},
    "PdrouterCertificateExpires": {'pdrouter_tls_certificate_expiry_seconds{certificate="c"}': "1000000x80"},
    "PdrouterErrors": {f'{REQUESTS}{{pool="a",path="/v1/completions",status="502",reason="decode_broken"}}': "0+5x80"},
    "PdrouterStreamsCut": {f'{REQUESTS}{{pool="a",path="/v1/completions",status="200",reason="decode_broken"}}': "0+2x80"},
    "PdrouterRefusing": {f'{REQUESTS}{{pool="a",path="/v1/completions",status="429",reason="queue_full"}}': "0+3x80"},
    "PdrouterOverloaded": {f'{REQUESTS}{{pool="",path="/v1/completions",status="503",reason="overloaded"}}': "0+1x80"},
    "PdrouterEngineDown": {f"pdrouter_endpoint_up{ENGINE}": "0x80"},
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
    "PdrouterMemoryRepaired": {'pdrouter_memory_repaired_total{where="rows"}': "0x40 3x40"},
    "PdrouterStateNotSaved": {"pdrouter_state_file_failures_total": "1x40 2+1x40"},
    "PdrouterOutOfMemory": {"pdrouter_out_of_memory_total": "2x40 3x40"},
    "PdrouterReloadRefused": {"pdrouter_reloads_failed_total": "1x40 2x40"},
    "PdrouterUpgradeFailed": {"pdrouter_upgrades_failed_total": "0x40 1x40"},
    "PdrouterLogDropped": {"pdrouter_log_lines_dropped_total": "3x40 9x40"},
}
faults = []


def read(path):
    with open(path) as f:
        return f.read()


def promtool(what, *args):
    done = subprocess.run(["promtool", *args], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        faults.append(f"{what}: {done.stdout}{done.stderr}".strip())


def case(alert, changes, firing):
    return {"name": alert, "interval": STEP,
            "input_series": [{"series": s, "values": v} for s, v in {**HEALTHY, **changes}.items()],
            "promql_expr_test": [{"eval_time": "20m", "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                                  "exp_samples": [{"labels": "{}", "value": 1}] if firing else []}]}


def alerts(folder):
    names = re.findall(r"^ +- alert: (\w+)$", read(ALERTS), re.M)
    for name in set(names) ^ set(FAILING):
        faults.append(f"{ALERTS}: {name}: no case here, or no such alert")
    promtool(ALERTS, "check", "rules", ALERTS)
    tests = [case(name, FAILING[name], True) for name in names if name in FAILING] + [case(name, {}, False) for name in names]
    path = os.path.join(folder, "tests.yaml")
    with open(path, "w") as f:  # JSON is YAML
        json.dump({"rule_files": [os.path.abspath(ALERTS)], "evaluation_interval": STEP, "tests": tests}, f)
    promtool(ALERTS, "test", "rules", path)


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

    look(json.loads(read(DASHBOARD)))
    expressions(DASHBOARD, found, folder)


def page(folder):
    """The queries of the page about metrics: the second cells of its table."""
    table = read(QUERIES).partition("\n| question | query |\n")[2].partition("\n\n")[0]
    expressions(QUERIES, [e for row in table.split("\n")[1:] for e in re.findall("`([^`]+)`", row.split(" | ")[1])], folder)


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
        dashboard(folder)
        page(folder)
    runbook()
    names()
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
