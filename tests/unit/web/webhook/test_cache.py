"""The mode as the webhook and the REST API see it."""

from __future__ import annotations

from app.core.events import PolicyGone, PolicyObserved, SourceFresh, WatchedSource
from app.core.model import Millis
from app.core.policy import Mode, Policy
from app.web.webhook.cache import WebhookCache

NOW = Millis(0)


async def test_pods_are_held_unless_the_mode_is_observe() -> None:
    view = WebhookCache()
    assert not view.is_observing
    await view.put(PolicyObserved(NOW, Policy(mode=Mode.OBSERVE)))
    assert view.is_observing
    await view.put(PolicyObserved(NOW, Policy()))
    assert not view.is_observing


async def test_without_a_policy_pods_are_held() -> None:
    view = WebhookCache()
    await view.put(PolicyObserved(NOW, Policy(mode=Mode.OBSERVE)))
    await view.put(PolicyGone(NOW))
    assert not view.is_observing


async def test_the_mode_of_the_installation_applies_if_the_policy_sets_none() -> None:
    view = WebhookCache()
    view.set_default_mode(Mode.OBSERVE)
    assert view.is_observing
    await view.put(PolicyObserved(NOW, Policy(), has_mode=False))
    assert view.is_observing
    await view.put(PolicyObserved(NOW, Policy()))
    assert not view.is_observing
    await view.put(PolicyGone(NOW))
    assert view.is_observing


async def test_cache_that_watches_policies_is_not_ready_before_they_are_read() -> None:
    view = WebhookCache([WatchedSource.TENANTS, WatchedSource.POLICIES])
    await view.put(SourceFresh(NOW, WatchedSource.TENANTS))
    assert not view.is_ready
    await view.put(SourceFresh(NOW, WatchedSource.POLICIES))
    assert view.is_ready
