"""What checks are made of, and what comes out of them."""
import traceback
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ['FAILED', 'NOT_APPLICABLE', 'NOT_CHECKED', 'PASSED', 'RULES', 'Failed',
           'NotApplicable', 'NotChecked', 'Result', 'Trial', 'check', 'checks_of']

PASSED = 'passed'
FAILED = 'FAILED'
NOT_APPLICABLE = 'not applicable'
NOT_CHECKED = 'not checked'

RULES = {
    'bounds': 'writes nothing outside the memory it is given',
    'inputs': 'leaves its inputs untouched',
    'length': 'reports payloads that fit the capacity and the limits',
    'statuses': 'returns only statuses that the function may return',
    'messages': 'describes every failure of a plan or of its creation',
    'environment': "leaves the caller's locale and rounding mode alone",
    'silence': 'prints nothing',
}
"""
What holds for every call that any check makes, each reported once.
"""

SHOWN = 3
"""How many failures of one check are reported in full."""


class Failed(Exception):
    """Ends a check that cannot go on. The message says what is wrong."""


class NotApplicable(Exception):
    """Ends a check that means nothing for this provider. The message says why."""


class NotChecked(Exception):
    """Ends a check that would need another machine. The message says which."""


@dataclass(frozen=True)
class Result:
    """
    The outcome of one check.

    Attributes
    ----------
    name : str
        Identifies the check: its group, and its name in it.
    title : str
        What the provider should do, completing "the provider ...".
    outcome : str
        PASSED, FAILED, NOT_APPLICABLE or NOT_CHECKED.
    details : tuple of str
        What failed, why it does not apply, or what is worth knowing.
    """

    name: str
    title: str
    outcome: str
    details: tuple = ()


class Trial:
    """
    One check at work: what it finds, and what it needs to know.

    Attributes
    ----------
    driver : Driver
        The loaded provider.
    workdir : Path
        Where checks of different processes can leave something for each other.
    """

    def __init__(self, driver, workdir, violate):
        self.driver = driver
        self.workdir = workdir
        self._violate = violate
        self._context = []
        self._failures = []
        self._notes = []

    @contextmanager
    def context(self, text):
        """Name what is being tried, for the messages of failures within."""
        self._context.append(text)
        try:
            yield
        finally:
            self._context.pop()

    def expect(self, condition, what):
        """
        Fail the check, which goes on nevertheless, unless a condition holds.

        Parameters
        ----------
        condition : bool
        what : str
            What is wrong if it does not hold, with the values.

        Returns
        -------
        bool
            The condition.
        """
        if not condition:
            self._failures.append(self.located(what))
        return bool(condition)

    def note(self, text):
        """Add something worth knowing to the report."""
        self._notes.append(text)

    def violation(self, rule, what):
        """One of the RULES does not hold."""
        self._violate(rule, self.located(what))

    def located(self, what):
        return ', '.join(self._context) + ': ' + what if self._context else what

    def run(self, function):
        """
        Run a check.

        Returns
        -------
        Result
        """
        outcome, details = PASSED, self._notes
        try:
            function(self)
        except NotApplicable as e:
            outcome, details = NOT_APPLICABLE, [str(e)]
        except NotChecked as e:
            outcome, details = NOT_CHECKED, [str(e)]
        except Failed as e:
            self._failures.append(str(e))
        except Exception:
            # A fault of ours; what was found before it counts nevertheless
            self._failures.append(f'the check itself failed:\n{traceback.format_exc()}')
        if self._failures:
            outcome, details = FAILED, self._failures[:SHOWN]
            more = len(self._failures) - SHOWN
            if more > 0:
                details.append(f'... and {more} more')
        return Result(function.name, function.title, outcome, tuple(details))


def check(title, fresh=False):
    """
    Decorator that makes a function of one Trial a check.

    Parameters
    ----------
    title : str
        What the provider should do.
    fresh : bool, optional
        Whether it has to run in another process than the checks before.
    """
    def decorate(function):
        group = function.__module__.rpartition('.')[2]
        function.name = f'{group}.{function.__name__}'
        function.title = title
        function.fresh = fresh
        return function
    return decorate


def checks_of(module):
    """The checks of a module, in the order of their definition."""
    return [i for i in vars(module).values() if hasattr(i, 'fresh')]
