"""The C objects that appear in generated code, as Devito symbols."""

from ctypes import POINTER

from devito.ir import Call
from devito.symbolics import Macro
from devito.symbolics.extended_dtypes import NoDeclStruct
from devito.types import LocalObject

__all__ = ['Execution', 'Plan', 'PlanPointer', 'Slot', 'Tensor', 'View',
           'foreign_struct']


def foreign_struct(name):
    """A C struct that a header declares."""
    return type(name, (NoDeclStruct,), {'_fields_': []})


class PlanPointer(LocalObject):

    """A compression plan."""

    dtype = POINTER(foreign_struct('devitocomp_plan'))
    default_initvalue = Macro('NULL')


class Plan(LocalObject):

    """
    A compression plan that lives for one run of the Operator.

    Parameters
    ----------
    name : str
    factory : Callable
        The function, in the generated code, that creates the plan.
    """

    dtype = PlanPointer.dtype

    __rkwargs__ = LocalObject.__rkwargs__ + ('factory',)

    def __init__(self, name, factory=None, **kwargs):
        super().__init__(name, **kwargs)
        self.factory = factory

    @property
    def _C_init(self):
        return self.factory

    @property
    def _C_free(self):
        return Call('devitocomp_plan_destroy', [self])


class View(LocalObject):
    """One snapshot as it lies, uncompressed, in memory."""
    dtype = foreign_struct('devitocomp_view')


class Execution(LocalObject):
    """How a provider may execute."""
    dtype = foreign_struct('devitocomp_execution')


class Tensor(LocalObject):
    """The shape of a snapshot, as a provider sees it."""
    dtype = foreign_struct('devitocomp_tensor')


class Slot(LocalObject):
    """The place of a snapshot in a store."""
    dtype = foreign_struct('devitocomp_slot')
