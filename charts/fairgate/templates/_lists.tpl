{{/*
Lists of the values with their extensions, each as a JSON array. "... | default list" allows values
of an older chart that lack the extension.
*/}}
{{- define "fairgate.managedResources" -}}
{{ concat .Values.managedResources (.Values.extraManagedResources | default list) | uniq | toJson }}
{{- end }}

{{- define "fairgate.exemptNamespaces" -}}
{{ concat .Values.exemptNamespaces (.Values.extraExemptNamespaces | default list) | uniq | toJson }}
{{- end }}

{{- define "fairgate.controllerUsers" -}}
{{ concat .Values.controllerUsers (.Values.extraControllerUsers | default list) | uniq | toJson }}
{{- end }}

{{- define "fairgate.podTemplates" -}}
{{ concat .Values.podTemplates (.Values.extraPodTemplates | default list) | uniq | toJson }}
{{- end }}
