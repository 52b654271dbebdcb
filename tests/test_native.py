"""The parts in C: headers, the runtime store, and the providers."""

import os
import subprocess
import sys
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


SANITIZED = '-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all'

PROVIDERS = sorted(i.parent.name for i in (ROOT / 'providers').glob('*/Makefile'))


def need(name, variant='host'):
    """Skip the test if a provider cannot be built, saying why. In CI all can."""
    done = subprocess.run(['make', '-s', '-C', str(ROOT / 'providers' / name), 'probe',
                           f'PYTHON={sys.executable}', f'VARIANT={variant}'],
                          capture_output=True, text=True)
    if done.returncode != 0:
        assert not os.environ.get('CI'), done.stderr
        pytest.skip(' '.join(done.stderr.split()))


@pytest.mark.parametrize('cflags', ['-O2', SANITIZED], ids=['plain', 'sanitized'])
@pytest.mark.parametrize('name', PROVIDERS)
def test_provider(name, cflags, tmp_path):
    need(name)
    out = make(f'providers/{name}', 'test-host', f'BUILD={tmp_path}', f'CFLAGS={cflags}',
               f'PYTHON={sys.executable}')
    assert ' 0 fail' in out


@pytest.mark.parametrize('name', PROVIDERS)
def test_provider_install(name, tmp_path):
    """What is installed is a DEVITOCOMP_ROOT."""
    need(name)
    make(f'providers/{name}', 'install', f'BUILD={tmp_path / "build"}',
         f'PREFIX={tmp_path / "root"}', f'PYTHON={sys.executable}')
    files = sorted(str(i.relative_to(tmp_path / 'root'))
                   for i in (tmp_path / 'root').rglob('*') if i.is_file())
    assert files == ['include/devitocomp.h', 'lib/libdevitocomp.so']


@pytest.mark.parametrize('name', ['dummy', 'bitcomp'])
def test_provider_cuda(name, tmp_path):
    """Compiles and links; running it takes a GPU."""
    need(name, 'cuda')
    make(f'providers/{name}', 'cuda', f'BUILD={tmp_path}', f'PYTHON={sys.executable}')
    library = tmp_path / 'cuda' / 'lib' / 'libdevitocomp.so'
    symbols = run('nm', '-D', '--defined-only', library)
    assert symbols.count(' T devitocomp_') == symbols.count(' T ') == 9


def test_nothing_is_built_in_the_source_tree():
    if not (ROOT / '.git').exists():
        pytest.skip('not a checkout')
    status = run('git', '-C', ROOT, 'status', '--porcelain', '--ignored', 'providers',
                 'tests/providers', 'tests/runtime')
    built = [i for i in status.splitlines() if i.startswith('!!')
             and '__pycache__' not in i]
    assert not built, f'build products: {built}'
