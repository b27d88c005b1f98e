"""`kubectl-fairgate`: the output of each command, compared with reviewed files.

`REWRITE_GOLDEN=1` writes the files again. Review the difference before you commit it.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from app.kubectl import audit_entries, reports
from app.kubectl.cli import COMPLETE, cli, outcome
from app.web.api import schemas
from tests.support import kubectl_answers as answers
from tests.support.rest_server import Reply, Rest, serving

VERSION = version("fairgate")
GOLDEN = Path(__file__).parents[1] / "golden" / "plugin"
REWRITE = "REWRITE_GOLDEN"


@pytest.fixture(autouse=True)
def _a_plain_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        *("COLUMNS", "KUBECONFIG", "HTTP_PROXY", "http_proxy", "FAIRGATE_DEBUG"),
        *("FAIRGATE_SERVER", "FAIRGATE_CERTIFICATE_AUTHORITY"),
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("FAIRGATE_TOKEN", "alices")


@pytest.fixture
def rest() -> Iterator[Rest]:
    """The API with a small cluster."""
    small = Rest(
        {
            "GET /tenants": answers.tenants(),
            "GET /tenants/team-a/queue": answers.queue(),
            "GET /tenants/research/queue": schemas.QueueModel(
                tenant="research", pending=0, items=[]
            ),
            "GET /tenants/team-a/users": answers.users(),
            "GET /pools": answers.pools(),
            "GET /me": answers.mine(),
            "GET /workloads/team-a/train-7": answers.workload(),
            "GET /usage": answers.usage(),
            "POST /simulations": answers.simulation(),
            "GET /quotas": answers.quotas(),
            "GET /tenants/team-a": answers.tenants().items[1],
            "GET /audit": Reply(200, answers.audit_lines(), "application/x-ndjson"),
            "GET /version": schemas.ServerVersion(version=VERSION),
        }
    )
    with serving(small):
        yield small


Told = tuple[int, str, str]
Run = Callable[..., Told]


@pytest.fixture
def run(rest: Rest, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line against the API; return its exit code and its output."""

    def run(*arguments: str, server: str | None = None) -> Told:
        line = [*arguments, "--server", server or rest.url]
        code = outcome(lambda: cli(line, prog_name="kubectl fairgate", complete_var=COMPLETE))
        return code, *capsys.readouterr()

    return run


def hold(name: str, told: Told) -> None:
    """Fail unless the output equals the reviewed file."""
    code, out, err = told
    text = f"{out}{'--- stderr' + chr(10) + err if err else ''}--- exit {code}\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get(REWRITE):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


