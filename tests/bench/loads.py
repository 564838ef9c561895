"""Loads of pdload against what stands on a stage, and the figures that they gave."""
import json
import resource
import subprocess

from stage import BIN, tree


def body(lane, size=1024, stream=False, tokens=8):
    """A chat request of exactly `size` bytes."""
    doc = {"model": lane, "messages": [{"role": "user", "content": ""}], "stream": stream, "max_tokens": tokens}
    room = size - len(json.dumps(doc))
    doc["messages"][0]["content"] = ("Tell me about routers. " * (room // 23 + 1))[:room]
    return json.dumps(doc)


def raise_files(wanted):
    """As many descriptors for each process that is started from here on, if the machine lets us.  Returns how many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return wanted
        except (OSError, ValueError):
            pass
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(hard, wanted)


class Loads:
    """`got[figure][who]`: one value for each round."""

    def __init__(self, stage, values):
        self.stage, self.got, self.nfiles = stage, values, 0
        self.pids = {who: ",".join(map(str, tree(*stage.roots(who)))) for who in [*stage.pid, *stage.pids]}

    def args(self, who, lane, text, **options):
        self.nfiles += 1
        path = self.stage.dir / f"body{self.nfiles}"
        path.write_text(text)
        args = [BIN / "pdload", "--port", self.stage.ports[who][lane], "--body", path]
        if who in self.pids:
            args += ["--pids", self.pids[who]]
        for k, v in options.items():
            args += [f"--{k.replace('_', '-')}"] + ([] if v is True else [v])
        return [str(a) for a in args]

    def load(self, *args, **options):
        p = subprocess.run(self.args(*args, **options), stdout=subprocess.PIPE, timeout=60)
        if p.returncode != 0:
            raise SystemExit(f"bench: the load against {args[0]} failed (above); "
                             f"{(self.stage.dir / 'router.err').read_text(errors='replace')[-1500:]}")
        return json.loads(p.stdout)

    def note(self, figure, who, value):
        self.got.setdefault(figure, {}).setdefault(who, []).append(value)

    def best(self, figure, who):
        return min(self.got[figure][who]) if who in self.got.get(figure, {}) else None
