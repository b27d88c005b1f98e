{{/* Labels of every object. */}}
{{- define "fairgate.labels" -}}
app.kubernetes.io/name: fairgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The same with further labels, which win: (dict "root" $ "labels" .Values.alerts.labels). */}}
{{- define "fairgate.labelsWith" -}}
{{ merge dict (.labels | default dict) (include "fairgate.labels" .root | fromYaml) | toYaml }}
{{- end }}

{{/* Labels that select the pods of one component: (dict "root" $ "component" "webhook"). */}}
{{- define "fairgate.selector" -}}
app.kubernetes.io/name: fairgate
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "fairgate.image" -}}
{{- $repository := required "image.repository is empty. No image of Fairgate is published: build one by `make image` in the source, push it to a registry that your nodes can reach, and set image.repository=REGISTRY/fairgate." .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Parameters of the admission rules, as the processes read them. */}}
{{- define "fairgate.rules" -}}
{{ dict "controllers" (include "fairgate.controllerUsers" . | fromJsonArray) "schedulers" .Values.schedulers.names "scheduler_users" .Values.schedulers.users "phase_writers" .Values.phaseWriters "variables" .Values.devices.variables "paths" .Values.devices.paths "refuse_privileged" .Values.devices.refusePrivileged "taints" .Values.devices.taints "refuse_preemption" .Values.preemption.twins "refuse_other_namespaces" .Values.antiAffinity.refuseOtherNamespaces | toJson }}
{{- end }}
{{- define "fairgate.templateList" -}}
{{- $all := list -}}
{{- range include "fairgate.podTemplates" . | fromJsonArray -}}{{- $all = append $all (printf "%s/%s=%s" .group .resource .path) -}}{{- end -}}
{{ join "," $all }}
{{- end }}

{{/* Device classes and the resources that they count as. */}}
{{- define "fairgate.deviceClasses" -}}
{{- $pairs := list -}}
{{- range $class, $resource := .Values.deviceClasses -}}
{{- $pairs = append $pairs (printf "%s=%s" $class $resource) -}}
{{- end -}}
{{ join "," $pairs }}
{{- end }}

{{/* Settings of all processes, as environment variables. */}}
{{- define "fairgate.environment" -}}
- name: FAIRGATE_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: FAIRGATE_CLUSTER
  value: {{ .Values.cluster | quote }}
- name: FAIRGATE_MANAGED_RESOURCES
  value: {{ include "fairgate.managedResources" . | fromJsonArray | join "," | quote }}
- name: FAIRGATE_DEVICE_CLASSES
  value: {{ include "fairgate.deviceClasses" . | quote }}
- name: FAIRGATE_EXEMPT_NAMESPACES
  value: {{ include "fairgate.exemptNamespaces" . | fromJsonArray | join "," | quote }}
- name: FAIRGATE_RULES
  value: {{ include "fairgate.rules" . | quote }}
- name: FAIRGATE_TEMPLATES
  value: {{ include "fairgate.templateList" . | quote }}
- name: FAIRGATE_METRICS_PUBLIC
  value: {{ .Values.metrics.public | quote }}
- name: FAIRGATE_LOG_LEVEL
  value: {{ .Values.logLevel | quote }}
- name: FAIRGATE_DRAIN_SECONDS
  value: {{ .Values.webhook.drainSeconds | quote }}
{{- end }}

{{/* Port at which the API server reaches the aggregated REST API; empty if it is off. */}}
{{- define "fairgate.aggregatedPort" -}}
{{- if .Values.api.aggregated -}}
{{- if .Values.external.webhookUrl -}}
{{- if .Values.external.aggregatedPort }}{{ .Values.external.aggregatedPort }}{{ end -}}
{{- else if .Values.api.replicas }}{{ .Values.api.aggregatedPort | default 8445 }}{{ end -}}
{{- end -}}
{{- end }}

{{/* DNS names of the Services and further names, for the shared certificate of webhook and API. */}}
{{- define "fairgate.tlsNames" -}}
{{- $names := list -}}
{{- range list "fairgate-webhook" "fairgate-api" -}}
{{- $host := printf "%s.%s.svc" . $.Release.Namespace -}}
{{- $names = concat $names (list $host (printf "%s.cluster.local" $host)) -}}
{{- end -}}
{{ concat $names (.Values.tls.extraNames | default list) | uniq | join "," }}
{{- end }}

