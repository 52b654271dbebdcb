"""`python -m devitocomp_plugin`: the command line interface."""
import sys

from devitocomp_plugin.cli import main

if __name__ == '__main__':
    sys.exit(main())
