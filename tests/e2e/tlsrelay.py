"""TLS before an engine of a test that speaks plain HTTP: a relay in a thread of its own."""
import asyncio
import contextlib
import ssl
import struct
import threading


class TlsRelay:
    """Shows `cert`; with `clients` only peers with a certificate of that authority come through."""

    def __init__(self, cert, target, clients=None, **members):
        self.target, self.members, self.clients = target, members, clients
        self.sessions = []  # of each handshake: whether it resumed an earlier one
        self.names, self.protocols = [], []  # what each was asked for, and has chosen
        self.writers = []
        self.cut = None  # bytes: the next answer to a POST that has them ends within a record in their place
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda *_: None)  # peers that leave are part of tests
        self.context = self.make_context(cert)
        self.server = self.port = None
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(self._start(0))

    def make_context(self, cert):
        ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ctx.load_cert_chain(cert.cert, cert.key)
        ctx.set_alpn_protocols(["http/1.1"])
        ctx.sni_callback = lambda _, name, __: self.names.append(name)
        if self.clients:
            ctx.load_verify_locations(self.clients.cert)
            ctx.verify_mode = ssl.CERT_REQUIRED
        for k, v in self.members.items():
            setattr(ctx, k, v)
        return ctx

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    async def _start(self, port):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self.context)
        self.port = self.server.sockets[0].getsockname()[1]

    @property
    def url(self):
        return f"https://127.0.0.1:{self.port}"

    def hang_up(self):
        """Ends its connections, as an engine ends those that are idle."""
        async def end():
            for writer in self.writers:
                writer.close()
            self.writers.clear()
        self.run(end())

    def show(self, cert):
        """From now on it has this certificate, and knows no earlier session."""
        async def again():
            self.server.close()
            await self.server.wait_closed()
            await self._start(self.port)
        self.context = self.make_context(cert)
        self.run(again())

    def close(self):
        async def end():
            self.server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    async def _serve(self, reader, writer):
        self.writers.append(writer)
        tls = writer.get_extra_info("ssl_object")
        self.sessions.append(tls.session_reused)
        self.protocols.append(tls.selected_alpn_protocol())
        with contextlib.suppress(OSError):
            to_reader, to = await asyncio.open_connection(*self.target)
            up = asyncio.ensure_future(self._up(reader, to))
            await self._down(to_reader, writer)
            up.cancel()
            to.close()
        writer.close()

    async def _up(self, reader, to):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                to.write(data)
                await to.drain()
        to.close()  # as an engine takes the end of a client

    async def _down(self, reader, writer):
        while data := await reader.read(65536):
            if self.cut and self.cut in data:
                self.cut = None
                # of a record of 100 bytes 10 come
                writer.get_extra_info("socket")._sock.send(b"\x17\x03\x03" + struct.pack(">H", 100) + b"x" * 10)
                writer.transport.abort()
                return
            writer.write(data)
            await writer.drain()
