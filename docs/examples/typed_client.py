"""A typed client of the REST API, with models that are generated from its OpenAPI document.

    pip install datamodel-code-generator pydantic
    curl --cacert ca.crt "$URL/openapi.json" > openapi.json
    datamodel-codegen --input openapi.json --input-file-type openapi --snake-case-field \
        --output-model-type pydantic_v2.BaseModel --target-python-version 3.11 \
        --formatters builtin --output fairgate_models.py
    URL=https://... TOKEN=... python typed_client.py team-a 8

It lists the caller's own workloads, and tries a pod with 8 GPUs in namespace team-a. SSL_CERT_FILE
may name the CA of the API.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from typing import TypeVar

from fairgate_models import Me, Problem, TrialModel, TrialRequest
from pydantic import BaseModel

Answer = TypeVar("Answer", bound=BaseModel)


class RefusedError(Exception):
    """An error answer of the API."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class Fairgate:
    """The client."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def me(self) -> Me:
        """Return the caller's own workloads, use and fair share."""
        return self._ask("GET", "/v1/me", None, Me)

    def attempt(self, trial: TrialRequest) -> TrialModel:
        """Return whether and when pods would start."""
        return self._ask("POST", "/v1/trials", trial, TrialModel)

    def _ask(self, method: str, path: str, body: BaseModel | None, kind: type[Answer]) -> Answer:
        data = body.model_dump_json(by_alias=True, exclude_unset=True).encode() if body else None
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return kind.model_validate_json(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise RefusedError(Problem.model_validate_json(error.read())) from error


def main() -> int:
    """Print the workloads and the trial. Return the exit code."""
    namespace, gpus = sys.argv[1:]
    client = Fairgate(os.environ["URL"], os.environ["TOKEN"])
    pod = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]}}
    try:
        for each in client.me().workloads:
            print(f"{each.namespace}/{each.name}: {each.position} of {each.length}, {each.rule}")
        document = json.dumps({"namespace": namespace, "pods": [{"pod": pod}]})
        trial = client.attempt(TrialRequest.model_validate_json(document))
    except RefusedError as error:
        print(f"{error.problem.code.value}: {error}", file=sys.stderr)
        return 1
    print(f"A pod with {gpus} GPUs: {trial.state}. {trial.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
