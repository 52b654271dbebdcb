"""The versions of Devito that the package knows."""

from importlib.metadata import version

__all__ = ['check_devito']

# The passes rely on the internals of the compiler: what was not tested is refused
tested = ('4.8.23',)


def check_devito():
    """
    Raise an ImportError unless the installed Devito is one that was tested.
    """
    found = version('devito')
    # Builds of a version from its sources are named like 4.8.23+12.gabcdef
    if found.split('+')[0] not in tested:
        raise ImportError(
            f"devitocomp_plugin was tested with Devito {', '.join(tested)}, and relies "
            f"on internals of it that may differ in the Devito {found} found here. "
            f"Install one of those: pip install 'devito=={tested[-1]}'"
        )
