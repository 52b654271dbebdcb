"""Payloads and sidecars that are not what compress has left."""
import ctypes as ct

import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench, Snapshot
from devitocomp_plugin.conformance.checks import NotApplicable, check
from devitocomp_plugin.conformance.driver import describe
from devitocomp_plugin.conformance.memory import Fenced
from devitocomp_plugin.conformance.samples import (
    discrepancy,
    large_shape,
    make,
    small_shape,
)
from devitocomp_plugin.conformance.tensors import a_bench, tensors

FLIPS = 50


def benches(t):
    for dtype, rank in tensors(t):
        for options in t.driver.tolerances(dtype, small_shape(rank)):
            with Bench(t.driver, dtype, small_shape(rank), options=options) as bench:
                yield bench


def attempt(t, damaged):
    """
    Decompress what is damaged. Nothing but the rules can fail, unless the provider claims
    that it detects all damage.

    Parameters
    ----------
    damaged : function
        Yields (what, Snapshot) for a bench.
    """
    claimed = 'detects-corruption' in t.driver.claims.flags
    tried = noticed = 0
    for bench in benches(t):
        for what, snapshot in damaged(bench):
            status, _ = bench.try_decompress(snapshot)
            tried += 1
            noticed += status != abi.OK
            if claimed:
                t.expect(status != abi.OK, f'{bench.label}: {what} is not noticed, but '
                                           f'DETECTS_CORRUPTION is claimed')
    if not tried:
        raise NotApplicable('there is nothing that could be damaged so')
    t.note(f'{noticed} of {tried} noticed' +
           ('' if claimed else '; it does not claim DETECTS_CORRUPTION'))


def snapshots(bench, sorts=('random', 'zero')):
    for sort in sorts:
        yield sort, bench.compress(make(sort, bench.shape, bench.dtype))


def _flips(text, rng):
    """Positions and bits: all over it, and more of the beginning and the end."""
    length = len(text)
    ends = [i for i in (*range(32), *range(length - 16, length)) if 0 <= i < length]
    for at in (*dict.fromkeys(ends), *rng.integers(0, length, FLIPS)):
        bit = int(rng.integers(8))
        changed = bytearray(text)
        changed[at] ^= 1 << bit
        yield int(at), bit, bytes(changed)


@check('survives truncated payloads, and notices if it claims to')
def truncated(t):
    def damaged(bench):
        for sort, snapshot in snapshots(bench):
            length = len(snapshot.payload)
            cuts = {0, 1, length//4, length//2, length - 8, length - 1}
            for cut in sorted(i for i in cuts if 0 <= i < length):
                yield (f'{sort}, cut to {cut} of {length} bytes',
                       Snapshot(snapshot.payload[:cut], snapshot.sidecar))
    attempt(t, damaged)


@check('survives payloads that are too long, and notices if it claims to')
def extended(t):
    def damaged(bench):
        for sort, snapshot in snapshots(bench):
            for more in (1, 8, 4096):
                yield (f'{sort}, {more} bytes too long',
                       Snapshot(snapshot.payload + b'\x5a'*more, snapshot.sidecar))
    attempt(t, damaged)


@check('survives flipped bits in payloads, and notices if it claims to')
def flipped(t):
    def damaged(bench):
        rng = np.random.default_rng(3)
        for sort, snapshot in snapshots(bench):
            if not snapshot.payload:
                continue
            for at, bit, payload in _flips(snapshot.payload, rng):
                yield (f'{sort}, bit {bit} of byte {at} of {len(payload)} flipped',
                       Snapshot(payload, snapshot.sidecar))
    attempt(t, damaged)


@check('survives flipped bits in sidecars, and notices if it claims to')
def flipped_sidecar(t):
    def damaged(bench):
        rng = np.random.default_rng(4)
        if not bench.limits.sidecar_bytes:
            return
        for sort, snapshot in snapshots(bench):
            for at, bit, sidecar in _flips(snapshot.sidecar, rng):
                yield (f'{sort}, bit {bit} of byte {at} of the sidecar flipped',
                       Snapshot(snapshot.payload, sidecar))
    attempt(t, damaged)


@check('survives payloads swapped between snapshots, and notices if it claims to')
def swapped(t):
    def damaged(bench):
        # Without sidecars, another payload is nothing but another snapshot
        if not bench.limits.sidecar_bytes:
            return
        data = make('random', bench.shape, bench.dtype)
        first, second = bench.compress(data), bench.compress(data[::-1].copy())
        if first.payload != second.payload:
            yield 'the payload of another snapshot', Snapshot(second.payload,
                                                              first.sidecar)
    attempt(t, damaged)


@check('survives payloads that are noise, and notices if it claims to')
def noise(t):
    def damaged(bench):
        rng = np.random.default_rng(5)
        for sort, snapshot in snapshots(bench, ('random',)):
            length = len(snapshot.payload)
            for name, payload in (('zeros', bytes(length)), ('ones', b'\xff'*length),
                                  *(('noise', rng.bytes(length)) for _ in range(8))):
                for side, sidecar in (('its', snapshot.sidecar),
                                      ('no', rng.bytes(len(snapshot.sidecar)))):
                    if payload != snapshot.payload:
                        yield (f'{name} in place of {sort}, with {side} sidecar',
                               Snapshot(payload, sidecar))
    attempt(t, damaged)


@check('survives payloads of tensors of another shape')
def foreign(t):
    noticed = tried = 0
    for dtype, rank in tensors(t):
        shape = small_shape(rank)
        for other in ((2,)*rank, shape[::-1], large_shape(rank)):
            if other == shape:
                continue
            with Bench(t.driver, dtype, shape) as bench, \
                    Bench(t.driver, dtype, other) as source:
                snapshot = source.compress(make('random', other, dtype))
                tried += 1
                noticed += bench.try_decompress(snapshot)[0] != abi.OK
    t.note(f'{noticed} of {tried} noticed')


@check('reads nothing beyond a payload, whole or truncated, or its sidecar')
def fences(t):
    if t.driver.space.code != abi.HOST:
        raise NotApplicable('memory of a device cannot be fenced')
    for bench in benches(t):
        limits = bench.limits
        tensor = bench.tensor_region(bench.tensor_image(0))
        for sort, snapshot in snapshots(bench):
            sidecar = Fenced(snapshot.sidecar, limits.sidecar_alignment)
            length = len(snapshot.payload)
            for cut in sorted({length, length - 1, length*3//4, length//2, length//5, 8,
                               1, 0}):
                if not 0 <= cut <= length:
                    continue
                payload = Fenced(snapshot.payload[:cut], limits.payload_alignment)
                status = t.driver.call(
                    'decompress', bench.plan, bench.plan, ct.byref(bench.execution()),
                    payload.address, cut,
                    sidecar.address if limits.sidecar_bytes else None, tensor.address)
                t.expect(cut < length or status == abi.OK,
                         f'{bench.label}, {sort}: decompress returns {describe(status)}')


@check('is usable after a corrupt payload')
def afterwards(t):
    with a_bench(t) as bench:
        data = make('random', bench.shape, bench.dtype)
        snapshot = bench.compress(data)
        for cut in (0, len(snapshot.payload)//2):
            bench.try_decompress(Snapshot(snapshot.payload[:cut], snapshot.sidecar))
            wrong = discrepancy(bench.limits, data, bench.decompress(snapshot))
            t.expect(wrong is None, f'{bench.label}: {wrong}')
