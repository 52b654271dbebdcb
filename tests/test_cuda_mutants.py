"""
Whether the tests of the backend for CUDA would notice mistakes: programs with one mistake
each, which the emulator must find, or a check when an Operator is built.
"""
import subprocess
from pathlib import Path

import pytest
from cuda_mutants import PROGRAMS, SETTINGS, Judge, find, remove_calls
from cuda_programs import sources
from devito import configuration
from devito.exceptions import CompilationError
from devito.ir import List

from devitocomp_plugin.cuda import kernels

HERE = Path(__file__).resolve().parent

# The program, the part of its source, what to find there, and what to put in its place
MUTANTS = {
    'kernel in the default stream':
        ('tasks', 'runtime', r'config\.stream = stream', 'config.stream = nullptr'),
    'copy in the stream of kernels':
        ('tasks', 'runtime', r'devitocomp_queue\(device, queue\);\n    devitocomp_follow',
         'devitocomp_queue(device, 0);\n    devitocomp_follow'),
    'wait for the wrong stream':
        ('tasks', 'save', r'devitocomp_wait\(device,qid\)', 'devitocomp_wait(device,0)'),
    'wait for the wrong stream, reading':
        ('tasks', 'load', r'devitocomp_wait\(device,qid\)', 'devitocomp_wait(device,0)'),
    'no wait for a copy':
        ('tasks', 'save', r'devitocomp_wait\(device,qid\);', ';'),
    'no wait for a copy, reading':
        ('tasks', 'load', r'devitocomp_wait\(device,qid\);', ';'),
    'no wait for a first copy':
        ('tasks', 'runtime', r'(devitocomp_wait\(device, 0\));\n}\n\n/\* One value',
         '(void)0'),
    'no wait for kernels':
        ('tasks', 'runtime', r'devitocomp_follow\(device, stream\);', ';'),
    'no event':
        ('tasks', 'runtime', r'DEVITOCOMP_API\(EventRecord\)\(event, compute\)',
         'DEVITOCOMP_API(Success)'),
    'event of the wrong stream':
        ('tasks', 'runtime', r'EventRecord\)\(event, compute\)',
         'EventRecord)(event, stream)'),
    'no wait for an event':
        ('tasks', 'runtime', r'DEVITOCOMP_API\(StreamWaitEvent\)\(stream, event, 0\)',
         'DEVITOCOMP_API(Success)'),
    'no wait for pageable memory':
        ('reductions', 'runtime',
         r'DEVITOCOMP_API\(StreamSynchronize\)\(stream\),\n +"waiting for a copy"',
         'DEVITOCOMP_API(Success), ""'),
    'nothing to start from':
        ('wave', 'wave', r'm_vec,sizeof\(float\),DEVITOCOMP_COPY',
         'm_vec,sizeof(float),DEVITOCOMP_ANY'),
    'not zeroed':
        ('reductions', 'reductions', 'DEVITOCOMP_ZERO', 'DEVITOCOMP_ANY'),
    'no copy to the device':
        ('tasks', 'load', r'devitocomp_to_device\(.*;', ';'),
    'no copy to the device in the background':
        ('tasks', 'load', r'devitocomp_to_device_async\(.*;', ';'),
    'no copy to the host':
        ('wave', 'wave', r'devitocomp_to_host\(device,rec_vec.*;', ';'),
    'no copy to the host in the background':
        ('tasks', 'save', r'devitocomp_to_host_async\(.*;', ';'),
    'half a copy':
        ('wave', 'wave', r'u_vec,0,u_vec->nbytes', 'u_vec,0,u_vec->nbytes/2'),
    'copy to another place':
        ('tasks', 'runtime', r'\(char \*\)array->data \+ begin, \(char \*\)array->dmap',
         '(char *)array->data, (char *)array->dmap'),
    'copy too long':
        ('wave', 'wave', r'rec_vec,0,rec_vec->nbytes', 'rec_vec,0,rec_vec->nbytes + 4'),
    'a value not sent':
        ('reductions', 'reductions', r'devitocomp_put\(.*;', ';'),
    'a value not fetched':
        ('reductions', 'reductions', r'devitocomp_get\(.*;', ';'),
    'host memory in a kernel':
        ('wave', 'wave', r'\(float \*\) m_vec->dmap', '(float *) m_vec->data'),
    'device memory on the host':
        ('tasks', 'save', r'\(float \*\) usaveb0_vec->data',
         '(float *) usaveb0_vec->dmap'),
    'out of bounds':
        ('wave', 'wave', r'x <= x_M; x \+= d', 'x <= x_M + 900; x += d'),
    'freed too early':
        ('wave', 'wave', r'^  for \(int time = ',
         r'  devitocomp_free(device,u_vec->dmap);\n\g<0>'),
    'not freed':
        ('wave', 'wave', r'devitocomp_unmap\(device,u_vec.*;', ';'),
    'the wrong device':
        ('wave', 'runtime', r'DEVITOCOMP_API\(SetDevice\)\(device->id\)',
         'DEVITOCOMP_API(Success)'),
}

