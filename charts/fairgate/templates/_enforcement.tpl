{{/*
Names of the objects of one kind that the webhook processes keep in force and may write, as in the
ConfigMap fairgate-enforcement, as JSON: (dict "root" $ "kind" "ValidatingAdmissionPolicy"). Includes
the name that is used for dry runs of documents, which no object has.
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
