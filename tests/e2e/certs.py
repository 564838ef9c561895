"""Certificates for tests, made by the openssl command, and a client that speaks TLS."""
import ssl
import subprocess

from raw import Client

KEYS = {"ec": ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"], "rsa": ["-newkey", "rsa:2048"]}


class Cert:
    """A certificate for `name` in `folder`, signed by another one or by itself."""

    def __init__(self, folder, name, by=None, days=30, key="ec", ip="127.0.0.1"):
        stem, self.name = folder / name, name
        self.cert, self.key = f"{stem}.crt", f"{stem}.key"
        request, names = f"{stem}.csr", f"{stem}.ext"
        with open(names, "w") as f:
            f.write(f"subjectAltName=DNS:{name},IP:{ip}\nbasicConstraints=CA:{'FALSE' if by else 'TRUE'}\n")
        self.run("req", "-new", *KEYS[key], "-nodes", "-keyout", self.key, "-out", request, "-subj", f"/CN={name}")
        signer = ["-CA", by.cert, "-CAkey", by.key, "-CAcreateserial"] if by else ["-signkey", self.key]
        self.run("x509", "-req", "-in", request, *signer, "-days", days, "-extfile", names, "-out", self.cert)

    @staticmethod
    def run(*args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=20)

    def number(self):
        """The 32 bytes of an EC key that nobody else may have."""
        der = subprocess.run(["openssl", "ec", "-in", self.key, "-outform", "DER"], check=True, capture_output=True, timeout=20)
        return der.stdout[7:39]  # behind the version, in an OCTET STRING

    def row(self):
        return {"cert": self.cert, "key": self.key}

    def trusting(self, own=None, **members):
        """What a client needs that trusts this certificate, and has one of its own."""
        ctx = ssl.create_default_context(cafile=self.cert)
        if own:
            ctx.load_cert_chain(own.cert, own.key)
        for k, v in members.items():
            setattr(ctx, k, v)
        return ctx


class TlsClient(Client):
    """`first`: plain bytes before the handshake."""

    def __init__(self, address, context, name="localhost", session=None, first=b"", **kw):
        super().__init__(address, **kw)
        self.sock.sendall(first)
        try:
            self.sock = context.wrap_socket(self.sock, server_hostname=name, session=session)
        except BaseException:
            self.sock.close()
            raise


class Records:
    """A session over a socket whose bytes a test reads itself, and writes to `raw`."""

    def __init__(self, sock, context, name="localhost"):
        self.sock, self.raw, self.out = sock, ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.raw, self.out, server_hostname=name)
        self._pump(self.tls.do_handshake)

    def _pump(self, call):
        while True:
            try:
                return call()
            except ssl.SSLWantReadError:
                self.sock.sendall(self.out.read())
                self.raw.write(self.sock.recv(65536))
            finally:
                self.sock.sendall(self.out.read())

    def write(self, data):
        return self._pump(lambda: self.tls.write(data))

    def read(self):
        return self._pump(lambda: self.tls.read(65536))

    def until(self, mark):
        while mark not in self.read():
            pass
