"""The operator's pages (etc/docs): each file, key and command of a page is tried, in the order of the page, at a router with two
simulated engines.  Fenced blocks of a page:
  yaml            keys of pdrouter.yaml: added to those in force, and reloaded
  yaml FILE       a file
  sh              commands, one a line, that succeed
  sh FILE         a file
  ini, text       not tried: a drop-in of systemd; a command line for another machine
  console [soon]  commands ("# ..."), which succeed, each with what it prints: "..." stands for anything, in a line or as a line
                  for several.  soon: not always at once
A comment <!-- test: COMMAND --> is a command that the page does not show: it makes a simulated engine fail, or a file.
Paths, ports and engines of the pages are those of a service; the test puts its own in their place, and the pages' names back
into what a command prints."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from procs import BIN, ROOT, VARIANT, free_port, wait

PAGES = ROOT / "etc/docs"
TRIED = ["capacity", "configuration", "container", "drain", "engines", "from_haproxy", "from_sglang_router", "high_availability", "keys", "limits", "logging", "observing", "one_host", "pdctl", "resume",
         "routing", "runbook", "security", "several_hosts", "tls", "upgrade", "versions"]
MODEL = "llama-3-70b"
# programs of a machine with systemd, as far as the pages use them
PROGRAMS = {
    "pdrouter": 'exec {bin}/pdrouter "$@"',
    "pdctl": 'case $1 in key) exec {bin}/pdctl "$@" ;; esac; exec {bin}/pdctl -s {control} "$@"',
    "systemctl": 'case $* in "reload pdrouter") exec pdctl reload ;; "is-active pdrouter") echo active ;; *) exit 1 ;; esac',
    # the journal takes the level off a line; -p warning: levels 0 to 4; PDR_NAME=VALUE: a field of the line in place of the entry's
    "journalctl": 'case "$1" in PDR_*) f=${{1#PDR_}}; f=${{f,,}}; exec grep " $f" {log} ;; esac; case "$*" in *"-p warning"*) levels=0-4 ;; *) levels=0-7 ;; esac; sed -n "s/^<[$levels]>//p" {log}',
    "groupadd": "true",
    "chgrp": "true",
    "curl": 'exec /usr/bin/curl -m 10 --resolve router.example.net:{tls}:127.0.0.1 "$@"',
}
# fields of a log line whose values on a page are examples
MEASURED = re.compile(r"(\w+_ms|bytes_\w+|tokens_per_s|slot|pid|attempt)=[\w.\\-]+")
UNDER_SYSTEMD = '#!/bin/sh\nJOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec {program} "$@"\n'


def blocks(page):
    """(language, words, text) of each fenced block, and of each comment for the test as if it were one."""
    text = re.sub(r"^<!-- test: (.*) -->$", r"```sh\n\1\n```", (PAGES / f"{page}.md").read_text(), flags=re.M)
    return re.findall(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", text, re.M | re.S)


def merged(old, new):
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{k: merged(old[k], v) if k in old else v for k, v in new.items()}}
    return new


def pattern(shown):
    """Of what a command prints."""
    lines = ["(?:.*\n)*?" if x == "..." else MEASURED.sub(r"\1=\\S+", re.escape(x).replace(r"\.\.\.", ".*?")) + "\n" for x in shown.splitlines()]
    return re.compile("".join(lines))


class Desk:
    """An operator's terminal on the host of a router."""

    def __init__(self, world):
        self.world = world
        self.etc = world.file("etc")
        self.etc.mkdir()
        p, d = (world.engine(role, model=MODEL) for role in ("prefill", "decode"))
        tls, admin = free_port(), free_port()
        program, service = world.file("installed") / "pdrouter", world.file("service")
        program.parent.mkdir()
        shutil.copy(BIN / "pdrouter", program)
        service.write_text(UNDER_SYSTEMD.format(program=program))
        service.chmod(0o755)
        pool = {**world.pool([p], [d]), "name": "pool1", "models": [MODEL]}
        del pool["policy"]  # pages show the default
        self.router = r = world.router(pool, log_format="logfmt", upgrade_trial="50ms", program=service, admin={"listen": [f"127.0.0.1:{admin}"]})
        # what pages write, and what the test has in its place
        self.names = [("/etc/pdrouter/pdrouter.yaml", str(r.config_path)), ("/etc/pdrouter", str(self.etc)), ("/usr/local/bin/pdrouter", str(program)), ("/var/lib/pdrouter", f"{self.etc}/state"), ("/etc/letsencrypt", f"{self.etc}/letsencrypt"),
                      ("/etc/prometheus", f"{self.etc}/prometheus"), ("/usr/local/share/doc/pdrouter/monitoring", str(ROOT / "etc/monitoring")),
                      ("/run/pdrouter/control.sock", str(r.control)), ("10.0.0.1:8100", f"127.0.0.1:{p.port}"),
                      ("10.0.1.1:8200", f"127.0.0.1:{d.port}"), ("--host 10.0.1.1", "--host 127.0.0.1"),
                      (":30001", f":{free_port()}"), (":8000", f":{r.port}"), (":8443", f":{tls}"), (":9101", f":{admin}")]
        assert r.post("/v1/completions", {"model": "none", "prompt": "x"}).status == 404  # for commands that look for such a line
        self.shell = self.start_shell(tls)

    def start_shell(self, tls):
        programs = self.world.file("bin")
        programs.mkdir()
        for name, text in PROGRAMS.items():
            (programs / name).write_text("#!/bin/bash\n" + text.format(bin=BIN, control=self.router.control, log=self.router.log_path, tls=tls) + "\n")
            (programs / name).chmod(0o755)
        home = self.world.file("root")
        home.mkdir()
        env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        return subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                cwd=home, env=env, text=True)

    def close(self):
        self.shell.stdin.close()
        self.shell.wait(5)
        self.shell.stdout.close()
        pid = self.router.status()["pid"]
        if pid != self.router.pid:
            self.router.follow(pid)

    def here(self, text):
        text = text.replace("0.0.0.0:8000", "127.0.0.1:8000")
        own = dict(self.names)
        pages = "|".join(re.escape(page) for page in sorted(own, key=len, reverse=True))
        return re.sub(pages, lambda m: own[m[0]], text)  # in one pass: a port may look like a page's

    def run(self, command):
        """Exit code and output, with the names of the pages."""
        self.shell.stdin.write(f"{{ {self.here(command)}\n}} </dev/null\nprintf '\\n@%d\\n' $?\n")
        self.shell.stdin.flush()
        text = ""
        while not (end := re.search(r"\n@(\d+)\n$", text)):
            line = self.shell.stdout.readline()
            assert line, f"the shell has ended: {command}\n{text}"
            text += line
        text = text[:end.start()]
        for page, own in sorted(self.names, key=lambda n: -len(n[1])):
            text = text.replace(own, page)
        return int(end[1]), text if not text or text.endswith("\n") else text + "\n"

    # --- blocks ---
    def file(self, path, text):
        path = Path(self.here(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.here(text))

    def ini(self, words, text):
        pass

    text = ini

    def yaml(self, words, text):
        if words:
            self.file(words, text)
            return
        keys = yaml.safe_load(self.here(text))
        have = self.router.config
        if "pools" in keys:  # the engines are the test's
            [pool] = keys.pop("pools")
            pool = {k: v for k, v in pool.items() if k not in ("prefill", "decode", "models")}
            keys["pools"] = [merged(have["pools"][0], pool)]
        self.router.reload(**{k: merged(have.get(k), v) for k, v in keys.items()})

    def sh(self, words, text):
        if words:
            self.file(words, text)
            return
        for command in text.replace("\\\n", " ").splitlines():
            code, said = self.run(command)
            assert code == 0, f"{command}\n{said}"

    def console(self, words, text):
        for command, shown in re.findall(r"^# (.*)\n((?:(?!# ).*\n)*)", text, re.M):
            last = []

            def fits(command=command, shown=shown, last=last):
                last[:] = self.run(command)
                return last[0] == 0 and pattern(shown).fullmatch(last[1])
            if words == "soon":
                wait(lambda command=command, last=last: f"{command}\n{last}", fits)
            else:
                assert fits(), f"{command}\n{last[0]}\n{last[1]}"


@pytest.mark.parametrize("page", TRIED)
def test_a_page(world, reaper, page):
    if page == "security" and VARIANT != "release":
        pytest.skip("it shows the sandbox, which builds with a sanitizer do not have")
    desk = Desk(world)
    try:
        for language, words, text in blocks(page):
            getattr(desk, language)(words, text)
    finally:
        desk.close()


ELSEWHERE = {"engine_tls", "fleet", "fleet_tutorial", "from_production_stack", "tracing"}  # tests of their own
NOTHING_TO_TRY = {"failures", "glossary", "handshakes", "http_api", "source"}


def test_every_page_is_listed_and_tried():
    """A page has no block of commands but those in fences."""
    pages, listed = {p.stem for p in PAGES.glob("*.md")}, set(re.findall(r"\]\((\w+)\.md\)", (PAGES / "README.md").read_text()))
    assert set(TRIED) <= pages & listed and pages - {"README", *TRIED} <= ELSEWHERE | NOTHING_TO_TRY
    for page in [*TRIED, *NOTHING_TO_TRY]:
        plain = re.sub(r"^```.*?^```$", "", (PAGES / f"{page}.md").read_text(), flags=re.M | re.S)
        assert not re.search(r"^(?: {4}|\t)\S", plain, re.M), page
    assert not [page for page in NOTHING_TO_TRY if blocks(page)]


def test_the_matrix_has_the_rows_of_the_templates():
    """etc/docs/versions.md: a row for each connector and version that `pdctl fleet` knows, and no other that is "compared"."""
    named = {"vllm": "vLLM", "sglang": "SGLang"}
    want = set()
    for kind, name in named.items():
        for c in yaml.safe_load((ROOT / f"etc/fleet/{kind}.yaml").read_text())["connectors"]:
            span = f"{c['since']} to {c['until']}" if "until" in c else f"{c['since']} and later"
            want |= {(name, span, connector) for connector in [c["name"], *c.get("also", [])]}
    have = set()
    for row in re.findall(r"^\| (.*) \|$", (PAGES / "versions.md").read_text(), re.M):
        cells = row.split(" | ")
        if "compared" in cells:
            have |= {(cells[0], cells[1], c) for c in re.findall(r"`(\w+)`", cells[2].partition(" with ")[0].partition(", with")[0])}
    assert have == want


def anchors(page):
    """Of its headings, as GitHub makes them."""
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", page.read_text(), re.M)}


def test_links_lead_somewhere():
    """A page links to other pages alone: they are installed together."""
    for page in [*PAGES.glob("*.md"), ROOT / "README.md", ROOT / "etc/README.md", ROOT / "systemd/README.md"]:
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            to = page.parent / link if link else page
            assert to.exists() and (page.parent != PAGES or "/" not in link), f"{page}: {link}"
            assert not anchor or anchor in anchors(to), f"{page}: {link}#{anchor}"


def test_the_manual_has_every_metric(world):
    r, _, _ = world.pd()
    page = (ROOT / "etc/man/pdrouter-metrics.7").read_text()
    shown = {(name, kind) for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", r.client().get("/metrics").body.decode(), re.M)}
    assert len(shown) > 100 and not shown - set(re.findall(r"^\.It Cm (\w+) Pq (\w+)$", page, re.M))
