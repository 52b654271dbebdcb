"""The storage layers of compressed snapshots, and their stacks."""

from dataclasses import dataclass

__all__ = ['Device', 'Disk', 'DiskDevice', 'DiskHost', 'DiskHostDevice', 'Host',
           'HostDevice', 'Layers', 'NoLayers', 'as_layers', 'keeps', 'stores']


@dataclass(frozen=True)
class Layers:
    """
    A stack of storage layers.

    Parameters
    ----------
    names : tuple of str
        The layers, among ``'disk'``, ``'host'`` and ``'device'``. Home first: the first
        layer is where snapshots rest, the others are the way to the compute. Empty for
        the default of the platform.
    """

    names: tuple = ()

    def __str__(self):
        return '-'.join(self.names) or 'no-layers'

    def __repr__(self):
        return f"<layers {self}>"

    @property
    def home(self):
        """The layer in which snapshots rest."""
        return self.names[0] if self.names else 'host'

    @property
    def is_composite(self):
        """True if snapshots pass through more than one layer."""
        return len(self.names) > 1


NoLayers = Layers()
Host = Layers(('host',))
Disk = Layers(('disk',))
Device = Layers(('device',))
DiskHost = Layers(('disk', 'host'))
HostDevice = Layers(('host', 'device'))
DiskDevice = Layers(('disk', 'device'))
DiskHostDevice = Layers(('disk', 'host', 'device'))

known = (NoLayers, Host, Disk, Device, DiskHost, HostDevice, DiskDevice, DiskHostDevice)
by_name = {str(i): i for i in known} | {i.names: i for i in known}

# The class of the stores of each stack
stores = {}


def keeps(*stacks):
    """
    Register a kind of store.

    Parameters
    ----------
    *stacks : Layers
        The stacks whose snapshots it keeps.

    Returns
    -------
    callable
        A decorator of subclasses of SnapshotStore.
    """
    def register(cls):
        stores.update(dict.fromkeys(stacks, cls))
        return cls
    return register


def as_layers(value):
    """
    Normalize the `layers` argument of a TimeFunction.

    Parameters
    ----------
    value : None, Layers, str or tuple of str
        One of this module's stacks, its name (``'disk-host'``), or the names of its
        layers (``('disk', 'host')``). None is NoLayers.

    Returns
    -------
    Layers

    Raises
    ------
    ValueError
        If there is no such stack.
    """
    if value is None:
        return NoLayers
    if isinstance(value, (list, tuple)):
        key = tuple(str(i).lower() for i in value)
    elif isinstance(value, Layers):
        key = value.names
    else:
        key = str(value).lower()
    try:
        layers = by_name[key]
    except KeyError:
        names = ', '.join(repr(str(i)) for i in known)
        raise ValueError(f"layers={value!r} is not a stack of storage layers. Accepted: "
                         f"{names}, or a tuple of layer names, home first") from None
    return layers
