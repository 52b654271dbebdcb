"""The command `devitocomp`."""
import argparse
import sys

__all__ = ['main']

# Modules of the package are imported by the functions that need them, so that `--help`
# does not wait for anything


def info(args):
    """Print which provider would be used, and what it offers."""
    from devitocomp_plugin import abi, paths
    from devitocomp_plugin.config import DevitoComp
    from devitocomp_plugin.linking import link_dir
    from devitocomp_plugin.provider import HEADER, current_provider

    provider = current_provider()
    claims = provider.claims
    lines = [
        ('root', provider.root),
        ('header', provider.root / HEADER),
        ('library', provider.library),
        ('provider', provider),
        ('ABI version', f'{provider.functions.devitocomp_abi_version()} (library), '
                        f'{abi.ABI_VERSION} (devitocomp_plugin)'),
        ('payload version', claims.payload_version),
        ('execution kinds', _join(claims.execution_kinds)),
        ('portable kinds', _join(claims.portable_kinds)),
        ('dtypes', _join(claims.dtypes)),
        ('ranks', _join(claims.ranks)),
        ('flags', _join(claims.flags)),
    ]

    dtype, shape = _sample(args, claims)
    options = DevitoComp(error=args.error).options
    limits = provider.check_tensor(dtype, shape, options)
    lines.append(('sample tensor', f'{dtype} {"x".join(str(i) for i in shape)}, error '
                                   f'{"default" if options is None else options}'))
    if limits is None:
        lines.append(('limits', 'unknown: no execution on the host'))
    else:
        lines.extend([
            ('error kind', limits.error_kind),
            ('error bound', f'{limits.error_bound:g}'),
            ('max payload', f'{limits.max_compressed_bytes} bytes, aligned to '
                            f'{limits.payload_alignment}'),
            ('sidecar', f'{limits.sidecar_bytes} bytes, aligned to '
                        f'{limits.sidecar_alignment}'),
        ])

    abi.runtime()  # Raises if unusable
    lines.extend([
        ('runtime', paths.runtime_library()),
        ('cache', paths.cache_dir()),
        ('link directory', link_dir(provider.key)),
    ])
    width = max(len(i) for i, _ in lines)
    for name, value in lines:
        print(f'{name:<{width}}  {value}')


def _info_arguments(parser):
    parser.add_argument('--shape', type=int, nargs='+', metavar='N',
                        help='of the sample tensor, slowest dimension first (default: '
                             '64 per dimension)')
    parser.add_argument('--dtype', help='of the sample tensor (default: float32)')
    parser.add_argument('--error', type=float, metavar='E',
                        help='relative error tolerance (default: of the provider)')


def _sample(args, claims):
    # Left to us, the sample should be something that the provider offers
    import numpy as np
    names = sorted(str(i) for i in claims.dtypes)
    dtype = args.dtype or ('float32' if 'float32' in names else (*names, 'float32')[0])
    rank = 3 if 3 in claims.ranks else max(claims.ranks, default=3)
    try:
        return np.dtype(dtype), tuple(args.shape or (64,)*min(rank, 4) + (1,)*(rank - 4))
    except TypeError as e:
        raise ValueError(f'--dtype: {e}') from None


def root(args):
    """Build a bundled provider if needed, and print a directory for DEVITOCOMP_ROOT."""
    from devitocomp_plugin.providers import bundled_provider
    print(bundled_provider(args.name).build(args.variant))


def _root_arguments(parser):
    parser.add_argument('name', metavar='NAME',
                        help='of the provider, as `devitocomp providers` lists it')
    parser.add_argument('--variant', help='how to build it, such as cuda (default: the '
                                          'first that `devitocomp providers` lists)')


def providers(args):
    """List the bundled providers: what they offer, and whether they can be built."""
    import textwrap

    from devitocomp_plugin.providers import bundled_providers
    found = bundled_providers()
    indent = ' '*(max(len(i) for i in found) + 2)
    for name, i in found.items():
        roots = {k: i.built(k) for k in i.variants}
        lines = [i.summary, *_offers(i, next((k for k in roots.values() if k), None))]
        for variant, root in roots.items():
            state = f'built in {root}' if root else i.missing(variant) or 'can be built'
            lines.append(f'variant {variant}: {state}')
        head = name.ljust(len(indent))
        for line in lines:
            print(textwrap.fill(line, 90, initial_indent=head,
                                subsequent_indent=f'{indent}  ', break_on_hyphens=False,
                                break_long_words=False))
            head = indent


def _offers(bundled, root):
    """Lines on what a provider offers: as it says itself, once there is one."""
    if root is None:
        return [f'execution: {bundled.execution}; dtypes: {bundled.dtypes}; '
                f'ranks: {bundled.ranks}']
    from devitocomp_plugin.provider import provider_at
    provider = provider_at(root)
    claims = provider.claims
    args = argparse.Namespace(dtype=None, shape=None)
    limits = provider.check_tensor(*_sample(args, claims))
    return [
        f'execution: {_join(claims.execution_kinds)}; dtypes: {_join(claims.dtypes)}; '
        f'ranks: {_join(claims.ranks)}',
        f'claims: {_join(claims.flags)}',
        f'default error: {limits.error_bound:g} ({limits.error_kind}); payload aligned '
        f'to {limits.payload_alignment}, sidecar of {limits.sidecar_bytes} bytes'
    ]


def _no_arguments(parser):
    pass


def _join(values):
    return ', '.join(str(i) for i in sorted(values, key=str)) or 'none'


def validate(args):
    """Hold a provider against the interface, and run the acceptance suites on it."""
    from devitocomp_plugin.conformance.command import run
    return run(args)


def _validate_arguments(parser):
    parser.add_argument('root', nargs='?', metavar='ROOT',
                        help='a directory fit for DEVITOCOMP_ROOT (default: that, or the '
                             'bundled provider)')
    parser.add_argument('--group', action='append', metavar='NAME',
                        help='make the checks of this group only; may be repeated')
    parser.add_argument('--time-limit', type=float, default=120., metavar='S',
                        help='seconds that one check may take (default: %(default)g)')
    parser.add_argument('--suites', metavar='DIR',
                        help='the folder of the acceptance suites (default: tests/ of a '
                             'source checkout)')
    parser.add_argument('--no-suites', action='store_true',
                        help='leave out the acceptance suites')
    parser.add_argument('--rtol', type=float, action='append', metavar='R',
                        help='tolerance to run the acceptance suites with; may be '
                             'repeated (default: 0 if the provider has a lossless mode, '
                             'and what it promises by default)')


# name -> (function, what adds its arguments)
COMMANDS = {
    'info': (info, _info_arguments),
    'providers': (providers, _no_arguments),
    'root': (root, _root_arguments),
    'validate': (validate, _validate_arguments),
}


def main(argv=None):
    """
    Run the command.

    Parameters
    ----------
    argv : list of str, optional
        The arguments; those of the process by default.

    Returns
    -------
    int
        The exit status.
    """
    parser = argparse.ArgumentParser(prog='devitocomp',
                                     description='Compressed snapshots for Devito.')
    subparsers = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    for name, (function, add_arguments) in COMMANDS.items():
        summary = function.__doc__.strip().splitlines()[0]
        add_arguments(subparsers.add_parser(name, help=summary, description=summary))
    args = parser.parse_args(argv)

    from devitocomp_plugin.exceptions import DevitoCompError
    try:
        return COMMANDS[args.command][0](args) or 0
    except (DevitoCompError, ValueError) as e:
        print(f'devitocomp: {" ".join(str(e).split())}', file=sys.stderr)
        return 1