{{/* The Secret of the serving certificate; empty if Fairgate issues its own. */}}
{{- define "fairgate.tlsSecret" -}}
{{- if .Values.certManager.enabled }}fairgate-cert-manager{{ else }}{{ .Values.tls.existingSecret }}{{ end -}}
{{- end }}

{{/* Whether a component checks the API server's client certificate: (dict "root" $ "component" "webhook"). */}}
{{- define "fairgate.hasClientCA" -}}
{{- $ca := .root.Values.tls.clientCA -}}
{{- if and $ca.existingConfigMap $ca.existingSecret -}}
{{- fail "tls.clientCA names existingConfigMap and existingSecret; name one of them." -}}
{{- end -}}
{{- if and (eq .component "webhook") (or $ca.existingConfigMap $ca.existingSecret) }}yes{{ end -}}
{{- end }}

{{/* TLS settings of one serving component: (dict "root" $ "component" "webhook"). */}}
{{- define "fairgate.tlsEnvironment" -}}
- {name: FAIRGATE_TLS_NAMES, value: {{ include "fairgate.tlsNames" .root | quote }}}
- {name: FAIRGATE_TLS_DAYS, value: {{ .root.Values.tls.days | quote }}}
- {name: FAIRGATE_TLS_SETTLE_SECONDS, value: {{ .root.Values.tls.settleSeconds | quote }}}
{{- if include "fairgate.tlsSecret" .root }}
- {name: FAIRGATE_TLS_CERT_FILE, value: /run/fairgate/tls/tls.crt}
- {name: FAIRGATE_TLS_KEY_FILE, value: /run/fairgate/tls/tls.key}
- {name: FAIRGATE_TLS_CA_FILE, value: /run/fairgate/tls/ca.crt}
{{- end }}
{{- if include "fairgate.hasClientCA" . }}
- {name: FAIRGATE_TLS_CLIENT_CA_FILE, value: {{ printf "/run/fairgate/client-ca/%s" .root.Values.tls.clientCA.key | quote }}}
{{- end }}
{{- end }}

{{/* The mounts and volumes of these files; empty if not needed. */}}
{{- define "fairgate.tlsMounts" -}}
{{- if include "fairgate.tlsSecret" .root }}
- {name: tls, mountPath: /run/fairgate/tls, readOnly: true}
{{- end }}
{{- if include "fairgate.hasClientCA" . }}
- {name: client-ca, mountPath: /run/fairgate/client-ca, readOnly: true}
{{- end }}
{{- end }}

{{- define "fairgate.tlsVolumes" -}}
{{- with include "fairgate.tlsSecret" .root }}
# Readable only by Fairgate, through its fsGroup, because the owner of such files is root.
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- if include "fairgate.hasClientCA" . }}
{{- $ca := .root.Values.tls.clientCA }}
- name: client-ca
  {{- if $ca.existingConfigMap }}
  configMap: {name: {{ $ca.existingConfigMap }}, defaultMode: 0400}
  {{- else }}
  # Mounts only the certificate, not a private key in the same Secret.
  secret:
    secretName: {{ $ca.existingSecret }}
    defaultMode: 0400
    items: [{key: {{ $ca.key }}, path: {{ $ca.key }}}]
  {{- end }}
{{- end }}
{{- end }}

{{/* Files that the Redis URL may name. */}}
{{- define "fairgate.redisMounts" -}}
{{- if .Values.redis.filesSecret }}
- {name: redis, mountPath: /run/fairgate/redis, readOnly: true}
{{- end }}
{{- end }}

{{- define "fairgate.redisVolumes" -}}
{{- with .Values.redis.filesSecret }}
- name: redis
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- end }}

{{/* The folder for the copy of the audit chain, if configured. */}}
{{- define "fairgate.auditMounts" -}}
{{- if .Values.audit.existingClaim }}
- {name: audit, mountPath: /var/lib/fairgate/audit}
{{- end }}
{{- end }}

{{- define "fairgate.auditVolumes" -}}
{{- with .Values.audit.existingClaim }}
- name: audit
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- end }}

