"""A process gone mad: it stores random values at random words of what a running router's processes all write.

Half of its stores hit words that are not 0, which are the words in use.  A seed repeats the places and values."""
import multiprocessing
import os
import random
import struct
import time

from segment import Segment

FORK = multiprocessing.get_context("fork")
WORD = struct.Struct("=Q")
KINDS = ("random", "flip", "zero", "ones", "small", "copy", "half")


class Stores:
    """The places and the values."""

    def __init__(self, seg, seed):
        self.seg, self.rng, self.used, self.due = seg, random.Random(seed), {}, 0
        at = sorted((offset, part) for part, offset in seg.parts.items() if offset >= seg.parts["rcu readers"])
        ends = [offset for offset, _ in at[1:]] + [seg.bytes]
        self.areas = [(part, begin, end) for (begin, part), end in zip(at, ends) if end > begin]

    def one(self):
        if time.monotonic() >= self.due:  # the words in use change
            self.used = {part: self.words_in_use(begin, end) for part, begin, end in self.areas}
            self.due = time.monotonic() + 2
        self.store(*self.rng.choice(self.areas))

    def words_in_use(self, begin, end):
        words = memoryview(os.pread(self.seg.fd, end - begin, self.seg.base + begin)).cast("Q")
        return [begin + 8 * i for i, word in enumerate(words) if word]

    def store(self, part, begin, end):
        rng, used = self.rng, self.used[part]
        anywhere = lambda: rng.randrange(begin // 8, end // 8) * 8  # noqa: E731
        at = rng.choice(used) if used and rng.random() < 0.5 else anywhere()
        old, other = (self.seg.read(where, "=Q")[0] for where in (at, anywhere()))
        value = {"random": rng.getrandbits(64), "flip": old ^ 1 << rng.randrange(64), "zero": 0, "ones": 2**64 - 1,
                 "small": rng.randrange(1, 300), "copy": other, "half": old & 2**32 - 1 | rng.getrandbits(32) << 32}
        self.seg.write(at, "=Q", value[rng.choice(KINDS)])


class Scribbler:
    def __init__(self, r, seed, rate=400):
        self.seg = Segment(r)
        self.stores, self.pause, self.n = Stores(self.seg, seed), 1 / rate, FORK.Value("L", 0)
        self.stop_now = FORK.Event()
        self.p = FORK.Process(target=self.run, daemon=True)
        self.p.start()

    def run(self):
        while not self.stop_now.is_set():
            self.stores.one()
            self.n.value += 1
            time.sleep(self.pause)

    def stop(self):
        """Number of stores."""
        self.stop_now.set()
        self.p.join()
        self.seg.close()
        return self.n.value
