"""pdctl fleet status and logs: what runs on this host against the fleet file, and the exit code that tells a difference."""
import os
import signal
import subprocess

import pytest

from procs import BIN, MODEL, alive, wait
from test_fleet_apply import make


def test_status_of_a_fleet_that_is_as_its_file_says(make):
    host = make(1, 1)
    host.do("apply")
    said = host.do("status").splitlines()
    assert said[0] == "pdrouter  running" and len(said) == 3
    assert said[1] == f"f-prefill-0  running  healthy  router up  in-flight 0  gpus -  model {MODEL}  version 0.33.0+pdsim"


def test_status_of_a_fleet_that_is_not_there(make):
    said = make(1, 1).do("status", code=3).splitlines()
    assert said[:2] == ["pdrouter  absent", "    differs: it does not run"]
    assert "f-decode-0  absent" in said


def who_answers(host):
    """The pid of the router's master."""
    said = subprocess.run([BIN / "pdctl", "-s", host.dir / "ctl", "status"], capture_output=True, text=True).stdout
    return int(said.split(" pid=")[1].split()[0]) if " pid=" in said else 0


def test_a_router_that_was_upgraded(make, reaper):
    """The process that answers is the unit's: it is not started a second time, and ends when the file has no router."""
    host = make(1, 1)
    host.config = {"upgrade_trial": "50ms"}
    host.do("apply")
    old = host.pids()["pdrouter"]
    subprocess.run([BIN / "pdctl", "-s", host.dir / "ctl", "upgrade"], check=True, stdout=subprocess.DEVNULL)
    wait("the former instance to go", lambda: not alive(old))
    assert host.do("status").splitlines()[0] == "pdrouter  running"
    assert (host.do("plan"), host.do("apply")) == ("", "")
    new = who_answers(host)
    host.ask()
    host.has_router = False
    plan = host.do("plan", code=3)
    assert "stop pdrouter" in plan and host.do("apply") == plan and not alive(new)


@pytest.mark.parametrize("former", ["gone", "finishing", "in trial"])
def test_an_upgraded_router_that_the_file_has_no_more_is_drained(make, reaper, former):
    """No apply has come in between.  Both instances end by themselves, when their requests are over."""
    host = make(1, 1)
    host.config = {"upgrade_trial": "1h" if former == "in trial" else "0"}
    host.do("apply")
    old = host.pids()["pdrouter"]
    streams = [host.stream()] if former == "finishing" else []
    with subprocess.Popen([BIN / "pdctl", "-s", host.dir / "ctl", "upgrade"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        wait("the new instance", lambda: who_answers(host) not in (0, old) and not (former == "gone" and alive(old)))
        new, streams = who_answers(host), [*streams, host.stream()]
        host.has_router = False
        assert "stop pdrouter" in host.do("apply") and not alive(new) and not alive(old)
    for c in streams:
        assert [e.data for e in c.events()][-1] == "[DONE]"
        c.close()


def test_status_of_differences(make):
    host = make(2, 1)
    host.do("apply")
    host.args["decode"] = ["--blocks", "500"]
    said = host.do("status", code=3)
    assert "f-decode-0  running  healthy" in said and "    differs: it runs with other files\n    differs: write /" in said
    host.args["decode"] = []
    host.replicas["prefill"] = 1
    said = host.do("status", code=3)
    assert "f-prefill-1  running  healthy  router up  in-flight 0  model" in said and "    differs: the fleet file does not have it" in said


def test_status_of_a_drained_engine(make):
    host = make(1, 2)
    host.do("apply")
    subprocess.run([BIN / "pdctl", "-s", host.dir / "ctl", "drain", f"127.0.0.1:{host.ports['decode'][0][0]}"], check=True)
    assert "f-decode-0  running  healthy  router draining  " in host.do("status")


def test_status_of_an_engine_that_failed(make):
    host = make(1, 1)
    host.do("apply")
    pid = host.pids()["f-decode-0"]
    log = next(host.dir.glob("run/*f-decode-0.log"))
    with log.open("a") as f:
        f.write("the end is near\n")
    os.kill(pid, signal.SIGKILL)
    wait("its end", lambda: not alive(pid))
    assert "f-decode-0  failed\n    | the end is near\n    differs: it does not run\n" in host.do("status", code=3)


def test_status_of_an_engine_that_does_not_answer(make):
    host = make(1, 1)
    host.do("apply")
    pid = host.pids()["f-decode-0"]
    os.kill(pid, signal.SIGSTOP)
    try:
        said = host.do("status", code=3)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "f-decode-0  running  unhealthy" in said and "    differs: it does not answer" in said


def test_logs(make, world):
    host = make(1, 1)
    assert "pdrouter-engine@f-decode-0 is not on this host" in host.do("logs", "decode-0", code=1)
    host.do("apply")
    log = next(host.dir.glob("run/*f-decode-0.log"))
    p = subprocess.Popen(list(map(str, host.line("logs", "decode-0"))), stdout=subprocess.PIPE, text=True)
    try:
        assert p.stdout.readline() in log.read_text()
        with log.open("a") as f:
            f.write("one more line\n")
        wait("the line", lambda: "one more line" in p.stdout.readline())
    finally:
        p.kill()
        p.wait()
    assert "no engine is named decode-7" in host.do("logs", "decode-7", code=1)
    assert "needs a name" in host.do("logs", code=2)
