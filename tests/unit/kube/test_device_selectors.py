"""CEL selectors of devices have the answers of kube-scheduler."""

from __future__ import annotations

import weakref

import pytest

from app.core.podspec.devices import Attribute, Device
from app.kube.device_selectors import BURST_S, MOST_ANSWERS, MOST_PROGRAMS, SHARE, DeviceSelectors

DRIVER = "gpu.example.com"


def fact(name: str, kind: str, value: str | int | bool | tuple[str, ...]) -> Attribute:
    return Attribute(DRIVER, name, kind, value)


A100 = Device(
    "gpu-0",
    (
        fact("type", "string", "gpu"),
        fact("index", "int", 2),
        fact("healthy", "bool", True),
        fact("driverVersion", "version", "550.1.0-rc.2"),
        fact("modes", "strings", ("a", "b")),
        fact("memory", "quantity", "80Gi"),
    ),
)
GPU = f"device.attributes['{DRIVER}']"
MEMORY = f"device.capacity['{DRIVER}'].memory"


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        (f"device.driver == '{DRIVER}'", True),
        ("device.driver == 'other'", False),
        (f"{GPU}.type == 'gpu' && {GPU}.index < 3 && {GPU}.healthy", True),
        (f'device.attributes["{DRIVER}"].type.lowerAscii().matches("^g.u$")', True),
        (f"cel.bind(g, {GPU}, g.type == 'gpu' && g.index == 2)", True),
        (f"{GPU}.?missing.orValue('x') == 'x'", True),
        ("device.attributes['elsewhere'].?missing.orValue(1) == 1", True),
        ("has(device.attributes['elsewhere'].missing)", False),
        (f"{GPU}.missing == 1", False),
        (f"!({GPU}.missing == 1)", False),
        (f"{GPU}.index", False),
        (f"'a' in {GPU}.modes", True),
        (f"{GPU}.modes.exists(each, each == 'c')", False),
        (f"{MEMORY}.compareTo(quantity('40Gi')) >= 0", True),
        (f"{MEMORY} == quantity('81920Mi')", True),
        (f"{MEMORY}.isLessThan(quantity('40Gi'))", False),
        (f"quantity('100M').isGreaterThan({MEMORY})", False),
        (f"{MEMORY}.isLessThan(semver('1.0.0'))", False),
        (f"{GPU}.driverVersion.isGreaterThan(semver('99.9.9'))", True),
        (f"{GPU}.driverVersion.isLessThan(semver('550.1.0'))", True),
        (f"{GPU}.driverVersion.compareTo(semver('550.1.0-rc.10')) < 0", True),
        (f"{GPU}.driverVersion.major() == 550", True),
        (f"{GPU}.driverVersion == semver('550.1.0-rc.2')", True),
        ("device.allowMultipleAllocations", False),
        ("false", False),
    ],
)
def test_an_expression_has_the_answer_of_kube_scheduler(expression: str, answer: bool) -> None:
    assert DeviceSelectors().matches(expression, DRIVER, A100) is answer


@pytest.mark.parametrize(
    "expression",
    [
        f"{GPU}.?type",
        "false ? device.driver : optional.none()",
        "optional.of(device)",
        "type(device)",
        "duration('1s')",
        "timestamp('2026-01-01T00:00:00Z')",
        "b'x'",
        "device",
        "[device]",
        "null",
        "1u",
        "quantity('1')",
        "semver('1.0.0')",
    ],
)
def test_expression_without_a_boolean_value_matches_no_device(expression: str) -> None:
    assert DeviceSelectors().matches_of_user(expression, DRIVER, A100) in (False, None)


@pytest.mark.parametrize("written", ["x", ""])
def test_a_capacity_that_is_not_a_quantity_has_no_answer(written: str) -> None:
    device = Device("gpu-0", (fact("memory", "quantity", written),))
    found = DeviceSelectors().matches(f"{MEMORY}.isLessThan(quantity('40Gi'))", DRIVER, device)
    assert found is None


@pytest.mark.parametrize("expression", ["later(device)", "device.", "'" + "x" * 11_000 + "' == ''"])
def test_an_expression_that_cannot_be_evaluated_has_no_answer(expression: str) -> None:
    assert DeviceSelectors().matches(expression, DRIVER, A100) is None


def test_devices_that_differ_only_in_other_attributes_share_an_answer() -> None:
    selectors = DeviceSelectors()
    for i in range(100):
        device = Device(f"gpu-{i}", (fact("type", "string", "gpu"), fact("uuid", "string", str(i))))
        assert selectors.matches(f"{GPU}.type == 'gpu'", DRIVER, device)
    assert selectors.answers == 1
    assert not selectors.matches(
        f"{GPU}.type == 'gpu'", DRIVER, Device("x", (fact("type", "string", "cpu"),))
    )
    assert selectors.answers == 2


