"""Manifests rendered by helm: components per mode, security settings and accepted values.

Needs only helm. The tests in `integration` apply the manifests to an API server.
"""

from __future__ import annotations

import json

import pytest
import yaml

from app.config import settings
from app.devcluster.binaries import Tools
from app.devcluster.fairgate_install import CHART
from app.kube import enforcement_apply, enforcement_probes, enforcement_spec
from tests.support.chart import REQUIRED, ROLES, Chart, Object, of_kind, the_webhook, webhooks_of

OUTSIDE = "external.webhookUrl=https://127.0.0.1:9443/admit"
NETWORK = "networkPolicy.enabled=true"
WORKLOADS = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
NAMES = {f"fairgate-{role}" for role in ROLES}
LABELLED = {"matchExpressions": [{"key": "fairgate.io/tenant", "operator": "Exists"}]}
"""The pods whose status updates are judged."""

FIELDS = {field.variable: field for field in settings.FIELDS}
DIFFERENT = {
    "FAIRGATE_ROLES": "each Deployment runs one role",
    "FAIRGATE_NAMESPACE": "the pod reads its own namespace",
    "FAIRGATE_MODE": "a new installation observes (decision 35)",
    "FAIRGATE_TLS_NAMES": "the Services of the chart, which the program also takes if none is set",
    "FAIRGATE_AGGREGATED_LISTEN": "the chart has the APIService that needs this port",
    "FAIRGATE_REDIS_URL": "a required value",
}
"""Variables whose value in the default chart is not the default of the setting, with the reason."""


