{{/*
What admission policies and the matchConditions of webhooks have in common: CEL, written once.
The same rules in Python are app/core/admission/guard.py; tests/contract/test_enforcement.py drives both with one table.
*/}}

{{/* Whether the resource named `r` is managed. */}}
{{- define "fairgate.isManaged" -}}
{{- /* What a device class counts as is only known later: whoever asks for one by name is held. */ -}}
{{- $terms := list "r.startsWith('deviceclass.resource.kubernetes.io/')" -}}
{{- range .Values.managedResources -}}
{{- if hasSuffix "*" . -}}
{{- $terms = append $terms (printf "r.startsWith('%s')" (trimSuffix "*" .)) -}}
{{- else -}}
{{- $terms = append $terms (printf "r == '%s'" .) -}}
{{- end -}}
{{- end -}}
{{ join " || " $terms }}
{{- end }}

{{/*
Whether a pod of this spec asks for a managed resource: in a container or init container, by request
or by limit, in the overhead of its runtime class, or by a claim. (dict "root" $ "spec" "object.spec").
The API server writes every zero as 0. Requests count alone: resources of Kubernetes' own names, such
as those of device classes, need no limit.
*/}}
{{- define "fairgate.asks" -}}
{{- $managed := include "fairgate.isManaged" .root -}}
{{- $asks := printf "(c.?resources.?limits.orValue({}).exists(r, (%s) && string(dyn(c).resources.limits[r]) != '0') || c.?resources.?requests.orValue({}).exists(r, (%s) && string(dyn(c).resources.requests[r]) != '0'))" $managed $managed -}}
(dyn({{ .spec }}.?containers.orValue([])) != null && {{ .spec }}.?containers.orValue([]).exists(c, {{ $asks }}) ||
 {{ .spec }}.?initContainers.orValue([]).exists(c, {{ $asks }}) ||
 dyn({{ .spec }}).?overhead.orValue({}).exists(r, ({{ $managed }}) && string(dyn({{ .spec }}).overhead[r]) != '0') ||
 {{ .spec }}.?resourceClaims.orValue([]).size() > 0)
{{- end }}

{{/* Whether the pod `object` names a managed resource, be it to ask for none of it. */}}
{{- define "fairgate.names" -}}
{{- $managed := include "fairgate.isManaged" . -}}
({{ include "fairgate.anyContainer" (printf "c.?resources.?limits.orValue({}).exists(r, %s) || c.?resources.?requests.orValue({}).exists(r, %s)" $managed $managed) }} ||
 object.spec.?resourceClaims.orValue([]).size() > 0)
{{- end }}

{{/* Whether a pod carries our gate: the name of the variable that holds the pod. */}}
{{- define "fairgate.isHeld" -}}
{{ . }}.spec.?schedulingGates.orValue([]).exists(g, g.name == 'fairgate.io/queue')
{{- end }}

{{/* Whether the caller has a right on podgates in this namespace: the verb. */}}
{{- define "fairgate.may" -}}
authorizer.group('fairgate.io').resource('podgates').namespace(request.namespace).check('{{ . }}').allowed()
{{- end }}
{{/* Whether the caller may bind pods, in every namespace: a scheduler does, a team's wildcard does not. */}}
{{- define "fairgate.mayBind" -}}
authorizer.group('fairgate.io').resource('podgates').check('bind').allowed()
{{- end }}

{{/* Whether the caller is a controller that makes pods after templates of others. */}}
{{- define "fairgate.isController" -}}
request.userInfo.username in {{ toJson .Values.controllerUsers }}
{{- end }}

{{/* A mirror of a static pod, made by the node that runs it, in nobody's name: `object` is the pod. */}}
{{- define "fairgate.isMirror" -}}
('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}) &&
 !object.metadata.annotations.exists(k, k.startsWith('fairgate.io/')) &&
 !object.metadata.?labels.orValue({}).exists(k, k.startsWith('fairgate.io/')) &&
 request.userInfo.username == 'system:node:' + object.spec.?nodeName.orValue(''))
{{- end }}

{{/* Our annotations that users may write, and those of them that are read once, at create. */}}
{{- define "fairgate.userKeys" -}}
['fairgate.io/gang', 'fairgate.io/gang-size', 'fairgate.io/gang-failure', 'fairgate.io/placement', 'fairgate.io/topology', 'fairgate.io/gpu-memory', 'fairgate.io/model-size', 'fairgate.io/max-runtime', 'fairgate.io/preemptible', 'fairgate.io/pools']
{{- end }}
{{- define "fairgate.frozenKeys" -}}
['fairgate.io/gang', 'fairgate.io/gang-size', 'fairgate.io/gang-failure']
{{- end }}

