"""The parts in C: headers, the runtime store, and the providers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WARNINGS = ['-Wall', '-Wextra', '-Wpedantic', '-Werror', '-fsyntax-only']


def run(*cmd, **kwargs):
    done = subprocess.run([str(i) for i in cmd], capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, f'{done.stdout}{done.stderr}'
    return done.stdout


def make(folder, *args):
    return run('make', '-s', '-C', ROOT / folder, *args)


@pytest.mark.parametrize('compiler', [
    ['gcc', '-x', 'c', '-std=c99'], ['gcc', '-x', 'c', '-std=c11'],
    ['g++', '-x', 'c++', '-std=c++11'], ['g++', '-x', 'c++', '-std=c++17']
], ids=lambda i: i[-1])
def test_public_header(compiler):
    """It compiles alone."""
    run(*compiler, *WARNINGS, ROOT / 'include' / 'devitocomp.h')


@pytest.mark.parametrize('compiler', [['gcc', '-x', 'c', '-std=c99'],
                                      ['g++', '-x', 'c++', '-std=c++14']],
                         ids=lambda i: i[-1])
def test_store_header(compiler):
    """Generated code includes it, with the flags that Devito uses."""
    run(*compiler, '-Wall', '-Werror', '-fsyntax-only', '-Wno-unused-function',
        f'-I{ROOT / "include"}', ROOT / 'devitocomp_plugin/runtime/devitocomp_store.h')


def test_public_header_is_self_contained():
    """No other header than the standard ones for sizes."""
    lines = (ROOT / 'include' / 'devitocomp.h').read_text().splitlines()
    included = [i for i in lines if i.lstrip().startswith('#include')]
    assert included == ['#include <stddef.h>', '#include <stdint.h>']


def test_runtime_store(tmp_path):
    """Under the address and undefined-behaviour sanitizers."""
    assert ' 0 failed' in make('tests/runtime', 'check', f'BUILD={tmp_path}')


def test_test_providers(tmp_path):
    assert ' 0 fail' in make('tests/providers', 'check', f'BUILD={tmp_path}')


@pytest.mark.parametrize('cflags', [
    '-O2', '-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all'
], ids=['plain', 'sanitized'])
def test_dummy(cflags, tmp_path):
    out = make('providers/dummy', 'test-host', f'BUILD={tmp_path}', f'CFLAGS={cflags}')
    assert ' 0 fail' in out


def test_dummy_install(tmp_path):
    """What is installed is a DEVITOCOMP_ROOT."""
    make('providers/dummy', 'install', f'BUILD={tmp_path / "build"}',
         f'PREFIX={tmp_path / "root"}')
    files = sorted(str(i.relative_to(tmp_path / 'root'))
                   for i in (tmp_path / 'root').rglob('*') if i.is_file())
    assert files == ['include/devitocomp.h', 'lib/libdevitocomp.so']


def test_dummy_cuda(tmp_path):
    """Compiles and links; running it takes a GPU."""
    if shutil.which('nvcc') is None and not os.environ.get('CI'):
        pytest.skip('needs nvcc')
    make('providers/dummy', 'cuda', f'BUILD={tmp_path}')
    library = tmp_path / 'cuda' / 'lib' / 'libdevitocomp.so'
    symbols = run('nm', '-D', '--defined-only', library)
    assert symbols.count(' T devitocomp_') == 9


def test_nothing_is_built_in_the_source_tree():
    if not (ROOT / '.git').exists():
        pytest.skip('not a checkout')
    status = run('git', '-C', ROOT, 'status', '--porcelain', '--ignored', 'providers',
                 'tests/providers', 'tests/runtime')
    built = [i for i in status.splitlines() if i.startswith('!!')
             and '__pycache__' not in i]
    assert not built, f'build products: {built}'
