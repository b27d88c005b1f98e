{{/* Admission policies and their bindings, as a stream of YAML documents. */}}
{{- define "fairgate.policies" -}}
{{- end }}
