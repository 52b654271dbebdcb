"""The functions of a provider, called with whatever arguments a check wants."""
import ctypes as ct
import locale
import os

from devitocomp_plugin import abi
from devitocomp_plugin.conformance.checks import Failed
from devitocomp_plugin.plan import Claims
from devitocomp_plugin.provider import LIBRARY

__all__ = ['Driver', 'describe']

TOLERANCES = (None, '0', '0.01', '1e-5')
"""Options with which round trips are made, as far as a provider takes them."""

_COMMON = {'OK', 'INVALID_ARGUMENT', 'UNSUPPORTED', 'OUT_OF_MEMORY', 'PROVIDER_ERROR'}

ALLOWED = {
    'plan_create': _COMMON | {'VERSION_MISMATCH'},
    'plan_limits': {'OK', 'INVALID_ARGUMENT'},
    'compress': _COMMON | {'BUFFER_TOO_SMALL'},
    'decompress': _COMMON | {'CORRUPT_PAYLOAD', 'VERSION_MISMATCH'},
}
"""The statuses that functions may return, by name."""

_libm = ct.CDLL('libm.so.6')


def describe(status):
    """Name and value of a status."""
    if 0 <= status < len(abi.STATUSES):
        return f'{abi.STATUSES[status]} ({status})'
    return f'{status}, which is no status'


def _environment():
    return _libm.fegetround(), locale.setlocale(locale.LC_ALL)


class Driver:
    """
    A provider, loaded into this process.

    Each call is held against the rules that hold for all calls.

    Parameters
    ----------
    root : Path
        A directory fit for DEVITOCOMP_ROOT.
    space : HostSpace or CudaSpace
        Where it is to run.

    Attributes
    ----------
    functions : ctypes.CDLL
        The library, whose functions have prototypes.
    trial : Trial
        The check that is being made.

    Raises
    ------
    OSError
        If the library cannot be loaded, or is not one of this version of the interface.
    """

    trial = None

    def __init__(self, root, space):
        self.root = root
        self.space = space
        self.functions = ct.CDLL(str(root / LIBRARY), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        self._tolerances = {}
        missing = abi.declare(self.functions, abi.PROVIDER_FUNCTIONS)
        if missing:
            raise OSError(f'{root / LIBRARY} does not export {", ".join(missing)}. Define'
                          f' all functions DEVITOCOMP_EXPORT')
        version = self.functions.devitocomp_abi_version()
        if version != abi.ABI_VERSION:
            raise OSError(f'{root / LIBRARY} implements version {version} of the '
                          f'interface, not {abi.ABI_VERSION}')

    @property
    def claims(self):
        """What the provider offers, a Claims."""
        return Claims.from_struct(self.limits(None))

    def execution(self, threads=0):
        """A `devitocomp_execution_t` for the kind of this driver."""
        return abi.Execution(ct.sizeof(abi.Execution), self.space.code, threads, 0,
                             self.space.stream)

    def call(self, name, plan, *args):
        """
        Call a function that returns a status.

        Parameters
        ----------
        name : str
            Of the function, without prefix.
        plan : int or None
            The handle that messages are asked of.
        *args
            All arguments of the function.

        Returns
        -------
        int
            The status.
        """
        before = _environment()
        status = getattr(self.functions, f'devitocomp_{name}')(*args)
        self.space.synchronize()
        after = _environment()
        if after != before:
            locale.setlocale(locale.LC_ALL, before[1])
            _libm.fesetround(before[0])
            self.trial.violation('environment', f'{name} changes (rounding mode, locale) '
                                                f'from {before} to {after}')
        known = 0 <= status < len(abi.STATUSES)
        if not known or abi.STATUSES[status] not in ALLOWED[name]:
            self.trial.violation('statuses', f'{name} returns {describe(status)}')
        described = status == abi.OK or (plan is None and name != 'plan_create')
        if not described and not self.message(plan):
            self.trial.violation('messages', f'{name} returns {describe(status)}, '
                                             f'without a message')
        return status

    def message(self, plan=None):
        """The provider's description of the last failure."""
        text = self.functions.devitocomp_message(plan)
        if text is None:
            self.trial.violation('messages', 'devitocomp_message returns NULL')
            return ''
        try:
            return text.decode()
        except UnicodeDecodeError:
            self.trial.violation('messages', f'{text!r} is not UTF-8')
            return text.decode(errors='replace')

    def reason(self, status, plan=None):
        """A status and the message that goes with it."""
        return f'{describe(status)}: {self.message(plan) or "no message"}'

    def create(self, tensor, execution=None, options=None, version=abi.ABI_VERSION):
        """
        Call devitocomp_plan_create.

        Parameters
        ----------
        tensor : Tensor or None
        execution : Execution, optional
            By default, of the kind of this driver.
        options : str, optional
        version : int, optional

        Returns
        -------
        (int, int or None)
            The status and what *plan is afterwards, having been 1.
        """
        execution = self.execution() if execution is None else execution
        plan = ct.c_void_p(1)
        status = self.call('plan_create', None, version,
                           None if tensor is None else ct.byref(tensor),
                           ct.byref(execution),
                           None if options is None else options.encode(), ct.byref(plan))
        return status, plan.value

    def destroy(self, plan):
        """Call devitocomp_plan_destroy."""
        self.functions.devitocomp_plan_destroy(plan)

    def limits(self, plan):
        """
        The `devitocomp_limits_t` of a plan, or the claims in one if there is no plan.

        Raises
        ------
        Failed
            If the provider does not tell.
        """
        struct = abi.LimitsStruct(ct.sizeof(abi.LimitsStruct))
        status = self.call('plan_limits', plan, plan, ct.byref(struct))
        if status != abi.OK:
            raise Failed(f'devitocomp_plan_limits returns {describe(status)}')
        return struct

    def tolerances(self, dtype, shape):
        """
        The options that the provider takes for a tensor, as far as they make a difference
        to its limits.

        Returns
        -------
        list of (str or None)
            Some of TOLERANCES.
        """
        key = (dtype, len(shape))
        if key not in self._tolerances:
            accepted = {}
            for options in TOLERANCES:
                status, plan = self.create(abi.make_tensor(dtype, shape), options=options)
                if status == abi.OK:
                    accepted.setdefault(bytes(self.limits(plan)), options)
                    self.destroy(plan)
            # None has to be taken; if it is not, let its user find out
            self._tolerances[key] = list(accepted.values()) or [None]
        return self._tolerances[key]