{{/* Whether a pod about to be created carries exactly the stamps that the webhook writes. */}}
{{- define "fairgate.isStamped" -}}
(object.metadata.?annotations[?'fairgate.io/release'].orValue('') == '0' &&
 object.metadata.?annotations[?'fairgate.io/submitter'].orValue('') != '' &&
 ({{ include "fairgate.isController" . }} ||
  object.metadata.annotations['fairgate.io/submitter'] == request.userInfo.username) &&
 object.metadata.annotations.all(k, !k.startsWith('fairgate.io/') || k in ['fairgate.io/release', 'fairgate.io/submitter'] || k in {{ include "fairgate.userKeys" . }}) &&
 object.metadata.?labels.orValue({}).filter(k, k.startsWith('fairgate.io/')).size() == 2 &&
 object.metadata.labels.all(k, !k.startsWith('fairgate.io/') || k in ['fairgate.io/tenant', 'fairgate.io/user']))
{{- end }}

{{/* Whether another scheduler than those we trust is asked for. */}}
{{- define "fairgate.usualScheduler" -}}
object.spec.?schedulerName.orValue('default-scheduler') in {{ toJson .Values.schedulers.names }}
{{- end }}

{{/* Whether a pod, once released, has nobody evicted to make room for it. */}}
{{- define "fairgate.evictsNobody" -}}
{{ if .Values.preemption.twins }}object.spec.?preemptionPolicy.orValue('') == 'Never'{{ else }}true{{ end }}
{{- end }}

{{/* Whether a key of two maps `before` and `after` differs: (dict "keys" CEL-of-k "before" .. "after" ..). */}}
{{- define "fairgate.kept" -}}
({{ .before }}.all(k, !({{ .keys }}) || (k in {{ .after }} && {{ .after }}[k] == {{ .before }}[k])) &&
 {{ .after }}.all(k, !({{ .keys }}) || k in {{ .before }}))
{{- end }}

{{/* Whether what Fairgate wrote on a pod, and what it read once, is as it was. */}}
{{- define "fairgate.keepsStamps" -}}
{{- $labels := dict "keys" "k.startsWith('fairgate.io/')" "before" "oldObject.metadata.?labels.orValue({})" "after" "object.metadata.?labels.orValue({})" -}}
{{- $stamp := printf "k.startsWith('fairgate.io/') && (!(k in %s) || k in %s || !(%s))" (include "fairgate.userKeys" .) (include "fairgate.frozenKeys" .) (include "fairgate.isHeld" "oldObject") -}}
{{- $annotations := dict "keys" $stamp "before" "oldObject.metadata.?annotations.orValue({})" "after" "object.metadata.?annotations.orValue({})" -}}
((object.metadata.?labels == oldObject.metadata.?labels && object.metadata.?annotations == oldObject.metadata.?annotations) ||
 ({{ include "fairgate.kept" $labels }} &&
  {{ include "fairgate.kept" $annotations }}))
{{- end }}

{{/* Whether whoever says that a pod has another phase may know. */}}
{{- define "fairgate.phaseIsKnown" -}}
(object.?status.?phase.orValue('') == oldObject.?status.?phase.orValue('') ||
 request.userInfo.username == 'system:node:' + oldObject.spec.?nodeName.orValue('') ||
 request.userInfo.username.startsWith('system:serviceaccount:kube-system:') ||
 request.userInfo.username in {{ toJson (concat (list "system:kube-controller-manager") .Values.phaseWriters) }})
{{- end }}

{{/* Whether a managed pod changes in a way that only Fairgate, or a node, may change it. */}}
{{- define "fairgate.keepsPlace" -}}
((!({{ include "fairgate.isHeld" "oldObject" }}) || {{ include "fairgate.isHeld" "object" }}) &&
 {{ include "fairgate.keepsStamps" . }})
{{- end }}

{{/* Whether a pod concerns us: (dict "root" $ "pod" "oldObject"). */}}
{{- define "fairgate.concerns" -}}
({{ include "fairgate.isHeld" .pod }} ||
 'fairgate.io/release' in {{ .pod }}.metadata.?annotations.orValue({}) ||
 {{ include "fairgate.asks" (dict "root" .root "spec" (printf "%s.spec" .pod)) }})
{{- end }}

{{/* Whether a container of `object`, of any kind, is so: CEL of the container `c`. */}}
{{- define "fairgate.anyContainer" -}}
(object.spec.?containers.orValue([]).exists(c, {{ . }}) ||
 object.spec.?initContainers.orValue([]).exists(c, {{ . }}) ||
 object.spec.?ephemeralContainers.orValue([]).exists(c, {{ . }}))
{{- end }}

