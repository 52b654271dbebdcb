"""Timing of sections on the device."""

from devito.ir import FindNodes, List, Transformer
from devito.ir.iet import TimedList
from devito.passes.iet.engine import iet_pass
from devito.passes.iet.instrument import instrument as devito_instrument

__all__ = ['instrument']


def instrument(graph, **kwargs):
    devito_instrument(graph, **kwargs)
