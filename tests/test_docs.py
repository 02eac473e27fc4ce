"""The documentation runs: every example, and every public name has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import l1norm

MODULES = ["l1norm"] + [f"l1norm.{m.name}" for m in pkgutil.iter_modules(l1norm.__path__) if not m.name.startswith("_")]
PUBLIC = [name for name in l1norm.__all__ if not name.startswith("_")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0


def test_there_are_examples():
    count = 0
    for name in MODULES:
        module = importlib.import_module(name)
        count += sum(len(t.examples) for t in doctest.DocTestFinder().find(module))
    assert count >= 5


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name):
    thing = getattr(l1norm, name)
    if inspect.isfunction(thing) or inspect.isclass(thing):
        assert inspect.getdoc(thing), f"{name} has no docstring"
        assert thing.__module__.startswith("l1norm")


@pytest.mark.parametrize("name", ["l1_norm", "l1_norm_", "L1Norm"])
def test_docstrings_name_every_argument_and_hold_an_example(name):
    thing = getattr(l1norm, name)
    doc = inspect.getdoc(thing)
    assert ">>>" in doc
    for argument in inspect.signature(thing).parameters:
        assert argument in doc, f"{name}'s docstring does not name {argument}"
