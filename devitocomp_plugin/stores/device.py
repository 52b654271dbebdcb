"""Stores whose snapshots rest in the memory of a device."""

import ctypes as ct

from devitocomp_plugin import abi
from devitocomp_plugin.device import device_memory
from devitocomp_plugin.exceptions import StoreError
from devitocomp_plugin.layers import Device, keeps
from devitocomp_plugin.provider import current_provider
from devitocomp_plugin.stores.base import preferred_kinds
from devitocomp_plugin.stores.host import HostStore

__all__ = ['DeviceStore']


@keeps(Device)
class DeviceStore(HostStore):

    """The compressed snapshots of one function, in the memory of a device."""

    on_device = True

    def _create(self):
        if self.kind == 'host':
            # Python comes first, before any Operator
            provider = current_provider()
            self.kind = next((i for i in preferred_kinds()
                              if i != 'host' and provider.supports(i)), None)
        if self.kind is None:
            raise StoreError(f"`{self.name}` has layers='device', but provider "
                             f"{provider} does not compress on devices")
        self._memory = device_memory(self.kind)
        return abi.runtime().devitocomp_store_create_in(ct.byref(self._config),
                                                        ct.byref(self._memory))

    @property
    def nbytes_max(self):
        return 0

    @property
    def nbytes_max_device(self):
        return super().nbytes_max

    def _get_bytes(self, payload, size):
        buffer = ct.create_string_buffer(max(size, 1))
        if not self._memory.copy(ct.addressof(buffer), payload, size):
            raise StoreError(f"A snapshot of `{self.name}` could not be copied from the "
                             "device")
        return buffer.raw[:size]
