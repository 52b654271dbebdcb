"""What plans say they need and guarantee."""
from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import check
from devitocomp_plugin.conformance.samples import large_shape, make, shapes
from devitocomp_plugin.conformance.tensors import a_bench, tensors
from devitocomp_plugin.exceptions import ProviderError
from devitocomp_plugin.plan import Limits

CLAIMS = ('flags', 'execution_kinds', 'portable_kinds', 'dtypes', 'ranks',
          'payload_version')


def benches(t):
    """One for each claim, tolerance and shape."""
    for dtype, rank in tensors(t):
        for shape in (*shapes(rank), large_shape(rank)):
            for options in t.driver.tolerances(dtype, shape):
                with Bench(t.driver, dtype, shape, options=options) as bench:
                    yield bench


@check('has limits that a caller can use')
def usable(t):
    for bench in benches(t):
        try:
            Limits.from_struct(bench.limits, t.driver.root.name, kind=t.driver.space.name)
        except ProviderError as e:
            t.expect(False, f'{bench.label}: {e}')


@check('makes the same claims for every plan as without one')
def claims(t):
    general = t.driver.limits(None)
    for bench in benches(t):
        for field in CLAIMS:
            value, expected = getattr(bench.limits, field), getattr(general, field)
            t.expect(value == expected, f'{bench.label}: {field} is {value:#x}, but '
                                        f'{expected:#x} without a plan')


@check('has sidecars if it claims to need them')
def sidecars(t):
    if 'uses-sidecar' not in t.driver.claims.flags:
        return
    for bench in benches(t):
        t.expect(bench.limits.sidecar_bytes > 0,
                 f'{bench.label}: USES_SIDECAR, but sidecar_bytes is 0')


@check('has limits that do not change as the plan is used')
def constant(t):
    with a_bench(t) as bench:
        before = bytes(bench.limits)
        for sort in ('random', 'zero', 'spike'):
            bench.decompress(bench.compress(make(sort, bench.shape, bench.dtype)))
            t.expect(bytes(t.driver.limits(bench.plan)) == before,
                     f'after a snapshot of sort {sort!r} they differ')


@check('keeps to its limits with another thread count than that of the plan')
def other_threads(t):
    with a_bench(t, threads=1) as bench:
        data = make('bits', bench.shape, bench.dtype)
        for threads in (0, 1, 3, 16):
            status, _ = bench.try_compress(data, threads=threads)
            t.expect(status == abi.OK, f'{bench.label}, {threads} threads: '
                                       f'{t.driver.reason(status, bench.plan)}')