def test_an_expression_that_may_read_every_attribute_is_evaluated_for_each_device() -> None:
    selectors = DeviceSelectors()
    text = f"{GPU}.exists(key, key == 'fast')"
    plain, fast = Device("a"), Device("b", (fact("fast", "bool", True),))
    assert not selectors.matches(text, DRIVER, plain)
    assert selectors.matches(text, DRIVER, fast)
    assert not selectors.matches(f"{GPU}['fa' + 'st']", DRIVER, plain)
    assert selectors.matches(f"{GPU}['fa' + 'st']", DRIVER, fast)


def test_the_number_of_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kube.device_selectors.MOST_ANSWERS", 10)
    assert MOST_ANSWERS > 10
    selectors = DeviceSelectors()
    for i in range(50):
        selectors.matches(f"{GPU}.index == 1", DRIVER, Device("x", (fact("index", "int", i),)))
    assert selectors.answers == 10


NUMBERS = f"[{', '.join(['1'] * 110)}]"
NAME = f"{GPU}.type"


@pytest.mark.parametrize(
    "expression",
    [
        f"{NUMBERS}.all(a, {NUMBERS}.all(b, a == b))",
        "semver('99999999999999999999.0.0').isLessThan(semver('1.0.0'))",
    ],
)
def test_a_device_may_match_an_expression_that_fails_in_the_library(expression: str) -> None:
    assert DeviceSelectors().matches(expression, DRIVER, A100) is None


@pytest.mark.parametrize(
    "expression",
    [
        f"{NAME}.matches('{'[^x]{1,900}' * 10}')",
        "[1, 2].all(a, a > 0)",
        "'a'.replace('a', 'aa').size() > 0",
        "cel.bind(a, 'aa', a + a).size() > 0",
        "cel.bind(a, [1, 1], cel.bind(b, [a, a], b == [a, a]))",
        "cel.bind(a, {'x': 1}, cel.bind (b, {'x': a, 'y': a}, b == {'x': a, 'y': a}))",
        f"cel.bind(a, ['[\"', '\"]'], cel.bind(b, [a, a], b == [{GPU}.type, 'x']))",
        "cel.bind//\n(a, [1, 1], [a, a] == [a, a])",
        "optional.of('a').optMap(v, v + v).hasValue()",
        "strings.quote(strings.quote('a')) != ''",
        f"{NAME}.matches('[^x]\\x7b1,9\\x7d')",
        rf"{NAME}.matches('\\pL\\pL')",
        " && ".join([f"{NAME} == 'gpu'"] * 100),
    ],
)
def test_a_costly_expression_of_a_user_is_not_evaluated(expression: str) -> None:
    selectors = DeviceSelectors()
    assert selectors.matches_of_user(expression, DRIVER, A100) is None
    assert selectors.answers == 0
    assert selectors.matches(expression, DRIVER, A100) is not None, "a class is evaluated"


@pytest.mark.parametrize(
    "expression",
    [
        f"cel.bind(g, {GPU}, g.type == 'gpu' && (g.index == 2 || g.?size.orValue(0) in [1, 2]))",
        f"cel.bind(g, {GPU}, g.type.matches('^g.u$') && g.healthy)",
        f"{GPU}[?'type'].hasValue() && {GPU}.index in [1, 2] && {MEMORY} == quantity('80Gi')",
        f"!({GPU}.driverVersion.isLessThan(semver('1.0.0'))) && size({NAME} + 'x') == 4",
    ],
)
def test_an_ordinary_expression_of_a_user_is_evaluated(expression: str) -> None:
    assert DeviceSelectors().matches_of_user(expression, DRIVER, A100) is True


def test_expressions_of_users_take_a_bounded_share_of_the_time() -> None:
    now, cpu, costs = [0.0], [0.0], 0.01

    def spend() -> float:
        cpu[0] += costs / 2
        return cpu[0]

    selectors = DeviceSelectors(clock=lambda: now[0], cpu_clock=spend)

    def evaluated() -> int:
        before = selectors.answers
        for number in range(1000):
            selectors.matches_of_user(f"{NAME} == '{before + number}'", DRIVER, A100)
        return selectors.answers - before

    assert evaluated() <= BURST_S / (costs / 2) + 1
    now[0] += 1.0
    assert 0 < evaluated() <= SHARE / (costs / 2) + 1
    assert selectors.matches(f"{NAME} == 'gpu'", DRIVER, A100) is True, "a class is evaluated"


def test_answers_do_not_keep_the_texts_of_former_expressions() -> None:
    class Text(str):
        """A text that can be observed."""

    selectors = DeviceSelectors()
    first = Text(f"{NAME} == 'first'")
    assert selectors.matches(first, DRIVER, A100) is False
    gone = weakref.ref(first)
    del first
    for number in range(MOST_PROGRAMS):
        selectors.matches(f"{NAME} == '{number}'", DRIVER, A100)

    assert selectors.answers == MOST_PROGRAMS + 1
    assert gone() is None
