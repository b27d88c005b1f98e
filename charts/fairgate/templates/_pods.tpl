{{/*
Settings of the pods of one component. All take (dict "root" $ "component" "webhook"). A value of the
component goes before the common one.
*/}}

{{/* Fields of the pod, without its containers. */}}
{{- define "fairgate.pod" -}}
{{- $own := index .root.Values .component -}}
{{- $common := .root.Values -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
priorityClassName: {{ $common.priorityClassName }}
{{- with $common.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- if $own.hostNetwork }}
hostNetwork: true
# Otherwise the pod would resolve names like its node, without the Services of the cluster.
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with $own.nodeSelector | default $common.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations | default $common.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- $selector := include "fairgate.selector" . | fromYaml }}
{{- with $own.affinity | default $common.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- else }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector: {matchLabels: {{ toJson $selector }}}
{{- end }}
{{- with $own.topologySpreadConstraints | default $common.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  # An empty selector would select the pods of all components.
  - {{ .labelSelector | empty | ternary (merge (dict "labelSelector" (dict "matchLabels" $selector)) .) . | toYaml | nindent 4 | trim }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Labels and annotations of the pods. */}}
{{- define "fairgate.podMetadata" -}}
{{- $own := index .root.Values .component -}}
labels:
  {{- include "fairgate.selector" . | nindent 2 }}
  {{- with merge dict ($own.podLabels | default dict) (.root.Values.podLabels | default dict) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := merge dict ($own.podAnnotations | default dict) (.root.Values.podAnnotations | default dict) }}
{{- if (.root.Values.redis.bundled).enabled }}
# A process reads the URL of Redis, with its password, only when it starts.
{{- $_ := set $annotations "checksum/redis" (include "fairgate.redisChecksum" .root) }}
{{- end }}
{{- with $annotations }}
annotations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The port of /livez, /readyz and /metrics. */}}
{{- define "fairgate.opsPort" -}}
{{ (index .root.Values .component).opsPort | default 8080 }}
{{- end }}

{{/* The rolling update of a Deployment. */}}
{{- define "fairgate.strategy" -}}
{{- if (index .root.Values .component).hostNetwork -}}
# A node has the ports of one replica only, so an old one may have to stop first.
rollingUpdate: {maxUnavailable: 1, maxSurge: 1}
{{- else -}}
# No fewer replicas during an update: without the webhook no GPU pod can be created.
rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
{{- end -}}
{{- end }}

{{/* Fields of the container, without name, command, environment and ports. Argument: the root. */}}
{{- define "fairgate.container" -}}
image: {{ include "fairgate.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
# The status of the pod, and fairgate doctor, say why the container ended.
terminationMessagePolicy: FallbackToLogsOnError
{{ include "fairgate.containerSecurity" . }}
{{- end }}

{{- define "fairgate.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "fairgate.probes" -}}
# The process may have to wait for the API server first.
startupProbe:
  httpGet: {path: /livez, port: ops}
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: ops}
  periodSeconds: 10
  timeoutSeconds: 3
readinessProbe:
  httpGet: {path: /readyz, port: ops}
  periodSeconds: 1
  timeoutSeconds: 1
  failureThreshold: 6
{{- end }}
