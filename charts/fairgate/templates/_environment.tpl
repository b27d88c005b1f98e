{{/* Settings of one component, as environment variables: (dict "root" $ "component" "webhook"). */}}
{{- define "fairgate.componentEnvironment" -}}
{{- $environment := include "fairgate.ownEnvironment" . -}}
{{ $environment }}
{{- with include "fairgate.extraEnvironment" (dict "root" .root "component" .component "environment" $environment) }}
{{ . }}
{{- end }}
{{- end }}

{{- define "fairgate.ownEnvironment" -}}
{{- $root := .root -}}
{{- $own := index .root.Values .component -}}
- {name: FAIRGATE_ROLES, value: {{ .component }}}
{{- include "fairgate.environment" $root | nindent 0 }}
- {name: FAIRGATE_OPS_LISTEN, value: {{ printf "0.0.0.0:%s" (include "fairgate.opsPort" .) | quote }}}
{{- if ne .component "webhook" }}
- {name: FAIRGATE_MODE, value: {{ $root.Values.mode }}}
{{- end }}
{{- if ne .component "controller" }}
{{- include "fairgate.tlsEnvironment" . | nindent 0 }}
{{- end }}
{{- if eq .component "webhook" }}
- {name: FAIRGATE_WEBHOOK_LISTEN, value: {{ printf "0.0.0.0:%v" ($own.port | default 8443) | quote }}}
- {name: FAIRGATE_CANARY_SECONDS, value: {{ $own.canarySeconds | quote }}}
- {name: FAIRGATE_PREEMPTION_TWINS, value: {{ $root.Values.preemption.twins | quote }}}
{{- else if eq .component "api" }}
- {name: FAIRGATE_API_LISTEN, value: {{ printf "0.0.0.0:%v" ($own.port | default 8444) | quote }}}
- {name: FAIRGATE_API_REQUESTS_PER_SECOND, value: {{ $own.requestsPerSecond | int | quote }}}
{{- with $own.tokenAudiences }}
- {name: FAIRGATE_TOKEN_AUDIENCES, value: {{ join "," . | quote }}}
{{- end }}
{{- with include "fairgate.aggregatedPort" $root }}
- {name: FAIRGATE_AGGREGATED_LISTEN, value: {{ printf "0.0.0.0:%s" . | quote }}}
{{- end }}
{{- end }}
{{- include "fairgate.redis" $root | nindent 0 }}
{{- if eq .component "controller" }}
- {name: FAIRGATE_LEASE_SECONDS, value: {{ $own.leaseSeconds | quote }}}
- {name: FAIRGATE_RELEASE_CONCURRENCY, value: {{ $own.releaseConcurrency | quote }}}
- {name: FAIRGATE_EVICT_BYPASSED, value: {{ $own.evictBypassed | quote }}}
- {name: FAIRGATE_EVICTIONS_PER_MINUTE, value: {{ $own.evictionsPerMinute | int | quote }}}
- {name: FAIRGATE_RECLAIM_ZOMBIES, value: {{ $own.reclaimZombies | join "," | quote }}}
- {name: FAIRGATE_PROMETHEUS_URL, value: {{ $own.prometheusUrl | quote }}}
- {name: FAIRGATE_IDLE_MINUTES, value: {{ $own.idleMinutes | int | quote }}}
- {name: FAIRGATE_AUDIT_DAYS, value: {{ $root.Values.audit.days | quote }}}
- {name: FAIRGATE_AUDIT_MEGABYTES, value: {{ $root.Values.audit.megabytes | int | quote }}}
- {name: FAIRGATE_USAGE_DAYS, value: {{ $root.Values.usage.days | quote }}}
- {name: FAIRGATE_USAGE_RUNS, value: {{ $root.Values.usage.runs | int | quote }}}
{{- if $root.Values.audit.existingClaim }}
- {name: FAIRGATE_AUDIT_FOLDER, value: /var/lib/fairgate/audit}
{{- end }}
{{- end }}
{{- end }}

{{/* The further variables of a component. A variable that the chart sets already is refused. */}}
{{- define "fairgate.extraEnvironment" -}}
{{- $component := .component -}}
{{- $set := list -}}
{{- range fromYamlArray .environment }}{{- $set = append $set .name -}}{{- end -}}
{{- range (index .root.Values .component).extraEnv -}}
{{- if has .name $set -}}
{{- fail (printf "%s.extraEnv sets %s, which the chart sets already; change the value of the chart, or override it by %s.extraArgs." $component .name $component) -}}
{{- end -}}
{{- $set = append $set .name -}}
{{- end -}}
{{- with (index .root.Values .component).extraEnv }}{{ toYaml . }}{{ end -}}
{{- end }}
