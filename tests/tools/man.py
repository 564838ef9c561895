#!/usr/bin/env python3
"""make docs: the manual pages in etc/man and the completions in etc/completion that are made from tables of the source.

- pdrouter.yaml(5): the table of configuration keys (master/config/conf_keys.h)
- pdrouter-log(7): the fields of etc/docs/logging.md, and each reason with its status, its message (worker/base/end_list.h)
  and its cure (CURES below)
- pdrouter-metrics(7): the lists of metrics (shm/metrics_list.h, worker/request/stats*.c)
- the completions: what `pdctl completion` prints, from its tables of commands and options (master/pdctl/command.c)
--check also sees that pdctl(8) and etc/docs/pdctl.md have each command, and pdctl(8) each option.
Usage: man.py [--check]; --check writes nothing, says which page is stale, and asks mandoc what is wrong with all pages.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/lint"))
import conf_doc  # noqa: E402
import lists  # noqa: E402

DATE = "November 24, 2026"
TABLES = {
    "root": ("THE FILE", "Keys of the file itself.\nA dot stands for a nested key:\n.Ql log_level: info ,\n.Ql client: {rate: 10} ."),
    "pool": ("POOLS", "Keys of an entry of\n.Ic pools ."),
    "endpoint": ("ENGINES", "Keys of an entry of\n.Ic prefill\nand\n.Ic decode\nof a pool.\nAn entry of\n.Ic dns\nhas those but\n.Ic url ,\nand\n.Ic name ,\n.Ic port ,\n.Ic scheme\nand\n.Ic role ."),
    "connector": ("CONNECTORS", "Keys of the map in a pool that has the name of the pool's connector, such as\n.Ql sglang: {learn_timeout: 10s} ."),
    "endpoints_file": ("ENDPOINTS FILE", "Keys of an entry of the file that\n.Ic endpoints_file\nnames."),
}
CLASSES = {
    "live": "running workers follow from the next request on",
    "generation": "new workers start on the same sockets, the old ones finish their requests",
    "restart": "the old value stays in force until a restart or an upgrade",
}
# what the operator does about a reason; the reasons of end_list.h, each once
CURES = {
    "ok local": "Nothing: the request was served.",
    "client_gone": "Nothing. If there are many, clients give up: look at first_ms.",
    "client_stalled": "The client reads too slowly: client.write_timeout.",
    "head_timeout body_timeout": "The client sends too slowly: client.head_timeout, client.body_timeout.",
    "bad_http bad_version bad_coding bad_encoding": "The client, or a proxy before the router, does not send correct HTTP/1.1. The field detail says what is wrong.",
    "head_too_large uri_too_long body_too_large": "The client must send less; limits.max_head, limits.max_body.",
    "bad_json not_supported": "The client must correct its request. The message says what is wrong.",
    "not_found method_not_allowed": "The client asks a path that the router does not have.",
    "too_many_choices": "The client asks for more samples or prompts than limits.max_fanout allows.",
    "model_not_found": "The client names a model that no pool has. GET /v1/models lists those that are there.",
    "response_not_found": "The engine that had the response has restarted, or the id is wrong.",
    "invalid_api_key model_not_allowed": "The client needs a key of api_keys_file, or one that may use this model.",
    "client_rate client_inflight client_tokens": "The client or its key is above its limit: client.rate, client.max_inflight, or those of the key.",
    "engine_status": "The engine has answered so. Search its log for the id in the field attempt.",
    "no_prefill_endpoint no_decode_endpoint": "No engine of that role is up. pdctl status says why for each: start it, or pdctl undrain it.",
    "fallback_budget": "No prefill engine can serve, and decode engines may do no more prefill: bring prefill engines up, or raise fallback_budget.",
    "no_capacity queue_full queue_timeout": "All engines are full: more engines, or a higher max_inflight; queue_size and queue_timeout let requests wait.",
    "overloaded": "The router has no memory or file descriptors left: limits.max_buffered, LimitNOFILE of the unit.",
    "prefill_connect_timeout decode_connect_timeout engine_connect_timeout": "The engine's host does not answer within timeouts.connect: its network, its firewall.",
    "prefill_timeout first_byte_timeout stream_idle_timeout whole_answer_timeout": "The engine is overloaded or hangs: waiting and running of that engine in pdctl status; the time limits are under timeouts.",
    "prefill_broken decode_broken engine_broken": "The engine has closed the connection: it has crashed, or was restarted. Its log.",
    "prefill_bad_answer decode_bad_answer": "The engine has answered what is no correct HTTP or JSON. The field detail says what.",
    "prefill_down decode_down engine_down": "Probes of the engine fail. pdctl status says why.",
    "tokenize_failed": "LMCache's hand-shake needs /tokenize of the engine. The field detail says what it answered.",
    "not_learned": "The engine does not say its bootstrap port or its id: set bootstrap_port, or see that it runs as a prefill engine.",
    "request_timeout": "The time that the client or timeouts.request allows was over.",
    "shutdown": "The router was told to stop, and drain_timeout was over.",
}


def escaped(text):
    """Text for a page: nothing in it is a macro or an escape."""
    text = text.replace("\\", "\\e").replace("\u2019", "'")
    return re.sub(r"^([.'])", r"\\&\1", text)


def prose(text):
    """Of Markdown: words in backquotes are bold, links are their names; a sentence begins a line."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"`([^`]*)`", text)
    text = "".join(escaped(part) if at % 2 == 0 else rf"\fB{escaped(part)}\fR" for at, part in enumerate(parts))
    lines = re.sub(r"(?<=[\w)\]]\.) (?=[A-Z\\])", "\n", text).split("\n")
    return "\n".join(rf"\&{line}" if line[:1] in ".'" else line for line in lines)


def head(name, section, what):
    return (f".\\\" Made by tests/tools/man.py (make docs): do not edit.\n.Dd {DATE}\n.Dt {name.upper()} {section}\n.Os pdrouter\n"
            f".Sh NAME\n.Nm {name}\n.Nd {what}\n")


def config_keys():
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run([conf_doc.build(folder), "keys"], capture_output=True, text=True, check=True).stdout
    return [line.split("\t") for line in out.splitlines()]


def page_of_keys():
    keys = config_keys()
    text = head("pdrouter.yaml", 5, "configuration of pdrouter")
    text += (".Sh DESCRIPTION\nDurations are\n.Ql 300ms ,\n.Ql 2s ,\n.Ql 5m\nor\n.Ql 1h ;\nsizes are\n.Ql 512B ,\n.Ql 32KiB ,\n.Ql 64MiB\nor\n.Ql 1GiB .\n"
             "A number without a unit is an error, except 0.\n.Ql pdrouter -t -c FILE\nchecks a file; an error names file, line and key.\n"
             "After each key stand its default, and what a reload does with it:\n.Bl -tag -width generation\n")
    for word, what in CLASSES.items():
        text += f".It Cm {word}\n{what}\n"
    text += ".El\n"
    for table, (title, about) in TABLES.items():
        rows = [row for row in keys if row[0] == table]
        if not rows:
            continue
        text += f".Sh {title}\n{about}\n.Bl -tag -width Ds\n"
        for _, path, default, klass, doc in rows:
            shown = f"\\fB{escaped(default)}\\fR" if default not in ("", "(required)") else "needed" if default else "\"\""
            shown = f".br\nDefault: {shown}\n"
            if len(default) > 60 and " " not in default:  # a list of names: its lines may break behind a colon, and are not filled up with blanks
                shown = f".Bd -ragged -compact\nDefault: \\fB{escaped(default).replace(':', ':' + chr(92) + ':')}\\fR\n.Ed\n"
            text += f".It Ic {path} Pq {klass}\n{prose(doc)}.\n{shown}"
        text += ".El\n"
    return text + (".Sh FILES\n.Bl -tag -width Ds\n.It Pa /etc/pdrouter/pdrouter.yaml\nthe configuration\n"
                   ".It Pa /usr/local/share/doc/pdrouter\npages for operators, and an example for each connector\n.El\n"
                   ".Sh SEE ALSO\n.Xr pdctl 8 ,\n.Xr pdrouter 8\n")


def reasons():
    """(reason, status, message) of each way in which a request can end."""
    text = re.sub(r"\s*\\\n\s*", " ", lists.read("worker/base/end_list.h"))
    return re.findall(r"X\(\w+, \"(\w+)\", (\d+), (?:NULL|\"[^\"]*\"), (NULL|\"[^\"]*\")\)", text)


def page_of_log():
    fields = lists.rows_under("etc/docs/logging.md", "## The line of a request", "field")
    cures = {name: cure for names, cure in CURES.items() for name in names.split()}
    known = reasons()
    lists.same_names("tests/tools/man.py: CURES", cures, [name for name, _, _ in known])
    text = head("pdrouter-log", 7, "the log of pdrouter")
    text += (".Sh DESCRIPTION\nEach request ends with one line,\n.Ql msg=request .\nWhat is not known is left out.\nTimes are in milliseconds.\n"
             ".Sh FIELDS\n.Bl -tag -width Ds\n")
    for names, meaning in fields:
        text += f".It Cm {', '.join(re.findall(r'`([^`]*)`', names))}\n{prose(meaning)}.\n"
    text += ".El\n.Sh REASONS\nThe field\n.Cm reason ;\nalso the label of\n.Ql pdrouter_requests_total ,\nand the code of the error that the client gets.\n.Bl -tag -width Ds\n"
    for name, status, message in known:
        said = "" if message == "NULL" else f"{escaped(message.strip(chr(34)))[:1].upper()}{escaped(message.strip(chr(34)))[1:]}.\n"
        text += f".It Cm {name}{'' if status == '0' else f' Pq {status}'}\n{said}{prose(cures.get(name, ''))}\n"
    return text + ".El\n.Sh SEE ALSO\n.Xr pdrouter-metrics 7 ,\n.Xr pdrouter 8\n"


def c_text(literals):
    return re.sub(r"\\(.)", r"\1", "".join(re.findall(r"\"((?:[^\"\\]|\\.)*)\"", literals)))


def metrics():
    """{name: (type, help)}"""
    found, kind = {}, ""
    for line in lists.read("shm/metrics_list.h").split("\n"):
        m = re.match(r"#define METRIC_(\w+)\(X\)", line)
        kind = m[1] if m else kind
        m = re.match(r"\tX\(\w+, \"([\w:]+)(?:\{[^}]*\})?\", ((?:\"(?:[^\"\\]|\\.)*\"\s*)+)\)", line.replace('\\"', "'"))
        if m and m[1] not in found:
            found[m[1]] = {"GAUGES": "gauge", "HISTOGRAMS": "histogram"}.get(kind, "counter"), c_text(m[2])
    for path in sorted(glob.glob("worker/request/stats*.c")):
        for name, what, text in re.findall(r"(?:heading\(\s*x,\s*|\{ )\"(\w+)\",\s*\"(\w+)\",\s*((?:\"(?:[^\"\\]|\\.)*\"\s*)+)", lists.read(path)):
            found[name] = what, c_text(text)
    return found


def page_of_metrics():
    text = head("pdrouter-metrics", 7, "what GET /metrics of pdrouter shows")
    text += (".Sh DESCRIPTION\nAny worker answers with the values of all processes, as Prometheus' text or, if\n.Ql Accept\nprefers it, as OpenMetrics.\n"
             ".Sh METRICS\n.Bl -tag -width Ds\n")
    for name, (what, about) in sorted(metrics().items()):
        text += f".It Cm {name} Pq {what}\n{prose(about)}\n"
    return text + ".El\n.Sh SEE ALSO\n.Xr pdrouter-log 7 ,\n.Xr pdrouter 8\n"


def completion(shell):
    with tempfile.TemporaryDirectory() as folder:
        pdctl = f"{folder}/pdctl"
        subprocess.run([os.environ.get("CC", "gcc"), "-std=gnu11", "-D_GNU_SOURCE", "-I.", "-O0", '-DPDROUTER_VERSION="lint"', "-o", pdctl,
                        *sorted(glob.glob("master/pdctl/*.c")), "-lcrypto"], check=True)
        return subprocess.run([pdctl, "completion", shell], capture_output=True, text=True, check=True).stdout


def check_pdctl():
    """Each command and option is in the pages that people write."""
    table = lists.read("master/pdctl/command.c")
    rows, options = table.split("const struct option_row", 1)
    for name in re.findall(r'^\t\{"([\w-]+)", "', rows, re.M):
        for path, shown in ("etc/man/pdctl.8", rf"^\.It Cm {name}\b"), ("etc/docs/pdctl.md", rf"`(pdctl )?{name}\b"):
            if not re.search(shown, lists.read(path), re.M):
                lists.faults.append(f"{path}: pdctl {name} of master/pdctl/command.c is missing")
    for name in re.findall(r'^\t\{"([\w-]+)", (?:NULL|"[A-Z]+"), TAKES', options, re.M):
        if not re.search(rf"Fl -{name}\b", lists.read("etc/man/pdctl.8")):
            lists.faults.append(f"etc/man/pdctl.8: --{name} of master/pdctl/command.c is missing")


# by their paths in etc/
PAGES = {"man/pdrouter.yaml.5": page_of_keys, "man/pdrouter-log.7": page_of_log, "man/pdrouter-metrics.7": page_of_metrics,
         "completion/pdctl.bash": lambda: completion("bash"), "completion/_pdctl": lambda: completion("zsh")}


def main():
    os.chdir(ROOT)
    check = sys.argv[1:] == ["--check"]
    for name, page in PAGES.items():
        path, text = f"etc/{name}", page()
        if check and lists.read(path) != text:
            lists.faults.append(f"{path}: is stale: make docs")
        elif not check:
            with open(path, "w") as f:
                f.write(text)
    if check:
        check_pdctl()
        said = subprocess.run(["mandoc", "-Tlint", "-Wwarning", *sorted(glob.glob("etc/man/*.[578]"))], capture_output=True, text=True).stdout
        lists.faults.extend(said.splitlines())
    for fault in lists.faults:
        print(fault)
    return 1 if lists.faults else 0


if __name__ == "__main__":
    sys.exit(main())
