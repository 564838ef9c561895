"""pdctl fleet scale: the fleet file with another number of replicas and no other change, or no change at all."""
import os
import re
import stat

import pytest

from procs import BIN, ROOT
from test_fleet_apply import TEMPLATES, Host, make  # noqa: F401 (a fixture)
from test_fleet_file import fleet
from test_fleet_source import followed, wait_up, write

FILE = """\
# the fleet of the second floor
fleet: f
model: {path: m}          # from the hub
engine: {kind: vllm, version: "0.21", venv: /opt/vllm}
connector: nixl
hosts:
  a: {address: 10.0.0.1, gpus: 8}
prefill:
  # grows by day
  replicas: 2   # was 1
  hosts: [a]
decode: { hosts: [a] }    # one
"""


def scaled(world, *words, text=FILE):
    path = world.dir / "fleet.yaml"
    if not path.exists():
        path.write_text(text)
    return path, fleet("scale", "-f", path, "-t", ROOT / "etc" / "fleet", *words)


def test_it_changes_the_numbers_and_nothing_else(world):
    path, done = scaled(world, "prefill=3", "decode=2")
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_text() == FILE.replace("replicas: 2 ", "replicas: 3 ").replace("{ hosts", "{ replicas: 2, hosts")
    assert re.findall(r"^f-\S+", done.stdout, re.M) == ["f-prefill-0", "f-prefill-1", "f-prefill-2", "f-decode-0", "f-decode-1"]
    assert f"written to {path}; next, on each host: pdctl fleet apply" in done.stdout
    path, done = scaled(world, "prefill=2", "decode=1")
    assert done.returncode == 0 and path.read_text() == FILE.replace("{ hosts", "{ replicas: 1, hosts")


def test_mode_owner_and_link_stay(world):
    real = world.dir / "real.yaml"
    real.write_text(FILE)
    real.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(real, 12, 34)
    (world.dir / "fleet.yaml").symlink_to("real.yaml")
    before = real.stat()
    path, done = scaled(world, "prefill=1")
    now = real.stat()
    assert done.returncode == 0 and path.is_symlink() and "replicas: 1 " in real.read_text()
    assert (stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid) == (0o640, before.st_uid, before.st_gid)
    assert now.st_ino != before.st_ino  # a new file was renamed over it
    assert sorted(os.listdir(world.dir)) == ["fleet.yaml", "real.yaml"]


@pytest.mark.parametrize("words, says, code", [
    (["prefill=8"], "decode.replicas: replica 0 does not fit", 1), (["prefill=0"], ":10: prefill.replicas: ", 1),
    (["prefill=3", "engines=1"], "engines: the fleet has no such group", 1), ([], "scale needs words", 2),
    (["prefill"], "write prefill=3", 2), (["prefill=x"], "write prefill=3", 2), (["pre=1"], "write prefill=3", 2),
    (["prefill=3", "--output", "x"], "for plan and render only", 2)])
def test_a_refusal_writes_nothing(world, words, says, code):
    path = world.dir / "fleet.yaml"
    path.write_text(FILE)
    before = path.stat()
    _, done = scaled(world, *words)
    assert done.returncode == code and says in done.stderr, done
    assert (path.read_text(), path.stat().st_ino, path.stat().st_mtime_ns) == (FILE, before.st_ino, before.st_mtime_ns)


def test_scaling_a_fleet_that_does_not_fit(world):
    path, done = scaled(world, "prefill=3", text=FILE.replace("replicas: 2 ", "replicas: 99 "))
    assert done.returncode == 0 and path.read_text() == FILE.replace("replicas: 2 ", "replicas: 3 ")


def test_routers_find_what_was_scaled(world):
    """The file in place of a reload: scale, and the routers that follow it have the engine."""
    path, p, d = world.file("fleet", "yaml"), [world.engine("prefill") for _ in range(3)], world.engine("decode")
    write(path, *p, d)
    path.write_text(path.read_text().replace("replicas: 3", "replicas: 2"))
    router = followed(world, path)
    wait_up(router, *p[:2])
    done = fleet("scale", "-f", path, "prefill=3", bin=BIN)
    assert (done.returncode, done.stderr) == (0, "")
    wait_up(router, *p)


class Followed(Host):
    """The router follows the fleet file, beside which the templates stand.  Replica 1 has free ports as well."""
    templates = ()

    def group(self, role):
        (api, side), n = self.ports[role][1], self.replicas[role]
        return {**super().group(role), "ports": {"api": api - 1, "side": side - 1}, "overrides": super().group(role)["overrides"][:min(n, 1)]}

    def write(self):
        super().write()
        (self.path.parent / "fleet.d").exists() or (self.path.parent / "fleet.d").symlink_to(TEMPLATES)
        self.path.write_text(self.path.read_text() + f"  fleet_file: {self.path}\n")


def test_scaled_and_applied_under_load(world, make):  # noqa: F811
    """One command starts the engine or takes it away; the file of the router that follows stays as it is."""
    host = make(1, 2, kind=Followed)
    host.do("apply")
    before, conf = host.pids(), host.dir / "etc/pdrouter/pdrouter.yaml"
    text = conf.read_text()
    with host.load():
        up = host.do("scale", "prefill=2", "--apply")
        assert "start f-prefill-1" in up and set(host.pids()) == {*before, "f-prefill-1"}
        host.replicas["prefill"] = 2
        down = host.do("scale", "prefill=1", "--apply")
    assert "stop f-prefill-1" in down and host.pids() == before and conf.read_text() == text
