"""Pages of a list: short if sizes are unknown or large; long pages are decoded object by object."""

from __future__ import annotations

from typing import Any

from app.core.events import ClaimObserved, SourceFresh, WatchedSource
from app.kube.cluster_survey import ApiSurvey
from app.kube.list_paging import LARGE_BYTES, MOST_LARGE, SMALL_PAGE, WHOLE_BYTES, Paging
from tests.support.watch_script import Script, following, heard, page, tenant

PAGE = 500


def listed(large: int) -> Paging:
    paging, keys = Paging(PAGE), {str(i) for i in range(MOST_LARGE * 2)}
    for i, key in enumerate(sorted(keys)):
        paging.record_size(key, LARGE_BYTES if i < large else 1)
    paging.record_list(keys)
    return paging


def test_first_list_has_short_pages() -> None:
    assert Paging(PAGE).limit == SMALL_PAGE


def test_pages_have_the_usual_length_once_sizes_are_known() -> None:
    assert listed(large=MOST_LARGE).limit == PAGE


def test_pages_are_short_while_many_objects_are_large() -> None:
    assert listed(large=MOST_LARGE + 1).limit == SMALL_PAGE


def test_deleted_large_objects_no_longer_count() -> None:
    paging = listed(large=MOST_LARGE + 1)
    paging.remove("0")
    assert paging.limit == PAGE


def test_large_objects_that_shrink_no_longer_count() -> None:
    paging = listed(large=MOST_LARGE + 1)
    paging.record_size("0", LARGE_BYTES - 1)
    assert paging.limit == PAGE


def test_large_objects_missing_from_a_list_no_longer_count() -> None:
    paging = listed(large=MOST_LARGE + 1)
    paging.record_list({"0"})
    assert paging.limit == PAGE


async def test_watch_requests_short_pages_first() -> None:
    script = Script([page(tenant("a"), more="x"), page(tenant("b"))], [])
    async with heard(script) as sink:
        await sink.until(lambda event: isinstance(event, SourceFresh))
    assert [each["limit"] for each in script.queries] == [str(SMALL_PAGE)] * 2


async def test_large_objects_of_a_long_page_are_noticed() -> None:
    pad = {"x": "y" * LARGE_BYTES}
    count = WHOLE_BYTES // LARGE_BYTES
    claims = [
        {
            "metadata": {"name": f"c{i}", "namespace": "n", "annotations": pad},
            "spec": {"devices": {}},
        }
        for i in range(count)
    ]
    script = Script([page(*claims), page(*claims)], [])
    async with following(script, source=WatchedSource.CLAIMS) as (watch, sink):
        await sink.until(lambda event: isinstance(event, SourceFresh))
        await watch.catch_up()
    found = {each.claim.name for each in sink.events if isinstance(each, ClaimObserved)}
    assert len(found) == count
    assert SMALL_PAGE < count < PAGE
    assert script.queries[-1]["limit"] == "1"  # longer than a short page: only the version is read


async def survey_pages(script: Any) -> list[list[str]]:
    """Return the names in each part of a list that `fairgate doctor` reads."""
    pages = ApiSurvey(script).list_pages("/api/v1/pods", PAGE)
    return [[item["metadata"]["name"] for item in items] async for items in pages]


async def test_survey_requests_short_pages() -> None:
    script = Script([page(tenant("a"), tenant("b"), more="x"), page(tenant("c"))], [])
    assert await survey_pages(script) == [["a", "b"], ["c"]]
    assert [each["limit"] for each in script.queries] == [str(SMALL_PAGE)] * 2


async def test_survey_decodes_a_large_page_object_by_object() -> None:
    half = WHOLE_BYTES // 2
    large = page(tenant("a", pad="x" * half), tenant("b", pad="x" * half), more="x")
    script = Script([large, page(tenant("c"))], [])
    assert await survey_pages(script) == [["a"], ["b"], ["c"]]
