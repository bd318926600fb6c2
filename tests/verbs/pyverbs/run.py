"""Runs tests of pyverbs' own suite, and prints a line for each: its result and its name.

    /usr/bin/python3 run.py FOLDER [--dev DEVICE --port PORT --gid INDEX] [MODULE ...]

FOLDER has the suite as the folder `tests`. Without modules, all of it runs.
"""

import sys
import unittest

folder = sys.argv.pop(1)
sys.path[:0] = [folder, folder + "/tests"]

from args_parser import parser  # noqa: E402

parser.parse_args()
import tests  # noqa: E402


class Result(unittest.TextTestResult):
    def report(self, result, test):
        print(result, test.id().removeprefix("tests."), flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.report("pass", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.report("skip", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.report("fail", test)

    def addError(self, test, err):
        super().addError(test, err)
        self.report("fail", test)


loader = unittest.defaultTestLoader
modules = [m for m in tests.__test_modules__ if not sys.argv[1:] or m.__name__.removeprefix("tests.") in sys.argv[1:]]
suite = unittest.TestSuite(loader.loadTestsFromModule(module) for module in modules)
unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite)
