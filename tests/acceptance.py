"""What the acceptance suites of a provider have in common."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from devito import configuration
from programs import Environment, programs

from devitocomp_plugin import (
    Device,
    Disk,
    DiskDevice,
    DiskHost,
    DiskHostDevice,
    Host,
    HostDevice,
    NoLayers,
)

__all__ = ['compare', 'composite_layers', 'configurations', 'differences', 'label',
           'languages', 'layers_in_memory', 'layers_on_disk', 'mpi_modes', 'mpirun',
           'pairwise', 'rtol']

HERE = Path(__file__).resolve().parent

# Exact without it
rtol = float(os.environ['DEVITOCOMP_RTOL']) if 'DEVITOCOMP_RTOL' in os.environ else None

# The backend is the one of Devito's configuration: CUDA or HIP if it says so
language = configuration['language']
if language in ('cuda', 'hip'):
    languages = (language,)
    modes = ('advanced', 'noop', 'advanced-fsg', ('fuse', 'cire-sops', language))
    options = ({}, {'index-mode': 'int64'}, {'errctl': 'max'},
               {'buf-async-degree': 1, 'par-tile': (2, 4, 8)})
    layers_in_memory = (NoLayers, HostDevice, Device)
    layers_on_disk = (DiskDevice, DiskHostDevice)
    composite_layers = (HostDevice, Device, *layers_on_disk)
    mpi_modes = ('basic', 'diag', 'diag2', 'overlap', 'overlap2')
else:
    languages = ('openmp', 'C', 'CXX', 'CXXopenmp')
    modes = ('advanced', 'noop', 'advanced-fsg', ('fuse', 'blocking', 'simd', 'openmp'))
    options = ({}, {'index-mode': 'int64', 'linearize': True}, {'errctl': 'max'},
               {'blocklevels': 2, 'par-collapse-ncores': 1})
    layers_in_memory = (NoLayers, Host)
    layers_on_disk = composite_layers = (Disk, DiskHost)
    mpi_modes = ('basic', 'diag', 'diag2', 'overlap', 'full')


def configurations(*more):
    """All combinations of language, mode and options, preceded by further settings."""
    return list(itertools.product(*more, languages, modes, options))


def pairwise(*more):
    """Configurations in which each pair of values of two settings occurs."""
    def pairs(config):
        return set(itertools.combinations(enumerate(map(str, config)), 2))

    candidates = configurations(*more)
    missing = set().union(*map(pairs, candidates))
    chosen = []
    while missing:
        chosen.append(max(candidates, key=lambda c: len(pairs(c) & missing)))  # noqa: B023
        missing -= pairs(chosen[-1])
    return chosen


def label(config):
    language, mode, option = config
    mode = mode if isinstance(mode, str) else '+'.join(mode)
    return '-'.join([language, mode, *(f'{k}={v}' for k, v in option.items())])


def compare(name, compression, config=(languages[0], 'advanced', {}), **kwargs):
    """Run a program dense and compressed, and compare what it returns."""
    language, mode, option = config
    # A copy, as Devito adds to it
    opt = (*(mode if isinstance(mode, tuple) else (mode,)), dict(option))
    kwargs.update(language=language, opt=opt)

    reference = Environment(None, **kwargs)
    expected = programs[name](reference)
    found = programs[name](Environment(compression, **kwargs))
    for k, (a, _) in expected.items():
        assert np.max(np.abs(a)) > 0, f'`{k}` proves nothing'
    wrong = differences(expected, found, reference.scale)
    assert not wrong, '; '.join(wrong)


def differences(expected, found, scale):
    """
    What is wrong with the arrays of a program.

    Parameters
    ----------
    expected, found : dict
        What it returned with dense and with compressed functions.
    scale : float
        The largest value in any snapshot.
    """
    if set(expected) != set(found):
        return [f'{sorted(expected)} expected, {sorted(found)} found']
    wrong = []
    for k, (a, amplification) in expected.items():
        b, _ = found[k]
        if a.shape != b.shape or a.dtype != b.dtype:
            wrong.append(f'`{k}` is {b.shape}, {b.dtype}, not {a.shape}, {a.dtype}')
            continue
        allowed = rtol*amplification*scale if rtol else 0
        error = np.max(np.abs(a.astype(np.float64) - b), initial=0)
        # Not the other way round, because of NaN
        if not error <= allowed:
            wrong.append(f'`{k}` differs by {error}, {allowed} is allowed')
    return wrong


def mpirun(ranks, script, *args, mode='basic', **env):
    """Run a script of this folder on so many ranks, and return what it prints."""
    if shutil.which('mpirun') is None and not os.environ.get('CI'):
        pytest.skip('needs mpirun')
    # A stray rank must not wait for the others for ever
    cmd = ['timeout', '280', 'mpirun', '--oversubscribe', '-n', str(ranks),
           sys.executable, str(HERE / script), *args]
    env = {**os.environ, 'DEVITO_MPI': mode, 'OMP_NUM_THREADS': '1',
           'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
           'OMPI_MCA_rmaps_base_oversubscribe': '1', **env}
    done = subprocess.run(cmd, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f'{done.stdout}{done.stderr[-4000:]}'
    return done.stdout
