"""What plans and calls leave behind: memory, threads, open files."""
import ctypes as ct
import os
from pathlib import Path

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.bench import Snapshot
from devitocomp_plugin.conformance.checks import check
from devitocomp_plugin.conformance.samples import make
from devitocomp_plugin.conformance.tensors import a_bench, a_tensor

TIMES = 1000
WARM_UP = 50

HEAP_PER_CALL = 16
"""Bytes: no allocation is that small, and nothing else allocates that much meanwhile."""

RESIDENT = 8 << 20
"""Bytes by which other memory may grow in all, as that is counted in pages and arenas."""


class _Mallinfo2(ct.Structure):
    _fields_ = [(i, ct.c_size_t) for i in (
        'arena', 'ordblks', 'smblks', 'hblks', 'hblkhd', 'usmblks', 'fsmblks', 'uordblks',
        'fordblks', 'keepcost')]


def heap():
    """Bytes allocated with malloc; None where the C library does not tell."""
    try:
        mallinfo2 = ct.CDLL(None).mallinfo2
    except AttributeError:
        return None
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def usage():
    """What a process has, by name."""
    resident = int(Path('/proc/self/statm').read_text().split()[1])
    return {'heap': heap(), 'resident': resident*os.sysconf('SC_PAGE_SIZE'),
            'threads': len(os.listdir('/proc/self/task')),
            'open files': len(os.listdir('/proc/self/fd'))}


def hold(t, action, times=TIMES):
    """Repeat something, and expect that nothing grows."""
    for _ in range(WARM_UP):
        action()
    before = usage()
    for _ in range(times):
        action()
    after = usage()
    allowed = {'heap': HEAP_PER_CALL*times, 'resident': RESIDENT}
    for name, value in before.items():
        if value is None:
            continue
        grown = after[name] - value
        t.expect(grown <= allowed.get(name, 0),
                 f'{times} times later, {name} has grown by {grown} from {value}')


@check('creates and destroys plans without growth')
def plans(t):
    def action():
        status, plan = t.driver.create(a_tensor(t))
        if status == abi.OK:
            t.driver.destroy(plan)

    hold(t, action)


@check('creates, uses and destroys plans without growth')
def used_plans(t):
    with a_bench(t) as bench:
        data = make('random', bench.shape, bench.dtype)

    def action():
        with a_bench(t) as bench:
            bench.decompress(bench.compress(data))

    hold(t, action, times=300)


@check('refuses plans without growth')
def refused_plans(t):
    wrong_rank = a_tensor(t)
    wrong_rank.rank = abi.MAX_RANK + 1

    def action():
        for wrong in ({'options': 'abc'}, {'options': '-1'}, {'tensor': wrong_rank},
                      {'version': abi.ABI_VERSION + 1}):
            status, plan = t.driver.create(**{'tensor': a_tensor(t), **wrong})
            if status == abi.OK:
                t.driver.destroy(plan)

    hold(t, action, times=300)


@check('compresses and decompresses without growth')
def calls(t):
    with a_bench(t) as bench:
        data = make('random', bench.shape, bench.dtype)
        hold(t, lambda: bench.decompress(bench.compress(data)), times=300)


@check('fails to compress and to decompress without growth')
def failures(t):
    with a_bench(t) as bench:
        data = make('random', bench.shape, bench.dtype)
        snapshot = bench.compress(data)
        short = Snapshot(snapshot.payload[:len(snapshot.payload)//2], snapshot.sidecar)

        def action():
            bench.try_compress(data, capacity=0)
            bench.try_decompress(short)

        hold(t, action, times=300)