# Calls without which results are the same, by function, and why they are there
REDUNDANT = {
    ('devitocomp_free', 'devitocomp_sync'): 'names errors in kernels',
    ('devitocomp_end', 'devitocomp_sync'): 'names errors in kernels',
    ('devitocomp_sync', 'StreamSynchronize'): 'names errors in kernels',
    ('devitocomp_end', 'StreamSynchronize'): 'copies after an error: nobody waits',
    ('devitocomp_to_host', 'devitocomp_wait'): 'what is freed next waits as well',
    ('devitocomp_tick', 'devitocomp_add_sections'): 'bounds how many events there are',
    ('devitocomp_present', 'devitocomp_free'): 'kept arrays that change their size',
    ('devitocomp_atomic_add', 'devitocomp_atomic_add'): 'integers of 64 bits',
}


@pytest.fixture(scope='module')
def judges(tmp_path_factory):
    """A judge for each program."""
    folder = tmp_path_factory.mktemp('emulator')
    done = subprocess.run(['make', '-s', '-C', HERE / 'emulator', f'BUILD={folder}'],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder / 'tmp').mkdir()
    environment = {'DEVITOCOMP_EMULATE': '1', 'DEVITOCOMP_EMULATOR': str(folder),
                   'TMPDIR': str(folder / 'tmp')}
    with pytest.MonkeyPatch.context() as patch:
        for i in environment:
            patch.setenv(i, environment[i])
        patch.setitem(configuration, 'safe-math', True)
        yield {name: Judge(i, environment) for name, i in PROGRAMS.items()}


@pytest.mark.parametrize('program', sorted(PROGRAMS))
def test_as_generated(judges, program):
    for settings in SETTINGS:
        outcome, text = judges[program].outcome(**settings)
        assert outcome == 'nothing', (settings, text)


@pytest.mark.parametrize('name', MUTANTS)
def test_mutant(judges, name):
    program, unit, pattern, text = MUTANTS[name]
    judge = judges[program]
    mutant = find(unit, judge.units[unit], pattern, text)
    assert judge.verdict(mutant) != 'nothing'


def lower_nothing(nodes, atomic, sregistry):
    return List(body=nodes), [], []


@pytest.mark.parametrize('name', ['acoustic_2d', 'array_reductions', 'indirect', 'minmax',
                                  'integer_reductions', 'precomputed', 'sparse_sinc'])
def test_reductions_that_are_not_atomic(monkeypatch, name):
    """The emulator's threads do not race, so that this is left to a check."""
    monkeypatch.setattr(kernels, 'lower_reductions', lower_nothing)
    with pytest.raises(CompilationError, match='is not atomic, although threads along'):
        sources(name)


@pytest.mark.parametrize('unit', ['runtime', 'wave', 'reductions', 'values', 'save',
                                  'load'])
@pytest.mark.slow
def test_every_call(judges, unit):
    """No call can be left out, of the runtime, or of the API by the runtime."""
    mine = [i for i in judges.values() if unit in i.units]
    survivors = []
    for name, mutant in remove_calls(unit, mine[0].units[unit]):
        if name[:2] in REDUNDANT:
            continue
        if all(i.verdict(mutant) == 'nothing' for i in mine):
            survivors.append(name)
    assert not survivors
