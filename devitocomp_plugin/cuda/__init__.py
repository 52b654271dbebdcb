"""A language backend of Devito for CUDA and HIP."""

from devitocomp_plugin.cuda.compiler import register_compilers
from devitocomp_plugin.cuda.operators import register_operators

__all__ = ['register']


def register():
    """Make `language='cuda'` and `language='hip'` known to Devito."""
    register_compilers()
    register_operators()
