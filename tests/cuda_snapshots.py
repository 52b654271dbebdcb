"""What tests of compressed functions on devices run, each in a process of its own."""

import ctypes
import os
import shutil
from pathlib import Path

import numpy as np
from acceptance import differences
from cuda_programs import DEVICE
from devito import Eq, Function, Operator, TimeFunction, configuration
from programs import Environment, accumulate, forward, programs

import devitocomp_plugin as dcp
from devitocomp_plugin import paths

__all__ = ['DEVICE', 'Counters', 'check_history', 'check_rewriting', 'image', 'mutate',
           'same', 'save']

configuration['safe-math'] = True


def same(name, layers=None, target=DEVICE, mode='advanced', **options):
    """Check that a program of the acceptance suites returns what it does when dense."""
    kwargs = {**target, 'opt': (mode, options)}
    reference = Environment(None, **kwargs)
    expected = programs[name](reference)
    found = programs[name](Environment(dcp.DevitoComp(), layers=layers, **kwargs))
    wrong = differences(expected, found, reference.scale)
    assert not wrong, wrong


def save(layers=None, target=DEVICE, n=9, **kwargs):
    """A function with the history of a wavefield."""
    compression = None if layers == 'dense' else dcp.DevitoComp()
    env = Environment(compression, layers=None if layers == 'dense' else layers,
                      shape=(7, 8, 9), **target, **kwargs)
    return forward(env, n=n, time_order=2)[1]


def image(usave, target=DEVICE, **kwargs):
    """What an imaging condition that looks at three snapshots makes of it."""
    g = Function(name='g', grid=usave.grid)
    subs = {**usave.grid.spacing_map, usave.grid.time_dim.spacing: 1.}
    Operator(accumulate(g, usave.dt2 + 0.5*usave), subs=subs, **target).apply(**kwargs)
    return np.array(g.data)


class Counters:

    """What the emulator has counted since it was made."""

    def __init__(self):
        lib = ctypes.CDLL(str(Path(os.environ['DEVITOCOMP_EMULATOR'], 'lib',
                                   'libcudaemul.so')))
        lib.cudaemul_counter.restype = ctypes.c_uint64
        lib.cudaemul_counter.argtypes = [ctypes.c_char_p]
        self._get = lib.cudaemul_counter
        self._start = {}
        for i in ('d2h_bytes', 'h2d_bytes', 'launches', 'synchronizations',
                  'live_allocations', 'live_streams', 'live_events', 'live_pinned'):
            self._start[i] = self._get(i.encode())

    def __getattr__(self, name):
        return self._get(name.encode()) - self._start[name]


def mutate(folder, *replacements):
    """Have all that is compiled from now on include a runtime with a fault."""
    folder = Path(shutil.copytree(paths.runtime_sources(), folder))
    header = folder / 'devitocomp_snapshots.h'
    text = header.read_text()
    for old, new in replacements:
        assert text.count(old) == 1, f'{text.count(old)} times: {old}'
        text = text.replace(old, new)
    header.write_text(text)
    paths.runtime_sources = lambda: folder


def check_history(layers, target=DEVICE):
    """Save, read in both directions, write again, and read what was written."""
    results = []
    for i in ('dense', layers):
        usave = save(i, target)
        results.append([np.array(usave.data), image(usave, target)])
        env = Environment(**target)
        op = env.operator([Eq(usave, 0.5*usave + usave.backward)])
        op.apply(time_m=1, time_M=7)
        results[-1] += [np.array(usave.data), image(usave, target, time_m=2, time_M=5)]
    for n, (a, b) in enumerate(zip(*results, strict=True)):
        assert np.max(np.abs(a)) > 0
        assert np.array_equal(a, b), f'result {n} differs by {np.max(np.abs(a - b))}'


def check_rewriting(layers, target=DEVICE):
    """Write snapshots that have been read, and read them again, in one Operator."""
    results = []
    for i in ('dense', layers):
        usave = save(i, target)
        u, w = (TimeFunction(name=i, grid=usave.grid) for i in 'uw')
        env = Environment(**target)
        # Two loops over time, in opposite directions
        op = env.operator([Eq(u.forward, u + 1), Eq(usave, 0.5*usave + u),
                           Eq(w.backward, w + usave)])
        op.apply(time_m=1, time_M=7)
        results.append((np.array(usave.data), np.array(w.data)))
    for a, b in zip(*results, strict=True):
        assert np.max(np.abs(a)) > 0
        assert np.array_equal(a, b), f'it differs by {np.max(np.abs(a - b))}'
