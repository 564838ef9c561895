"""Runs the calls of each library three times: through the router, through it with TLS, and straight to one engine.  All must
have the same outcomes."""
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from certs import Cert  # noqa: E402
from procs import World, free_port, wait  # noqa: E402


def outcomes(program, url, ca):
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it need not look for prices
           "SSL_CERT_FILE": ca, "NODE_EXTRA_CA_CERTS": ca}
    done = subprocess.run([*program, url], capture_output=True, check=False, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{program[-1]}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.replace(url, "URL").replace(url.partition("//")[2], "SERVER"))


def compare(program, urls, ca):
    """The numbers of calls that are equal and that differ; the last URL is the engine's."""
    *routers, engine = urls
    want, got = outcomes(program, engine, ca), {url: outcomes(program, url, ca) for url in routers}
    name = Path(program[-1]).stem.removeprefix("of_")
    same = 0
    for k in want:
        how = "raises " + want[k]["raises"] if "raises" in want[k] else "returns"
        other = [url for url in routers if got[url][k] != want[k]]
        same += not other
        print(f"{'DIFFERS' if other else 'equal':8}{name}: {k} ({how})")
        for url in other:
            print(f"  {url}: {json.dumps(got[url][k], ensure_ascii=False)[:3000]}")
        if other:
            print(f"  direct: {json.dumps(want[k], ensure_ascii=False)[:3000]}")
    return same, len(want) - same


def main():
    """`compare.py FOLDER`, where run.sh has installed the libraries."""
    at = Path(sys.argv[1])
    programs = [[at / path.stem.removeprefix("of_") / "bin/python", path] for path in sorted(HERE.glob("of_*.py"))]
    w = World()
    try:
        options = {"store": True, "token_delay": 5, "max_model_len": 4096}
        engine = w.engine("both", **options)
        cert, tls = Cert(w.dir, "localhost"), free_port()
        router, _, _ = w.pd(2, 2, engine=options, pool={"retries": 2, "fallback": "direct"},
                            tls={"listen": [f"127.0.0.1:{tls}"], "certificates": [cert.row()]})
        urls = [f"http://127.0.0.1:{router.port}", f"https://127.0.0.1:{tls}", f"http://127.0.0.1:{engine.port}"]
        wait("what the engines report", lambda: "max_model_len" in router.get("/v1/models").json()["data"][0])
        done = [compare(p, urls, cert.cert) for p in (*programs, ["node", at / "of_javascript.mjs"])]
        w.finish()
    finally:
        w.close()
    equal, differ = (sum(n) for n in zip(*done))
    print(f"{equal} calls are equal, {differ} differ")
    sys.exit(1 if differ else 0)


main()