{{/* Whether a pod reaches for devices past the request: by variable, by path, by privilege. */}}
{{- define "fairgate.reachesByVariable" -}}
c.?env.orValue([]).exists(e, e.name in {{ toJson .Values.devices.variables }} && (has(e.valueFrom) || !(e.?value.orValue('') in ['', 'none', 'void'])))
{{- end }}
{{- define "fairgate.namesDevices" -}}
{{ include "fairgate.anyContainer" (include "fairgate.reachesByVariable" .) }}
{{- end }}
{{- define "fairgate.mountsDevices" -}}
object.spec.?volumes.orValue([]).exists(v, has(v.hostPath) && v.hostPath.path.matches({{ toJson .Values.devices.paths }}))
{{- end }}
{{- define "fairgate.isPrivileged" -}}
{{ include "fairgate.anyContainer" "c.?securityContext.?privileged.orValue(false)" }}
{{- end }}
{{- define "fairgate.toleratesDevices" -}}
(object.spec.?tolerations.orValue([]).exists(t, t.?key.orValue('') in {{ toJson .Values.devices.taints }}) &&
 !{{ include "fairgate.names" . }})
{{- end }}
{{/* Any of them, in one go over the containers. */}}
{{- define "fairgate.reachesDevices" -}}
{{- $reaches := include "fairgate.reachesByVariable" . -}}
{{- if .Values.devices.refusePrivileged -}}
{{- $reaches = printf "c.?securityContext.?privileged.orValue(false) || %s" $reaches -}}
{{- end -}}
({{ include "fairgate.anyContainer" $reaches }} ||
 {{ include "fairgate.mountsDevices" . }}
{{- if .Values.devices.taints }} ||
 {{ include "fairgate.toleratesDevices" . }}
{{- end }})
{{- end }}
{{/* Nothing of it is asked of a pod that is changed without touching any of it. */}}
{{- define "fairgate.touchesDevices" -}}
(request.operation == 'CREATE' || request.?subResource.orValue('') == 'ephemeralcontainers' ||
 object.spec.?tolerations.orValue([]) != oldObject.spec.?tolerations.orValue([]))
{{- end }}

{{/*
The pod templates in `object` or `oldObject`, whose path depends on the kind: (dict "root" $ "of" "object").
A path is keys joined by points; [*] stands for every item of a list, {*} for every value of a map.
*/}}
{{- define "fairgate.templates" -}}
{{- $of := .of -}}
{{- $kinds := dict -}}
{{- range .root.Values.podTemplates -}}
{{- $_ := set $kinds .path (append (get $kinds .path | default list) (printf "%s/%s" .group .resource)) -}}
{{- end -}}
{{- $whole := "" -}}
{{- range $path, $names := $kinds -}}
{{- $found := "" -}}
{{- if contains "[*]." $path -}}
{{- $parts := splitn "[*]." 2 $path -}}
{{- $found = printf "dyn(%s).%s.orValue([]).map(i, dyn(i).%s.orValue({}))" $of (include "fairgate.optional" $parts._0) (include "fairgate.optional" $parts._1) -}}
{{- else if contains "{*}." $path -}}
{{- $parts := splitn "{*}." 2 $path -}}
{{- $many := printf "dyn(%s).%s.orValue({})" $of (include "fairgate.optional" $parts._0) -}}
{{- $found = printf "%s.map(i, dyn(%s[i]).%s.orValue({}))" $many $many (include "fairgate.optional" $parts._1) -}}
{{- else -}}
{{- $found = printf "[dyn(%s).%s.orValue({})]" $of (include "fairgate.optional" $path) -}}
{{- end -}}
{{- $whole = printf "%srequest.resource.group + '/' + request.resource.resource in %s ? dyn(%s) : " $whole (toJson $names) $found -}}
{{- end -}}
({{ $whole }}dyn([]))
{{- end }}
{{- define "fairgate.optional" -}}
{{- $keys := list -}}
{{- range splitList "." . -}}{{- $keys = append $keys (printf "?%s" .) -}}{{- end -}}
{{ join "." $keys }}
{{- end }}

{{/* The stamps in templates, "" where there is none: CEL of the templates. */}}
{{- define "fairgate.stamps" -}}
{{ . }}.map(t, t.?metadata.?annotations[?'fairgate.io/submitter'].orValue(''))
{{- end }}

