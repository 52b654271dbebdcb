"""The acceptance suites accept providers that keep what they promise, and no others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

some = ('gradient or partial_bounds_of_copy or interpolate or claims or report or '
        'propagate_saved_with_source or generated')


def accept(root, rtol=None, what=some, suite='test_compressed_funcs.py'):
    env = {**os.environ, 'DEVITOCOMP_ROOT': str(root)}
    env.pop('DEVITOCOMP_RTOL', None)
    if rtol is not None:
        env['DEVITOCOMP_RTOL'] = str(rtol)
    return subprocess.run([sys.executable, '-m', 'pytest', '-q', '-x', '-p',
                           'no:cacheprovider', str(HERE / suite), '-k',
                           f'devitocomp and ({what}) and not configurations'],
                          capture_output=True, text=True, env=env, timeout=500)


@pytest.fixture(scope='module')
def roots(providers, tmp_path_factory):
    """Where providers are found by name: those of the tests, and zfp."""
    prefix = tmp_path_factory.mktemp('zfp')
    zfp = HERE.parent / 'providers' / 'zfp'
    done = subprocess.run(['make', '-s', '-C', str(zfp), 'install', f'PREFIX={prefix}',
                           f'BUILD={prefix}/build'], capture_output=True, text=True)
    if done.returncode and not os.environ.get('CI'):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return {'zfp': prefix, **{i.name: i for i in providers.iterdir()}}


@pytest.mark.parametrize('name,rtol', [('strided', None), ('lossy', 1e-3), ('zfp', 1e-4),
                                       ('zfp', 0)])
def test_accepted(name, rtol, roots):
    done = accept(roots[name], rtol)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize('suite', ['test_compressed_funcs.py', 'test_composite_funcs.py'])
@pytest.mark.parametrize('name,rtol', [('strided', None), ('lossy', 1e-3), ('zfp', 1e-4)])
def test_accepted_by_all(name, rtol, suite, roots):
    done = accept(roots[name], rtol, what='test', suite=suite)
    assert done.returncode == 0, done.stdout[-4000:]


def test_refused(roots):
    """A lossy provider is not exact."""
    done = accept(roots['lossy'], what='save_full_axis')
    assert done.returncode == 1 and '1 failed' in done.stdout, done.stdout[-4000:]
    assert '`usave` differs by' in done.stdout
