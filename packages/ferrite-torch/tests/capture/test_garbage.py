"""Garbage while compiling: looked for less often, and as often as before when all threads are done."""

import gc
import threading

import pytest

from ferrite_torch.capture.garbage import rare_collections
from ferrite_torch.thresholds import INTERPRETER

YOUNG = INTERPRETER.young_objects


@pytest.fixture(autouse=True)
def usual_thresholds():
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


def test_rarer_inside_and_as_before_after_it():
    gc.set_threshold(700, 10, 10)
    with rare_collections():
        assert gc.get_threshold() == (YOUNG, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_an_error_restores_it():
    gc.set_threshold(700, 10, 10)
    with pytest.raises(ValueError, match="inside"), rare_collections():
        raise ValueError("inside")
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("first", [0, YOUNG, 10 * YOUNG])
def test_disabled_and_rarer_collection_stay(first):
    gc.set_threshold(first, 10, 10)
    with rare_collections():
        assert gc.get_threshold() == (first, 10, 10)
    assert gc.get_threshold() == (first, 10, 10)


def test_the_last_of_several_threads_restores_it():
    gc.set_threshold(700, 10, 10)
    inside, leave = threading.Event(), threading.Event()

    def compile_longer():
        with rare_collections():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=compile_longer)
    with rare_collections():
        thread.start()
        assert inside.wait(60)
    assert gc.get_threshold() == (YOUNG, 10, 10)
    leave.set()
    thread.join(60)
    assert gc.get_threshold() == (700, 10, 10)


def test_what_the_user_sets_meanwhile_stays():
    gc.set_threshold(700, 10, 10)
    with rare_collections():
        gc.set_threshold(5000, 5, 5)
    assert gc.get_threshold() == (5000, 5, 5)
