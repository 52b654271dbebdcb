"""The exceptions of devitocomp_plugin."""
from devito.exceptions import DevitoError, ExecutionError

__all__ = ['CompressionError', 'DevitoCompError', 'InstallationError',
           'ProviderBuildError', 'ProviderError', 'ProviderLoadError', 'ProviderNotFound',
           'ProviderRefusal', 'ProviderSymbolError', 'ProviderVersionError', 'StoreError']


class DevitoCompError(DevitoError):
    """Base class of all exceptions raised by devitocomp_plugin."""


class InstallationError(DevitoCompError, RuntimeError):
    """The package is not, or not completely, installed."""


class ProviderError(DevitoCompError):
    """The provider cannot be used: found before any code is generated."""


class ProviderNotFound(ProviderError, FileNotFoundError):
    """A directory, header or library that makes up a provider does not exist."""


class ProviderLoadError(ProviderError, OSError):
    """The provider's library exists but cannot be loaded or does not work."""


class ProviderBuildError(ProviderError):
    """A bundled provider cannot be built; the message says what is missing."""


class ProviderVersionError(ProviderError):
    """The provider's header or library is of another ABI version."""


class ProviderSymbolError(ProviderError):
    """The provider's library lacks functions of the ABI."""


class ProviderRefusal(ProviderError, ValueError):
    """The provider does not offer what is asked of it, or offers what is no use."""


class StoreError(DevitoCompError):
    """The store that keeps compressed snapshots failed."""


class CompressionError(DevitoCompError, ExecutionError):
    """
    Compressing or decompressing a snapshot failed at run time.

    Parameters
    ----------
    message : str, optional
        What the provider or the store said.
    action : str, optional
        What failed, completing "could not ...", such as 'decompress'.
    function : str, optional
        Name of the compressed function.
    snapshot : int, optional
        Index of the snapshot.
    provider : str, optional
        Name and version of the provider.
    status : int, optional
        The `devitocomp_status_t`.

    Attributes
    ----------
    status_name : str or None
        Name of the status without prefix, such as 'CORRUPT_PAYLOAD'.
    rank : int or None
        The MPI rank on which it failed, if there is more than one.
    """

    rank = None

    def __init__(self, message='', action=None, function=None, snapshot=None,
                 provider=None, status=None):
        # All in `args`, so that pickling (for instance from a dask worker) loses nothing
        super().__init__(message, action, function, snapshot, provider, status)
        self.message = message
        self.action = action
        self.function = function
        self.snapshot = snapshot
        self.provider = provider
        self.status = status

    @property
    def status_name(self):
        if self.status is None:
            return None
        from devitocomp_plugin.abi import status_name
        return status_name(self.status)

    def __str__(self):
        text = f'could not {self.action or "process"}'
        if self.snapshot is not None and self.snapshot >= 0:
            text += f' snapshot {self.snapshot}'
        else:
            text += '' if self.action and ' ' in self.action else ' a snapshot'
        if self.function is not None:
            text += f' of `{self.function}`'
        if self.provider is not None:
            text += f' with provider {self.provider}'
        if self.rank is not None:
            text += f' on MPI rank {self.rank}'
        details = []
        if self.status is not None:
            details.append(f'{self.status_name} ({self.status})')
        if self.message:
            details.append(self.message)
        return ': '.join([text, *details])
