"""Released versions of a package, and files out of its wheels.  pip says where a wheel is; a file is read from there by
range requests when it is asked for, so a wheel of 400 MB costs its directory and a few files.  All is kept in CACHE."""
import functools
import io
import json
import os
import re
import subprocess
import sys
import urllib.request
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.path.join(ROOT, "build/engine-args")


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[1:])}:\n{done.stderr}")
    return done.stdout


def pip(*args):
    """Runs a pip of its own: an older one downloads the whole wheel, `fast-deps` or not."""
    home = os.path.join(CACHE, "pip")
    if not os.path.exists(home):
        run(sys.executable, "-m", "pip", "install", "-q", "--target", home, "pip>=24")
    return run(sys.executable, "-m", "pip", *args, env={**os.environ, "PYTHONPATH": home, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def number(version):
    """0.4.10.post2 -> (0, 4, 10); what follows the numbers does not order two releases here."""
    return tuple(int(n) for n in re.match(r"[\d.]*\d", version)[0].split("."))


@functools.cache
def versions(package):
    """Releases that have a wheel, the oldest first."""
    listed = re.search("Available versions: (.*)", pip("index", "versions", "--only-binary", ":all:", package))
    return listed[1].split(", ")[::-1]


class Remote(io.RawIOBase):
    """A file behind a URL, as zipfile wants it."""

    def __init__(self, url):
        self.url, self.at = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self.size = int(answer.headers["Content-Length"])

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, into):
        n = min(len(into), self.size - self.at)
        if n <= 0:
            return 0
        wanted = urllib.request.Request(self.url, headers={"Range": f"bytes={self.at}-{self.at + n - 1}"})
        with urllib.request.urlopen(wanted) as answer:
            if answer.status != 206:
                raise OSError(f"{self.url}: the server sends whole files only")
            part = answer.read()
        into[:len(part)] = part
        self.at += len(part)
        return len(part)


class Wheel:
    """names: its files.  read(name): the text of one."""

    def __init__(self, package, version):
        self.package, self.version = package, version
        self.home = os.path.join(CACHE, f"{package}-{version}")
        self.names = set(self.kept("NAMES", lambda: "\n".join(self.zip.namelist())).split("\n"))

    @functools.cached_property
    def zip(self):
        report = json.loads(pip("install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:", "--no-cache-dir",
                                "--use-feature=fast-deps", "--quiet", "--report", "-", f"{self.package}=={self.version}"))
        return zipfile.ZipFile(io.BufferedReader(Remote(report["install"][0]["download_info"]["url"]), 1 << 18))

    def kept(self, name, fetch):
        path = os.path.join(self.home, name)
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".part", "w", encoding="utf-8") as f:
                f.write(fetch())
            os.rename(path + ".part", path)
        with open(path, encoding="utf-8") as f:
            return f.read()

    def read(self, name):
        return self.kept(name, lambda: self.zip.read(name).decode())


class Folder:
    """The same for a folder of sources: the fixture."""

    def __init__(self, package, home):
        self.package, self.version, self.home = package, "fixture", home
        self.names = {os.path.relpath(os.path.join(d, f), home) for d, _, files in os.walk(home) for f in files}

    def read(self, name):
        with open(os.path.join(self.home, name), encoding="utf-8") as f:
            return f.read()
