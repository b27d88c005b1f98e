"""What the webhook and the REST API know of the mode."""

from __future__ import annotations

from app.core.events import PolicyGone, PolicyObserved, Source, SourceFresh
from app.core.model import Millis
from app.core.policy import Mode, Policy
from app.web.view import View

NOW = Millis(0)


async def test_pods_are_held_unless_the_policy_says_observe() -> None:
    view = View()
    assert not view.observing
    await view.put(PolicyObserved(NOW, Policy(mode=Mode.OBSERVE)))
    assert view.observing
    await view.put(PolicyObserved(NOW, Policy()))
    assert not view.observing


async def test_without_a_policy_pods_are_held() -> None:
    view = View()
    await view.put(PolicyObserved(NOW, Policy(mode=Mode.OBSERVE)))
    await view.put(PolicyGone(NOW))
    assert not view.observing


async def test_who_asks_for_the_mode_is_not_ready_without_it() -> None:
    view = View([Source.TENANTS, Source.POLICIES])
    await view.put(SourceFresh(NOW, Source.TENANTS))
    assert not view.ready
    await view.put(SourceFresh(NOW, Source.POLICIES))
    assert view.ready
