"""The report: a line per check, and what there is to say about it."""
from devitocomp_plugin.conformance.checks import (
    FAILED,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
)

__all__ = ['Report']

OUTCOMES = (PASSED, FAILED, NOT_APPLICABLE, NOT_CHECKED)
WIDTH = max(len(i) for i in OUTCOMES)


class Report:
    """
    Prints results as they come in, and keeps count.

    Parameters
    ----------
    write : function
        Takes each line.
    """

    def __init__(self, write=print):
        self._write = write
        self._group = None
        self._results = []

    def add(self, result):
        """Report one result."""
        group = result.name.partition('.')[0]
        if group != self._group:
            self._write(f'{"" if self._group is None else chr(10)}{group}')
            self._group = group
        self._results.append(result)
        self._write(f'  {result.outcome:<{WIDTH}}  {result.title}')
        for i in result.details:
            for line in i.splitlines():
                self._write(f'  {"":<{WIDTH}}    {line}')

    @property
    def passed(self):
        """Whether something was checked, and nothing failed."""
        outcomes = {i.outcome for i in self._results}
        return PASSED in outcomes and FAILED not in outcomes

    def conclude(self):
        """Sum up, and repeat what failed."""
        failed = [i for i in self._results if i.outcome == FAILED]
        counts = {i: sum(j.outcome == i for j in self._results) for i in OUTCOMES}
        self._write(f'\n{len(self._results)} checks: '
                    + ', '.join(f'{v} {k}' for k, v in counts.items() if v))
        for i in failed:
            self._write(f'  {FAILED}  {i.name}: {i.title}')
