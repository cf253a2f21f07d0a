"""What computes: cores, devices, versions."""

import pytest

from harmax.environment import choose_device, cores, environment


def test_cores_follow_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARMAX_CORES", raising=False)
    assert cores() >= 1
    monkeypatch.setenv("HARMAX_CORES", "3")
    assert cores() == 3
    for wrong in ("0", "-1", "two", "1.5", ""):
        monkeypatch.setenv("HARMAX_CORES", wrong)
        with pytest.raises(ValueError, match=f"HARMAX_CORES .*got '{wrong}'"):
            cores()


def test_a_device_that_is_not_there_is_refused() -> None:
    assert choose_device("cpu") == "cpu"
    assert choose_device() in ("cpu", "cuda")
    with pytest.raises(ValueError, match=r"`device` .*cpu.*got 'cuda:99'"):
        choose_device("cuda:99")


def test_an_environment_holds_no_name_of_the_machine() -> None:
    import platform

    found = environment("cpu")
    assert set(found) == {"harmax", "python", "torch", "numpy", "system", "device", "threads", "commit"}
    assert platform.node() not in str(found) or not platform.node()
