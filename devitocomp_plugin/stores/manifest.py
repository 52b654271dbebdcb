"""
The manifest of a store on disk: what its snapshots are, and of what.

docs/store-format.md describes it.
"""

import hashlib
import json
import os
import secrets

import numpy as np

from devitocomp_plugin.exceptions import StoreError

__all__ = ['FORMAT', 'MANIFEST', 'check', 'describe', 'new', 'read', 'write']

MANIFEST = 'manifest.json'

FORMAT = 1
"""Version of the layout of the directory and of the manifest."""


def describe(function):
    """
    What has to be equal for a compressed function to use the snapshots of another.

    Parameters
    ----------
    function : CompressedTimeFunction

    Returns
    -------
    dict
        Of plain Python objects.
    """
    grid = function.grid
    distributor = function._distributor
    dimensions = function.dimensions[1:]
    part = {d.name: [0, int(s)] for d, s in zip(dimensions, function.shape[1:],
                                               strict=True)}
    if distributor is not None:
        slices = {d.name: i for d, i in distributor.glb_slices.items()}
        part.update((k, [int(slices[k].start), int(slices[k].stop)])
                    for k in part if k in slices)
    return {
        'save': int(function.save),
        'dtype': str(np.dtype(function.dtype)),
        'dimensions': [d.name for d in dimensions],
        'shape': [int(i) for i in function.shape[1:]],
        'staggered': str(function.staggered),
        'grid': None if grid is None else {
            'shape': [int(i) for i in grid.shape],
            'extent': [float(i) for i in grid.extent],
            'origin': [float(i) for i in grid.origin],
        },
        'compression': function.compression.options,
        'mpi': {
            'ranks': 1 if distributor is None else distributor.nprocs,
            'rank': 0 if distributor is None else distributor.myrank,
            'topology': [] if distributor is None else
                        [int(i) for i in distributor.topology],
            'part': part,
        },
    }


def new(function, description):
    """The manifest of a new store, whose identity is a random number."""
    return {
        'format': FORMAT,
        'store_id': f'{secrets.randbits(64):016x}',
        'function': function,
        'description': description,
        'provider': None,
    }


def _checksum(manifest):
    text = json.dumps({k: v for k, v in manifest.items() if k != 'checksum'},
                      sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write(directory, manifest):
    """
    Write a manifest, which replaces another one only when it is complete.

    Raises
    ------
    StoreError
        If that fails, naming the path.
    """
    path = os.path.join(directory, MANIFEST)
    path_of_new = f'{path}.new'
    try:
        with open(path_of_new, 'w', encoding='utf-8') as f:
            json.dump({**manifest, 'checksum': _checksum(manifest)}, f, indent=1)
            f.write('\n')
            f.flush()
            os.fsync(f.fileno())
        os.replace(path_of_new, path)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as e:
        raise StoreError(f"The snapshots of `{manifest['function']}` cannot be stored: "
                         f"cannot write {path}: {e.strerror}") from e


def read(directory, function):
    """
    Read the manifest of a store.

    Parameters
    ----------
    directory : str
    function : str
        The name of the function that is to use it, for messages.

    Raises
    ------
    StoreError
        If it is missing, damaged, foreign, or of a format that cannot be used.
    """
    path = os.path.join(directory, MANIFEST)

    def refuse(why):
        raise StoreError(f"The store of `{function}` cannot be opened: {path} {why}")

    try:
        with open(path, encoding='utf-8') as f:
            manifest = json.load(f)
    except FileNotFoundError:
        refuse('is missing: the store was not made completely, by another number of '
               'ranks, or it was removed')
    except OSError as e:
        refuse(f'cannot be read: {e.strerror}')
    except ValueError as e:
        refuse(f'is damaged or a foreign file: {e}')
    if not isinstance(manifest, dict) or 'format' not in manifest:
        refuse('is a foreign file: it has no format version')
    if manifest['format'] != FORMAT:
        refuse(f"has format version {manifest['format']}, and only {FORMAT} can be used")
    if manifest.get('checksum') != _checksum(manifest):
        refuse('is damaged: its checksum does not match')
    return manifest


def check(manifest, description, directory, function):
    """
    Make sure that a function can use the snapshots of a store.

    Raises
    ------
    StoreError
        If not, naming all that differs.
    """
    held, wanted = _flatten(manifest['description']), _flatten(description)
    differing = [f"{k} is {held.get(k)!r} in the store and {wanted.get(k)!r} here"
                 for k in sorted({*held, *wanted}) if held.get(k) != wanted.get(k)]
    if differing:
        raise StoreError(
            f"The store in {directory}, which was made for `{manifest['function']}`, "
            f"does not fit `{function}`: {'; '.join(differing)}. Make the function "
            "alike, or let `serialization` name another directory"
        )


def _flatten(items, prefix=''):
    flat = {}
    for k, v in items.items():
        if isinstance(v, dict):
            flat.update(_flatten(v, f'{prefix}{k}.'))
        else:
            flat[prefix + k] = v
    return flat
