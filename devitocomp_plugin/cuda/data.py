"""Where data lives, and when it moves between host and device."""

from devito.ir import EntryFunction, Return
from devito.passes import is_gpu_create
from devito.passes.iet.definitions import DeviceAwareDataManager
from devito.passes.iet.engine import iet_pass
from devito.symbolics import DefFunction

from devitocomp_plugin.cuda.language import DeviceBB
from devitocomp_plugin.cuda.messages import is_message
from devitocomp_plugin.cuda.objects import device
from devitocomp_plugin.types.buffer import SnapshotBuffer

__all__ = ['DeviceDataManager']


class DeviceDataManager(DeviceAwareDataManager):

    langbb = DeviceBB

    def _alloc_local_array_on_high_bw_mem(self, site, obj, storage):
        # Devito's would compute the number of bytes with 32 bits
        kind = 'message' if is_message(obj, site) else 'device'
        storage.update(obj, site, allocs=self.langbb[f'{kind}-alloc'](obj),
                       frees=self.langbb[f'{kind}-free'](obj._C_symbol))

    def _map_function_on_high_bw_mem(self, site, obj, storage, devicerm,
                                     read_only=False, **kwargs):
        if isinstance(obj, SnapshotBuffer):
            # The host's memory is never used
            storage.update(obj, site, maps=self.langbb._map_zero(obj),
                           unmaps=self.langbb._map_release(obj))
            return
        if read_only or not is_gpu_create(obj, self.gpu_create):
            super()._map_function_on_high_bw_mem(site, obj, storage, devicerm,
                                                 read_only=read_only, **kwargs)
            return
        # Devito's would generate a kernel to do so
        storage.update(obj, site, maps=self.langbb._map_zero(obj), unmaps=(
            self.langbb._map_update(obj),
            self.langbb._map_release(obj, devicerm=devicerm)
        ))

    @iet_pass
    def place_return(self, iet, **kwargs):
        """
        End the run where the entry function returns, and let errors be what it returns.
        """
        if not isinstance(iet, EntryFunction):
            return iet, {}
        retval = iet.body.retstmt[0].value if iet.body.retstmt else 0
        end = Return(DefFunction('devitocomp_end', (device, retval)))
        return iet._rebuild(body=iet.body._rebuild(retstmt=end)), {}

    def process(self, graph):
        super().process(graph)
        self.place_return(graph)
