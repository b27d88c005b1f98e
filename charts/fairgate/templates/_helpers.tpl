{{/* Labels of every object. */}}
{{- define "fairgate.labels" -}}
app.kubernetes.io/name: fairgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Labels that select the pods of one component: (dict "root" $ "component" "webhook"). */}}
{{- define "fairgate.selector" -}}
app.kubernetes.io/name: fairgate
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "fairgate.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* CEL: whether the resource named `r` is managed. */}}
{{- define "fairgate.isManaged" -}}
{{- $terms := list -}}
{{- range .Values.managedResources -}}
{{- if hasSuffix "*" . -}}
{{- $terms = append $terms (printf "r.startsWith('%s')" (trimSuffix "*" .)) -}}
{{- else -}}
{{- $terms = append $terms (printf "r == '%s'" .) -}}
{{- end -}}
{{- end -}}
{{ join " || " $terms }}
{{- end }}

{{/* CEL: whether the resource requirements `c` (of a container or a pod) ask for a managed one. */}}
{{- define "fairgate.asks" -}}
has(c.resources) && (
  (has(c.resources.requests) && c.resources.requests.exists(r, {{ include "fairgate.isManaged" . }})) ||
  (has(c.resources.limits) && c.resources.limits.exists(r, {{ include "fairgate.isManaged" . }})))
{{- end }}

{{/* Settings that all programs share, as environment variables. */}}
{{- define "fairgate.environment" -}}
- name: FAIRGATE_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: FAIRGATE_IDENTITY
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: FAIRGATE_CLUSTER
  value: {{ .Values.cluster | quote }}
- name: FAIRGATE_MANAGED_RESOURCES
  value: {{ join "," .Values.managedResources | quote }}
- name: FAIRGATE_EXEMPT_NAMESPACES
  value: {{ join "," .Values.exemptNamespaces | quote }}
- name: FAIRGATE_LOG_LEVEL
  value: {{ .Values.logLevel | quote }}
- name: FAIRGATE_DRAIN_SECONDS
  value: {{ .Values.webhook.drainSeconds | quote }}
{{- end }}

{{- define "fairgate.redis" -}}
- name: FAIRGATE_REDIS_URL
{{- if .Values.redis.existingSecret }}
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.existingSecret }}, key: {{ .Values.redis.secretKey }}}}
{{- else }}
  value: {{ .Values.redis.url | quote }}
{{- end }}
{{- end }}

{{/* What every pod of Fairgate has in common, but its containers. */}}
{{- define "fairgate.pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
priorityClassName: {{ .Values.priorityClassName }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "fairgate.container" -}}
image: {{ include "fairgate.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
livenessProbe:
  httpGet: {path: /livez, port: ops}
  periodSeconds: 10
  timeoutSeconds: 3
readinessProbe:
  httpGet: {path: /readyz, port: ops}
  periodSeconds: 2
  timeoutSeconds: 2
{{- end }}

{{/* Schema of status.conditions, as the API conventions write it. */}}
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
