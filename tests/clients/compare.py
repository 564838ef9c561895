"""Runs the calls of each library twice, through the router and straight to one engine.  Both must have the same outcomes."""
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from procs import World, wait  # noqa: E402


def outcomes(program, e):
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # it need not look for prices
    done = subprocess.run([*program, f"http://127.0.0.1:{e.port}"], capture_output=True, check=False, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{program[-1]}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.replace(f"127.0.0.1:{e.port}", "SERVER"))


def compare(program, router, engine):
    """The numbers of calls that are equal and that differ."""
    got, want = outcomes(program, router), outcomes(program, engine)
    name = Path(program[-1]).stem.removeprefix("of_")
    for k in want:
        how = "raises " + want[k]["raises"] if "raises" in want[k] else "returns"
        print(f"{'equal' if got[k] == want[k] else 'DIFFERS':8}{name}: {k} ({how})")
        if got[k] != want[k]:
            print(f"  router: {json.dumps(got[k], ensure_ascii=False)[:3000]}\n  direct: {json.dumps(want[k], ensure_ascii=False)[:3000]}")
    same = sum(got[k] == want[k] for k in want)
    return same, len(want) - same


def main():
    """`compare.py FOLDER`, where run.sh has installed the libraries."""
    at = Path(sys.argv[1])
    programs = [[at / path.stem.removeprefix("of_") / "bin/python", path] for path in sorted(HERE.glob("of_*.py"))]
    w = World()
    try:
        options = {"store": True, "token_delay": 5, "max_model_len": 4096}
        engine = w.engine("both", **options)
        router, _, _ = w.pd(2, 2, engine=options, pool={"retries": 2, "fallback": "direct"})
        wait("what the engines report", lambda: "max_model_len" in router.get("/v1/models").json()["data"][0])
        done = [compare(p, router, engine) for p in (*programs, ["node", at / "of_javascript.mjs"])]
        w.finish()
    finally:
        w.close()
    equal, differ = (sum(n) for n in zip(*done))
    print(f"{equal} calls are equal, {differ} differ")
    sys.exit(1 if differ else 0)


main()