@pytest.fixture(scope="module")
def chart(cluster_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    return Chart(cluster_tools, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def inside(chart: Chart) -> list[Object]:
    """The default chart: Fairgate runs in the cluster."""
    return chart.render()


def pod_of(documents: list[Object], role: str) -> Object:
    spec = of_kind(documents, "Deployment")[f"fairgate-{role}"]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def container_of(documents: list[Object], role: str) -> Object:
    [container] = pod_of(documents, role)["containers"]
    assert isinstance(container, dict)
    return container


def annotations_of(document: Object) -> Object:
    return dict(document["metadata"].get("annotations") or {})


def test_lint_finds_no_fault(chart: Chart) -> None:
    given = [part for value in REQUIRED for part in ("--set", value)]
    done = chart.run("lint", "--strict", "--namespace", "fairgate-system", *given, str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


# --- components per mode ---


def test_inside_the_cluster_everything_runs(inside: list[Object]) -> None:
    assert set(of_kind(inside, "Deployment")) == NAMES
    assert set(of_kind(inside, "PodDisruptionBudget")) == NAMES
    assert set(of_kind(inside, "Service")) == {"fairgate-webhook", "fairgate-api"}
    assert of_kind(inside, "Deployment")["fairgate-webhook"]["spec"]["replicas"] == 2


def test_flow_control_is_for_our_accounts_only_and_can_be_left_out(
    chart: Chart, inside: list[Object]
) -> None:
    schemas = of_kind(inside, "FlowSchema")
    rules = [rule for each in schemas.values() for rule in each["spec"]["rules"]]
    subjects = [subject["serviceAccount"] for rule in rules for subject in rule["subjects"]]
    assert {each["name"] for each in subjects} == NAMES
    assert {each["namespace"] for each in subjects} == {"fairgate-system"}
    without = chart.render("flowControl.enabled=false")
    kinds = {"FlowSchema", "PriorityLevelConfiguration"}
    assert not kinds & {each["kind"] for each in without}


def test_chart_for_an_external_fairgate_has_a_webhook_url_and_no_workloads(chart: Chart) -> None:
    inside, outside = chart.render("api.aggregated=false"), chart.render(OUTSIDE, NETWORK)
    assert the_webhook(outside)["clientConfig"] == {"url": "https://127.0.0.1:9443/admit"}
    inside = [each for each in inside if "helm.sh/hook" not in annotations_of(each)]
    rest = [each for each in inside if each["kind"] not in WORKLOADS]
    for documents in (rest, outside):
        for webhook in webhooks_of(documents).values():
            webhook.pop("clientConfig")
        of_kind(documents, "ConfigMap")["fairgate-enforcement"].pop("data")
    assert rest == outside


def test_alerts_and_dashboard_are_rendered_only_if_enabled(
    chart: Chart, inside: list[Object]
) -> None:
    assert not of_kind(inside, "PrometheusRule")
    assert "fairgate-dashboard" not in of_kind(inside, "ConfigMap")

    both = ("alerts.enabled=true", "dashboards.enabled=true")
    asked = chart.render(*both, "alerts.labels.release=prometheus")

    [rules] = of_kind(asked, "PrometheusRule").values()
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    assert rules["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    dashboard = of_kind(asked, "ConfigMap")["fairgate-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    whole = (CHART / "files" / "dashboard.json").read_text()
    assert json.loads(dashboard["data"]["fairgate.json"]) == json.loads(whole)


@pytest.mark.parametrize(("days", "threshold"), [(1, "1 * 86400 / 4"), (28, "7 * 86400")])
def test_the_alert_about_the_certificate_fires_after_the_time_of_its_renewal(
    chart: Chart, days: int, threshold: str
) -> None:
    asked = chart.render("alerts.enabled=true", f"tls.days={days}")
    [rules] = of_kind(asked, "PrometheusRule").values()
    expressions = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    assert f"min(fairgate_certificate_expiry_seconds) < {threshold}" in expressions


def test_network_policy_is_rendered_only_if_enabled(chart: Chart, inside: list[Object]) -> None:
    assert not of_kind(inside, "NetworkPolicy")
    policies = of_kind(chart.render(NETWORK), "NetworkPolicy")
    for role in ROLES:
        policy = policies[f"fairgate-{role}"]["spec"]
        assert policy["policyTypes"] == ["Ingress"]
        open_ports = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
        assert open_ports == {each["name"] for each in container_of(inside, role)["ports"]}


@pytest.mark.parametrize("role", ["webhook", "api"])
def test_service_selects_only_its_own_pods_and_their_ports(inside: list[Object], role: str) -> None:
    service = of_kind(inside, "Service")[f"fairgate-{role}"]["spec"]
    template = of_kind(inside, "Deployment")[f"fairgate-{role}"]["spec"]["template"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    others = [each for each in ROLES if each != role]
    for other in others:
        labels = of_kind(inside, "Deployment")[f"fairgate-{other}"]["spec"]["template"]
        assert not service["selector"].items() <= labels["metadata"]["labels"].items()
    opened = {each["name"] for each in container_of(inside, role)["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= opened


def test_apiservice_points_to_the_port_of_the_aggregated_listener(
    chart: Chart, inside: list[Object]
) -> None:
    service = of_kind(inside, "Service")["fairgate-api"]["spec"]
    leads = of_kind(inside, "APIService")["v1.api.fairgate.io"]["spec"]
    assert "caBundle" not in leads
    assert "insecureSkipTLSVerify" not in leads
    [port] = [each for each in service["ports"] if each["port"] == leads["service"]["port"]]
    container = container_of(inside, "api")
    [opened] = [each for each in container["ports"] if each["name"] == port["targetPort"]]
    listens = {each["name"]: each.get("value") for each in container["env"]}
    assert listens["FAIRGATE_AGGREGATED_LISTEN"] == f"0.0.0.0:{opened['containerPort']}"
    outside = chart.render(OUTSIDE, "external.aggregatedPort=7443")
    assert of_kind(outside, "Service")["fairgate-api"]["spec"]["type"] == "ExternalName"
    assert of_kind(outside, "APIService")["v1.api.fairgate.io"]["spec"]["service"]["port"] == 7443


@pytest.mark.parametrize("value", ["api.aggregated=false", "api.replicas=0"])
def test_disabled_aggregated_api_leaves_no_objects(chart: Chart, value: str) -> None:
    text = chart.template(value).stdout
    assert "fairgate-webhook" in text
    for trace in ("APIService", "AGGREGATED", "fairgate-door", "namespace: kube-system", "8445"):
        assert trace not in text


def test_role_bound_to_groups_grants_only_the_fairgate_api(inside: list[Object]) -> None:
    [rule] = of_kind(inside, "ClusterRole")["fairgate-door"]["rules"]
    assert rule["apiGroups"] == ["api.fairgate.io"]
    bound = [
        each
        for each in of_kind(inside, "ClusterRoleBinding").values()
        if any(subject["kind"] == "Group" for subject in each["subjects"])
    ]
    assert [each["roleRef"]["name"] for each in bound] == ["fairgate-door"]


# --- each program ---


@pytest.mark.parametrize("role", ROLES)
def test_each_component_has_its_own_service_account(inside: list[Object], role: str) -> None:
    account = pod_of(inside, role)["serviceAccountName"]
    assert account == f"fairgate-{role}"
    assert account in of_kind(inside, "ServiceAccount")


@pytest.mark.parametrize("role", ROLES)
def test_programs_run_without_privileges(inside: list[Object], role: str) -> None:
    pod = pod_of(inside, role)["securityContext"]
    assert pod["runAsNonRoot"]
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container_of(inside, role)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("role", ROLES)
def test_programs_are_probed_where_they_answer(inside: list[Object], role: str) -> None:
    container = container_of(inside, role)
    probes = {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    for probe, path in probes.items():
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "ops"}
    assert {"name": "ops", "containerPort": 8080} in container["ports"]


@pytest.mark.parametrize("role", ROLES)
def test_components_accept_the_settings_of_the_chart(inside: list[Object], role: str) -> None:
    environment = {
        each["name"]: each.get("value", "") for each in container_of(inside, role)["env"]
    }
    assert set(environment) <= {field.variable for field in settings.FIELDS}
    told = settings.load(environment)
    assert told.roles == (role,)
    assert told.managed_resources == settings.MANAGED
    assert set(told.device_classes) == set(settings.CLASSES)
    assert told.exempt_namespaces == settings.EXEMPT
    assert "fairgate-webhook.fairgate-system.svc" in told.tls_names
    assert pod_of(inside, role)["terminationGracePeriodSeconds"] > told.drain_seconds


def test_stopping_webhook_serves_until_endpoints_are_updated(inside: list[Object]) -> None:
    """Its probe fails at once. Endpoints are updated after failureThreshold periods."""
    container = container_of(inside, "webhook")
    probe = container["readinessProbe"]
    known_after = probe["periodSeconds"] * probe.get("failureThreshold", 3)
    told = settings.load({each["name"]: each.get("value", "") for each in container["env"]})
    assert told.drain_seconds >= 2 * known_after
    strategy = of_kind(inside, "Deployment")["fairgate-webhook"]["spec"]["strategy"]
    assert strategy["rollingUpdate"]["maxUnavailable"] == 0


def test_strays_are_evicted_only_if_so_chosen(chart: Chart, inside: list[Object]) -> None:
    for documents, chosen in (
        (inside, False),
        (chart.render("controller.evictBypassed=true"), True),
    ):
        environment = {
            each["name"]: each.get("value", "")
            for each in container_of(documents, "controller")["env"]
        }
        assert settings.load(environment).evict_bypassed is chosen


def test_audit_files_are_stored_in_the_given_volume_claim(
    chart: Chart, inside: list[Object]
) -> None:
    assert "volumes" not in pod_of(inside, "controller")
    documents = chart.render("audit.existingClaim=records", "audit.megabytes=1000000")
    environment = {
        each["name"]: each.get("value", "") for each in container_of(documents, "controller")["env"]
    }
    told = settings.load(environment)
    (mount,) = container_of(documents, "controller")["volumeMounts"]
    (volume,) = pod_of(documents, "controller")["volumes"]
    assert mount["mountPath"] == str(told.audit_folder)
    assert volume["persistentVolumeClaim"] == {"claimName": "records"}
    assert told.audit_megabytes == 1_000_000


@pytest.mark.parametrize("role", ["controller", "api"])
def test_redis_url_may_come_from_a_secret(chart: Chart, role: str) -> None:
    documents = chart.render("redis.existingSecret=redis-url", "redis.secretKey=address")
    environment = {each["name"]: each for each in container_of(documents, role)["env"]}
    assert environment["FAIRGATE_REDIS_URL"] == {
        "name": "FAIRGATE_REDIS_URL",
        "valueFrom": {"secretKeyRef": {"name": "redis-url", "key": "address"}},
    }


def test_redis_files_are_mounted_in_every_component(chart: Chart) -> None:
    plain = chart.render("certManager.enabled=true", "certManager.issuerRef.name=ca")
    documents = chart.render(
        "redis.filesSecret=redis-tls", "certManager.enabled=true", "certManager.issuerRef.name=ca"
    )
    for role in ROLES:
        before = container_of(plain, role).get("volumeMounts", [])
        mounts = container_of(documents, role).get("volumeMounts", [])
        added = [each for each in mounts if each not in before]
        assert [each["mountPath"] for each in added] == ["/run/fairgate/redis"]


def test_defaults_are_those_of_the_programs(inside: list[Object]) -> None:
    given = {
        (FIELDS[each["name"]], each.get("value", ""))
        for role in ROLES
        for each in container_of(inside, role)["env"]
    }
    differing = {
        field.variable
        for field, value in given
        if meaning(field, value) != meaning(field, field.default)
    }
    assert len(given) > 25
    assert differing == set(DIFFERENT)


def meaning(field: settings.Field, written: str) -> object:
    """Return the value of a setting. Lists have no order, because helm sorts maps."""
    value = field.parse(written) if written else None
    return frozenset(value) if isinstance(value, tuple) else value


# --- the webhook ---


def test_webhook_is_reached_through_its_service(inside: list[Object]) -> None:
    assert the_webhook(inside)["clientConfig"] == {
        "service": {
            "name": "fairgate-webhook",
            "namespace": "fairgate-system",
            "path": "/admit",
            "port": 443,
        }
    }


@pytest.mark.parametrize("value", ["redis.url=", "redis.existingSecret="])
def test_chart_without_redis_is_refused(chart: Chart, value: str) -> None:
    done = chart.template(value)
    assert done.returncode
    assert "Without Redis no pod is ever released: set redis.url" in done.stderr


def test_programs_outside_the_cluster_need_no_redis_in_the_chart(chart: Chart) -> None:
    assert chart.template(OUTSIDE, "redis.url=").returncode == 0


@pytest.mark.parametrize("public", ["true", "false"])
def test_metrics_are_open_only_if_so_chosen(chart: Chart, public: str) -> None:
    documents = chart.render(f"metrics.public={public}")
    for name, deployment in of_kind(documents, "Deployment").items():
        variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        assert {"name": "FAIRGATE_METRICS_PUBLIC", "value": public} in variables
        rules = of_kind(documents, "ClusterRole")[name]["rules"]
        asks = any("tokenreviews" in each.get("resources", ()) for each in rules)
        assert asks == (public == "false" or name == "fairgate-api")
    reader = of_kind(documents, "ClusterRole")["fairgate-metrics-reader"]
    assert reader["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


@pytest.mark.parametrize("mode", [(), (OUTSIDE,)], ids=["inside", "outside"])
def test_ca_is_never_the_charts(chart: Chart, mode: tuple[str, ...]) -> None:
    assert "caBundle:" not in chart.template(*mode).stdout


def test_webhook_fails_closed_and_selects_namespaces_by_name_only(inside: list[Object]) -> None:
    for name, webhook in webhooks_of(inside).items():
        # If the webhook does not answer about a PriorityClass, the API server itself refuses the
        # change. An unsigned change counts as made by an unknown user. Pods of an object without a
        # stamp count for their controller.
        open_ones = ("update-pod", "sign", "stamp-annotations")
        assert webhook["failurePolicy"] == ("Ignore" if name.split(".")[0] in open_ones else "Fail")
        assert webhook["sideEffects"] == "None"
        assert webhook["timeoutSeconds"] == 5
        # Users cannot remove or forge this label on a managed pod. The attacks of row 10 test it.
        selector = LABELLED if name in ("status.fairgate.io", "update-pod.fairgate.io") else {}
        assert webhook["objectSelector"] == selector
    webhook = the_webhook(inside)
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    [rule] = webhook["namespaceSelector"]["matchExpressions"]
    assert rule["key"] == "kubernetes.io/metadata.name"
    assert rule["operator"] == "NotIn"
    assert tuple(rule["values"]) == settings.EXEMPT


def test_policies_on_the_path_of_every_pod_are_evaluated_only_if_a_rule_may_be_broken(
    chart: Chart,
) -> None:
    documents = chart.render(OUTSIDE)
    text = of_kind(documents, "ConfigMap")["fairgate-enforcement"]["data"]["policies.yaml"]
    policies = {
        each["metadata"]["name"]: each["spec"]
        for each in yaml.safe_load_all(text)
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    webhooks = webhooks_of(documents)
    for name in ("create", "update", "status"):
        spec, webhook = policies[f"fairgate-{name}"], webhooks[f"{name}.fairgate.io"]
        assert spec["matchConditions"] == webhook["matchConditions"]
        constraints = spec["matchConstraints"]
        assert constraints["resourceRules"] == webhook["rules"]
        assert constraints.get("objectSelector") == webhook.get("objectSelector")
    assert policies["fairgate-status"]["matchConstraints"]["objectSelector"] == LABELLED
    resources = [
        resource
        for spec in policies.values()
        for rule in spec["matchConstraints"]["resourceRules"]
        if "UPDATE" in rule["operations"]
        for resource in rule["resources"]
    ]
    assert resources.count("pods/status") == resources.count("pods") == 1


def test_webhook_configurations_disable_the_aks_admissions_enforcer(inside: list[Object]) -> None:
    text = of_kind(inside, "ConfigMap")["fairgate-enforcement"]["data"]["webhooks.yaml"]
    found = [each["metadata"]["annotations"] for each in yaml.safe_load_all(text)]
    assert found == [{"admissions.enforcer/disabled": "true"}] * 2


def test_managed_resources_make_the_match_conditions(chart: Chart) -> None:
    documents = chart.render("managedResources={example.com/tpu,example.com/slice-*}")
    [condition] = the_webhook(documents)["matchConditions"]
    for part in ("(r in ['example.com/tpu'] || ", " || r.startsWith('example.com/slice-'))"):
        assert part in condition["expression"]
    assert "nvidia" not in condition["expression"]


POD_LEVEL = "[dyn(object.spec)].exists(c, (c.?resources.?limits"


@pytest.mark.parametrize(
    ("managed", "asked"), [("cpu", True), ("hugepages-*", True), ("example.com/tpu", False)]
)
def test_requests_of_a_whole_pod_count_where_they_can_be_managed(
    chart: Chart, managed: str, asked: bool
) -> None:
    documents = chart.render(f"managedResources={{{managed}}}")
    [condition] = the_webhook(documents)["matchConditions"]
    assert (POD_LEVEL in condition["expression"]) is asked


def test_rules_of_the_chart_are_those_of_the_programs(inside: list[Object]) -> None:
    environment = {e["name"]: e.get("value") for e in container_of(inside, "webhook")["env"]}
    told = settings.load({k: v for k, v in environment.items() if v and k.startswith("FAIRGATE_")})
    usual = settings.load({"FAIRGATE_ROLES": "webhook"})
    assert (told.rules, told.templates) == (usual.rules, usual.templates)


def test_policies_are_left_out_only_if_so_chosen(chart: Chart) -> None:
    kinds = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert not kinds & {each["kind"] for each in chart.render("policies.enabled=false")}
    assert kinds <= {each["kind"] for each in chart.render("--kube-version=1.30")}


def test_an_api_server_without_policies_is_refused(chart: Chart) -> None:
    assert "requires kubeVersion: >=1.30" in chart.template("--kube-version=1.29").stderr


# --- objects that the watchdog restores ---


@pytest.mark.parametrize("where", [(), (OUTSIDE,)], ids=["inside", "outside"])
def test_chart_alone_contains_no_enforcement_objects(chart: Chart, where: tuple[str, ...]) -> None:
    done = chart.template(*where, "mode=Enforce")
    assert done.returncode == 0, done.stderr
    kinds = {each["kind"] for each in yaml.safe_load_all(done.stdout) if each}
    assert "ConfigMap" in kinds
    assert not kinds & set(enforcement_spec.PATHS)


@pytest.mark.parametrize("mode", ["Observe", "Enforce"])
def test_every_process_gets_the_mode(chart: Chart, mode: str) -> None:
    documents = chart.render(f"mode={mode}")
    data = of_kind(documents, "ConfigMap")[enforcement_spec.CONFIG_MAP]["data"]
    assert enforcement_spec.read_mode(data).value == mode
    for role in ("controller", "api"):
        variables = {e["name"]: e.get("value") for e in container_of(documents, role)["env"]}
        assert variables["FAIRGATE_MODE"] == mode


def test_the_mode_is_observe_unless_chosen(chart: Chart, inside: list[Object]) -> None:
    data = of_kind(inside, "ConfigMap")[enforcement_spec.CONFIG_MAP]["data"]
    assert enforcement_spec.read_mode(data).value == "Observe"
    assert chart.template("mode=enforce").returncode != 0


def test_webhook_may_write_exactly_the_enforcement_objects(inside: list[Object]) -> None:
    written = of_kind(inside, "ConfigMap")[enforcement_spec.CONFIG_MAP]["data"]
    role = of_kind(inside, "ClusterRole")["fairgate-webhook"]
    granted = {
        (resource, name)
        for rule in role["rules"]
        if rule["apiGroups"] == ["admissionregistration.k8s.io"]
        and set(rule["verbs"]) - {"list", "watch"}
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or ["anything"]
    }
    resources = {kind: path.rpartition("/")[2] for kind, path in enforcement_spec.PATHS.items()}
    kept = {(resources[ref.kind], ref.name) for ref in enforcement_spec.read_documents(written)}
    tried = {(resource, enforcement_apply.NORMAL_FORM) for resource in resources.values()}
    assert granted == kept | tried


def test_the_canary_lives_where_the_chart_lets_it(inside: list[Object]) -> None:
    assert enforcement_probes.NAMESPACE in of_kind(inside, "Namespace")
    assert enforcement_probes.NAMESPACE not in settings.EXEMPT
    [account] = [
        each
        for each in inside
        if each["kind"] == "ServiceAccount"
        and each["metadata"]["namespace"] == enforcement_probes.NAMESPACE
    ]
    assert account["metadata"]["name"] == enforcement_probes.ACCOUNT


def test_helm_test_objects_are_deleted_after_success(inside: list[Object]) -> None:
    hooks = [each for each in inside if annotations_of(each).get("helm.sh/hook") == "test"]
    assert {each["metadata"]["name"] for each in hooks} == {"fairgate-test"}
    for each in hooks:
        assert "hook-succeeded" in annotations_of(each)["helm.sh/hook-delete-policy"]
    [pod] = [each for each in hooks if each["kind"] == "Pod"]
    assert pod["spec"]["containers"][0]["image"] == container_of(inside, "api")["image"]


# --- TLS ---

OWN = "tls.existingSecret=own"
ISSUED = ("certManager.enabled=true", "certManager.issuerRef.name=ca")
FILES = {f"FAIRGATE_TLS_{part}_FILE" for part in ("CERT", "KEY", "CA")}


def files_of(documents: list[Object], role: str) -> set[str]:
    """Return the TLS file variables of a program; each file must be in a mounted volume."""
    container, pod = container_of(documents, role), pod_of(documents, role)
    mounts = {each["mountPath"]: each["name"] for each in container.get("volumeMounts", [])}
    assert set(mounts.values()) == {each["name"] for each in pod.get("volumes", [])}
    told = {e["name"]: e["value"] for e in container["env"] if e["name"].endswith("_FILE")}
    assert all(path.rpartition("/")[0] in mounts for path in told.values())
    return set(told)


def test_no_files_are_mounted_by_default(inside: list[Object]) -> None:
    for role in ROLES:
        assert files_of(inside, role) == set()
    assert not of_kind(inside, "Certificate")


@pytest.mark.parametrize(
    ("values", "secret"),
    [((OWN,), "own"), (ISSUED, "fairgate-cert-manager")],
    ids=["own", "issued"],
)
def test_provided_certificate_is_mounted_as_files(
    chart: Chart, values: tuple[str, ...], secret: str
) -> None:
    documents = chart.render(*values)
    for role in ("webhook", "api"):
        assert files_of(documents, role) == FILES
        [volume] = pod_of(documents, role)["volumes"]
        assert volume["secret"] == {"secretName": secret, "defaultMode": 0o400}
        assert pod_of(documents, role)["securityContext"]["fsGroup"]
    assert files_of(documents, "controller") == set()


def test_cert_manager_certificate_has_the_service_names(chart: Chart) -> None:
    [certificate] = of_kind(chart.render(*ISSUED), "Certificate").values()
    spec = certificate["spec"]
    assert spec["secretName"] == "fairgate-cert-manager"
    assert spec["issuerRef"] == {"name": "ca"}
    assert {f"fairgate-{role}.fairgate-system.svc" for role in ("webhook", "api")} <= set(
        spec["dnsNames"]
    )
    assert not of_kind(chart.render(*ISSUED, OUTSIDE), "Certificate")


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret"])
def test_only_the_webhook_requires_client_certificates(chart: Chart, kind: str) -> None:
    documents = chart.render(f"tls.clientCA.existing{kind}=callers", "tls.clientCA.key=x.pem")
    assert files_of(documents, "webhook") == {"FAIRGATE_TLS_CLIENT_CA_FILE"}
    for role in ("api", "controller"):
        assert files_of(documents, role) == set()
    [volume] = pod_of(documents, "webhook")["volumes"]
    assert "callers" in str(volume)


def test_two_sources_of_one_certificate_are_refused(chart: Chart) -> None:
    assert "set one of them" in chart.template(*ISSUED, OWN).stderr
    both = ("tls.clientCA.existingSecret=a", "tls.clientCA.existingConfigMap=b")
    assert "name one of them" in chart.template(*both).stderr


def test_webhook_matches_pods_with_resource_claims_or_device_classes(
    inside: list[Object],
) -> None:
    [condition] = the_webhook(inside)["matchConditions"]
    assert "r.startsWith('deviceclass.resource.kubernetes.io/')" in condition["expression"]
    assert "object.spec.?resourceClaims.orValue([]).size() > 0" in condition["expression"]


def test_tenant_admins_may_touch_their_own_tenant_alone(chart: Chart) -> None:
    person = "tenantAdmins[0].subjects[0].kind=User,tenantAdmins[0].subjects[0].name=alice"
    documents = chart.render("tenantAdmins[0].tenant=team-a", person)
    role = of_kind(documents, "ClusterRole")["fairgate-tenant-admin-team-a"]
    # What-if runs and the page are read-only and show no other tenant.
    free = (["simulations"], ["stream"])
    named = [rule for rule in role["rules"] if rule["resources"] not in free]
    assert len(named) == len(role["rules"]) - len(free)
    assert all(rule["resourceNames"] == ["team-a"] for rule in named)
    binding = of_kind(documents, "ClusterRoleBinding")["fairgate-tenant-admin-team-a"]
    assert [each["name"] for each in binding["subjects"]] == ["alice"]


def test_two_admin_lists_of_one_tenant_share_one_role(chart: Chart) -> None:
    names = ("alice", "bob"), ("bob", "carol")
    given = [
        {"tenant": "team-a", "subjects": [{"kind": "User", "name": name} for name in each]}
        for each in names
    ]
    documents = chart.render(f"--set-json=tenantAdmins={json.dumps(given)}")
    name = "fairgate-tenant-admin-team-a"
    ours = [each["kind"] for each in documents if each["metadata"]["name"] == name]
    assert ours == ["ClusterRole", "ClusterRoleBinding"]
    binding = of_kind(documents, "ClusterRoleBinding")[name]
    assert [each["name"] for each in binding["subjects"]] == ["alice", "bob", "carol"]


# --- refused values ---


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("managedResources={nvidia.com/gpu' || true || '}", "managedResources"),
        ("managedResources={*}", "managedResources"),
        ("managedResources=null", "managedResources"),
        ("deviceClasses.gpu=nvidia.com/mig-*", "deviceClasses"),
        ("deviceClasses.GPU=nvidia.com/gpu", "GPU"),
        ("exemptNamespaces={kube_system}", "exemptNamespaces"),
        ("exemptNamespaces={fairgate-system,Kube-System}", "exemptNamespaces"),
        ("exemptNamespaces={fairgate-system,fairgate-canary}", "fairgate-canary"),
        ("webhook.canarySeconds=-1", "canarySeconds"),
        ("external.webhookUrl=http://127.0.0.1/admit", "webhookUrl"),
        ("redis.url=http://redis:6379", "redis"),
        ("webhook.timeoutSeconds=60", "timeoutSeconds"),
        ("webhook.timeoutSeconds=soon", "timeoutSeconds"),
        ("webhook.replicas=0", "replicas"),
        ("webhook.replica=3", "replica"),
        ("managedResource={nvidia.com/gpu}", "managedResource"),
        ("logLevel=loud", "logLevel"),
        ("preemption.twins=maybe", "preemption"),
        ("tls.days=0", "days"),
        ("audit.days=0", "days"),
        ("usage.days=0", "days"),
        ("audit.existingClaim=No_Name", "existingClaim"),
        ("tls.settleSeconds=soon", "settleSeconds"),
        ("tls.existingSecret=No_Name", "existingSecret"),
        ("tls.clientCa.key=x", "clientCa"),
        ("certManager.enabled=true", "issuerRef"),
        ("certManager.duration=90d", "duration"),
    ],
)
def test_wrong_value_is_refused_by_name(chart: Chart, value: str, words: str) -> None:
    done = chart.template(value)
    assert done.returncode
    assert words in done.stderr


@pytest.mark.parametrize("mode", [(), (OUTSIDE,)], ids=["inside", "outside"])
@pytest.mark.parametrize(
    ("value", "lacking"),
    [("exemptNamespaces={kube-system}", "fairgate-system"), ("--namespace=elsewhere", "elsewhere")],
)
def test_namespace_of_fairgate_must_be_exempt(
    chart: Chart, value: str, lacking: str, mode: tuple[str, ...]
) -> None:
    done = chart.template(value, *mode)
    assert done.returncode
    assert f"exemptNamespaces lacks {lacking}" in done.stderr
    assert "add it" in done.stderr


def test_fairgate_may_live_in_a_namespace_of_another_name(chart: Chart) -> None:
    documents = chart.render("--namespace=elsewhere", "extraExemptNamespaces={elsewhere}")
    homes = {each["metadata"].get("namespace", "elsewhere") for each in documents}
    assert homes == {"elsewhere", enforcement_probes.NAMESPACE, "kube-system"}
    there = [each for each in documents if each["metadata"].get("namespace") == "kube-system"]
    assert [each["metadata"]["name"] for each in there] == ["fairgate-api-front-proxy"]
    assert the_webhook(documents)["clientConfig"]["service"]["namespace"] == "elsewhere"
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in of_kind(documents, kind).values():
            accounts = [each for each in binding["subjects"] if each["kind"] == "ServiceAccount"]
            assert {each["namespace"] for each in accounts} <= {"elsewhere"}
