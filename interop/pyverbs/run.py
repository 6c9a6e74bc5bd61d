#!/usr/bin/python3
"""Run rdma-core's Python tests and write one JSON object per event to a file.

usage: run.py EVENTS TESTS-FOLDER-PARENT DEVICE GID NAME...

The tests are loaded as their own run_tests.py loads them; only the result is told in a form that needs no guessing,
and told at once, so that a test that kills the process or hangs is known by name.
"""

import faulthandler
import json
import os
import sys
import time
import unittest
from importlib.machinery import SourceFileLoader

faulthandler.enable()

events_path, parent, device, gid, *names = sys.argv[1:]
os.chdir(parent)
sys.path.insert(0, os.path.join(parent, 'tests'))
sys.argv = ['run_tests.py', '-v', '--dev', device, '--gid', gid]

try:
    import vendors  # noqa: F401  # where the vendors' modules of pyverbs are not built
except ImportError:
    pass
from args_parser import parser  # noqa: E402

tests = SourceFileLoader('tests', os.path.join(parent, 'tests', '__init__.py')).load_module()
parser.parse_args()
events = open(events_path, 'a', buffering=1)


def tell(**event):
    events.write(json.dumps(event) + '\n')


class Result(unittest.TextTestResult):
    """A result that records every start and every end."""

    started_at = time.monotonic()

    def startTest(self, test):
        super().startTest(test)
        self.told = False
        self.started_at = time.monotonic()
        tell(test=test.id(), what='start')

    def end(self, test, what, why=''):
        # A test ends once: a failing tearDown after a failing test is the same failure.
        if not getattr(self, 'told', False):
            self.told = True
            tell(test=test.id(), what=what, why=why, took=time.monotonic() - self.started_at)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.end(test, 'pass')

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.end(test, 'skip', reason)

    def addError(self, test, err):
        super().addError(test, err)
        self.end(test, 'fail', f'{err[0].__name__}: {err[1]}')

    addFailure = addError

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.end(test, 'fail', f'{subtest}: {err[0].__name__}: {err[1]}')


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


loader = unittest.TestLoader()
if names[0] == '--list':
    for module in names[1:]:
        for test in flatten(loader.loadTestsFromName('tests.' + module, tests)):
            tell(test=test.id(), what='exists')
else:
    suite = unittest.TestSuite(loader.loadTestsFromName(name, tests) for name in names)
    unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
    tell(test='', what='end')
