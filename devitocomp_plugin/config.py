"""What a user asks of the compression, and where snapshots are to live."""

from dataclasses import dataclass
from math import isfinite
from numbers import Real

import numpy as np

__all__ = ['DevitoComp', 'as_compression']

# Names that DevitoPRO accepts for `compression=` and that are codecs here
foreign_codecs = ('bitcomp', 'cvxcompress', 'noop')


@dataclass(frozen=True)
class DevitoComp:
    """
    Configuration of the compressed snapshots of a TimeFunction.

    Parameters
    ----------
    error : float, optional
        Relative error tolerance, a finite number >= 0: every value that is read back
        differs from the one saved by at most ``error`` times the largest absolute value
        of that snapshot (under MPI: of the rank's part of it). Defaults to None, which
        leaves the choice to the provider. It is fixed for the life of the function.

    Raises
    ------
    TypeError
        If `error` is not a real number.
    ValueError
        If `error` is negative, infinite or NaN.

    Examples
    --------
    >>> from devitocomp_plugin import DevitoComp
    >>> DevitoComp(error=0.01)
    DevitoComp(error=0.01)
    >>> DevitoComp().options is None
    True
    """

    error: float | None = None

    def __post_init__(self):
        error = self.error
        if error is None:
            return
        if isinstance(error, (bool, np.bool_)) or not isinstance(error, Real):
            raise TypeError("`error` must be a real number >= 0, or None for the "
                            f"provider's default; got {error!r}")
        error = float(error)
        if not isfinite(error) or error < 0:
            raise ValueError("`error` must be a finite number >= 0, or None for the "
                             f"provider's default; got {error!r}")
        object.__setattr__(self, 'error', abs(error))

    def __repr__(self):
        return 'DevitoComp()' if self.error is None else f'DevitoComp(error={self.error})'

    @property
    def options(self):
        """
        The options string handed to the provider: the shortest decimal number that reads
        back as `error` (``'0.01'``), or None.
        """
        if self.error is None:
            return None
        return repr(self.error).removesuffix('.0')


def as_compression(value):
    """
    Normalize the `compression` argument of a TimeFunction.

    Parameters
    ----------
    value : None, str or DevitoComp
        None, ``'devitocomp'`` or a configuration.

    Returns
    -------
    DevitoComp or None

    Raises
    ------
    ValueError
        For anything else, listing what is accepted.
    """
    if value is None or isinstance(value, DevitoComp):
        return value
    if value == 'devitocomp':
        return DevitoComp()

    accepted = "None, 'devitocomp', DevitoComp() or DevitoComp(error=...)"
    if isinstance(value, str) and value.lower() in foreign_codecs:
        raise ValueError(
            f"compression={value!r} names a codec; here the codec is the provider that "
            "the environment variable DEVITOCOMP_ROOT selects. Set DEVITOCOMP_ROOT to "
            f"the directory of a provider of {value!r} and pass "
            f"compression='devitocomp'. Accepted: {accepted}"
        )
    raise ValueError(f"compression={value!r} is not supported. Accepted: {accepted}")
