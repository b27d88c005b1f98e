{{/*
What the webhook processes keep in force, and may write: the names of all objects of one kind in the
ConfigMap fairgate-enforcement, as JSON: (dict "root" $ "kind" "ValidatingAdmissionPolicy"). With
them the name under which documents are tried, which no object has.
*/}}
{{- define "fairgate.enforcement.names" -}}
{{- $names := list "fairgate-normal-form" -}}
{{- range $stream := list "fairgate.enforcement.webhooks" "fairgate.policies" -}}
{{- range $text := regexSplit "(?m)^---.*$" (include $stream $.root) -1 -}}
{{- $document := fromYaml $text -}}
{{- if eq ($document.kind | default "") $.kind -}}
{{- $names = append $names $document.metadata.name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ $names | uniq | toJson }}
{{- end }}
