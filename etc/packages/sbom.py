#!/usr/bin/env python3
"""The bill of materials of built programs, SPDX 2.3 in JSON: what they load (ELF), what of other packages was compiled into them
(headers of packages that they do not load), and the Debian package and version of each.

Usage: sbom.py VERSION FOLDER >FILE: where `make` has built the programs, or below which they are installed.
SOURCE_DATE_EPOCH is the time of the document.  In the checkout's folder or below it."""
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = ["bin/pdctl", "bin/pdfleet", "bin/pdrouter", "bin/pdtop", "libexec/pdrouter/pdsim"]
SHIPPED = ["master", "worker", "shm", "proto", "tests/engine"]
# of the compiler and the C library: what they bring is not listed by header
TOOLCHAIN = ("libc6-dev", "linux-libc-dev", "libgcc-")
FIELDS = ["binary:Package", "Version", "Architecture", "source:Package", "source:Version"]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout


def owners(paths):
    """The packages of files; a file of /usr may be packed as one of /, as long as both are one folder."""
    real = {os.path.realpath(p) for p in paths}
    asked = sorted(real | {p.removeprefix("/usr") for p in real})
    said = subprocess.run(["dpkg", "-S", *asked], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
    found = {path.removeprefix("/usr"): package.split(",")[0] for package, path in re.findall(r"^(\S+(?:, \S+)*): (/.*)$", said, re.M)}
    missing = [p for p in real if p.removeprefix("/usr") not in found]
    if missing:
        raise SystemExit(f"sbom.py: of no Debian package: {' '.join(missing)}")
    return {found[p.removeprefix("/usr")] for p in real}


def about(package):
    return dict(zip(FIELDS, run("dpkg-query", "-W", "-f", "\t".join(f"${{{f}}}" for f in FIELDS), package).split("\t")))


def needed(program):
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", program)))


def loaded(program):
    """name: path of all that the loader finds for it."""
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", run("ldd", program), re.M))


def headers():
    """Packages of the headers that the sources include."""
    names = set()
    for folder in SHIPPED:
        for path in glob.glob(f"{ROOT}/{folder}/**/*.[ch]", recursive=True):
            with open(path) as f:
                names |= set(re.findall(r'^#\s*include [<"]([^>"]+)[>"]', f.read(), re.M))
    where = ["/usr/include", "/usr/include/" + run("gcc", "-print-multiarch").strip()]
    paths = {p for n in names for w in where if os.path.exists(p := f"{w}/{n}")}
    return {p for p in owners(paths) if not p.startswith(TOOLCHAIN)}


def digests(path):
    with open(path, "rb") as f:
        data = f.read()
    return [{"algorithm": a, "checksumValue": hashlib.new(a, data).hexdigest()} for a in ("SHA1", "SHA256")]


def spdx_id(name):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def library(package):
    a = about(package)
    name, version = a["binary:Package"].split(":")[0], a["Version"]
    source = f"{a['source:Package']} {a['source:Version']}"
    purl = f"pkg:deb/debian/{name}@{urllib.parse.quote(version, safe='~')}?arch={a['Architecture']}"
    return {"name": name, "SPDXID": spdx_id("Package-" + name), "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "sourceInfo": f"built from the Debian source package {source}", "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]}


def document(version, folder):
    programs = {name: path for name in PROGRAMS for path in (f"{folder}/{name}", f"{folder}/{os.path.basename(name)}") if os.path.exists(path)}
    if len(programs) < len(PROGRAMS):
        raise SystemExit(f"sbom.py: {folder} has not all programs")
    direct, indirect = set(), set()
    for p in programs.values():
        names, paths = needed(p), loaded(p)
        direct |= owners({path for name, path in paths.items() if name in names})
        indirect |= owners(paths.values())
    indirect -= direct
    sources = {about(p)["source:Package"] for p in direct}
    compiled_in = {p for p in headers() if about(p)["source:Package"] not in sources}
    files = [{"fileName": "./" + name, "SPDXID": spdx_id("File-" + os.path.basename(name)), "checksums": digests(path),
              "licenseConcluded": "Apache-2.0", "copyrightText": "NOASSERTION"} for name, path in programs.items()]
    sums = sorted(c["checksumValue"] for f in files for c in f["checksums"] if c["algorithm"] == "SHA1")
    own = {"name": "pdrouter", "SPDXID": "SPDXRef-Package-pdrouter", "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": True,
           "packageVerificationCode": {"packageVerificationCodeValue": hashlib.sha1("".join(sums).encode()).hexdigest()},
           "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "licenseInfoFromFiles": ["NOASSERTION"], "copyrightText": "NOASSERTION"}
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", own["SPDXID"])]
    relations += [(own["SPDXID"], "CONTAINS", f["SPDXID"]) for f in files]
    libraries = []
    for packages, relation in ((direct, "DYNAMIC_LINK"), (compiled_in, "STATIC_LINK"), (indirect, "DEPENDS_ON")):
        for lib in sorted(map(library, packages), key=lambda x: x["name"]):
            libraries.append(lib)
            relations.append((own["SPDXID"], relation, lib["SPDXID"]))
    doc = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"pdrouter-{version}",
           "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))),
                            "creators": [f"Tool: pdrouter-sbom-{version}"]},
           "packages": [own, *libraries], "files": files,
           "relationships": [dict(zip(("spdxElementId", "relationshipType", "relatedSpdxElement"), r)) for r in relations]}
    said = hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()
    return {**doc, "documentNamespace": f"https://spdx.org/spdxdocs/pdrouter-{version}-{said[:32]}"}


print(json.dumps(document(*sys.argv[1:]), indent=1))
