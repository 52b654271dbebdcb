"""Accounting for compressed snapshots."""

from contextlib import suppress
from dataclasses import dataclass

from devito.tools import humanbytes

from devitocomp_plugin.exceptions import DevitoCompError

__all__ = ['CompressionReport', 'SnapshotReport']


@dataclass(frozen=True)
class SnapshotReport:
    """
    What is known about one stored snapshot.

    Attributes
    ----------
    index : int
    raw_bytes, stored_bytes : int
        Uncompressed; payload and sidecar.
    compress_seconds : float
        Of the latest compression.
    decompress_seconds : float
        Of all decompressions together.
    decompressions : int
    """

    index: int
    raw_bytes: int
    stored_bytes: int
    compress_seconds: float
    decompress_seconds: float
    decompressions: int

    @property
    def ratio(self):
        """Uncompressed over stored bytes."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else float('inf')


class CompressionReport:

    """
    The snapshots held by a compressed function, and the work done on them.

    Attributes
    ----------
    name : str
        The function.
    snapshots : int
        How many are stored.
    raw_bytes, stored_bytes : int
        Uncompressed, and as stored: payloads and sidecars.
    ratio : float
        The former over the latter; NaN if nothing is stored.
    compress_seconds, decompress_seconds : float
        Spent on the snapshots that are stored.
    provider : str or None
        Name and version of the provider; None before the first access, or if none that
        can read the snapshots is in use.
    error_bound : float or None
        The error that the provider guarantees, in the sense of `error_kind`.
    error_kind : str or None
        ``'lossless'``, ``'relative-max'``, ``'absolute'`` or ``'none'``.
    path : str or None
        The directory that they are in; None if they are in memory.
    per_snapshot : list of SnapshotReport
    """

    def __init__(self, function):
        store = function._store
        stored = store.stored
        self.name = function.name
        self.path = store.path
        if stored:
            # Those of an earlier process may be of a provider that is not in use now
            with suppress(DevitoCompError):
                store.settle()
        self.provider = str(store.provider) if store.provider is not None else None
        self.error_bound = store.limits.error_bound if store.limits else None
        self.error_kind = store.limits.error_kind if store.limits else None

        self.per_snapshot = []
        for i in stored:
            info = store.info(i)
            self.per_snapshot.append(SnapshotReport(
                i, info.raw_bytes, info.payload_bytes + info.sidecar_bytes,
                info.compress_seconds, info.decompress_seconds, info.decompressions
            ))

        self.snapshots = len(self.per_snapshot)
        self.raw_bytes = self._total('raw_bytes')
        self.stored_bytes = self._total('stored_bytes')
        self.compress_seconds = self._total('compress_seconds')
        self.decompress_seconds = self._total('decompress_seconds')

    def _total(self, field):
        return sum(getattr(i, field) for i in self.per_snapshot)

    @property
    def ratio(self):
        if not self.snapshots:
            return float('nan')
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else float('inf')

    @property
    def compress_gbs(self):
        """Uncompressed GB compressed per second; NaN if there were none."""
        return _speed(self.raw_bytes, self.compress_seconds)

    @property
    def decompress_gbs(self):
        """Uncompressed GB decompressed per second; NaN if there were none."""
        nbytes = sum(i.raw_bytes*i.decompressions for i in self.per_snapshot)
        return _speed(nbytes, self.decompress_seconds)

    @property
    def summary(self):
        """The totals, in one line."""
        text = (f"{self.snapshots} snapshots, {humanbytes(self.raw_bytes)} in "
                f"{humanbytes(self.stored_bytes)} (ratio {self.ratio:.1f})")
        if self.compress_seconds:
            text += (f", compressed in {self.compress_seconds:.2f} s "
                     f"[{self.compress_gbs:.2f} GB/s]")
        if self.decompress_seconds:
            text += (f", decompressed in {self.decompress_seconds:.2f} s "
                     f"[{self.decompress_gbs:.2f} GB/s]")
        return text

    def __str__(self):
        error = '' if self.error_kind is None else (
            ', lossless' if self.error_kind == 'lossless' else
            f", error <= {self.error_bound:g} ({self.error_kind})"
        )
        path = '' if self.path is None else f" in {self.path}"
        lines = [f"`{self.name}`{path}: provider {self.provider}{error}", self.summary,
                 f"{'snapshot':>8} {'raw bytes':>14} {'stored bytes':>14} {'ratio':>8} "
                 f"{'compress s':>11} {'decompress s':>13} {'reads':>6}"]
        for i in self.per_snapshot:
            lines.append(f"{i.index:>8} {i.raw_bytes:>14} {i.stored_bytes:>14} "
                         f"{i.ratio:>8.1f} {i.compress_seconds:>11.5f} "
                         f"{i.decompress_seconds:>13.5f} {i.decompressions:>6}")
        return '\n'.join(lines)

    def __repr__(self):
        return f"<CompressionReport of `{self.name}`: {self.summary}>"


def _speed(nbytes, seconds):
    return nbytes/seconds/1e9 if seconds else float('nan')
