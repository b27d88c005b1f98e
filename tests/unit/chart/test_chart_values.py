"""Values that an installation may change: what each one renders, and what is refused."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config import settings
from app.devcluster.binaries import Tools
from tests.support.chart import CHART, ROLES, Chart, Object, of_kind, the_webhook

BUNDLED = "redis.bundled.enabled=true"
INGRESS = ("api.ingress.enabled=true", "api.ingress.hosts={gpu.example}")
ROUTE = ("api.gateway.enabled=true", "api.gateway.parentRefs[0].name=web")
SERVING = ("webhook", "api")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("helm")


@pytest.fixture(scope="module")
def chart(cluster_tools: Tools, home: Path) -> Chart:
    return Chart(cluster_tools, home)


def template_of(documents: list[Object], role: str) -> Any:
    return of_kind(documents, "Deployment")[f"fairgate-{role}"]["spec"]["template"]


def pod_of(documents: list[Object], role: str) -> Any:
    return template_of(documents, role)["spec"]


def container_of(documents: list[Object], role: str) -> Any:
    [container] = pod_of(documents, role)["containers"]
    return container


def variables_of(documents: list[Object], role: str) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container_of(documents, role)["env"]}


def read(documents: list[Object], role: str) -> settings.Settings:
    """Return the settings that a component reads from the chart. Files are not mounted here."""
    told = variables_of(documents, role)
    values = {name: value for name, value in told.items() if not name.endswith("_FILE")}
    return settings.load({**values, "FAIRGATE_REDIS_URL": "redis://redis:6379"})


def refusal(chart: Chart, *values: str) -> str:
    done = chart.template(*values)
    assert done.returncode, "the chart renders"
    return done.stderr


# --- values of one component ---

POD_VALUES: dict[str, tuple[Any, Any]] = {
    "nodeSelector": ({"zone": "b"}, {"zone": "a"}),
    "tolerations": ([{"operator": "Exists"}], [{"key": "infra", "operator": "Exists"}]),
    "affinity": ({"nodeAffinity": {}}, {"podAffinity": {}}),
}


def with_own_values(chart: Chart, role: str) -> list[Object]:
    """Render the chart with values of all components, and others of one component."""
    return chart.render(
        *(f"--set-json={name}={json.dumps(common)}" for name, (common, _) in POD_VALUES.items()),
        *(f"--set-json={role}.{name}={json.dumps(own)}" for name, (_, own) in POD_VALUES.items()),
        *("podLabels.team=ops", "podLabels.tier=all", f"{role}.podLabels.tier=own"),
        *("--set-string=podAnnotations.a=1", f"--set-string={role}.podAnnotations.b=2"),
        f"{role}.extraArgs={{--log-level=debug}}",
        f"{role}.extraEnv[0].name=HTTPS_PROXY",
        f"{role}.extraEnv[0].value=http://proxy:3128",
        *(f"{role}.resources.requests.cpu=7", f"{role}.replicas=5"),
    )


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", POD_VALUES)
def test_component_value_replaces_the_common_value(chart: Chart, role: str, name: str) -> None:
    common, own = POD_VALUES[name]
    documents = with_own_values(chart, role)
    for each in ROLES:
        assert pod_of(documents, each)[name] == (own if each == role else common)


@pytest.mark.parametrize("role", ROLES)
def test_component_labels_and_annotations_are_added_to_the_common_ones(
    chart: Chart, role: str
) -> None:
    documents = with_own_values(chart, role)
    for each in ROLES:
        metadata = template_of(documents, each)["metadata"]
        own = each == role
        assert (
            metadata["labels"].items() >= {"team": "ops", "tier": "own" if own else "all"}.items()
        )
        assert metadata["annotations"] == {"a": "1", **({"b": "2"} if own else {})}
        selector = of_kind(documents, "Deployment")[f"fairgate-{each}"]["spec"]["selector"]
        assert selector["matchLabels"].items() <= metadata["labels"].items()


def test_spread_constraint_selects_its_component_by_default(chart: Chart) -> None:
    one = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    empty = {**one, "labelSelector": {}}
    chosen = {**one, "labelSelector": {"matchLabels": {"a": "b"}}}
    given = json.dumps([one, empty, chosen])
    documents = chart.render(f"--set-json=topologySpreadConstraints={given}")
    for role in ROLES:
        deployment = of_kind(documents, "Deployment")[f"fairgate-{role}"]["spec"]
        own = {**one, "labelSelector": deployment["selector"]}
        assert pod_of(documents, role)["topologySpreadConstraints"] == [own, own, chosen]


@pytest.mark.parametrize("role", ROLES)
def test_extra_arguments_and_variables_apply_to_one_component(chart: Chart, role: str) -> None:
    documents = with_own_values(chart, role)
    for each in ROLES:
        container = container_of(documents, each)
        assert container.get("args") == (["--log-level=debug"] if each == role else None)
        assert ("HTTPS_PROXY" in variables_of(documents, each)) == (each == role)


def test_a_variable_of_the_chart_is_not_set_twice(chart: Chart) -> None:
    said = refusal(chart, "api.extraEnv[0].name=FAIRGATE_LOG_LEVEL,api.extraEnv[0].value=debug")
    assert "api.extraEnv sets FAIRGATE_LOG_LEVEL, which the chart sets already" in said
    assert "api.extraArgs" in said


@pytest.mark.parametrize("role", ROLES)
def test_resources_and_replicas_are_those_of_the_component(chart: Chart, role: str) -> None:
    documents = with_own_values(chart, role)
    assert container_of(documents, role)["resources"]["requests"]["cpu"] == 7
    assert of_kind(documents, "Deployment")[f"fairgate-{role}"]["spec"]["replicas"] == 5


# --- the network of the node ---


@pytest.mark.parametrize("role", SERVING)
def test_pods_in_the_network_of_the_node_still_find_services(chart: Chart, role: str) -> None:
    documents = chart.render(
        f"{role}.hostNetwork=true", f"{role}.port=9100", f"{role}.opsPort=9101"
    )
    pod = pod_of(documents, role)
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    ports = {each["name"]: each["containerPort"] for each in container_of(documents, role)["ports"]}
    assert (ports["https"], ports["ops"]) == (9100, 9101)
    told = read(documents, role)
    listens = told.webhook_listen if role == "webhook" else told.api_listen
    assert (listens.port, told.ops_listen.port) == (9100, 9101)
    strategy = of_kind(documents, "Deployment")[f"fairgate-{role}"]["spec"]["strategy"]
    assert strategy["rollingUpdate"]["maxUnavailable"] == 1
    for other in set(ROLES) - {role}:
        assert "hostNetwork" not in pod_of(documents, other)


def test_the_aggregated_port_is_the_same_everywhere(chart: Chart) -> None:
    documents = chart.render("api.aggregatedPort=9102")
    listens = read(documents, "api").aggregated_listen
    assert listens is not None
    assert listens.port == 9102
    service = of_kind(documents, "APIService")["v1.api.fairgate.io"]["spec"]["service"]
    ports = {
        p["name"]: p["port"] for p in of_kind(documents, "Service")["fairgate-api"]["spec"]["ports"]
    }
    assert (service["port"], ports["aggregated"]) == (9102, 9102)


def test_two_listeners_of_a_node_need_two_ports(chart: Chart) -> None:
    both = ("webhook.hostNetwork=true", "api.hostNetwork=true")
    assert "use the same port of a node; set api.opsPort" in refusal(chart, *both)
    chart.render(*both, "api.opsPort=8081")
    assert "api uses one port twice (8444, 8080, 8444)" in refusal(chart, "api.aggregatedPort=8444")


# --- image, accounts, certificate ---


def test_an_image_must_be_named(chart: Chart) -> None:
    said = refusal(chart, "image.repository=")
    assert "image.repository is empty" in said
    assert "make image" in said
    assert "set image.repository=REGISTRY/fairgate" in said


def test_a_digest_replaces_the_tag(chart: Chart) -> None:
    digest = "sha256:" + "a" * 64
    documents = chart.render("image.repository=r/f", "image.tag=v1", f"image.digest={digest}")
    assert {container_of(documents, role)["image"] for role in ROLES} == {f"r/f@{digest}"}


def test_annotations_of_accounts_are_those_of_all_components(chart: Chart) -> None:
    documents = chart.render("serviceAccount.annotations.role=arn")
    for role in ROLES:
        account = of_kind(documents, "ServiceAccount")[f"fairgate-{role}"]
        assert account["metadata"]["annotations"] == {"role": "arn"}


def test_further_names_are_in_the_certificate(chart: Chart) -> None:
    issued = ("certManager.enabled=true", "certManager.issuerRef.name=ca")
    documents = chart.render("tls.extraNames={gpu.example,10.0.0.7}", *issued)
    for role in SERVING:
        names = read(documents, role).tls_names
        assert names[-2:] == ("gpu.example", "10.0.0.7")
        assert f"fairgate-{role}.fairgate-system.svc" in names
    spec = of_kind(documents, "Certificate")["fairgate"]["spec"]
    assert spec["dnsNames"][-1] == "gpu.example"
    assert spec["ipAddresses"] == ["10.0.0.7"]


def test_a_resize_by_which_a_pod_gets_its_first_managed_resource_is_judged(chart: Chart) -> None:
    documents = chart.render("extraManagedResources={cpu}")
    hooks = of_kind(documents, "ValidatingWebhookConfiguration")["fairgate"]["webhooks"]
    [resize] = [each for each in hooks if each["name"] == "resize.fairgate.io"]
    [condition] = resize["matchConditions"]
    before, _, after = condition["expression"].rpartition("||\n(dyn(")
    assert "oldObject.spec" in before
    assert "'cpu'" in after
    assert after.startswith("object.spec.?containers")


# --- lists ---


def test_lists_are_extended_not_replaced(chart: Chart) -> None:
    documents = chart.render(
        "extraExemptNamespaces={agents}",
        "extraControllerUsers={system:serviceaccount:x:x}",
        "extraManagedResources={example.com/tpu}",
        '--set-json=extraPodTemplates=[{"group":"x.io","versions":["v1"],"resource":"runs",'
        '"path":"spec.template"}]',
    )
    usual, told = settings.load({"FAIRGATE_ROLES": "webhook"}), read(documents, "webhook")
    assert told.exempt_namespaces == (*usual.exempt_namespaces, "agents")
    assert told.managed_resources == (*usual.managed_resources, "example.com/tpu")
    assert {*told.rules.controllers} - {*usual.rules.controllers} == {"system:serviceaccount:x:x"}
    assert [each.resource for each in told.templates if each not in usual.templates] == ["runs"]

    webhook = the_webhook(documents)
    assert webhook["namespaceSelector"]["matchExpressions"][0]["values"][-1] == "agents"
    assert "'example.com/tpu'" in webhook["matchConditions"][0]["expression"]
    hooks = of_kind(documents, "MutatingWebhookConfiguration")["fairgate"]["webhooks"]
    [stamp] = [each for each in hooks if each["name"] == "stamp.fairgate.io"]
    assert "system:serviceaccount:x:x" in stamp["matchConditions"][0]["expression"]
    assert stamp["rules"][-1]["apiGroups"] == ["x.io"]


# --- access to the REST API ---


def test_only_the_rest_api_is_offered_outside(chart: Chart) -> None:
    assert "fairgate-api-external" not in of_kind(chart.render(), "Service")
    documents = chart.render(
        "api.service.type=LoadBalancer",
        "api.service.annotations.internal=yes",
        "api.service.loadBalancerSourceRanges={10.0.0.0/8}",
    )
    service = of_kind(documents, "Service")["fairgate-api-external"]
    assert service["metadata"]["annotations"] == {"internal": "yes"}
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert [each["targetPort"] for each in service["spec"]["ports"]] == ["https"]
    inner = of_kind(documents, "Service")["fairgate-api"]
    assert "type" not in inner["spec"]
    assert "annotations" not in inner["metadata"]


def test_annotations_reach_the_service_that_an_ingress_names(chart: Chart) -> None:
    documents = chart.render("api.service.annotations.scheme=https", *INGRESS)
    service = of_kind(documents, "Service")["fairgate-api"]
    assert service["metadata"]["annotations"] == {"scheme": "https"}
    [rule] = of_kind(documents, "Ingress")["fairgate-api"]["spec"]["rules"]
    assert rule["host"] == "gpu.example"
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == "fairgate-api"


def test_a_gateway_uses_tls_to_the_api_once_it_knows_the_ca(chart: Chart) -> None:
    documents = chart.render(*ROUTE, "api.gateway.hostnames={gpu.example}")
    route = of_kind(documents, "HTTPRoute")["fairgate-api"]["spec"]
    assert route["parentRefs"] == [{"name": "web"}]
    assert route["hostnames"] == ["gpu.example"]
    assert not of_kind(documents, "BackendTLSPolicy")
    documents = chart.render(*ROUTE, "api.gateway.caConfigMap=ca")
    policy = of_kind(documents, "BackendTLSPolicy")["fairgate-api"]["spec"]
    assert policy["validation"]["hostname"] in read(documents, "api").tls_names


def test_access_without_a_destination_is_refused(chart: Chart) -> None:
    assert "api.ingress.hosts is empty" in refusal(chart, "api.ingress.enabled=true")
    assert "api.gateway.parentRefs is empty" in refusal(chart, "api.gateway.enabled=true")
    for name, values in (("ingress", INGRESS), ("gateway", ROUTE)):
        said = refusal(chart, *values, "api.replicas=0")
        assert f"api.{name}.enabled needs the REST API" in said


# --- monitoring ---

MONITORS = {"podMonitor": "PodMonitor", "serviceMonitor": "ServiceMonitor"}
LABELLED = {
    **{f"metrics.{value}": kind for value, kind in MONITORS.items()},
    "alerts": "PrometheusRule",
    "dashboards": "ConfigMap",
}


@pytest.mark.parametrize("value", MONITORS)
def test_a_monitor_scrapes_every_pod_with_a_token_that_reads_metrics_only(
    chart: Chart, value: str
) -> None:
    documents = chart.render(f"metrics.{value}.enabled=true", f"metrics.{value}.interval=15s")
    spec = of_kind(documents, MONITORS[value])["fairgate"]["spec"]
    [endpoint] = spec.get("podMetricsEndpoints") or spec["endpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == ("ops", "/metrics", "15s")
    token = endpoint["authorization"]["credentials"]
    secret = of_kind(documents, "Secret")[token["name"]]
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    binding = of_kind(documents, "ClusterRoleBinding")["fairgate-metrics"]
    assert binding["roleRef"]["name"] == "fairgate-metrics-reader"
    assert [each["name"] for each in binding["subjects"]] == [account]
    selected = spec["selector"]["matchLabels"]
    if value == "serviceMonitor":
        service = of_kind(documents, "Service")["fairgate-metrics"]
        assert selected.items() <= service["metadata"]["labels"].items()
        selected = service["spec"]["selector"]
    for role in ROLES:
        assert selected.items() <= template_of(documents, role)["metadata"]["labels"].items()


def test_pod_monitor_uses_the_given_token_or_none(chart: Chart) -> None:
    enabled = "metrics.podMonitor.enabled=true"
    own = chart.render(enabled, "metrics.tokenSecret.name=mine", "metrics.tokenSecret.key=t")
    [endpoint] = of_kind(own, "PodMonitor")["fairgate"]["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "mine", "key": "t"}
    public = chart.render(enabled, "metrics.public=true")
    [endpoint] = of_kind(public, "PodMonitor")["fairgate"]["spec"]["podMetricsEndpoints"]
    assert "authorization" not in endpoint
    for documents in (own, public):
        assert "fairgate-metrics" not in of_kind(documents, "ServiceAccount")


def test_pods_are_not_scraped_twice(chart: Chart) -> None:
    both = [f"metrics.{value}.enabled=true" for value in MONITORS]
    assert "scrape every pod twice; enable one of them" in refusal(chart, *both)


@pytest.mark.parametrize("value", LABELLED)
def test_a_label_of_a_value_replaces_that_of_the_chart(chart: Chart, value: str) -> None:
    key = "app.kubernetes.io/instance"
    escaped = key.replace(".", "\\.")
    done = chart.template(f"{value}.enabled=true", f"{value}.labels.{escaped}=prometheus")
    assert done.returncode == 0, done.stderr
    [found] = [
        text
        for text in done.stdout.split("\n---\n")
        if f"\nkind: {LABELLED[value]}\n" in text and f"{key}: prometheus" in text
    ]
    assert found.count(f"    {key}: ") == 1
    assert yaml.safe_load(found)["metadata"]["labels"]["app.kubernetes.io/name"] == "fairgate"


# --- network policies ---


def test_each_port_has_its_own_allowed_sources(chart: Chart) -> None:
    peers = {
        port: [{"ipBlock": {"cidr": f"10.0.{at}.0/24"}}]
        for at, port in enumerate(("webhook", "api", "aggregated", "metrics"))
    }
    documents = chart.render(
        "networkPolicy.enabled=true", f"--set-json=networkPolicy.from={json.dumps(peers)}"
    )
    found = {
        (role, port["port"]): rule["from"]
        for role in ROLES
        for rule in of_kind(documents, "NetworkPolicy")[f"fairgate-{role}"]["spec"]["ingress"]
        for port in rule["ports"]
    }
    assert found == {
        ("webhook", "https"): peers["webhook"],
        ("api", "https"): peers["api"],
        ("api", "aggregated"): peers["aggregated"],
        **{(role, "ops"): peers["metrics"] for role in ROLES},
    }


def test_egress_is_limited_to_the_required_ports(chart: Chart) -> None:
    redis = [{"ipBlock": {"cidr": "10.9.0.0/16"}}]
    documents = chart.render(
        *("networkPolicy.enabled=true", "networkPolicy.egress.enabled=true"),
        f"--set-json=networkPolicy.egress.redis.to={json.dumps(redis)}",
        '--set-json=networkPolicy.egress.extra=[{"ports":[{"port":9090}]}]',
    )
    for role in ROLES:
        spec = of_kind(documents, "NetworkPolicy")[f"fairgate-{role}"]["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        ports = [[port["port"] for port in rule["ports"]] for rule in spec["egress"]]
        assert ports == [[53, 53], [443, 6443], [6379, 26379], [9090]]
        assert spec["egress"][2]["to"] == redis


# --- the bundled Redis ---


def test_bundled_redis_is_configured_and_used_by_all_components(chart: Chart) -> None:
    documents = chart.render(BUNDLED, "redis.bundled.password=only-for-a-test")
    secret = of_kind(documents, "Secret")["fairgate-redis"]["stringData"]
    url = "redis://:only-for-a-test@fairgate-redis.fairgate-system.svc:6379/0"
    assert secret["url"] == url
    assert "requirepass only-for-a-test\n" in secret["redis.conf"]
    assert "maxmemory-policy noeviction" in secret["redis.conf"]
    assert settings.load({"FAIRGATE_REDIS_URL": url}).redis_url == url
    for role in ROLES:
        [variable] = [
            e for e in container_of(documents, role)["env"] if e["name"].endswith("REDIS_URL")
        ]
        assert variable["valueFrom"]["secretKeyRef"] == {"name": "fairgate-redis", "key": "url"}
    template = of_kind(documents, "Deployment")["fairgate-redis"]["spec"]["template"]
    service = of_kind(documents, "Service")["fairgate-redis"]["spec"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    for role in ROLES:
        budget = of_kind(documents, "PodDisruptionBudget")[f"fairgate-{role}"]["spec"]
        selected = budget["selector"]["matchLabels"].items()
        assert not selected <= template["metadata"]["labels"].items()


def test_the_bundled_redis_runs_without_privileges(chart: Chart) -> None:
    pod = of_kind(chart.render(BUNDLED), "Deployment")["fairgate-redis"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    [container] = pod["containers"]
    assert container["securityContext"] == container_of(chart.render(), "api")["securityContext"]
    assert "password" not in json.dumps(container["command"])


def test_the_bundled_redis_stores_data_on_a_volume_if_so_chosen(chart: Chart) -> None:
    for enabled, appends in (("false", "no"), ("true", "yes")):
        documents = chart.render(BUNDLED, f"redis.bundled.persistence.enabled={enabled}")
        assert len(of_kind(documents, "PersistentVolumeClaim")) == (enabled == "true")
        conf = of_kind(documents, "Secret")["fairgate-redis"]["stringData"]["redis.conf"]
        assert f"appendonly {appends}\n" in conf


def test_every_installation_gets_its_own_redis_password(cluster_tools: Tools, home: Path) -> None:
    charts = (Chart(cluster_tools, home) for _ in range(2))  # each one renders once
    passwords = {
        of_kind(chart.render(BUNDLED), "Secret")["fairgate-redis"]["stringData"]["password"]
        for chart in charts
    }
    assert len(passwords) == 2
    assert {len(each) for each in passwords} == {32}


def test_every_process_restarts_if_the_password_of_the_bundled_redis_changes(
    chart: Chart, cluster_tools: Tools, home: Path
) -> None:
    deployments = [*(f"fairgate-{role}" for role in ROLES), "fairgate-redis"]

    def annotations(password: str) -> dict[str, str]:
        documents = chart.render(BUNDLED, f"redis.bundled.password={password}")
        found = {}
        for name in deployments:
            meta = of_kind(documents, "Deployment")[name]["spec"]["template"]["metadata"]
            found[name] = json.dumps(meta["annotations"])
        return found

    first, second = map(annotations, ("password-1", "password-2"))
    chart = Chart(cluster_tools, home)
    assert annotations("password-1") == first
    assert all(first[name] != second[name] for name in deployments)


def test_annotations_do_not_allow_a_quick_guess_of_the_password(chart: Chart) -> None:
    elsewhere = ("--namespace=other", "extraExemptNamespaces={other}")
    password = "summer-2026"
    documents = chart.render(BUNDLED, f"redis.bundled.password={password}")
    shown = json.dumps([pod["metadata"] for pod in map(partial(template_of, documents), ROLES)])
    for text in (password, f"{password}\n", f"{password} 512mb false"):
        assert hashlib.sha256(text.encode()).hexdigest() not in shown
    other = chart.render(BUNDLED, f"redis.bundled.password={password}", *elsewhere)
    assert json.dumps(template_of(other, "api")["metadata"]["annotations"]) not in shown


def test_only_fairgate_reaches_the_bundled_redis(chart: Chart) -> None:
    network = ("networkPolicy.enabled=true", "networkPolicy.egress.enabled=true")
    documents = chart.render(BUNDLED, *network)
    policies = of_kind(documents, "NetworkPolicy")
    [rule] = policies["fairgate-redis"]["spec"]["ingress"]
    [peer] = rule["from"]
    selected = peer["podSelector"]["matchLabels"].items()
    for role in ROLES:
        assert selected <= template_of(documents, role)["metadata"]["labels"].items()
        [way] = [
            each["to"]
            for each in policies[f"fairgate-{role}"]["spec"]["egress"]
            if any(port["port"] == 6379 for port in each["ports"])
        ]
        [destination] = way
        labels = of_kind(documents, "Deployment")["fairgate-redis"]["spec"]["template"]["metadata"]
        assert destination["podSelector"]["matchLabels"] == labels["labels"]


@pytest.mark.parametrize("other", ["redis.url=redis://r:6379", "redis.existingSecret=s"])
def test_two_redis_servers_are_refused(chart: Chart, other: str) -> None:
    assert "name two Redis servers; set one of them" in refusal(chart, BUNDLED, other)


# --- refused values ---


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("image.digest=latest", "digest"),
        ("image.repository=Example/Fairgate:1", "repository"),
        ("webhook.port=443", "port"),
        ("webhook.hostNetwork=maybe", "hostNetwork"),
        ("webhook.resources.request.cpu=1", "request"),
        ("webhook.resources.requests.cpu=much", "cpu"),
        ("webhook.podLabels.app\\.kubernetes\\.io/name=x", "podLabels"),
        ("controller.tolerations[0].operator=Always", "tolerations"),
        ("controller.hostNetwork=true", "hostNetwork"),
        ("controller.affinity.nodeAffinities=x", "affinity"),
        ("api.topologySpreadConstraints[0].maxSkew=1", "topologySpreadConstraints"),
        ("api.extraEnv[0].value=x", "extraEnv"),
        ("api.service.type=ExternalName", "type"),
        ("api.ingress.hosts={https://gpu.example}", "hosts"),
        ("api.gateway.parentRefs[0].namespace=x", "parentRefs"),
        ("tls.extraNames={gpu example}", "extraNames"),
        ("extraExemptNamespaces={kube_system}", "extraExemptNamespaces"),
        ("extraExemptNamespaces={fairgate-canary}", "fairgate-canary"),
        (f"extraExemptNamespaces={{{64 * 'a'}}}", "extraExemptNamespaces"),
        (f"tenantAdmins[0].tenant={232 * 'a'}", "tenant"),
        ("extraManagedResources={*}", "extraManagedResources"),
        ("extraPodTemplates[0].group=x", "extraPodTemplates"),
        ("metrics.podMonitor.interval=soon", "interval"),
        ("networkPolicy.from.redis[0].ipBlock.cidr=10.0.0.0/8", "redis"),
        ("networkPolicy.egress.apiServer.ports={0}", "ports"),
        ("redis.bundled.password=a b", "password"),
        ("redis.bundled.maxMemory=512Mi", "maxMemory"),
        ("podDisruptionBudget.maxUnavailable=half", "maxUnavailable"),
        ("imagePullSecrets={secret}", "imagePullSecrets"),
        ("serviceAccount.annotation.a=b", "annotation"),
    ],
)
def test_wrong_value_is_refused_by_name(chart: Chart, value: str, words: str) -> None:
    assert words in refusal(chart, value)


@pytest.mark.parametrize("key", yaml.safe_load((CHART / "values.yaml").read_text()))
def test_values_of_an_older_chart_render_or_are_refused_with_the_remedy(
    chart: Chart, key: str
) -> None:
    """Keys that the older chart lacks have no defaults with `--reuse-values`.

    The schema requires the keys that every release has had.
    """
    done = chart.template(f"{key}=null")
    remedy = f"the values lack {key}, so they are those of an older chart; use helm upgrade --reset"
    clear = (remedy, f"missing property '{key}'")
    assert not done.returncode or any(words in done.stderr for words in clear)
