"""The emulator of CUDA's runtime, on which the tests of CUDA code rely."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

EMULATOR = Path(__file__).resolve().parent / 'emulator'
HEADER = EMULATOR / 'include' / 'cuda_runtime.h'
STRICT = ['-Wall', '-Wextra', '-Wpedantic', '-Werror']


def run(*cmd):
    env = {k: v for k, v in os.environ.items() if not k.startswith('CUDAEMUL_')}
    done = subprocess.run([str(i) for i in cmd], capture_output=True, text=True, env=env)
    assert done.returncode == 0, f'{done.stdout}{done.stderr}'
    return done.stdout


@pytest.fixture(scope='module')
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp('emulator')
    run('make', '-s', '-C', EMULATOR, f'BUILD={folder}', 'tests',
        'WARNINGS=-Wall -Wextra -Werror')
    return folder


def test_check(build):
    """Its own programs, HIP's names, and the dummy provider."""
    output = run('make', '-s', '-C', EMULATOR, f'BUILD={build}', 'check')
    assert re.search(r'^emulator: \d{3,} checks, 0 failed', output, re.MULTILINE)
    assert "HIP's names work" in output
    assert re.search(r'^dummy .* host and CUDA execution: \d+ checks, 0 failures', output,
                     re.MULTILINE)


@pytest.mark.parametrize('language', ['c:c99', 'c:c11', 'c++:c++14', 'c++:c++17',
                                      'c++:c++20'])
def test_headers(language):
    language, standard = language.split(':')
    compiler = 'gcc' if language == 'c' else 'g++'
    for header in (HEADER, HEADER.parent / 'hip' / 'hip_runtime.h'):
        run(compiler, '-x', language, f'-std={standard}', *STRICT, '-fsyntax-only',
            header)


def real_headers():
    nvcc = shutil.which('nvcc')
    folders = [Path(os.environ.get('CUDA_HOME', '/usr/local/cuda')) / 'include']
    if nvcc:
        folders.append(Path(nvcc).resolve().parent.parent / 'include')
    return next((i for i in folders if (i / 'cuda_runtime.h').exists()), None)


@pytest.mark.skipif(not real_headers(), reason='no CUDA headers')
def test_numbers(build, tmp_path):
    """Enumerators and flags are those of the real header, if there is one to ask."""
    text = HEADER.read_text()
    names = re.findall(r'^\s*X\((cuda\w+),', text, re.MULTILINE)
    names += re.findall(r'^  (cuda\w+) = \d+,?$', text, re.MULTILINE)
    names += re.findall(r'^#define (cuda\w+) 0x\w+$', text, re.MULTILINE)
    assert len(names) > 70
    source = tmp_path / 'numbers.cpp'
    source.write_text('#include <cuda_runtime.h>\n#include <cstdio>\nint main() {\n' +
                      ''.join(f'  std::printf("{i} %d\\n", int({i}));\n' for i in names) +
                      '}\n')
    printed = []
    for include in (build / 'include', real_headers()):
        run('g++', f'-I{include}', '-o', tmp_path / 'numbers', source)
        printed.append(run(tmp_path / 'numbers'))
    assert printed[0] == printed[1]


@pytest.mark.skipif(not shutil.which('nvcc'), reason='no nvcc')
def test_programs_are_cuda(tmp_path):
    """The programs that the emulator is tested with compile with the real nvcc."""
    run('nvcc', '-x', 'cu', '-std=c++17', '-arch=sm_90', '-c',
        '-o', tmp_path / 'object.o', EMULATOR / 'test_emulator.cpp')
