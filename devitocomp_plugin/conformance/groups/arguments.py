"""Wrong arguments of compress and decompress, and addresses as bad as is allowed."""
import ctypes as ct

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Bench
from devitocomp_plugin.conformance.checks import NotApplicable, check
from devitocomp_plugin.conformance.driver import describe
from devitocomp_plugin.conformance.samples import discrepancy, make, small_shape
from devitocomp_plugin.conformance.tensors import a_bench, tensors

NAMES = {'compress': ('exec', 'tensor', 'payload', 'capacity', 'compressed_bytes',
                      'sidecar'),
         'decompress': ('exec', 'payload', 'compressed_bytes', 'sidecar', 'tensor')}


class Calls:
    """Right arguments of both calls, of which any can be replaced."""

    def __init__(self, bench):
        data = make('random', bench.shape, bench.dtype)
        snapshot = bench.compress(data)
        self.bench = bench
        self.used = ct.c_size_t()
        self.regions = {
            'tensor': bench.tensor_region(bench.tensor_image(data)),
            'payload': bench.payload_region(bench.limits.max_compressed_bytes),
            'sidecar': bench.sidecar_region(snapshot.sidecar),
        }
        self.regions['payload'].put(snapshot.payload)
        self.length = len(snapshot.payload)

    def __call__(self, action, plan='own', **replaced):
        bench = self.bench
        values = {
            'exec': bench.execution(), 'tensor': self.regions['tensor'].address,
            'payload': self.regions['payload'].address,
            'capacity': bench.limits.max_compressed_bytes,
            'compressed_bytes': ct.byref(self.used) if action == 'compress'
            else self.length,
            'sidecar': self.regions['sidecar'].address
            if bench.limits.sidecar_bytes else None, **replaced
        }
        if values['exec'] is not None:
            values['exec'] = ct.byref(values['exec'])
        plan = bench.plan if plan == 'own' else plan
        return bench.driver.call(action, plan, plan,
                                 *(values[i] for i in NAMES[action]))


def refuse(t, status, what, allowed=('INVALID_ARGUMENT',)):
    t.expect(status in [getattr(abi, i) for i in allowed],
             f'{what}: {describe(status)}, not {" or ".join(allowed)}')


def still_works(t, bench):
    data = make('ramp', bench.shape, bench.dtype)
    wrong = discrepancy(bench.limits, data, bench.decompress(bench.compress(data)))
    t.expect(wrong is None, f'afterwards, {bench.label}: {wrong}')


@check('refuses a NULL plan')
def null_plan(t):
    with a_bench(t) as bench:
        calls = Calls(bench)
        for action in NAMES:
            refuse(t, calls(action, plan=None), f'{action} with plan NULL')


@check('refuses other arguments that are NULL, and is usable afterwards')
def null(t):
    with a_bench(t) as bench:
        calls = Calls(bench)
        pointers = {'compress': ('exec', 'tensor', 'payload', 'compressed_bytes'),
                    'decompress': ('exec', 'payload', 'tensor')}
        for action, names in pointers.items():
            for name in (*names, *(['sidecar'] if bench.limits.sidecar_bytes else [])):
                refuse(t, calls(action, **{name: None}), f'{action} with {name} NULL')
        still_works(t, bench)


@check('ignores the sidecar if it has none')
def no_sidecar(t):
    with a_bench(t) as bench:
        if bench.limits.sidecar_bytes:
            raise NotApplicable('it has sidecars')
        calls = Calls(bench)
        for action in NAMES:
            status = calls(action, sidecar=calls.regions['sidecar'].address)
            t.expect(status == abi.OK, f'{action} with a sidecar: '
                                       f'{t.driver.reason(status, bench.plan)}')
            damage = calls.regions['sidecar'].damage()
            t.expect(damage is None, f'{action} writes to the sidecar: {damage}')


@check('refuses an exec that is too short, or has reserved fields that are not zero')
def execution(t):
    with a_bench(t) as bench:
        calls = Calls(bench)
        for action in NAMES:
            for size in (0, 4, ct.sizeof(abi.Execution) - 8):
                short = bench.execution()
                short.struct_size = size
                refuse(t, calls(action, exec=short), f'{action} with exec of size {size}')
            reserved = bench.execution()
            reserved.reserved = 1
            refuse(t, calls(action, exec=reserved), f'{action} with exec.reserved = 1')
        still_works(t, bench)


@check('refuses a kind of execution other than that of the plan')
def kind(t):
    with a_bench(t) as bench:
        calls = Calls(bench)
        for action in NAMES:
            for code in (0, 1, 2, 3, 31, 33):
                if code == t.driver.space.code:
                    continue
                other = bench.execution()
                other.kind, other.stream = code, None
                refuse(t, calls(action, exec=other), f'{action} with kind {code}',
                       ('INVALID_ARGUMENT', 'UNSUPPORTED'))
        still_works(t, bench)


@check('works with addresses aligned as the limits ask, and no more')
def aligned(t):
    for dtype, rank in tensors(t):
        with Bench(t.driver, dtype, small_shape(rank)) as bench:
            data = make('random', bench.shape, bench.dtype)
            offsets = (dtype.itemsize, bench.limits.payload_alignment,
                       bench.limits.sidecar_alignment)
            snapshot = bench.compress(data, offsets=offsets)
            found = bench.decompress(snapshot, offsets=offsets)
            wrong = discrepancy(bench.limits, data, found)
            t.expect(wrong is None, f'{bench.label}: {wrong}')


@check('refuses misaligned addresses, or works with them')
def misaligned(t):
    with a_bench(t) as bench:
        data = make('random', bench.shape, bench.dtype)
        good = bench.compress(data)
        for n, name in enumerate(('tensor', 'payload', 'sidecar')):
            if name == 'sidecar' and not bench.limits.sidecar_bytes:
                continue
            offsets = tuple(int(i == n) for i in range(3))
            status, snapshot = bench.try_compress(data, offsets=offsets)
            what = f'{name} at an odd address'
            if status == abi.OK:
                wrong = discrepancy(bench.limits, data, bench.decompress(snapshot))
                t.expect(wrong is None, f'compress with {what}: {wrong}')
            else:
                refuse(t, status, f'compress with {what}')
            status, found = bench.try_decompress(good, offsets=offsets)
            if status == abi.OK:
                wrong = discrepancy(bench.limits, data, found)
                t.expect(wrong is None, f'decompress with {what}: {wrong}')
            else:
                refuse(t, status, f'decompress with {what}')
        still_works(t, bench)


@check('keeps messages per plan')
def messages(t):
    with a_bench(t) as first, a_bench(t) as second:
        t.expect(t.driver.message(first.plan) == '',
                 f'the message of a new plan is {t.driver.message(first.plan)!r}')
        calls = Calls(first)
        calls('compress', tensor=None)
        message = t.driver.message(first.plan)
        Calls(second)('decompress', payload=None)
        t.expect(t.driver.message(first.plan) == message,
                 f'the message was {message!r} and, after a failure of another plan, is '
                 f'{t.driver.message(first.plan)!r}')
