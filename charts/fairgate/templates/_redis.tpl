{{/* The Redis URL, as an environment variable. */}}
{{- define "fairgate.redis" -}}
- name: FAIRGATE_REDIS_URL
{{- if (.Values.redis.bundled).enabled }}
  valueFrom: {secretKeyRef: {name: fairgate-redis, key: url}}
{{- else if .Values.redis.existingSecret }}
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.existingSecret }}, key: {{ .Values.redis.secretKey }}}}
{{- else }}
  value: {{ required "redis.url is empty. Without Redis no pod is ever released: set redis.url=redis://HOST:6379/0, or redis.existingSecret to the Secret that holds the URL, or redis.bundled.enabled=true for a trial." .Values.redis.url | quote }}
{{- end }}
{{- end }}

{{/*
The password of the bundled Redis: the value, or the one that the cluster already has, or a new one,
which becomes the value, so that every template gets the same.
*/}}
{{- define "fairgate.redisPassword" -}}
{{- $stored := (lookup "v1" "Secret" .Release.Namespace "fairgate-redis").data | default dict -}}
{{- if .Values.redis.bundled.password -}}
{{ .Values.redis.bundled.password }}
{{- else if $stored.password -}}
{{ b64dec $stored.password }}
{{- else -}}
{{- $_ := set .Values.redis.bundled "password" (randAlphaNum 32) -}}
{{ .Values.redis.bundled.password }}
{{- end -}}
{{- end }}

{{/*
Changes with the password. It is derived by scrypt with the release as salt, because users who may
read pods see it, and must not find a weak password by it.
*/}}
{{- define "fairgate.redisChecksum" -}}
{{ derivePassword 1 "long" (include "fairgate.redisPassword" .) .Release.Name .Release.Namespace | sha256sum }}
{{- end }}

{{/* Labels that select the pod of the bundled Redis. */}}
{{- define "fairgate.redisSelector" -}}
app.kubernetes.io/name: fairgate-redis
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