LINES = {
    "queue": ("queue", "team-a"),
    "queues": ("queue",),
    "why": ("why", "train-7", "-n", "team-a"),
    "mine": ("mine",),
    "tenants": ("tenants",),
    "pools": ("pools",),
    "usage": ("usage", "--by", "tenant,pool"),
    "shares": ("shares",),
    "shares-of-users": ("shares", "team-a"),
    "quotas": ("quotas",),
    "weights": ("weights",),
    "weights-of-users": ("weights", "--tenant", "team-a"),
    "simulate": ("simulate", "--weight", "team-a=3"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_table_reads_as_it_did(name: str, run: Run) -> None:
    hold(name, run(*LINES[name]))


@pytest.mark.parametrize("name", LINES)
def test_a_wide_table_reads_as_it_did(name: str, run: Run) -> None:
    hold(f"{name}-wide", run(*LINES[name], "-o", "wide"))


@pytest.mark.parametrize("name", LINES)
def test_output_fits_a_narrow_terminal(
    name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    told = run(*LINES[name])
    assert max(len(line) for line in told[1].splitlines()) <= 72
    hold(f"{name}-narrow", told)


@pytest.mark.parametrize("name", LINES)
def test_json_and_yaml_output_equal_the_api_response(name: str, rest: Rest, run: Run) -> None:
    code, out, _ = run(*LINES[name], "-o", "json")
    as_yaml = run(*LINES[name], "-o", "yaml")[1]
    asked = rest.asked[-1]
    said = json.loads(rest.answer(asked).body)
    found = json.loads(out)
    assert code == 0
    assert yaml.safe_load(as_yaml) == found
    assert (found["items"][-1] if name == "queues" else found) == said


EMPTY: dict[str, tuple[str, BaseModel]] = {
    "queue": (
        "GET /tenants/team-a/queue",
        schemas.QueueModel(tenant="team-a", pending=0, items=[]),
    ),
    "queues": ("GET /tenants", schemas.PageModel[schemas.TenantShown](items=[])),
    "tenants": ("GET /tenants", schemas.PageModel[schemas.TenantShown](items=[])),
    "mine": ("GET /me", answers.mine(has_work=False)),
    "pools": ("GET /pools", schemas.PageModel[schemas.PoolShown](items=[])),
    "usage": ("GET /usage", answers.usage().model_copy(update={"items": []})),
    "shares": ("GET /tenants", schemas.PageModel[schemas.TenantShown](items=[])),
    "quotas": ("GET /quotas", schemas.Quotas(items=[], at=answers.NOW)),
    "weights": ("GET /tenants", schemas.PageModel[schemas.TenantShown](items=[])),
    "weights-of-users": (
        "GET /tenants/team-a/users",
        schemas.PageModel[schemas.UserShown](items=[]),
    ),
    "simulate": ("POST /simulations", answers.simulation().model_copy(update={"tenants": []})),
    "why": (
        "GET /workloads/team-a/train-7",
        answers.workload(
            position=0,
            rule="no pool",
            reason="not queued: no pool can serve its node selector",
            pools=[],
            ahead=[],
            remedies=[],
            numbers={},
            estimate=None,
            estimate_withheld="no pool could ever serve it.",
        ),
    ),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_result_is_reported_as_a_sentence(name: str, rest: Rest, run: Run) -> None:
    route, answer = EMPTY[name]
    rest.answers[route] = answer
    hold(f"{name}-empty", run(*LINES[name]))


def test_why_shows_a_gang_and_a_released_pod(rest: Rest, run: Run) -> None:
    route = "GET /workloads/team-a/train-7"
    rest.answers[route] = answers.workload(gang="train", pods=4)
    hold("why-gang", run(*LINES["why"]))
    rest.answers[route] = answers.workload(
        state="released", reason="released to pool h100, on node h100-3 since 2026-03-01T11:48:00Z"
    )
    hold("why-released", run(*LINES["why"]))


def test_estimate_in_the_past_is_shown_as_any_moment(rest: Rest, run: Run) -> None:
    past = schemas.EstimateShown(p50=30, p90=50, at=answers.NOW.replace(hour=11))
    rest.answers["GET /workloads/team-a/train-7"] = answers.workload(estimate=past)
    assert "any moment" in run(*LINES["why"])[1]


def test_lost_detail_is_reported(rest: Rest, run: Run) -> None:
    rest.answers["GET /usage"] = answers.usage(lost=True)
    hold("usage-lost", run(*LINES["usage"]))


def test_csv_is_printed_unchanged(rest: Rest, run: Run) -> None:
    csv = "tenant,nvidia.com/gpu\r\nteam-a,144000.123\r\n"
    rest.answers["GET /usage"] = Reply(200, csv, "text/csv")
    assert run("usage", "-o", "csv") == (0, csv, "")
    assert rest.asked[-1].query["format"] == "csv"
    assert run("usage", "-o", "csv", "--limit", "3")[0] == 2


def test_all_pages_are_read_up_to_the_limit(rest: Rest, run: Run) -> None:
    rest.page = 1
    whole = run("queue", "team-a")
    assert [each.query.get("continue") for each in rest.asked] == [None, "1", "2", "3"]
    assert whole[1] == (GOLDEN / "queue.txt").read_text(encoding="utf-8").partition("---")[0]
    code, out, err = run("queue", "team-a", "--limit", "2", "-o", "json")
    assert (code, len(json.loads(out)["items"]), json.loads(out)["continue"]) == (0, 2, "2")
    assert "--limit" in err
    rest.page = 500
    every = json.loads(run("queue", "--limit", "1", "-o", "json")[1])
    assert [len(each["items"]) for each in every["items"]] == [0, 1]


def test_queue_can_be_filtered_by_user(rest: Rest, run: Run) -> None:
    run("queue", "team-a", "--user", "bob")
    assert rest.asked[-1].query["user"] == "bob"


@pytest.mark.parametrize(
    "words",
    [
        ("why", ""),
        ("why", "..", "-n", "team-a"),
        ("queue", ""),
        ("shares", ""),
        ("weights", "set", "", "2"),
        ("weights", "set", "team-a", "2", "--user", ""),
    ],
)
def test_empty_or_invalid_name_is_refused_without_a_request(
    rest: Rest, run: Run, words: tuple[str, ...]
) -> None:
    code, out, err = run(*words)
    assert (code, out, rest.asked) == (2, "", [])
    assert "A name is empty; write it" in err or "'..' is not a name" in err


def test_a_time_before_the_calendar_is_wrong_input(run: Run) -> None:
    code, _, err = run("usage", "--from", "0001-01-01T00:00:00+14:00")
    assert code == 2
    assert "is not a time" in err


def test_an_empty_list_names_its_filter(rest: Rest, run: Run) -> None:
    empty = answers.queue().model_copy(update={"items": []})
    rest.answers["GET /tenants/team-a/queue"] = empty
    assert run("queue", "team-a", "--user", "typo")[1] == (
        "Nothing of user typo waits in tenant team-a.\n"
    )
    assert run("queue", "team-a")[1] == "Nothing waits in tenant team-a.\n"
    assert run("queue", "team-a", "-n", "other")[1] == (
        "Nothing in namespace other waits in tenant team-a.\n"
    )


@pytest.mark.parametrize(
    ("words", "path", "advice"),
    [
        (("shares",), "GET /tenants", "One tenant: shares TENANT."),
        (("quotas",), "GET /quotas", "One tenant: quotas TENANT."),
        (("quotas", "--at", "1h"), "GET /quotas", "bob may not do this."),
        (("usage",), "GET /usage", "One tenant: usage --tenant TENANT."),
        (("queue",), "GET /tenants", "kubectl fairgate mine. One tenant: queue TENANT."),
        (("queue", "team-a"), "GET /tenants/team-a/queue", "Your own pods: kubectl fairgate mine."),
    ],
)
def test_refusal_names_a_command_that_the_caller_may_use(
    words: tuple[str, ...], path: str, advice: str, rest: Rest, run: Run
) -> None:
    rest.refuse(path, 403, "bob may not do this.")
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert err.startswith("fairgate: ")
    assert err.endswith(f"{advice}\n")


def test_old_data_are_reported_with_their_age(rest: Rest, run: Run) -> None:
    rest.headers["Fairgate-Age"] = "42.5"
    assert run("tenants")[2] == (
        "fairgate: this is as of 42 s ago; Fairgate has seen nothing newer.\n"
    )
    rest.headers["Fairgate-Age"] = "0.4"
    assert run("tenants")[2] == ""


def test_a_warning_of_the_api_is_printed(rest: Rest, run: Run) -> None:
    rest.headers["Warning"] = '299 - "No controller leads."'
    for line in (("tenants",), ("why", "train-7", "-n", "team-a"), ("mine",)):
        assert run(*line)[2] == "fairgate: No controller leads.\n"


def test_token_is_sent_without_impersonation_headers(rest: Rest, run: Run) -> None:
    run("tenants", "--token", "bobs")
    asked = rest.asked[-1]
    assert asked.headers["authorization"] == "Bearer bobs"
    assert not [name for name in asked.headers if name.startswith(("impersonate", "x-remote"))]


def test_user_name_is_escaped_to_one_path_segment(rest: Rest, run: Run) -> None:
    name = "ci/bot?x=1"
    rest.answers[f"PUT /tenants/team-a/users/{name}/weight"] = answers.stored()
    code, out, _ = run("weights", "set", "team-a", "--user", name, "2")
    assert (code, out) == (0, f"User {name} of tenant team-a weighs 2 from now on.\n")
    [asked] = [each for each in rest.asked if each.body == {"weight": "2"}]
    assert "dryRun" not in asked.query


def test_a_tenant_is_weighed(rest: Rest, run: Run) -> None:
    rest.answers["PUT /tenants/team-a/weight"] = answers.stored("3")
    told = run("weights", "set", "team-a", "3")
    assert told == (0, "Tenant team-a weighs 3 from now on.\n", "")
    assert rest.asked[-1].query == {}
    as_json = json.loads(run("weights", "set", "team-a", "3", "-o", "json")[1])
    assert as_json == answers.stored("3").model_dump(mode="json", by_alias=True)


def test_dry_run_shows_the_users_with_a_changed_share(rest: Rest, run: Run) -> None:
    route, line = "PUT /tenants/team-a/users/bob/weight", ("set", "team-a", "--user", "bob", "2")
    rest.answers[route] = answers.change()
    hold("weights-set-dry-run", run("weights", *line, "--dry-run"))
    assert {"dryRun": "true"} in [each.query for each in rest.asked]
    rest.answers[route] = answers.change(to_nobody=True)
    hold("weights-set-dry-run-empty", run("weights", *line, "--dry-run"))


def test_simulate_sends_the_weights_and_hours_of_the_command_line(rest: Rest, run: Run) -> None:
    line = ("--weight", "team-a=3", "--user", "team-a/a=b=2", "--user", "team-a/c/d=0.5")
    assert run("simulate", *line, "--hours", "8")[0] == 0
    assert schemas.WhatIf.model_validate(rest.asked[-1].body) == schemas.WhatIf(
        weights={"team-a": "3"}, users={"team-a": {"a=b": "2", "c/d": "0.5"}}, hours=8
    )


def test_simulation_without_effect_between_tenants_is_reported(rest: Rest, run: Run) -> None:
    same = answers.simulation()
    same.tenants = [each.model_copy(update={"then": each.now}) for each in same.tenants]
    rest.answers["POST /simulations"] = same
    assert run(*LINES["simulate"])[1].endswith("\nBetween tenants nothing would change.\n")


def test_usage_sends_the_grouping_and_times_of_the_command_line(rest: Rest, run: Run) -> None:
    run("usage", "--by", "user,node", "--from", "2026-02-01T08:00+01:00", "--to", "1d2h")
    query = rest.asked[-1].query
    assert query["by"] == "user,node"
    assert query["from"] == "2026-02-01T07:00:00Z"
    assert query["to"].endswith("Z")


WRONG = {
    "no-type": ("audit", "--type", "release"),
    "no-span": ("audit", "--since", "1h", "--until", "2h"),
    "no-change": ("simulate",),
    "no-weight": ("simulate", "--weight", "team-a"),
    "no-tenant-of-user": ("simulate", "--user", "alice=2"),
    "no-such-sum": ("usage", "--by", "colour"),
    "no-decimal": ("weights", "set", "team-a", "twice"),
    "negative": ("weights", "set", "team-a", "-1"),
    "negative-of-user": ("weights", "set", "team-a", "--user", "x", "-0.5", "--dry-run"),
    "negative-in-simulation": ("simulate", "--weight", "team-a=-1"),
    "no-such-option": ("weights", "set", "team-a", "1", "-z"),
    "no-time": ("usage", "--from", "yesterday"),
    "no-pod": ("why", "service/train"),
    "no-pod-at-all": ("why",),
    "object-without-kubeconfig": ("why", "job/train"),
    "options-before-set": ("weights", "--tenant", "team-a", "set", "team-a", "2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_in_a_sentence_without_a_request(
    name: str, rest: Rest, run: Run
) -> None:
    hold(f"wrong-{name}", run(*WRONG[name]))
    assert rest.asked == []


@pytest.mark.parametrize(
    ("status", "code"),
    list({400: 2, 401: 1, 403: 1, 404: 2, 409: 1, 412: 1, 422: 2, 429: 3, 500: 4, 503: 3}.items()),
)
def test_exit_code_follows_from_the_http_status(
    status: int, code: int, rest: Rest, run: Run
) -> None:
    rest.refuse("GET /pools", status, "This is\nwhy.")
    assert run("pools") == (code, "", "fairgate: This is why.\n")


def test_caller_without_the_right_to_list_tenants_is_advised_to_name_one(
    rest: Rest, run: Run
) -> None:
    sentence = "alice may not list tenants.fairgate.io; ask a cluster administrator."
    rest.refuse("GET /tenants", 403, sentence)
    hold("queues-refused", run("queue"))


def test_hidden_queues_are_named_and_the_others_are_shown(rest: Rest, run: Run) -> None:
    rest.refuse("GET /tenants/research/queue", 403, "alice may not get tenants/queue.")
    code, out, err = run("queue")
    assert (code, out.count("team-a/train")) == (0, 3)
    assert err == "fairgate: you may not see the queue of research; others are shown.\n"


def test_response_that_is_not_from_fairgate_is_reported(rest: Rest, run: Run) -> None:
    rest.answers["GET /pools"] = Reply(200, "<html>", "text/html")
    hold("not-json", run("pools"))
    rest.answers["GET /pools"] = Reply(302, "", "text/html")
    code, _, err = run("pools")
    assert (code, "see whether --server names" in err) == (1, True)


def test_read_is_retried_after_429_and_write_is_not(rest: Rest, run: Run) -> None:
    rest.refuse("GET /pools", 429, "Ask less often.")
    rest.refuse("PUT /tenants/team-a/weight", 429, "Ask less often.")
    busy = rest.answers["GET /pools"]
    rest.headers["Retry-After"] = "0.01"
    rest.answers["GET /pools"] = [busy, busy, answers.pools()]
    assert run("pools")[0] == 0
    assert run("weights", "set", "team-a", "2")[0] == 3
    assert [each.method for each in rest.asked] == ["GET", "GET", "GET", "PUT"]
    rest.headers["Retry-After"] = "3600"
    rest.answers["GET /pools"] = busy
    assert run("pools") == (3, "", "fairgate: Ask less often.\n")


def test_unreachable_server_exits_with_3(run: Run) -> None:
    code, out, err = run("pools", server="http://127.0.0.1:1")
    assert (code, out) == (3, "")
    assert err == (
        "fairgate: http://127.0.0.1:1 does not answer (Connection refused); see whether the "
        "address is right and can be reached from here.\n"
    )


@pytest.mark.parametrize("server", ["http://fairgate.example", "fairgate.example", "https://h/v1"])
def test_token_is_not_sent_over_http_or_to_an_invalid_url(server: str, run: Run) -> None:
    code, _, err = run("pools", server=server)
    assert (code, err.startswith(f"fairgate: --server {server} ")) == (2, True)


def test_missing_token_is_reported_with_the_way_to_get_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRGATE_TOKEN")
    code, _, err = run("pools")
    assert (code, "kubectl create token" in err) == (2, True)


def test_why_prints_the_rule_by_which_another_tenant_is_first(run: Run) -> None:
    _, out, _ = run("why", "train-7", "-n", "team-a")
    assert "tenant team-b has the lower score: 0.125 against 0.3125 of team-a\n" in out


def test_why_prints_the_scores_of_an_api_that_gives_no_rule(rest: Rest, run: Run) -> None:
    answer = answers.workload().model_dump(mode="json", by_alias=True)
    del answer["ahead"][0]["reason"]
    rest.raw["GET /v1/workloads/team-a/train-7"] = answer
    _, out, _ = run("why", "train-7", "-n", "team-a")
    assert "team-b: 0.125 against 0.3125 of team-a\n" in out


@pytest.mark.parametrize(("user", "warned"), [("alice@example.com", False), ("alcie", True)])
def test_a_weight_of_a_user_without_pods_is_set_with_a_warning(
    user: str, warned: bool, rest: Rest, run: Run
) -> None:
    rest.answers[f"PUT /tenants/team-a/users/{user}/weight"] = answers.stored()
    code, out, err = run("weights", "set", "team-a", "--user", user, "2")
    assert (code, f"User {user} of tenant team-a weighs 2" in out) == (0, True)
    assert (f"no pod of user {user} waits or runs in tenant team-a" in err) == warned


def test_without_the_right_to_see_users_no_name_is_doubted(rest: Rest, run: Run) -> None:
    rest.answers["PUT /tenants/team-a/users/bob/weight"] = answers.stored()
    rest.refuse("GET /tenants/team-a/users", 403, "bob may not get tenants/queue.")
    assert run("weights", "set", "team-a", "--user", "bob", "2")[::2] == (0, "")


@pytest.mark.parametrize("line", ["pools", "weights", "weights set team-a 3"])
def test_the_url_may_be_in_the_environment(
    line: str, rest: Rest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rest.answers["PUT /tenants/team-a/weight"] = answers.stored("3")
    monkeypatch.setenv("FAIRGATE_SERVER", rest.url)
    name = "kubectl fairgate"
    code = outcome(lambda: cli(line.split(), prog_name=name, complete_var=COMPLETE))
    assert (code, capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize("name", LINES)
def test_csv_has_a_row_for_each_item(name: str, rest: Rest, run: Run) -> None:
    csv_of_api = "tenant,nvidia.com/gpu\r\nteam-a,1\r\n"
    if name == "usage":
        rest.answers["GET /usage"] = Reply(200, csv_of_api, "text/csv")
    code, out, err = run(*LINES[name], "-o", "csv")
    assert (code, err) == (0, "")
    header, *rows = csv.reader(out.splitlines())
    assert rows
    assert {len(row) for row in rows} == {len(header)}


NAMES = {
    "queue": "pod/train-5",
    "queues": "pod/train-5",
    "why": "pod/train-7",
    "mine": "pod/train-6",
    "tenants": "tenant.fairgate.io/research",
    "pools": "pool.fairgate.io/h100",
    "quotas": "tenant.fairgate.io/team-a",
    "shares": "tenant.fairgate.io/research",
    "shares-of-users": "user/alice@example.com",
    "weights": "tenant.fairgate.io/research",
    "weights-of-users": "user/alice@example.com",
    "simulate": "tenant.fairgate.io/team-a",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_kind_and_name(name: str, run: Run) -> None:
    code, out, _ = run(*LINES[name], "-o", "name")
    assert (code, out.splitlines()[0]) == (0, NAMES[name])


def test_format_that_a_result_does_not_have_is_refused_before_a_write(rest: Rest, run: Run) -> None:
    assert run("usage", "-o", "name") == (
        2,
        "",
        "fairgate: -o name is not possible: a row of usage is a sum; use -o csv or -o json.\n",
    )
    rest.asked.clear()
    code, _, err = run("weights", "set", "team-a", "3", "-o", "csv")
    assert (code, rest.asked) == (2, [])
    assert err.endswith("'csv' is not one of 'table', 'wide', 'json', 'yaml'.\n")


def test_quotas_of_a_tenant_list_users_with_only_pending_pods_too(rest: Rest, run: Run) -> None:
    found = answers.users()
    found.items.append(schemas.UserShown(name="carol", weight="1", used={}, pending=79))
    rest.answers["GET /tenants/team-a/users"] = found
    hold("quotas-of-tenant", run("quotas", "team-a"))
    rest.refuse("GET /tenants/team-a/users", 403, "bob may not get tenants/queue.")
    code, out, err = run("quotas", "team-a")
    assert (code, "alice" in out) == (0, False)
    assert err == "fairgate: you may not see the users of team-a; its own quotas are shown.\n"


def test_quotas_at_a_past_time_are_requested_in_utc(rest: Rest, run: Run) -> None:
    run("quotas", "--at", "2026-02-01T08:00+01:00")
    assert rest.asked[-1].query["at"] == "2026-02-01T07:00:00Z"
    assert run("quotas", "team-a", "--at", "1h")[0] == 2


AUDIT = ("audit", "--since", "2026-03-01T00:00:00Z", "--until", "2026-03-01T13:00:00Z")


def test_the_newest_entries_of_the_audit_chain_are_shown(run: Run) -> None:
    hold("audit", run(*AUDIT, "--limit", "3"))


@pytest.mark.parametrize(
    ("words", "types"),
    [
        (("--pod", "train-5"), ["held", "released"]),
        (("--pod", "team-b/train-5"), []),
        (("--user", "carol"), ["changed"]),
        (("--type", "released"), ["released"]),
        (("--type", "released", "--user", "carol"), []),
    ],
)
def test_entries_are_filtered(
    words: tuple[str, ...], types: list[str], rest: Rest, run: Run
) -> None:
    rest.answers["GET /audit"] = [rest.answers["GET /audit"], Reply(200, "", "text/plain")]
    _, out, _ = run(*AUDIT, *words, "-o", "json")
    assert [each["type"] for each in json.loads(out)["items"]] == types


def test_changed_list_shows_added_and_removed_names() -> None:
    lists = {"pools": {"added": "a, b", "removed": "c"}, "weight": {"before": "1", "after": "2"}}
    facts = {"kind": "Tenant", "did": "changed", "fields": lists}
    assert audit_entries.detail({"type": "changed", "facts": facts}, False) == (
        "Tenant changed; pools: +a +b -c, weight: 1 -> 2"
    )


def test_truncated_list_is_reported(rest: Rest, run: Run) -> None:
    _, out, err = run(*AUDIT, "--limit", "1", "-o", "json")
    assert (len(json.loads(out)["items"]), json.loads(out)["more"]) == (1, True)
    assert err == (
        "fairgate: there are older entries; raise --limit (10000 at most), or set --until.\n"
    )
    _, out, err = run(*AUDIT, "--limit", "100", "-o", "json")
    assert (json.loads(out)["more"], err) == (False, "")


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        "5",
        "null",
        '{"deed": "released", "number": 1, "at": 1}',
        '{"deed": "released", "number": 1, "at": 100000000000000000, "facts": {}}',
        '{"deed": "released", "number": 1, "at": 1, "facts": 3}',
    ],
)
def test_a_line_that_is_no_entry_is_named(rest: Rest, run: Run, line: str) -> None:
    rest.answers["GET /audit"] = Reply(200, f"{line}\n", "application/x-ndjson")
    code, _, said = run(*AUDIT)
    assert code == 3
    assert said.endswith("has a line that is no entry; run fairgate audit verify.\n")


def test_odd_facts_of_a_change_are_left_out() -> None:
    for fields in ([1], {"users": {"added": 3}}, "x"):
        item = {"type": "changed", "facts": {"kind": "Tenant", "fields": fields}}
        assert audit_entries.detail(item, wide=False).startswith("Tenant")


def test_older_parts_of_the_audit_log_are_read_until_the_limit(rest: Rest, run: Run) -> None:
    full = rest.answers["GET /audit"]
    rest.answers["GET /audit"] = [Reply(200, "", "text/plain"), full, full]
    _, out, _ = run(*AUDIT, "--tenant", "team-a", "--limit", "2", "-o", "json")
    assert [each["type"] for each in json.loads(out)["items"]] == ["released", "changed"]
    spans = [(each.query["since"], each.query["until"]) for each in rest.asked]
    assert spans == [
        ("2026-03-01T12:50:00.000Z", "2026-03-01T13:00:00.000Z"),
        ("2026-03-01T12:30:00.000Z", "2026-03-01T12:50:00.000Z"),
    ]
    assert rest.asked[0].query["tenant"] == "team-a"


def test_a_chain_that_is_read_to_its_begin_ends_the_reading(rest: Rest, run: Run) -> None:
    rest.answers["GET /audit"] = Reply(200, "", "text/plain")
    code, out, _ = run(
        "audit", "--since", "2026-03-01T12:00:00Z", "--until", "2026-03-01T13:00:00Z"
    )
    assert (code, out) == (0, "There are no such entries; --since 7d also reads older ones.\n")
    assert rest.asked[-1].query["since"] == "2026-03-01T12:00:00.000Z"


@pytest.mark.parametrize("since", ["0999-01-01T00:00:00Z", "0001-01-01T00:00:00Z"])
def test_audit_entries_can_be_listed_since_any_year(rest: Rest, run: Run, since: str) -> None:
    rest.answers["GET /audit"] = Reply(200, "", "text/plain")
    code, _, err = run("audit", "--since", since, "--until", "2026-03-01T13:00:00Z")
    assert (code, err) == (0, "")
    assert rest.asked[-1].query["since"] == since.replace("Z", ".000Z")


def test_the_versions_of_client_and_server_are_compared(rest: Rest, run: Run) -> None:
    assert run("version") == (
        0,
        f"client  {VERSION}\nserver  {VERSION}\nThe versions are equal.\n",
        "",
    )
    rest.answers["GET /version"] = schemas.ServerVersion(version="9.0.0")
    assert json.loads(run("version", "-o", "json")[1])["skew"] == "unsupported"
    rest.refuse("GET /version", 404, "There is no such path.")
    code, _, err = run("version")
    assert (code, "does not report its version" in err) == (2, True)


@pytest.mark.parametrize(
    ("client", "server", "expected"),
    [
        ("0.2.0", "0.2.0", "none"),
        ("0.2.0", "0.2.9", "supported"),
        ("0.2.0", "0.3.1", "supported"),
        ("0.2.0", "0.4.0", "unsupported"),
        ("1.0.0", "0.9.0", "unsupported"),
        ("unknown", "0.2.0", "unknown"),
    ],
)
def test_one_minor_version_of_difference_is_supported(
    client: str, server: str, expected: str
) -> None:
    assert reports.skew(client, server) == expected


@pytest.mark.parametrize("name", sorted({*LINES} - {"why"}))
def test_heads_of_columns_can_be_left_out(name: str, run: Run) -> None:
    """Only lines of heads are missing: the rest is as it was, to the character."""
    whole = run(*LINES[name])[1].splitlines()
    code, out, _ = run(*LINES[name], "--no-headers")
    left = out.splitlines()
    heads = [each for each in whole if each not in left]
    assert code == 0
    assert heads
    assert all(each == each.upper() for each in heads)
    assert left == [each for each in whole if each not in heads]


def test_csv_of_usage_has_no_head_without_headers(rest: Rest, run: Run) -> None:
    rest.answers["GET /usage"] = Reply(200, "tenant,seconds\r\nteam-a,3\r\n", "text/csv")
    assert run("usage", "-o", "csv", "--no-headers")[:2] == (0, "team-a,3\r\n")


@pytest.mark.parametrize(
    ("words", "rows"),
    [(("-n", "team-a"), 4), (("-n", "other"), 0), (("-n", "other", "-A"), 4), (("-A",), 4)],
)
def test_queue_can_be_filtered_by_namespace(words: tuple[str, ...], rows: int, run: Run) -> None:
    found = json.loads(run("queue", "team-a", *words, "-o", "json")[1])
    assert len(found["items"]) == rows


def test_a_limit_counts_the_rows_that_are_shown(rest: Rest, run: Run) -> None:
    line = ("queue", "team-a", "-n", "team-a", "--limit", "2", "-o", "json")
    assert len(json.loads(run(*line)[1])["items"]) == 2
    assert rest.asked[-1].query["limit"] == "500"


def test_audit_entries_can_be_filtered_by_namespace(run: Run) -> None:
    found = json.loads(run("audit", "-n", "team-a", "--since", "5m", "-o", "json")[1])["items"]
    assert [each["type"] for each in found] == ["held", "released"]
    assert json.loads(run("audit", "-n", "other", "-o", "json")[1])["items"] == []
