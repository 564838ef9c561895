"""systemd's end of $NOTIFY_SOCKET, sd_notify(3): what a service says, and the sockets that it leaves in the store."""
import contextlib
import os
import select
import socket


class Manager:
    def __init__(self, world):
        self.path, self.stored = str(world.file("notify")), []
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        self.sock.settimeout(10)

    @contextlib.contextmanager
    def watches(self, **env):
        """Programs that start meanwhile are its services."""
        env["NOTIFY_SOCKET"] = self.path
        os.environ.update(env)
        try:
            yield self
        finally:
            for name in env:
                del os.environ[name]

    def receive(self):
        text, fds, _, _ = socket.recv_fds(self.sock, 4096, 1)
        self.stored += [socket.socket(fileno=fd) for fd in fds]
        return text.decode()

    def until(self, word):
        """All that is said, up to the message with that word."""
        said = [self.receive()]
        while word not in said[-1]:
            said.append(self.receive())
        return said

    def silent(self):
        return not select.select([self.sock], [], [], 0)[0]

    def close(self):
        for s in (self.sock, *self.stored):
            s.close()
