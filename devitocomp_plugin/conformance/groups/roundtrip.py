"""Round trips of synthetic data, of every claim, shape and tolerance."""
import numpy as np

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import NotApplicable, check
from devitocomp_plugin.conformance.samples import (
    DATA,
    discrepancy,
    make,
    shapes,
    small_shape,
)
from devitocomp_plugin.conformance.tensors import cases, tensors


def round_trips(t, sort):
    tried = 0
    for dtype, rank in tensors(t):
        for shape in shapes(rank):
            data = make(sort, shape, dtype)
            if data is None:
                continue
            for options in t.driver.tolerances(dtype, shape):
                tried += 1
                round_trip(t, data, options)
    if not tried:
        raise NotApplicable('it claims no dtype that has such data')


def round_trip(t, data, options):
    with Bench(t.driver, data.dtype, data.shape, options=options) as bench:
        status, snapshot = bench.try_compress(data)
        if not t.expect(status == abi.OK, f'{bench.label}: compress returns '
                        f'{t.driver.reason(status, bench.plan)}'):
            return
        status, found = bench.try_decompress(snapshot)
        if not t.expect(status == abi.OK, f'{bench.label}: decompress returns '
                        f'{t.driver.reason(status, bench.plan)}'):
            return
        wrong = discrepancy(bench.limits, data, found)
        t.expect(wrong is None, f'{bench.label}: {wrong}')


def _define(sort, title):
    @check(title)
    def function(t):
        round_trips(t, sort)
    function.name = f'roundtrip.{sort}'
    return function


TITLES = {
    'zero': 'restores zeros',
    'constant': 'restores constant data within the error bound',
    'ramp': 'restores ramps within the error bound',
    'spike': 'restores a single value among zeros within the error bound',
    'random': 'restores random data within the error bound',
    'tiny': 'restores the smallest normal numbers within the error bound',
    'denormal': 'restores denormal numbers within the error bound',
    'huge': 'restores the largest numbers within the error bound',
    'magnitudes': 'restores numbers of all magnitudes at once within the error bound',
    'bits': 'restores random bits within the error bound',
}
globals().update({i: _define(i, TITLES[i]) for i in DATA})


@check('restores tensors that are half empty, large ones too, within the error bound')
def half_empty(t):
    for dtype, shape, options in cases(t):
        data = make('random', shape, dtype)
        data[:shape[0]//2] = 0
        round_trip(t, data, options)


@check('restores NaN and infinities, or refuses them with a message')
def not_finite(t):
    floats = [(i, j) for i, j in tensors(t) if i.kind == 'f']
    if not floats:
        raise NotApplicable('it claims no dtype that has them')
    refused = faithful = 0
    for dtype, rank in floats:
        shape = small_shape(rank)
        for value in (np.nan, np.inf, -np.inf):
            for where in (0, -1, None):
                data = make('random', shape, dtype)
                data.flat[slice(None) if where is None else where] = value
                for options in t.driver.tolerances(dtype, shape):
                    with Bench(t.driver, dtype, shape, options=options) as bench:
                        restored = _restored_or_refused(t, bench, data, value)
                        faithful += restored
                        refused += not restored
    t.note(f'{faithful} tensors restored, {refused} refused')


def _restored_or_refused(t, bench, data, value):
    status, snapshot = bench.try_compress(data)
    if status != abi.OK:
        t.expect(status == abi.UNSUPPORTED, f'{bench.label}, {value}: compress returns '
                 f'{t.driver.reason(status, bench.plan)}, not OK or UNSUPPORTED')
        # The plan is not to be spoilt by it
        finite = make('ramp', bench.shape, bench.dtype)
        found = bench.decompress(bench.compress(finite))
        wrong = discrepancy(bench.limits, finite, found)
        t.expect(wrong is None, f'{bench.label}, after refusing {value}: {wrong}')
        return False
    status, found = bench.try_decompress(snapshot)
    if t.expect(status == abi.OK, f'{bench.label}, {value}: compress accepts it, '
                f'decompress returns {t.driver.reason(status, bench.plan)}'):
        wrong = discrepancy(bench.limits, data, found)
        t.expect(wrong is None, f'{bench.label}, {value}: {wrong}')
    return True
