"""Implementation of `fairgate doctor`: reads the cluster once, checks it, and prints the result."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from app.commands.doctor import assumptions, report
from app.commands.doctor.chart_values import as_values, as_yaml, chart_values
from app.commands.doctor.checks import run_checks
from app.commands.doctor.findings import Check, Finding, Level, problem
from app.commands.doctor.redis_checks import RedisServer, check_server
from app.commands.doctor.snapshot import ClusterSnapshot, take_snapshot, watch_expired_lease
from app.commands.release.console import NO
from app.config import setting_parsers
from app.core.errors import InvalidInput, StoreError
from app.core.kubeconfig import KubeconfigOptions
from app.kube import kubeconfig as kubeconfig_files
from app.kube.client import Client
from app.kube.cluster_survey import ApiSurvey
from app.store import redis_url
from app.store.connection import Server
from app.terminal.output import OutputOptions, as_text, warn


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Arguments of the command. `planned` and `write` are files."""

    kubeconfig: KubeconfigOptions
    namespace: str
    planned: Path | None
    redis: str
    image: str
    write: Path | None
    output: OutputOptions | None
    """None: print the values of the chart instead of the findings."""


def run(options: DoctorOptions) -> None:
    """Run the command. Raises FairgateError, and SystemExit with 1 if there is a problem."""
    who = kubeconfig_files.find_caller(options.kubeconfig, os.environ)
    settings = (
        None if options.planned is None else assumptions.planned_settings(_read(options.planned))
    )
    redis = setting_parsers.redis_url(options.redis) if options.redis else ""
    setting_parsers.label(options.namespace)
    seen, of_redis = asyncio.run(_read_snapshot(options, who, settings, redis))
    now = datetime.now(UTC)
    findings = [*run_checks(seen, options.namespace, now), *of_redis]
    faults = [each.message for each in of_redis if each.level is not Level.OK]
    sections = chart_values(seen, options.namespace, redis, options.image, faults)
    if options.write is not None:
        _write(options.write, as_yaml(sections))
    if options.output is None:
        sys.stdout.write(as_yaml(sections))
    elif options.output.is_data:
        document = report.as_document(findings, as_values(sections))
        print(as_text(options.output, document, report.FINDINGS))
    else:
        sys.stdout.write(report.as_text(findings))
    if report.has_problem(findings):
        raise SystemExit(NO)


async def _read_snapshot(
    options: DoctorOptions,
    who: kubeconfig_files.Caller,
    settings: assumptions.Assumptions | None,
    redis: str,
) -> tuple[ClusterSnapshot, Sequence[Finding]]:
    client = await Client.connect_with(who.options)
    try:
        survey = ApiSurvey(client)
        seen = await take_snapshot(survey, options.namespace, settings)
        await watch_expired_lease(survey, options.namespace, seen)
    finally:
        await client.close()
    return seen, await _check_redis(redis, seen) if redis else ()


async def _check_redis(url: str, seen: ClusterSnapshot) -> list[Finding]:
    host = redis_url.host_names(url)
    server = Server.connect(url)
    try:
        facts = await server.call("INFO", "server") | await server.call("INFO", "memory")
    except StoreError as error:
        return [
            problem(
                Check.REDIS,
                str(error),
                "Check the URL; this machine may need another address than the pods.",
                [host],
            )
        ]
    finally:
        await server.close()
    found = RedisServer(
        str(facts.get("redis_version", "")),
        int(facts.get("maxmemory", 0)),
        str(facts.get("maxmemory_policy", "")),
    )
    return list(
        check_server(
            found, host, sum(each.pods for each in seen.workloads if each.requests_devices)
        )
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"The values file {file} cannot be read: {error}.") from error


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError as error:
        raise InvalidInput(f"{file} exists already; remove it, or name another file.") from error
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error}.") from error
    warn(f"wrote the values to {file}.")
