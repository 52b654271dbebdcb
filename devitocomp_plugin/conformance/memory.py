"""Memory handed to a provider, with canaries on both sides."""
import ctypes as ct
import mmap

import numpy as np

__all__ = ['Fenced', 'HostRegion', 'Region']

GUARD = 4096
"""Bytes of canary on each side."""

CANARY = np.tile(np.arange(64, dtype=np.uint8) * 37 + 0x51, GUARD // 64)
"""Of the guards. No two neighbours are equal, so that moved bytes are noticed too."""

LEAST_ALIGNMENT = 64
PROT_NONE = 0


class Region:
    """
    Bytes between canaries, wherever they are.

    Parameters
    ----------
    nbytes : int
        How many.
    address : int
        Where they begin. There are GUARD more on each side.
    """

    def __init__(self, nbytes, address):
        self.nbytes = nbytes
        self.address = address
        for at in (-GUARD, nbytes):
            self._write(at, CANARY)

    def put(self, data):
        """Fill it from the beginning."""
        self._write(0, np.frombuffer(data, dtype=np.uint8))

    def get(self, nbytes=None):
        """Its first bytes, or all of them."""
        return self._read(0, self.nbytes if nbytes is None else nbytes).tobytes()

    def fill(self, value):
        """Set all bytes to one value."""
        self._write(0, np.full(self.nbytes, value, dtype=np.uint8))

    def damage(self):
        """Describe what was written outside; None if nothing was."""
        for name, at in (('before', -GUARD), ('after', self.nbytes)):
            changed = np.flatnonzero(self._read(at, GUARD) != CANARY)
            if changed.size:
                first = changed[-1] - GUARD if name == 'before' else changed[0]
                return (f'{changed.size} bytes {name} its {self.nbytes} bytes, the '
                        f'nearest at offset {int(first):+d}')
        return None


class HostRegion(Region):
    """
    A Region in host memory.

    Parameters
    ----------
    nbytes : int
        How many bytes.
    alignment : int, optional
        A power of two. Without `offset`, the address is a multiple of twice as much, and
        of 64.
    offset : int, optional
        Added to the address. Equal to `alignment`, it makes the address as badly aligned
        as is allowed.
    """

    def __init__(self, nbytes, alignment=1, offset=0):
        alignment = max(2*alignment, LEAST_ALIGNMENT)
        self._raw = np.empty(nbytes + 2*GUARD + alignment + offset, dtype=np.uint8)
        base = self._raw.ctypes.data
        self._start = GUARD + -(base + GUARD) % alignment + offset
        super().__init__(nbytes, base + self._start)

    def _write(self, at, data):
        self._raw[self._start + at:][:data.size] = data

    def _read(self, at, nbytes):
        return self._raw[self._start + at:][:nbytes]


class Fenced:
    """
    Bytes in host memory followed, as closely as the alignment permits, by a page that
    cannot be accessed.

    Parameters
    ----------
    data : bytes
        The content.
    alignment : int
        Of the address, a power of two.
    """

    _mprotect = ct.CDLL(None).mprotect
    _mprotect.argtypes = [ct.c_void_p, ct.c_size_t, ct.c_int]

    def __init__(self, data, alignment):
        page = mmap.PAGESIZE
        pages = -(-max(len(data), 1) // page)
        self._map = mmap.mmap(-1, (pages + 1)*page)
        base = ct.addressof(ct.c_char.from_buffer(self._map))
        if self._mprotect(base + pages*page, page, PROT_NONE) != 0:
            raise OSError('mprotect failed')
        start = pages*page - len(data)
        start -= start % alignment
        self._map[start:start + len(data)] = data
        self.address = base + start
        self.nbytes = len(data)

    def get(self):
        """The content."""
        return ct.string_at(self.address, self.nbytes)
