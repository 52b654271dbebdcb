"""
Run programs of cuda_programs.py on several MPI ranks, on devices, and compare the part of
each rank with what a CPU computes alone. Started by test_cuda_mpi.py.

Arguments: programs. In the environment, LANGUAGE is cuda or hip, MODE is Devito's mode,
GPU_DIRECT, which is 0 or 1, stands for the option of that name, and RUNTIME is a folder
with another runtime.
"""
import ctypes
import os
import sys
from functools import partial
from pathlib import Path

import cuda_programs
import numpy as np
from cuda_mutants import LEAKS
from cuda_programs import DEVICE, HIP, HOST, PROGRAMS, Operators, part
from devito import Grid, configuration
from devito.exceptions import ExecutionError
from devito.mpi import MPI
from ranks import run

from devitocomp_plugin import paths

LANGUAGES = {'cuda': DEVICE, 'hip': HIP}


def on_device():
    """What makes Operators, as the environment says."""
    direct = {'1': True, '0': False}.get(os.environ.get('GPU_DIRECT'))
    return Operators(LANGUAGES[os.environ.get('LANGUAGE', 'cuda')],
                     os.environ.get('MODE', 'advanced'), options={'gpu-direct': direct})


def results(name, operators, comm):
    """What a program yields, with how it is decomposed."""
    cuda_programs.Grid = partial(Grid, comm=comm)
    return [(np.array(i, copy=True), getattr(i, '_decomposition', None))
            for i in PROGRAMS[name](operators)]


def compare(name):
    """What is wrong with a program's results."""
    expected = results(name, Operators(HOST), MPI.COMM_SELF)
    found = results(name, on_device(), MPI.COMM_WORLD)
    assert len(found) == len(expected)
    wrong = []
    for (i, decomposition), (j, _) in zip(found, expected, strict=True):
        assert np.any(j != 0), 'all zero'
        scale = np.max(np.abs(j))
        j = j if decomposition is None else part(j, decomposition)
        if i.shape != j.shape or not np.allclose(i, j, rtol=2e-5, atol=2e-5*scale):
            wrong.append(f'{i.shape} for {j.shape}' if i.shape != j.shape else
                         f'{np.max(np.abs(i - j))} off')
    return wrong


def fail(where):
    """What exceptions ranks raise if on one of them a call of the emulator fails."""
    # Has Devito initialize MPI
    if Grid((4, 4)).comm.rank == 1:
        os.environ['CUDAEMUL_FAIL'] = where
    try:
        list(PROGRAMS['acoustic_2d'](on_device()))
    except ExecutionError as e:
        return str(e)
    return 'none'


def leaks(emulator):
    """What the emulator still has, although no program runs any more."""
    return [f'{i} are left' for i in LEAKS if emulator.cudaemul_counter(i.encode())]


def describe_emulator(emulator, comm):
    """Where ranks have run, and how messages have travelled."""
    device = ctypes.c_int(-1)
    emulator.cudaGetDevice(ctypes.byref(device))
    return (f'emulated, on devices {comm.allgather(device.value)}, '
            f'{emulator.cudaemul_mpi_messages()} messages between devices')


def main(names):
    # They round alike then
    configuration['safe-math'] = True
    configuration['log-level'] = 'ERROR'
    comm = MPI.COMM_WORLD
    if names[0] == '--fail':
        message = fail(names[1])
        print(f'rank {comm.rank}: {message}', flush=True)
        return False
    if 'RUNTIME' in os.environ:
        paths.runtime_sources = lambda: Path(os.environ['RUNTIME'])
    emulator = None
    if 'cudaemul' in os.environ.get('LD_PRELOAD', ''):
        emulator = ctypes.CDLL(os.environ['LD_PRELOAD'])
    failed = [f'{name}: {i} on rank {comm.rank}' for name in names
              for i in compare(name) + (leaks(emulator) if emulator else [])]
    failed = sum(comm.allgather(failed), [])
    report = describe_emulator(emulator, comm) if emulator else 'on devices'
    if comm.rank == 0:
        print('\n'.join(failed) or f'{len(names)} programs the same on {comm.size} ranks')
        print(report)
    return bool(failed)


if __name__ == '__main__':
    run(main, sys.argv[1:])
