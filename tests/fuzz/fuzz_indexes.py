# SPDX-License-Identifier: Apache-2.0
"""Parses damaged index files whose checksums are good.

The parser must refuse a file, or find what a second reader finds, which cannot read beyond the end
of a part: LevelDB's table format says where each part ends.
"""

import struct

import numpy as np
from fuzz.mutations import change_bytes, choose

from rec_estimator.checkpoint.format.crc32c import crc32c, masked
from rec_estimator.checkpoint.format.index_file import DamagedIndexError, build_index, parse_index

FOOTER, MAGIC = 48, 0xDB4775248B80FB57
TRAILER = 5  # Bytes after a block: compression and checksum.


class Part:
    """Bytes that are read from the start to the end."""

    def __init__(self, data):
        self.left = data

    def take(self, size):
        """The next bytes."""
        if size > len(self.left):
            raise DamagedIndexError("a part ends too early")
        taken, self.left = self.left[:size], self.left[size:]
        return taken

    def number(self):
        """The next number of up to 64 bits."""
        value = 0
        for shift in range(0, 64, 7):
            (byte,) = self.take(1)
            value += (byte & 127) << shift
            if byte < 128:
                return value
        raise DamagedIndexError("a number is too long")


def block_at(data, place):
    """The entries of a block: [(key, value)]."""
    file = Part(data)
    file.take(place.number())
    size = place.number()
    content, (compression, checksum) = file.take(size), struct.unpack("<BI", file.take(TRAILER))
    summed = np.frombuffer(content + bytes([compression]), np.uint8)
    if compression or masked(crc32c(summed)) != checksum or size < 4:
        raise DamagedIndexError("a block is none")
    (positions,) = struct.unpack("<I", content[-4:])
    if 4 + 4 * positions > size:
        raise DamagedIndexError("there are too many positions")
    entries, key, found = Part(content[: size - 4 - 4 * positions]), b"", []
    whole = {0}  # Where an entry with its whole key begins.
    begin, end = 0, len(entries.left)
    while entries.left:
        shared, rest, length = (entries.number() for _ in range(3))
        if shared > len(key):
            raise DamagedIndexError("an entry shares more than there is")
        if not shared:
            whole.add(begin)
        key = key[:shared] + entries.take(rest)
        found.append((key, entries.take(length)))
        begin = end - len(entries.left)
    if not whole.issuperset(struct.unpack(f"<{positions}I", content[end:-4])):
        raise DamagedIndexError("a position is within an entry")
    return found


def entries_of(data):
    """All entries of an index: [(key, value)]."""
    if len(data) < FOOTER or struct.unpack("<Q", data[-8:])[0] != MAGIC:
        raise DamagedIndexError("there is no footer")
    footer = Part(data[-FOOTER:])
    if block_at(data, footer):
        raise DamagedIndexError("the metaindex has entries")
    found = []
    for _, place in block_at(data, footer):
        found += block_at(data, Part(place))
    if any(key >= after for (key, _), (after, _) in zip(found, found[1:])):
        raise DamagedIndexError("the keys are in disorder")
    return found


# ------------------------------------------------------------------ damage


def varint(value):
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def block_of(rng, entries, lies):
    """The bytes of a block without its trailer, some numbers of which may be wrong."""
    wrong = int(rng.integers(max(1, len(entries)))) if lies else -1
    if lies and rng.random() < 0.5:
        wrong = len(entries) - 1  # What it claims of others is found in the entries after it.
    block, positions, before = bytearray(), [0], b""
    for number, (key, value) in enumerate(entries):
        if number % 3 == 0 and number:
            positions.append(len(block))
            before = b""
        shared = max(i for i in range(len(key) + 1) if before.startswith(key[:i]))
        numbers = [shared, len(key) - shared, len(value)]
        if number == wrong:
            at = int(rng.integers(3))
            numbers[at] = max(0, numbers[at] + choose(rng, [-1, 1, 2, 4, 8, 12, 1000, 2**40]))
        block += b"".join(map(varint, numbers)) + key[shared:] + value
        before = key
    if lies and rng.random() < 0.2:
        positions[-1] += choose(rng, [-1, 1, 3, 1000])
    count = len(positions) + (choose(rng, [-1, 1, 2, 2**30]) if lies and rng.random() < 0.2 else 0)
    positions = [position % 2**32 for position in positions]
    return bytes(block) + struct.pack(f"<{len(positions) + 1}I", *positions, count)


def sealed(block, compression=0):
    """A block with its trailer."""
    block += bytes([compression])
    return block + struct.pack("<I", masked(crc32c(np.frombuffer(block, np.uint8))))


def index_of(rng, entries, lying):
    """An index of one to three blocks. ``lying`` says which of its parts lie."""
    file, places = b"", []
    cuts = sorted(rng.integers(len(entries) + 1, size=choose(rng, [0, 1, 2])).tolist())
    for begin, end in zip([0, *cuts], [*cuts, len(entries)]):
        mine = entries[begin:end]
        block = block_of(rng, mine, lying == "entries" and rng.random() < 0.7)
        if lying == "bytes" and block:
            block = change_bytes(rng, block)
        places.append((mine[-1][0] if mine else b"", varint(len(file)) + varint(len(block))))
        file += sealed(block, choose(rng, [0, 1]) if lying == "compression" else 0)
    footer = b""
    for which, content in ("metaindex", []), ("places", places):
        if which == lying == "metaindex":
            content = [(b"a", b"b")]
        block = block_of(rng, content, which == lying)
        if lying == "footer":
            block = change_bytes(rng, block)
        footer += varint(len(file)) + varint(len(block))
        file += sealed(block)
    return file + footer.ljust(FOOTER - 8, b"\0") + struct.pack("<Q", MAGIC)


class Target:
    """Indexes of some entries, each with a lie in one of its parts."""

    def __init__(self, folder):
        del folder
        rng = np.random.default_rng(0)
        for _ in range(20):
            entries = self._entries(rng)
            honest = index_of(rng, entries, "nothing")
            assert list(parse_index(honest)) == entries_of(honest) == entries
            assert entries_of(build_index(entries)) == entries

    def run(self, seed):
        rng = np.random.default_rng(seed)
        entries = self._entries(rng)
        parts = ["entries", "entries", "bytes", "compression", "metaindex", "places", "footer"]
        lying = choose(rng, [*parts, "file", "order"])
        if lying == "order" and entries:
            entries.append(choose(rng, entries))
        data = index_of(rng, entries, lying)
        return self._compare(change_bytes(rng, data) if lying == "file" else data)

    def _entries(self, rng):
        keys = {b"ab"[: int(rng.integers(3))] + rng.bytes(int(rng.integers(4))) for _ in range(9)}
        return [(key, rng.bytes(int(rng.integers(20)))) for key in sorted(keys)]

    def _compare(self, data):
        try:
            expected = entries_of(data)
        except DamagedIndexError:
            expected = None
        try:
            found = list(parse_index(data))
        except DamagedIndexError:
            # The parser limits the bytes of all keys, too.
            keys = sum(len(key) for key, _ in expected or [])
            assert expected is None or keys > 64 * len(data), f"{expected} was refused"
            return "refused"
        assert found == expected, f"{found} was read, not {expected}"
        return "accepted"
