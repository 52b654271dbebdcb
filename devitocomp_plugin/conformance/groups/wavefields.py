"""Round trips of what providers are for: snapshots of waves."""
import time

import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import NotApplicable, check
from devitocomp_plugin.conformance.samples import discrepancy, wavefields
from devitocomp_plugin.conformance.tensors import tensors


def propagate(t, ndim):
    pairs = [i for i in tensors(t) if i[1] == ndim and i[0].kind == 'f']
    if not pairs:
        raise NotApplicable(f'it claims no floating-point tensors of rank {ndim}')
    for dtype, _ in pairs:
        snapshots = list(wavefields(ndim, dtype))
        for options in t.driver.tolerances(dtype, snapshots[0].shape):
            with Bench(t.driver, dtype, snapshots[0].shape, options=options) as bench:
                history(t, bench, snapshots)


def history(t, bench, snapshots):
    """All compressed before any is decompressed, backwards, as adjoints do."""
    started = time.perf_counter()
    stored = [bench.compress(i) for i in snapshots]
    compressed = time.perf_counter()
    found = [bench.decompress(i) for i in reversed(stored)][::-1]
    decompressed = time.perf_counter()
    error = 0.
    for n, (data, got) in enumerate(zip(snapshots, found, strict=True)):
        wrong = discrepancy(bench.limits, data, got)
        t.expect(wrong is None, f'{bench.label}, snapshot {n}: {wrong}')
        most = np.max(np.abs(data)).astype(float)
        if most > 0:
            error = max(error, np.max(np.abs(data.astype(float) - got))/most)
    raw = sum(i.nbytes for i in snapshots)
    used = sum(len(i.payload) + len(i.sidecar) for i in stored)
    t.note(f'{bench.label}: {raw/max(used, 1):.1f} times smaller, relative error '
           f'{error:.2e} (bound: {abi.ERROR_KINDS.get(bench.limits.error_kind)} '
           f'{bench.limits.error_bound:g}), '
           f'{raw/1e9/(compressed - started):.2f} and '
           f'{raw/1e9/(decompressed - compressed):.2f} GB/s with {bench.threads} '
           f'threads, our copies included')


@check('restores wavefields in one dimension within the error bound')
def one(t):
    propagate(t, 1)


@check('restores wavefields in two dimensions within the error bound')
def two(t):
    propagate(t, 2)


@check('restores wavefields in three dimensions within the error bound')
def three(t):
    propagate(t, 3)
