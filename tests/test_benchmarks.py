"""The benchmarks, at sizes where times mean nothing and everything else does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from devitocomp_plugin.providers import bundled_provider

BENCHMARKS = Path(__file__).resolve().parent.parent / 'benchmarks'

needs_zfp = pytest.mark.skipif(bool(bundled_provider('zfp').missing()),
                               reason='libzfp is not installed')


def run(name, *args):
    """The JSON objects that a benchmark prints, and the text after them."""
    done = subprocess.run([sys.executable, str(BENCHMARKS / name), *map(str, args)],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    found = [json.loads(i) for i in lines if i.startswith('{')]
    return found, '\n'.join(i for i in lines if not i.startswith('{'))


def gradients(*args):
    """What benchmarks/gradient.py prints: objects by case, and the text."""
    found, text = run('gradient.py', '--size', 24, '--steps', 20, '--repeat', 1, *args)
    for i in found:
        assert set(i) == {'case', 'forward_s', 'gradient_s', 'total_s', 'history_bytes',
                          'peak_rss_bytes', 'grad_rel_err', 'ratio_to_dense'}
        assert i['peak_rss_bytes'] > 2**25
        assert i['total_s'] == pytest.approx(i['forward_s'] + i['gradient_s'], rel=1e-3)
    return {i['case']: i for i in found}, text


def test_gradient():
    cases, text = gradients('--layers', 'host', '--case', 'no', '--case', 'dense',
                            '--case', 'dummy')
    assert set(cases) == {'no saving', 'dense', 'dense, touched', 'dummy 0, host'}
    assert cases['no saving']['history_bytes'] == 0
    assert cases['no saving']['grad_rel_err'] is None
    for name in ('dense', 'dense, touched', 'dummy 0, host'):
        assert cases[name]['grad_rel_err'] == 0
    assert cases['dense']['history_bytes'] == 20*24**3*4
    assert cases['dense']['ratio_to_dense'] == 1
    # A sidecar of eight bytes for each snapshot
    assert cases['dummy 0, host']['history_bytes'] == 20*(24**3*4 + 8)
    assert 'dummy 0, host' in text and '24 x 24 x 24 points, 20 steps' in text


@needs_zfp
@pytest.mark.parametrize('equation,fields', [
    ('acoustic', 1),
    pytest.param('tti', 2, marks=pytest.mark.slow),
    pytest.param('elastic', 3, marks=pytest.mark.slow),
    pytest.param('elastic-stress', 6, marks=pytest.mark.slow),
])
def test_gradient_lossy(equation, fields):
    error = 1e-2
    cases, text = gradients('--equation', equation, '--factor', 3, '--error', error,
                            '--case', 'zfp 0', '--case', 'dense, factor', '--layers',
                            'disk-host')
    zfp, dense = cases['zfp 0.01, disk-host, factor 3'], cases['dense, factor 3']
    assert dense['history_bytes'] == fields*7*24**3*4
    assert dense['grad_rel_err'] == 0
    assert 10*zfp['history_bytes'] < dense['history_bytes']
    # The error of each snapshot is at most that of its largest value: as those of
    # different points and steps are not all alike, the gradient's is well below
    assert 0 < zfp['grad_rel_err'] < error


def test_recomputed_gradient():
    pytest.importorskip('pyrevolve')
    cases, _ = gradients('--case', 'pyrevolve')
    few, many = cases['pyrevolve, same memory'], cases['pyrevolve, its choice']
    assert few['grad_rel_err'] < 1e-6 and many['grad_rel_err'] < 1e-6
    assert 0 < few['history_bytes'] < many['history_bytes']


def test_gradient_in_python():
    pytest.importorskip('zfpy')
    cases, _ = gradients('--case', 'zfpy', '--error', '1e-2')
    zfpy = cases['zfpy loop 0.01']
    assert 0 < zfpy['grad_rel_err'] < 1e-2
    assert 10*zfpy['history_bytes'] < 20*24**3*4


def overheads(*args):
    """The medians that benchmarks/overhead.py prints, and the text."""
    found, text = run('overhead.py', '-n', 1, '--size', 24, '--steps', 20, '--provider',
                      'dummy', '--error', 0, *args)
    for i in found:
        assert {'name', 'unit', 'median', 'samples'} <= set(i)
    return {i['name']: i['median'] for i in found}, text


def test_overhead():
    found, text = overheads('--only', 'time', '--only', 'provider')
    for name in ('forward', 'adjoint'):
        for part in ('propagation', 'provider', 'rest'):
            assert found[f'{name}, host, {part}'] > 0
        # A difference, hence a little less than nothing at times
        assert found[f'{name}, host, store'] > -1e-3
        assert found[f'{name}, nothing saved, provider'] == 0
    assert 0 < found['store and rest, host'] < 1
    assert found['memcpy, touched'] > 0.01
    assert 'store and rest, of the run, host' in text


@pytest.mark.slow
def test_growth():
    found, _ = overheads('--only', 'growth', '--snapshots', 9, 18, '--grids', 16, 24)
    for label in ('16^3, 9, host', '16^3, 18, host', '16^3, 18, disk', '24^3, 9, host'):
        assert found[f'{label}, store and rest'] > 0
        assert found[f'{label}, peak'] > 2**25
    # Twice as many snapshots take no more metadata each, and files no more than payloads
    # and the index, which has an entry of a fixed size for each
    assert found['16^3, 18, host, metadata'] < found['16^3, 9, host, metadata']
    assert 0 < found['16^3, 18, disk, files next to payloads'] < 16384


@needs_zfp
def test_allocations():
    found, text = overheads('--only', 'allocations', '--provider', 'zfp', '--error', 0.1)
    assert not any(name in i for i in found for name in
                   ('libdevitocomp_store', 'libdevitocomp', 'libzfp', 'Operator'))
    for layers in ('host', 'disk-host'):
        # OpenMP allocates teams of one thread, as there is a single slab: so something
        # has been counted
        assert found[f'allocations, {layers}, libgomp'] >= 1
    assert text.count('allocations per step by store and Operator') == 2


@pytest.mark.slow
def test_build():
    found, _ = overheads('--only', 'build')
    for kind in ('Devito alone', 'dense', 'compressed'):
        assert found[f'build, {kind}'] > 0.1 and found[f'compile, {kind}'] > 0.1
