{{/*
CEL of the pod templates inside other objects, and of the submitters in them. The kinds and paths
are the value podTemplates; app/core/admission/workload_kinds.py has the same defaults.
*/}}

{{/*
The pod templates in `object` or `oldObject`, as a list: (dict "root" $ "of" "object" "only" "specs").
The paths depend on the kind, and a kind may have several. only: specs, annotations, or empty for both.
*/}}
{{- define "fairgate.templates" -}}
{{- $of := .of -}}
{{- $only := .only -}}
{{- $parts := dict -}}
{{- range include "fairgate.podTemplates" .root | fromJsonArray -}}
{{- if or (not $only) (eq $only (include "fairgate.leadsTo" .path)) -}}
{{- $kind := printf "%s/%s" .group .resource -}}
{{- $part := include "fairgate.templatesAt" (dict "of" $of "path" .path) -}}
{{- $_ := set $parts $kind (append (get $parts $kind | default list) $part) -}}
{{- end -}}
{{- end -}}
{{- $kinds := dict -}}
{{- range $kind, $all := $parts -}}
{{- $whole := join " + " $all -}}
{{- $_ := set $kinds $whole (append (get $kinds $whole | default list) $kind) -}}
{{- end -}}
{{- $choice := "" -}}
{{- range $whole, $names := $kinds -}}
{{- $choice = printf "%sk in %s ? %s : " $choice (toJson $names) $whole -}}
{{- end -}}
[request.resource.group + '/' + request.resource.resource].map(k, {{ $choice }}dyn([]))[0]
{{- end }}

{{/* Whether a path leads to pod templates with a spec ("specs") or to annotations for pods only. */}}
{{- define "fairgate.leadsTo" -}}
{{ ternary "annotations" "specs" (hasSuffix ".annotations" .) }}
{{- end }}

{{/*
The pod templates at one path: keys joined by dots; [*] stands for every item of a list, {*} for
every value of a map. A path to annotations gives templates that have nothing else.
*/}}
{{- define "fairgate.templatesAt" -}}
{{- $star := ternary "[*]." (ternary "{*}." "" (contains "{*}." .path)) (contains "[*]." .path) -}}
{{- $item := "%s" -}}
{{- if hasSuffix ".annotations" .path -}}{{- $item = "{'metadata': {'annotations': %s}}" -}}{{- end -}}
{{- if $star -}}
{{- $halves := splitn $star 2 .path -}}
{{- $many := printf "dyn(%s).%s" .of (include "fairgate.optional" $halves._0) -}}
{{- $each := ternary "i" (printf "%s.orValue({})[i]" $many) (eq $star "[*].") -}}
{{- $found := printf "dyn(%s).%s.orValue({})" $each (include "fairgate.optional" $halves._1) -}}
dyn({{ $many }}.orValue({{ ternary "[]" "{}" (eq $star "[*].") }}).map(i, {{ printf $item $found }}))
{{- else -}}
dyn([{{ printf "dyn(%s).%s.orValue({})" .of (include "fairgate.optional" .path) | printf $item }}])
{{- end -}}
{{- end }}
{{- define "fairgate.optional" -}}
{{- $keys := list -}}
{{- range splitList "." . -}}{{- $keys = append $keys (printf "?%s" .) -}}{{- end -}}
{{ join "." $keys }}
{{- end }}

{{/* The submitters in templates, "" if absent. Argument: CEL of the templates. */}}
{{- define "fairgate.stamps" -}}
{{ . }}.map(t, t.?metadata.?annotations[?'fairgate.io/submitter'].orValue(''))
{{- end }}

{{/*
The apiGroups, versions and resources of templates, as rules of a webhook or policy:
(dict "root" $ "only" "specs"). only: specs, annotations, or empty for both.
*/}}
{{- define "fairgate.templateRules" -}}
{{- $rules := dict -}}
{{- $only := .only -}}
{{- range include "fairgate.podTemplates" .root | fromJsonArray -}}
{{- if or (not $only) (eq $only (include "fairgate.leadsTo" .path)) -}}
{{- $_ := set $rules (printf "%s/%s" .group .resource) . -}}
{{- end -}}
{{- end -}}
{{- range $rules }}
- apiGroups: [{{ .group | quote }}]
  apiVersions: {{ toJson .versions }}
  resources: [{{ .resource }}]
  operations: [CREATE, UPDATE]
  scope: Namespaced
{{- end }}
{{- end }}

{{/* The submitters in the templates of the old object, without absent ones: (dict "root" $ "only" "specs"). */}}
{{- define "fairgate.stampsBefore" -}}
(request.operation == 'CREATE' ? [] : {{ include "fairgate.stamps" (include "fairgate.templates" (dict "root" .root "of" "oldObject" "only" .only)) }}.filter(s, s != ''))
{{- end }}

{{/*
Whether the submitters of templates are absent, the caller, or unchanged. Arguments: CEL of the
submitters before and after. (dict "root" $ "before" .. "after" ..)
*/}}
{{- define "fairgate.stampsAreTrue" -}}
({{ include "fairgate.isController" .root }} ||
 (request.operation == 'UPDATE' && {{ .after }} == {{ include "fairgate.stamps" (include "fairgate.templates" (dict "root" .root "of" "oldObject")) }}) ||
 ({{ .before }}.size() > 0 ? {{ .after }}.all(s, s == {{ .before }}[0]) : {{ .after }}.all(s, s in ['', request.userInfo.username])) ||
 {{ include "fairgate.mayNameOwner" .root | replace "\n" " " }})
{{- end }}

{{/* Whether the templates of an object must be stamped: the object is new, or its templates change. */}}
{{- define "fairgate.isToBeStamped" -}}
{{- $after := include "fairgate.templates" (dict "root" . "of" "object" "only" "specs") -}}
{{- $before := include "fairgate.templates" (dict "root" . "of" "oldObject" "only" "specs") -}}
((request.operation == 'CREATE' || {{ $after }} != {{ $before }}) &&
 ({{ $after }}.exists(t, {{ include "fairgate.asks" (dict "root" . "spec" "dyn(t).?spec.orValue({})") }}) ||
  {{ include "fairgate.stamps" $after }}.exists(s, s != '') || {{ include "fairgate.stampsBefore" (dict "root" . "only" "specs") }}.size() > 0))
{{- end }}

{{/*
Whether the annotations for pods must be stamped: the object is new, or lost its stamp. It is not
known where such an object requests devices.
*/}}
{{- define "fairgate.isToBeAnnotated" -}}
(request.operation == 'CREATE' || ({{ include "fairgate.stampsBefore" (dict "root" . "only" "annotations") }}.size() > 0 &&
 {{ include "fairgate.stamps" (include "fairgate.templates" (dict "root" . "of" "object" "only" "annotations")) }}.exists(s, s == '')))
{{- end }}

{{/* Whether a controller creates the object, and no look-up of its owner could change its stamps. */}}
{{- define "fairgate.isLeftToController" -}}
({{ include "fairgate.isController" .root }} && (request.operation != 'CREATE' ||
 !object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false)) ||
 {{ include "fairgate.stamps" (include "fairgate.templates" (dict "root" .root "of" "object" "only" .only)) }}.exists(s, s != '')))
{{- end }}
