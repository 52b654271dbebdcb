"""
Compressed TimeFunctions for Devito.

Importing the package makes Devito's Operators understand them.
"""

from devitocomp_plugin.compatibility import check_devito

check_devito()

# Which registers the kinds of stores
import devitocomp_plugin.stores  # noqa: E402, F401
from devitocomp_plugin.config import DevitoComp  # noqa: E402
from devitocomp_plugin.cuda.compiler import register_compilers  # noqa: E402
from devitocomp_plugin.cuda.operators import register_operators  # noqa: E402
from devitocomp_plugin.layers import (  # noqa: E402
    Device,
    Disk,
    DiskDevice,
    DiskHost,
    DiskHostDevice,
    Host,
    HostDevice,
    NoLayers,
)
from devitocomp_plugin.operators import register  # noqa: E402
from devitocomp_plugin.types.functions import TimeFunction  # noqa: E402
from devitocomp_plugin.types.tensors import TensorTimeFunction, VectorTimeFunction  # noqa: E402

__all__ = ['Device', 'DevitoComp', 'Disk', 'DiskDevice', 'DiskHost', 'DiskHostDevice',
           'Host', 'HostDevice', 'NoLayers', 'TensorTimeFunction', 'TimeFunction',
           'VectorTimeFunction']
__version__ = '0.1.0'

register_compilers()
register_operators()
# All that Devito has by now
register()