{{/* The apiGroups, versions and resources of templates, as rules of a webhook or policy. */}}
{{- define "fairgate.templateRules" -}}
{{- range .Values.podTemplates }}
- apiGroups: [{{ .group | quote }}]
  apiVersions: {{ toJson .versions }}
  resources: [{{ .resource }}]
  operations: [CREATE, UPDATE]
  scope: Namespaced
{{- end }}
{{- end }}

{{/* The stamps that the templates of an object had before, those that are there. */}}
{{- define "fairgate.stampsBefore" -}}
(request.operation == 'CREATE' ? [] : {{ include "fairgate.stamps" (include "fairgate.templates" (dict "root" . "of" "oldObject")) }}.filter(s, s != ''))
{{- end }}

{{/*
Whether the stamps of templates are absent, the caller's own, or what they were: CEL of the stamps
before and after. (dict "root" $ "before" .. "after" ..)
*/}}
{{- define "fairgate.stampsAreTrue" -}}
({{ include "fairgate.isController" .root }} ||
 (request.operation == 'UPDATE' && {{ .after }} == {{ include "fairgate.stamps" (include "fairgate.templates" (dict "root" .root "of" "oldObject")) }}) ||
 ({{ .before }}.size() > 0 ? {{ .after }}.all(s, s == {{ .before }}[0]) : {{ .after }}.all(s, s in ['', request.userInfo.username])))
{{- end }}

{{/* Whether an object with templates is one to be stamped: new, or about to roll out others. */}}
{{- define "fairgate.isToBeStamped" -}}
{{- $after := include "fairgate.templates" (dict "root" . "of" "object") -}}
{{- $before := include "fairgate.templates" (dict "root" . "of" "oldObject") -}}
((request.operation == 'CREATE' || {{ $after }} != {{ $before }}) &&
 ({{ $after }}.exists(t, {{ include "fairgate.asks" (dict "root" . "spec" "dyn(t).?spec.orValue({})") }}) ||
  {{ include "fairgate.stamps" $after }}.exists(s, s != '') || {{ include "fairgate.stampsBefore" . }}.size() > 0))
{{- end }}

{{/* Whether the caller may update the tenant above: CEL of an optional name. */}}
{{- define "fairgate.mayUpdate" -}}
({{ . }}.orValue('') == '' ? authorizer.group('fairgate.io').resource('tenants').check('update').allowed() :
 authorizer.group('fairgate.io').resource('tenants').name({{ . }}.orValue('')).check('update').allowed())
{{- end }}

{{/* Whether a change of a Tenant, its users aside, is made by who may update what is above it. */}}
{{- define "fairgate.governs" -}}
{{- $kept := include "fairgate.kept" (dict "keys" "k != 'users'" "before" "dyn(oldObject.spec)" "after" "dyn(object.spec)") -}}
(request.operation == 'CREATE' ? {{ include "fairgate.mayUpdate" "object.spec.?parent" }} :
 request.operation == 'DELETE' ? {{ include "fairgate.mayUpdate" "oldObject.spec.?parent" }} :
 {{ $kept }} ||
 ({{ include "fairgate.mayUpdate" "oldObject.spec.?parent" }} && {{ include "fairgate.mayUpdate" "object.spec.?parent" }}))
{{- end }}

{{/* Whether the weights of a tenant's users are changed by who may. */}}
{{- define "fairgate.weighsUsers" -}}
(request.operation != 'UPDATE' ||
 dyn(object.spec).?users.orValue([]) == dyn(oldObject.spec).?users.orValue([]) ||
 authorizer.group('fairgate.io').resource('tenants').subresource('users').name(oldObject.metadata.name).check('update').allowed())
{{- end }}

{{/* Whether the stamps on a resource of ours, which name who changed it, are as they were. */}}
{{- define "fairgate.keepsAuthor" -}}
(object.metadata.?annotations[?'fairgate.io/changed-by'] == oldObject.metadata.?annotations[?'fairgate.io/changed-by'] &&
 object.metadata.?annotations[?'fairgate.io/changed'] == oldObject.metadata.?annotations[?'fairgate.io/changed'])
{{- end }}

{{/* Whether they name nobody, the caller, or whom they named before; Fairgate's API names others. */}}
{{- define "fairgate.authorIsTrue" -}}
((!('fairgate.io/changed-by' in object.metadata.?annotations.orValue({})) && !('fairgate.io/changed' in object.metadata.?annotations.orValue({}))) ||
 object.metadata.?annotations[?'fairgate.io/changed-by'].orValue('') == request.userInfo.username ||
 request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:fairgate-api' ||
 (request.operation == 'UPDATE' && {{ include "fairgate.keepsAuthor" . }}))
{{- end }}
