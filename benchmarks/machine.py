"""What benchmarks run on."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ['available_bytes', 'describe', 'load']


def describe(*packages):
    """Lines about processor, memory, kernel, compiler, and versions of packages."""
    cpu = _field('/proc/cpuinfo', 'model name') or platform.processor()
    memory = _meminfo('MemTotal')/2**30
    compiler = subprocess.run([os.environ.get('CC', 'gcc'), '--version'],
                              capture_output=True, text=True).stdout.partition('\n')[0]
    found = [f'{i} {_version(i)}' for i in ('devito', 'numpy', *packages)]
    pages = Path('/sys/kernel/mm/transparent_hugepage/enabled')
    huge = pages.read_text().strip() if pages.exists() else 'none'
    return [f'{cpu}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB; huge pages '
            f'{huge}',
            f'{platform.system()} {platform.release()}, {compiler}',
            f'Python {platform.python_version()}, {", ".join(found)}']


def load():
    """The load averages."""
    return 'load average ' + ' '.join(f'{i:.2f}' for i in os.getloadavg())


def available_bytes():
    """The memory that can be had without swapping."""
    return _meminfo('MemAvailable')


def _meminfo(name):
    return 1024*int((_field('/proc/meminfo', name) or '0').split()[0])


def _field(path, name):
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(':')
        if key.strip() == name:
            return value.strip()
    return None


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return 'not installed'
