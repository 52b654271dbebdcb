"""A plan with all the memory that its calls need."""
import ctypes as ct
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.checks import Failed
from devitocomp_plugin.conformance.memory import HostRegion
from devitocomp_plugin.plan import MAX_ALIGNMENT, MAX_BYTES

__all__ = ['Bench', 'Snapshot', 'label']

GAP = 0xC3
"""What the bytes between the elements of a strided tensor are set to."""

STALE = {i: np.frombuffer(b'\xff'*8, dtype=i)[0] for i in abi.DTYPES.values()}
"""What the elements of a tensor are before they are decompressed."""

THREADS = 2


@dataclass(frozen=True)
class Snapshot:
    """What compress has left: payload and sidecar, in bytes."""

    payload: bytes
    sidecar: bytes


def label(dtype, shape, options=None, strides=None):
    """A tensor and the options, for messages."""
    text = f'{np.dtype(dtype)} {"x".join(str(i) for i in shape)}'
    if strides is not None:
        text += f' strides {"x".join(str(i) for i in strides)}'
    return text + f' options {"NULL" if options is None else repr(options)}'


class Bench:
    """
    A plan, and calls of it with fresh memory between canaries.

    Parameters
    ----------
    driver : Driver
    dtype, shape, strides, options
        As for `Provider.plan`.
    threads : int, optional
        For plan and calls.

    Attributes
    ----------
    plan : int
        The handle.
    limits : LimitsStruct
        Of the plan.

    Raises
    ------
    Failed
        If there is no such plan, or its limits are no use.
    """

    def __init__(self, driver, dtype, shape, strides=None, options=None, threads=THREADS):
        self.driver = driver
        self.dtype = np.dtype(dtype)
        self.shape = tuple(shape)
        self.strides = tuple(strides or abi.contiguous_strides(self.shape))
        self.label = label(dtype, shape, options, strides)
        self.threads = threads
        tensor = abi.make_tensor(dtype, shape, strides)
        status, plan = driver.create(tensor, driver.execution(threads), options)
        if status != abi.OK:
            raise Failed(driver.trial.located(f'{self.label} is refused: '
                                              f'{driver.reason(status)}'))
        self.plan = plan
        self.limits = driver.limits(plan)
        self._check_limits()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.driver.destroy(self.plan)

    def _check_limits(self):
        # Only what would keep us from allocating; group `limits` looks at the rest
        for i in ('payload_alignment', 'sidecar_alignment'):
            value = getattr(self.limits, i)
            if not 1 <= value <= MAX_ALIGNMENT['host'] or value & (value - 1):
                raise Failed(f'{self.label}: {i} is {value}, no power of two up to '
                             f'{MAX_ALIGNMENT["host"]}')
        for i in ('max_compressed_bytes', 'sidecar_bytes'):
            if getattr(self.limits, i) >= MAX_BYTES:
                raise Failed(f'{self.label}: {i} is {getattr(self.limits, i)}')

    # Memory

    def elements(self, image):
        """The elements of the tensor in the bytes of it and its gaps."""
        strides = tuple(i*self.dtype.itemsize for i in self.strides)
        return as_strided(image.view(self.dtype), self.shape, strides)

    def tensor_image(self, data):
        """The bytes of a tensor and its gaps."""
        last = sum((n - 1)*s for n, s in zip(self.shape, self.strides, strict=True))
        image = np.full((last + 1)*self.dtype.itemsize, GAP, dtype=np.uint8)
        self.elements(image)[...] = data
        return image

    def tensor_region(self, image, offset=0):
        """A region with these bytes."""
        region = self.driver.space.region(image.size, offset=offset)
        region.put(image.tobytes())
        return region

    def payload_region(self, nbytes, offset=0, fill=0):
        """A region as aligned as the limits ask, or less by an offset."""
        region = self.driver.space.region(nbytes, self.limits.payload_alignment, offset)
        region.fill(fill)
        return region

    def sidecar_region(self, content=None, offset=0, fill=0):
        """Likewise, on the host."""
        region = HostRegion(self.limits.sidecar_bytes, self.limits.sidecar_alignment,
                            offset)
        region.fill(fill)
        if content is not None:
            region.put(content)
        return region

    def _sidecar_address(self, region):
        return region.address if self.limits.sidecar_bytes else None

    def _bounds(self, action, **regions):
        for name, region in regions.items():
            damage = region.damage()
            if damage:
                self.driver.trial.violation('bounds', f'{self.label}: {action} of {name} '
                                                      f'writes {damage}')

    # Calls

    def execution(self, threads=None):
        """The `devitocomp_execution_t` of a call."""
        return self.driver.execution(self.threads if threads is None else threads)

    def try_compress(self, data, capacity=None, threads=None, fill=0, offsets=(0, 0, 0)):
        """
        Compress a snapshot.

        Parameters
        ----------
        data : numpy.ndarray
        capacity : int, optional
            By default, the most that the limits mention.
        threads : int, optional
        fill : int, optional
            What payload and sidecar hold before.
        offsets : tuple of int, optional
            Added to the addresses of tensor, payload and sidecar.

        Returns
        -------
        (int, Snapshot or None)
        """
        most = self.limits.max_compressed_bytes
        capacity = most if capacity is None else capacity
        image = self.tensor_image(data)
        tensor = self.tensor_region(image, offsets[0])
        payload = self.payload_region(capacity, offsets[1], fill)
        sidecar = self.sidecar_region(None, offsets[2], fill)
        used = ct.c_size_t(2**63)
        status = self.driver.call(
            'compress', self.plan, self.plan, ct.byref(self.execution(threads)),
            tensor.address, payload.address, capacity, ct.byref(used),
            self._sidecar_address(sidecar)
        )
        self._bounds('compress', tensor=tensor, payload=payload, sidecar=sidecar)
        if tensor.get() != image.tobytes():
            self.driver.trial.violation('inputs', f'{self.label}: compress changes the '
                                                  f'tensor')
        if status != abi.OK:
            return status, None
        if used.value > min(capacity, most):
            self.driver.trial.violation(
                'length', f'{self.label}: compress reports {used.value} bytes; the '
                          f'capacity is {capacity}, max_compressed_bytes {most}')
            if used.value > capacity:
                raise Failed(f'{self.label}: compress reports {used.value} bytes with a '
                             f'capacity of {capacity}')
        return status, Snapshot(payload.get(used.value), sidecar.get())

    def try_decompress(self, snapshot, threads=None, offsets=(0, 0, 0)):
        """
        Decompress a snapshot.

        Parameters
        ----------
        snapshot : Snapshot
        threads, offsets
            As for `try_compress`.

        Returns
        -------
        (int, numpy.ndarray or None)
        """
        # Not zeros before, which a provider might count on
        image = self.tensor_image(STALE[self.dtype])
        tensor = self.tensor_region(image, offsets[0])
        payload = self.payload_region(len(snapshot.payload), offsets[1])
        payload.put(snapshot.payload)
        sidecar = self.sidecar_region(snapshot.sidecar, offsets[2])
        status = self.driver.call(
            'decompress', self.plan, self.plan, ct.byref(self.execution(threads)),
            payload.address, len(snapshot.payload), self._sidecar_address(sidecar),
            tensor.address
        )
        self._bounds('decompress', tensor=tensor, payload=payload, sidecar=sidecar)
        if payload.get() != snapshot.payload or sidecar.get() != snapshot.sidecar:
            self.driver.trial.violation('inputs', f'{self.label}: decompress changes '
                                                  f'payload or sidecar')
        found = np.frombuffer(bytearray(tensor.get()), dtype=np.uint8)
        data = self.elements(found).copy()
        if self.strides != abi.contiguous_strides(self.shape):
            # Once the elements are as before, all has to be
            self.elements(found)[...] = self.elements(image)
            changed = np.flatnonzero(found != image)
            if changed.size:
                self.driver.trial.violation(
                    'bounds', f'{self.label}: decompress writes {changed.size} bytes '
                              f'between the elements, the first at offset {changed[0]}')
        return status, data if status == abi.OK else None

    def compress(self, data, **kwargs):
        """Compress a snapshot, or end the check."""
        status, snapshot = self.try_compress(data, **kwargs)
        if status != abi.OK:
            raise self._failed('compress', status)
        return snapshot

    def decompress(self, snapshot, **kwargs):
        """Decompress a snapshot, or end the check."""
        status, data = self.try_decompress(snapshot, **kwargs)
        if status != abi.OK:
            raise self._failed('decompress', status)
        return data

    def _failed(self, action, status):
        reason = self.driver.reason(status, self.plan)
        return Failed(
            self.driver.trial.located(f'{self.label}: {action} returns {reason}'))
