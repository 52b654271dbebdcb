"""
The bundled providers against the compression libraries that they are made of.

Each provider compresses and decompresses an acoustic wavefield through the interface,
with all threads given; its library does the same in one call for the whole array, which
is serial. The two take turns, so that what else goes on in the machine slows both. If
cores are not free, as many threads do not make it as many times as fast: then the time of
processors, which threads that wait do not take, says what the provider adds to it.

    python benchmarks/providers_vs_serial.py zfp
    python benchmarks/providers_vs_serial.py zfp bitcomp --error 1e-4 --threads 4
"""
import argparse
import ctypes as ct
import ctypes.util
import os
import statistics
import time
from pathlib import Path

# Before the OpenMP runtime is loaded: threads that spin would count as work, and those
# that are woken up together may be put on one core, for longer than a call takes
os.environ['OMP_WAIT_POLICY'] = 'passive'
os.environ.setdefault('OMP_PROC_BIND', 'true')

import numpy as np  # noqa: E402

from devitocomp_plugin.provider import provider_at  # noqa: E402
from devitocomp_plugin.providers import bundled_provider  # noqa: E402


def wavefield(n):
    """A wavefield that fills the model, of n^3 points."""
    from devito import (
        Eq,
        Function,
        Grid,
        Operator,
        SparseTimeFunction,
        TimeFunction,
        configuration,
        solve,
    )
    configuration['log-level'] = 'WARNING'
    grid = Grid(shape=(n,)*3, extent=(10.*(n - 1),)*3)
    u = TimeFunction(name='u', grid=grid, time_order=2, space_order=8)
    m = Function(name='m', grid=grid)
    m.data[:] = 1/1500.**2
    m.data[:, :, n//2:] = 1/2500.**2
    dt, nt = 0.0012, 4*n
    src = SparseTimeFunction(name='src', grid=grid, npoint=1, nt=nt)
    src.coordinates.data[:] = 5.*(n - 1)
    arg = (np.pi*8*(np.arange(nt)*dt - 1/8))**2
    src.data[:, 0] = (1 - 2*arg)*np.exp(-arg)
    stencil = Eq(u.forward, solve(m*u.dt2 - u.laplace, u.forward))
    Operator([stencil, src.inject(field=u.forward, expr=src*dt**2/m)]).apply(
        time_M=nt - 2, dt=dt)
    return np.ascontiguousarray(u.data[nt % 3])


def pointer(array):
    return array.ctypes.data_as(ct.c_void_p)


def aligned(nbytes):
    array = np.ones(nbytes + 64, dtype=np.uint8)  # Touched, hence in memory
    start = -array.ctypes.data % 64
    return array[start:start + nbytes]


class Provider:
    """A bundled provider."""

    def __init__(self, root, data, error, threads):
        self.data = data
        self.plan = provider_at(root).plan(data.dtype, data.shape, num_threads=threads,
                                           options=None if error is None else repr(error))
        limits = self.plan.limits
        self.error = limits.error_bound
        self.payload = aligned(limits.max_compressed_bytes)
        self.sidecar = aligned(limits.sidecar_bytes)

    def compress(self):
        self.nbytes = self.plan.compress(self.data, self.payload, self.payload.size,
                                         self.sidecar)

    def decompress(self, out):
        self.plan.decompress(self.payload, self.nbytes, self.sidecar, out)


class SerialZfp:
    """One call of libzfp for all of an array."""

    def __init__(self, data, error):
        self.data = data
        self.lib = lib = ct.CDLL(ctypes.util.find_library('zfp'))
        for i in ('zfp_field_3d', 'zfp_stream_open', 'stream_open'):
            getattr(lib, i).restype = ct.c_void_p
        for i in ('zfp_stream_maximum_size', 'zfp_compress', 'zfp_decompress'):
            getattr(lib, i).restype = ct.c_size_t
        n = [ct.c_size_t(i) for i in reversed(data.shape)]
        code = {'float32': 3, 'float64': 4}[str(data.dtype)]
        self.field = ct.c_void_p(lib.zfp_field_3d(pointer(data), code, *n))
        self.stream = ct.c_void_p(lib.zfp_stream_open(None))
        lib.zfp_stream_set_accuracy.restype = ct.c_double
        lib.zfp_stream_set_accuracy(self.stream, ct.c_double(error*np.abs(data).max()))
        self.payload = aligned(lib.zfp_stream_maximum_size(self.stream, self.field))
        self.bits = ct.c_void_p(lib.stream_open(pointer(self.payload),
                                                ct.c_size_t(self.payload.size)))
        lib.zfp_stream_set_bit_stream(self.stream, self.bits)

    def compress(self):
        self.lib.zfp_stream_rewind(self.stream)
        self.nbytes = self.lib.zfp_compress(self.stream, self.field)

    def decompress(self, out):
        self.lib.zfp_stream_rewind(self.stream)
        self.lib.zfp_field_set_pointer(self.field, pointer(out))
        if not self.lib.zfp_decompress(self.stream, self.field):
            raise RuntimeError('zfp_decompress failed')
        self.lib.zfp_field_set_pointer(self.field, pointer(self.data))


class SerialBitcomp:
    """One call of Bitcomp for all of an array."""

    def __init__(self, data, error):
        import nvidia.libnvcomp
        self.data = data
        folder, = nvidia.libnvcomp.__path__
        library, = Path(folder).glob('lib*/libnvcomp.so.*')
        self.lib = lib = ct.CDLL(str(library))
        lib.bitcompMaxBuflen.restype = ct.c_size_t
        self.payload = aligned(lib.bitcompMaxBuflen(ct.c_size_t(data.nbytes)))
        self.handle = ct.c_void_p()
        single = data.dtype == np.float32
        lib.bitcompCreatePlan(ct.byref(self.handle), ct.c_size_t(data.nbytes),
                              9 if single else 10, 1, 0)
        self.function = (lib.bitcompHostCompressLossy_fp32 if single else
                         lib.bitcompHostCompressLossy_fp64)
        # Bitcomp itself rounds down to a power of two
        delta = 2*error*float(np.abs(data).max())
        self.delta = (ct.c_float if single else ct.c_double)(delta)

    def compress(self):
        if self.function(self.handle, pointer(self.data), pointer(self.payload),
                         self.delta):
            raise RuntimeError('Bitcomp cannot compress')

    @property
    def nbytes(self):
        size = ct.c_size_t()
        self.lib.bitcompGetCompressedSize(pointer(self.payload), ct.byref(size))
        return size.value

    def decompress(self, out):
        if self.lib.bitcompHostUncompress(self.handle, pointer(self.payload),
                                          pointer(out)):
            raise RuntimeError('Bitcomp cannot decompress')


SERIAL = {'zfp': SerialZfp, 'bitcomp': SerialBitcomp}


def seconds(function, *args):
    """How long it takes, and how much time of processors."""
    start = time.perf_counter(), time.process_time()
    function(*args)
    return time.perf_counter() - start[0], time.process_time() - start[1]


def compare(name, data, error, threads, repeat):
    ours = Provider(bundled_provider(name).build(), data, error, threads)
    theirs = SERIAL[name](data, ours.error)
    out = np.ones_like(data)
    times = {i: [] for i in ('compress', 'decompress')}
    for _ in range(repeat):
        times['compress'].append([seconds(i.compress) for i in (ours, theirs)])
        times['decompress'].append([seconds(i.decompress, out) for i in (ours, theirs)])
    ours.decompress(out)
    bound = ours.error*float(np.abs(data).max())
    worst = float(np.abs(out.astype(np.float64) - data).max())
    if worst > bound:
        raise SystemExit(f'{name}: error {worst} exceeds {bound}')

    print(f'{name}, error {ours.error:g}, {threads} threads, median of {repeat}')
    for action, samples in times.items():
        provider, serial = (statistics.median(i[k][0] for i in samples) for k in (0, 1))
        speedup = statistics.median(b[0]/a[0] for a, b in samples)
        work = statistics.median(a[1]/b[1] for a, b in samples)
        print(f'  {action:<10}  provider {data.nbytes/1e9/provider:6.2f} GB/s   serial '
              f'library {data.nbytes/1e9/serial:6.2f} GB/s   speed-up {speedup:.2f}, '
              f'processor time {work:.2f} times')
    ratios = data.nbytes/ours.nbytes, data.nbytes/theirs.nbytes
    print(f'  ratio       provider {ratios[0]:6.2f}        serial library '
          f'{ratios[1]:6.2f}        {100*(ratios[0]/ratios[1] - 1):+.2f}%')
    print(f'  worst error {worst/bound:.2f} of the bound')


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument('names', nargs='*', default=['zfp'], metavar='NAME',
                        help=f'of {", ".join(SERIAL)} (default: zfp)')
    parser.add_argument('--n', type=int, default=144, help='points per dimension')
    parser.add_argument('--error', type=float, nargs='+', default=[1e-2, 1e-3, 1e-4])
    parser.add_argument('--threads', type=int, default=os.cpu_count())
    parser.add_argument('--repeat', type=int, default=9)
    args = parser.parse_args()
    for i in args.names:
        if i not in SERIAL:
            parser.error(f'{i} is none of {", ".join(SERIAL)}')

    data = wavefield(args.n)
    print(f'acoustic wavefield, {args.n}^3 {data.dtype}')
    for name in args.names:
        for error in args.error:
            compare(name, data, error, args.threads, args.repeat)


if __name__ == '__main__':
    main()
