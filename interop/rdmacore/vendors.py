"""Stands in for pyverbs' modules of vendors' adapters, which take long to build and have nothing to test here.

rdma-core's tests import them by name, to ask whether a context or a completion queue is of such a class. Each name is an
empty class here, so the answer is no.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name == 'pyverbs.providers' or name.startswith('pyverbs.providers.'):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
