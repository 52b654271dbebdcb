"""The zfp provider against libzfp itself."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from devitocomp_plugin.provider import provider_at
from devitocomp_plugin.providers import bundled_provider

BENCHMARKS = Path(__file__).resolve().parent.parent / 'benchmarks'

pytestmark = pytest.mark.skipif(bool(bundled_provider('zfp').missing()),
                                reason='libzfp is not installed')

HEADER_BYTES = 32


def shell(shape, dtype):
    """A wave front: a sphere, inside and outside of which there is less and less."""
    x = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing='ij')
    r = np.sqrt(sum(i**2 for i in x))
    return (np.exp(-300*(r - 0.6)**2)*np.cos(40*r)).astype(dtype)


@pytest.fixture(scope='module')
def root():
    return bundled_provider('zfp').build()


@pytest.fixture(scope='module')
def codecs():
    spec = spec_from_file_location('providers_vs_serial',
                                   BENCHMARKS / 'providers_vs_serial.py')
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # It sets them, which is to be undone
        patch.setenv('OMP_WAIT_POLICY', 'passive')
        patch.setenv('OMP_PROC_BIND', 'true')
        spec.loader.exec_module(module)
    return module


def both(codecs, root, data, error):
    """The provider and one call of libzfp, each with what it has made of `data`."""
    made = []
    for codec in (codecs.Provider(root, data, error, threads=2),
                  codecs.SerialZfp(data, error)):
        out = np.full_like(data, np.nan)
        codec.compress()
        codec.decompress(out)
        made.append((codec, out))
    return made


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('error', [1e-1, 1e-3, 1e-5])
def test_stream(codecs, root, dtype, error):
    """
    Most blocks hold nothing that is to be kept, and libzfp never sees them: the stream is
    the one that it would have written.
    """
    data = shell((7, 41, 26), dtype)  # One slab
    (provider, out), (serial, expected) = both(codecs, root, data, error)
    start = HEADER_BYTES + 8
    stream = provider.payload[start:provider.nbytes]
    assert 100 < len(stream) < data.nbytes // 2
    padding = len(stream) - serial.nbytes
    assert 0 <= padding < 8
    assert bytes(stream) == bytes(serial.payload[:serial.nbytes]) + bytes(padding)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('error', [1e-1, 1e-3, 1e-5])
def test_slabs(codecs, root, dtype, error):
    """As many as there are do not change what comes back, nor those that are left out."""
    data = shell((60, 67, 70), dtype)
    data[:9] = 1e-9  # Not zero, yet nothing of it is to be kept
    (provider, out), (_, expected) = both(codecs, root, data, error)
    codes = provider.payload[HEADER_BYTES:].view(np.uint64)[:60 // 4] >> np.uint64(48)
    assert not codes[:2].any()
    assert {0, codes.max()} == set(codes)  # Zeros, or one power of two
    assert np.array_equal(out, expected)
    assert 0 < abs(out - data).max() <= error*abs(data).max()


def test_strides(codecs, root):
    """Rows that are not contiguous, which are read and cleared element by element."""
    data = shell((14, 33, 26), np.float32)
    padded = np.full((14, 33, 26, 3), np.nan, np.float32)
    padded[..., 1] = data
    plan = provider_at(root).plan(np.float32, data.shape, options='1e-3',
                                  strides=[i // 4 for i in padded[..., 1].strides])
    payload = np.empty(plan.limits.max_compressed_bytes, np.uint8)
    nbytes = plan.compress(padded[..., 1], payload, payload.size, None)
    back = np.full_like(padded, np.nan)
    plan.decompress(payload, nbytes, None, back[..., 1])
    _, (_, expected) = both(codecs, root, data, 1e-3)
    assert np.array_equal(back[..., 1], expected)
    assert np.isnan(back[..., ::2]).all()