{{/* Schema of status.conditions, as in the Kubernetes API conventions. */}}
{{- define "fairgate.conditions" -}}
type: array
maxItems: 16
x-kubernetes-list-type: map
x-kubernetes-list-map-keys: [type]
items:
  type: object
  required: [type, status]
  properties:
    type: {type: string}
    status: {type: string, enum: ["True", "False", "Unknown"]}
    reason: {type: string}
    message: {type: string}
    lastTransitionTime: {type: string, format: date-time}
    observedGeneration: {type: integer, format: int64}
{{- end }}

{{/* Schema of a weight: a decimal of 0 or more. A rule instead of a pattern, for a readable message. */}}
{{- define "fairgate.decimal" -}}
type: string
maxLength: 16
x-kubernetes-validations:
  - rule: "self.matches('^(0|[1-9][0-9]{0,8})([.][0-9]{1,6})?$')"
    message: "must be a decimal number of 0 or more, such as 2 or 0.5; at most six decimals"
{{- end }}

{{/* Schema of parts of the cluster, by resource. */}}
{{- define "fairgate.parts" -}}
type: object
description: Decayed average of what was borrowed, by resource, as parts of the cluster.
additionalProperties: {type: string, maxLength: 50, pattern: '^[0-9]+([.][0-9]+)?$'}
{{- end }}

{{/* Schema of resource-seconds, by pool and resource. */}}
{{- define "fairgate.totals" -}}
type: object
description: Resource-seconds used so far, by pool and resource.
additionalProperties:
  type: object
  additionalProperties: {type: string, maxLength: 50, pattern: '^[0-9]+([.][0-9]+)?$'}
{{- end }}

{{/* Schema of a decimal above 0. */}}
{{- define "fairgate.positiveDecimal" -}}
type: string
maxLength: 16
x-kubernetes-validations:
  - rule: "self.matches('^(0|[1-9][0-9]{0,8})([.][0-9]{1,6})?$') && self.matches('[1-9]')"
    message: "must be a decimal number above 0, such as 4 or 1.2; at most six decimals"
{{- end }}

{{/* Schema of a duration. */}}
{{- define "fairgate.duration" -}}
type: string
maxLength: 24
x-kubernetes-validations:
  - rule: "self != '' && self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$')"
    message: "must be a duration in hours, minutes and seconds, such as 90s, 5m or 1h30m"
{{- end }}

{{/*
Whether the API server supports quantities in the rules of these schemas. Before 1.34 it estimates
every quantity as a string of three megabytes, and refuses the rules as too costly.
*/}}
{{- define "fairgate.countsQuantities" -}}
{{- if semverCompare ">=1.34-0" .Capabilities.KubeVersion.Version }}yes{{ end -}}
{{- end }}

{{/*
Whether a value is a quantity. Argument: CEL of the value. To parse an exponent of many digits costs
the API server seconds, so no more than two are accepted.
*/}}
{{- define "fairgate.isQuantity" -}}
(!string({{ . }}).matches('[eE][+-]?[0-9]{3}') && isQuantity(string({{ . }})))
{{- end }}

{{/* Schema of amounts by resource: legal quantities of 0 or more. */}}
{{- define "fairgate.amounts" -}}
type: object
maxProperties: 16
{{- if include "fairgate.countsQuantities" . }}
additionalProperties: {x-kubernetes-int-or-string: true, maxLength: 32}
x-kubernetes-validations:
  - rule: "self.all(r, {{ include "fairgate.isQuantity" "self[r]" }} && quantity(string(self[r])).compareTo(quantity('0')) >= 0)"
    message: "an amount must be a quantity of 0 or more, such as 8 or 64Gi"
{{- else }}
additionalProperties:
  x-kubernetes-int-or-string: true
  maxLength: 32
  minimum: 0
  pattern: '^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$'
{{- end }}
{{- end }}

{{/* The bytes of a quantity, or of an amount of memory as Redis writes it. */}}
{{- define "fairgate.bytes" -}}
{{- $unit := regexFind "[A-Za-z]*$" (toString .) -}}
{{- $decimal := dict "" 1 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- $binary := dict "Ki" 0x1p10 "Mi" 0x1p20 "Gi" 0x1p30 "Ti" 0x1p40 "Pi" 0x1p50 "Ei" 0x1p60 -}}
{{- $ofRedis := dict "kb" 0x1p10 "mb" 0x1p20 "gb" 0x1p30 -}}
{{ mulf (trimSuffix $unit (toString .)) (get (merge $decimal $binary $ofRedis) $unit) }}
{{- end }}
