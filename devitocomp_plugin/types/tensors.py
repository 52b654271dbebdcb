"""Vector- and tensor-valued TimeFunctions whose components are compressed."""

import devito

from devitocomp_plugin.types.functions import TimeFunction

__all__ = ['TensorTimeFunction', 'VectorTimeFunction']


class TensorTimeFunction(devito.TensorTimeFunction):

    """
    A devito.TensorTimeFunction whose components may be compressed.

    Takes the parameters of devito.TensorTimeFunction and the additional ones of
    devitocomp_plugin.TimeFunction, which apply to every component.
    """

    _sub_type = TimeFunction


class VectorTimeFunction(devito.VectorTimeFunction):

    """
    A devito.VectorTimeFunction whose components may be compressed.

    Takes the parameters of devito.VectorTimeFunction and the additional ones of
    devitocomp_plugin.TimeFunction, which apply to every component.
    """

    _sub_type = TimeFunction
