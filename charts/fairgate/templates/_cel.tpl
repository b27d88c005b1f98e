{{/*
CEL expressions that admission policies and the matchConditions of webhooks share.
app/core/admission/validation.py has the same rules in Python; tests/contract/test_enforcement.py tests
both with one table.
*/}}

{{/* Whether the resource named `r` is managed. One lookup of all exact names is cheaper than comparisons. */}}
{{- define "fairgate.isManaged" -}}
{{- /* The resource of a device class is known only later, so every pod that requests one by name is held. */ -}}
{{- $exact := list -}}
{{- $terms := list "r.startsWith('deviceclass.resource.kubernetes.io/')" -}}
{{- range include "fairgate.managedResources" . | fromJsonArray -}}
{{- if hasSuffix "*" . -}}
{{- $terms = append $terms (printf "r.startsWith('%s')" (trimSuffix "*" .)) -}}
{{- else -}}
{{- $exact = append $exact (printf "'%s'" .) -}}
{{- end -}}
{{- end -}}
{{- if $exact -}}
{{- $terms = prepend $terms (printf "r in [%s]" (join ", " $exact)) -}}
{{- end -}}
{{ join " || " $terms }}
{{- end }}

{{/* Not empty if a managed resource may be requested for the pod as a whole, as cpu and memory may. */}}
{{- define "fairgate.managesPodLevel" -}}
{{- range include "fairgate.managedResources" . | fromJsonArray }}{{ if not (contains "/" .) }}yes{{ end }}{{ end -}}
{{- end }}

{{/*
Whether a pod of this spec requests a managed resource: in the requests or limits of a container,
init container or the pod as a whole, in the overhead of its runtime class, or by a claim.
(dict "root" $ "spec" "object.spec").
The API server writes every zero as 0. A request without a limit counts, because resources with names
of Kubernetes, such as those of device classes, need no limit.
*/}}
{{- define "fairgate.asks" -}}
{{- $managed := include "fairgate.isManaged" .root -}}
{{- $asks := printf "(c.?resources.?limits.orValue({}).exists(r, (%s) && string(dyn(c).resources.limits[r]) != '0') || c.?resources.?requests.orValue({}).exists(r, (%s) && string(dyn(c).resources.requests[r]) != '0'))" $managed $managed -}}
{{- $whole := and (include "fairgate.managesPodLevel" .root) (printf "[dyn(%s)].exists(c, %s) ||" .spec $asks) -}}
(dyn({{ .spec }}.?containers.orValue([])) != null && {{ .spec }}.?containers.orValue([]).exists(c, {{ $asks }}) ||
 {{ .spec }}.?initContainers.orValue([]).exists(c, {{ $asks }}) ||
 {{- with $whole }} {{ . }}{{ end }}
 dyn({{ .spec }}).?overhead.orValue({}).exists(r, ({{ $managed }}) && string(dyn({{ .spec }}).overhead[r]) != '0') ||
 {{ .spec }}.?resourceClaims.orValue([]).size() > 0)
{{- end }}

{{/* Whether the pod `object` names a managed resource, even with the amount 0. */}}
{{- define "fairgate.names" -}}
{{- $managed := include "fairgate.isManaged" . -}}
({{ include "fairgate.anyContainer" (printf "c.?resources.?limits.orValue({}).exists(r, %s) || c.?resources.?requests.orValue({}).exists(r, %s)" $managed $managed) }} ||
 object.spec.?resourceClaims.orValue([]).size() > 0)
{{- end }}

{{/* Whether a pod has Fairgate's gate. Argument: the variable of the pod. */}}
{{- define "fairgate.isHeld" -}}
{{ . }}.spec.?schedulingGates.orValue([]).exists(g, g.name == 'fairgate.io/queue')
{{- end }}

{{/* Whether the caller has a right on podgates in this namespace. Argument: the verb. */}}
{{- define "fairgate.may" -}}
authorizer.group('fairgate.io').resource('podgates').namespace(request.namespace).check('{{ . }}').allowed()
{{- end }}
{{/* Whether the caller may bind pods in every namespace, as a scheduler may. A team's wildcard role is not enough. */}}
{{- define "fairgate.mayBind" -}}
authorizer.group('fairgate.io').resource('podgates').check('bind').allowed()
{{- end }}

{{/* Whether the caller is a controller that creates pods from templates of other users. */}}
{{- define "fairgate.isController" -}}
request.userInfo.username in {{ include "fairgate.controllerUsers" . }}
{{- end }}

{{/*
Whether the caller may name the owner of a new object, and with it another submitter: it may create
such objects in every namespace. The object has a controller as its owner.
*/}}
{{- define "fairgate.mayNameOwner" -}}
(request.operation == 'CREATE' && object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false)) &&
 authorizer.group(request.resource.group).resource(request.resource.resource).check('create').allowed())
{{- end }}

{{/* Whether the pod `object` is the mirror of a static pod: created by its node, without Fairgate's keys. */}}
{{- define "fairgate.isMirror" -}}
('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}) &&
 !object.metadata.annotations.exists(k, k.startsWith('fairgate.io/')) &&
 !object.metadata.?labels.orValue({}).exists(k, k.startsWith('fairgate.io/')) &&
 request.userInfo.username == 'system:node:' + object.spec.?nodeName.orValue(''))
{{- end }}

{{/* Fairgate's annotations that users may write, and those that are read only once, at creation. */}}
{{- define "fairgate.userKeys" -}}
['fairgate.io/gang', 'fairgate.io/gang-size', 'fairgate.io/gang-min', 'fairgate.io/gang-failure', 'fairgate.io/placement', 'fairgate.io/topology', 'fairgate.io/gpu-memory', 'fairgate.io/model-size', 'fairgate.io/max-runtime', 'fairgate.io/preemptible', 'fairgate.io/pools', 'fairgate.io/reclaim-notice', 'fairgate.io/checkpoint-interval']
{{- end }}
{{- define "fairgate.frozenKeys" -}}
['fairgate.io/gang', 'fairgate.io/gang-size', 'fairgate.io/gang-min', 'fairgate.io/gang-failure']
{{- end }}

{{/* Whether a new pod has exactly the labels and annotations that the webhook writes. */}}
{{- define "fairgate.isStamped" -}}
(object.metadata.?annotations[?'fairgate.io/release'].orValue('') == '0' &&
 object.metadata.?annotations[?'fairgate.io/submitter'].orValue('') != '' &&
 ({{ include "fairgate.isController" . }} ||
  object.metadata.annotations['fairgate.io/submitter'] == request.userInfo.username ||
  {{ include "fairgate.mayNameOwner" . | replace "\n" " " }}) &&
 object.metadata.annotations.all(k, !k.startsWith('fairgate.io/') || k in ['fairgate.io/release', 'fairgate.io/submitter'] || k in {{ include "fairgate.userKeys" . }}) &&
 object.metadata.?labels.orValue({}).filter(k, k.startsWith('fairgate.io/')).size() == 2 &&
 object.metadata.labels.all(k, !k.startsWith('fairgate.io/') || k in ['fairgate.io/tenant', 'fairgate.io/user']))
{{- end }}

{{/* Whether the pod requests one of the allowed schedulers. */}}
{{- define "fairgate.usualScheduler" -}}
object.spec.?schedulerName.orValue('default-scheduler') in {{ toJson .Values.schedulers.names }}
{{- end }}

{{/* Whether a released pod cannot preempt other pods. */}}
{{- define "fairgate.evictsNobody" -}}
{{ if .Values.preemption.twins }}object.spec.?preemptionPolicy.orValue('') == 'Never'{{ else }}true{{ end }}
{{- end }}

{{/* Whether the selected keys are equal in two maps: (dict "keys" CEL-of-k "before" .. "after" ..). */}}
{{- define "fairgate.kept" -}}
({{ .before }}.all(k, !({{ .keys }}) || (k in {{ .after }} && {{ .after }}[k] == {{ .before }}[k])) &&
 {{ .after }}.all(k, !({{ .keys }}) || k in {{ .before }}))
{{- end }}

{{/* Whether the labels and annotations that Fairgate wrote, or read once, are unchanged. */}}
{{- define "fairgate.keepsStamps" -}}
{{- $labels := dict "keys" "k.startsWith('fairgate.io/')" "before" "oldObject.metadata.?labels.orValue({})" "after" "object.metadata.?labels.orValue({})" -}}
{{- $stamp := printf "k.startsWith('fairgate.io/') && (!(k in %s) || k in %s || !(%s))" (include "fairgate.userKeys" .) (include "fairgate.frozenKeys" .) (include "fairgate.isHeld" "oldObject") -}}
{{- $annotations := dict "keys" $stamp "before" "oldObject.metadata.?annotations.orValue({})" "after" "object.metadata.?annotations.orValue({})" -}}
((object.metadata.?labels == oldObject.metadata.?labels && object.metadata.?annotations == oldObject.metadata.?annotations) ||
 ({{ include "fairgate.kept" $labels }} &&
  {{ include "fairgate.kept" $annotations }}))
{{- end }}

{{/* Whether the phase and the start of a pod are unchanged, or the caller may change them. */}}
{{- define "fairgate.phaseIsKnown" -}}
((object.?status.?phase.orValue('') == oldObject.?status.?phase.orValue('') &&
  object.?status.?startTime == oldObject.?status.?startTime) ||
 {{ include "fairgate.isItsNode" . }} ||
 {{ include "fairgate.knowsPhases" . }})
{{- end }}
{{/* Whether the names of a pod's generated claims are unchanged, or the caller may change them. */}}
{{- define "fairgate.claimsAreKnown" -}}
((object.?status.?resourceClaimStatuses == oldObject.?status.?resourceClaimStatuses &&
  object.?status.?extendedResourceClaimStatus == oldObject.?status.?extendedResourceClaimStatus) ||
 {{ include "fairgate.isItsNode" . }} ||
 {{ include "fairgate.knowsPhases" . }} ||
 {{ include "fairgate.mayBind" . }})
{{- end }}
{{/* Whether the status of a pod makes the scheduler keep capacity free only if the pod is not held. */}}
{{- define "fairgate.keepsNomination" -}}
(object.?status.?nominatedNodeName.orValue('') == '' ||
 object.?status.?nominatedNodeName.orValue('') == oldObject.?status.?nominatedNodeName.orValue('') ||
 !{{ include "fairgate.isHeld" "oldObject" }})
{{- end }}
{{- define "fairgate.isItsNode" -}}
request.userInfo.username == 'system:node:' + oldObject.spec.?nodeName.orValue('')
{{- end }}
{{- define "fairgate.knowsPhases" -}}
request.userInfo.username.startsWith('system:serviceaccount:kube-system:') ||
 request.userInfo.username in {{ toJson (concat (list "system:kube-controller-manager") .Values.phaseWriters) }}
{{- end }}

{{/*
Whether a deletion has a grace period of 0. The API server has already replaced an absent value by
that of the pod, except if a collection is deleted.
*/}}
{{- define "fairgate.isForcedDelete" -}}
dyn(request.options).?gracePeriodSeconds.orValue(1) == 0
{{- end }}
{{- define "fairgate.isForcedEviction" -}}
dyn(object).?deleteOptions.?gracePeriodSeconds.orValue(1) == 0
{{- end }}

{{/*
Whether the pod `oldObject` may be removed at once: it is not bound, it has ended, its grace period is
at most one second, or it is not managed.
*/}}
{{- define "fairgate.mayVanish" -}}
(oldObject.spec.?nodeName.orValue('') == '' ||
 oldObject.?status.?phase.orValue('') in ['Succeeded', 'Failed'] ||
 oldObject.spec.?terminationGracePeriodSeconds.orValue(30) <= 1 ||
 !{{ include "fairgate.concerns" (dict "root" . "pod" "oldObject") | replace "\n" " " }})
{{- end }}
{{/* Whether the caller may confirm the end of a pod, or has the right to release. */}}
{{- define "fairgate.confirmsEnd" -}}
({{ include "fairgate.isItsNode" . }} || {{ include "fairgate.knowsPhases" . | replace "\n" " " }} || {{ include "fairgate.may" "release" }})
{{- end }}
{{- define "fairgate.confirmsEnds" -}}
({{ include "fairgate.knowsPhases" . | replace "\n" " " }} || {{ include "fairgate.may" "release" }})
{{- end }}

{{/* Whether a change of a managed pod keeps its gate, and Fairgate's labels and annotations. */}}
{{- define "fairgate.keepsPlace" -}}
((!({{ include "fairgate.isHeld" "oldObject" }}) || {{ include "fairgate.isHeld" "object" }}) &&
 {{ include "fairgate.keepsStamps" . }})
{{- end }}

{{/* Whether a pod is managed by Fairgate: (dict "root" $ "pod" "oldObject"). */}}
{{- define "fairgate.concerns" -}}
({{ include "fairgate.isHeld" .pod }} ||
 'fairgate.io/release' in {{ .pod }}.metadata.?annotations.orValue({}) ||
 {{ include "fairgate.asks" (dict "root" .root "spec" (printf "%s.spec" .pod)) }})
{{- end }}

{{/* Whether a condition is true for any container of `object`. Argument: CEL of the container `c`. */}}
{{- define "fairgate.anyContainer" -}}
(object.spec.?containers.orValue([]).exists(c, {{ . }}) ||
 object.spec.?initContainers.orValue([]).exists(c, {{ . }}) ||
 object.spec.?ephemeralContainers.orValue([]).exists(c, {{ . }}))
{{- end }}

{{/* The longest list of a pod that is searched for devices. The API server's time grows with the square. */}}
{{- define "fairgate.mostSearched" -}}
2000
{{- end }}
{{/* Whether a list of any pod is longer. Its entries are not searched then, and the pod is refused. */}}
{{- define "fairgate.isTooLong" -}}
(object.spec.?volumes.orValue([]).size() > {{ include "fairgate.mostSearched" . }} ||
 object.spec.?tolerations.orValue([]).size() > {{ include "fairgate.mostSearched" . }} ||
 {{ include "fairgate.anyContainer" (printf "c.?env.orValue([]).size() > %s" (include "fairgate.mostSearched" .)) }})
{{- end }}
{{/* Whether a pod would use devices without a request: by variable, path, privilege or toleration. */}}
{{- define "fairgate.reachesByVariable" -}}
c.?env.orValue([]).size() > {{ include "fairgate.mostSearched" . }} || c.?env.orValue([]).exists(e, e.name in {{ toJson .Values.devices.variables }} && (has(e.valueFrom) || !(e.?value.orValue('') in ['', 'none', 'void'])))
{{- end }}
{{- define "fairgate.namesDevices" -}}
{{ include "fairgate.anyContainer" (include "fairgate.reachesByVariable" .) }}
{{- end }}
{{- define "fairgate.mountsDevices" -}}
(object.spec.?volumes.orValue([]).size() > {{ include "fairgate.mostSearched" . }} ||
 object.spec.?volumes.orValue([]).exists(v, has(v.hostPath) && v.hostPath.path.matches({{ toJson .Values.devices.paths }})))
{{- end }}
{{- define "fairgate.isPrivileged" -}}
{{ include "fairgate.anyContainer" "c.?securityContext.?privileged.orValue(false)" }}
{{- end }}
{{- define "fairgate.toleratesDevices" -}}
(object.spec.?tolerations.orValue([]).size() > {{ include "fairgate.mostSearched" . }} ||
 (object.spec.?tolerations.orValue([]).exists(t, t.?key.orValue('') in {{ toJson .Values.devices.taints }}) &&
  !{{ include "fairgate.names" . }}))
{{- end }}
{{/* Whether any of these conditions is true, in one pass over the containers. */}}
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
{{/*
Whether a new pod would keep pods of other namespaces, or pods chosen by Fairgate's labels, off
nodes, because the scheduler honours the required anti-affinity of existing pods. The first list is
empty for most pods. A term cannot be added later, because the API server refuses such updates.
*/}}
{{- define "fairgate.keepsOthersOff" -}}
{{- $ours := "k.startsWith('fairgate.io/')" -}}
(object.spec.?affinity.?podAntiAffinity.?requiredDuringSchedulingIgnoredDuringExecution.orValue([]).exists(t,
{{- if .Values.antiAffinity.refuseOtherNamespaces }}
  has(t.namespaceSelector) || t.?namespaces.orValue([]).exists(n, n != request.namespace) ||
{{- end }}
  t.?labelSelector.?matchLabels.orValue({}).exists(k, {{ $ours }}) ||
  t.?labelSelector.?matchExpressions.orValue([]).exists(e, e.key.startsWith('fairgate.io/')) ||
  t.?matchLabelKeys.orValue([]).exists(k, {{ $ours }}) ||
  t.?mismatchLabelKeys.orValue([]).exists(k, {{ $ours }})))
{{- end }}

{{/* Whether a request can change the use of devices. Other updates are not checked. */}}
{{- define "fairgate.touchesDevices" -}}
(request.operation == 'CREATE' || request.?subResource.orValue('') == 'ephemeralcontainers' ||
 object.spec.?tolerations.orValue([]) != oldObject.spec.?tolerations.orValue([]))
{{- end }}

{{/* Whether a resource claim has the finalizer that keeps its name reserved. Argument: the variable of the claim. */}}
{{- define "fairgate.isProtected" -}}
'fairgate.io/claim-in-use' in {{ . }}.metadata.?finalizers.orValue([])
{{- end }}
{{/* Whether a resource claim states that it was generated for a pod. Argument: the variable of the claim. */}}
{{- define "fairgate.isGenerated" -}}
({{ . }}.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.kind in ['Pod', 'PodGroup']) ||
 {{ . }}.metadata.?annotations.orValue({}).exists(k, k in ['resource.kubernetes.io/pod-claim-name', 'resource.kubernetes.io/extended-resource-claim']))
{{- end }}
{{/* Whether the caller may do what only Kubernetes does with claims: it generates them, and frees their devices. */}}
{{- define "fairgate.managesClaims" -}}
(request.userInfo.username.startsWith('system:serviceaccount:kube-system:') ||
 request.userInfo.username == 'system:kube-controller-manager' ||
 {{ include "fairgate.mayBind" . }})
{{- end }}
{{/* Whether a change of a resource claim keeps Kubernetes' finalizer while devices are allocated to it. */}}
{{- define "fairgate.keepsDevices" -}}
{{- $finalizer := "'resource.kubernetes.io/delete-protection'" -}}
(request.operation == 'CREATE' || !oldObject.?status.?allocation.hasValue() ||
 !({{ $finalizer }} in oldObject.metadata.?finalizers.orValue([])) ||
 {{ $finalizer }} in object.metadata.?finalizers.orValue([]) ||
 {{ include "fairgate.managesClaims" . }})
{{- end }}
{{/* Whether a change of a resource claim keeps Fairgate's finalizer. */}}
{{- define "fairgate.keepsClaim" -}}
(request.operation == 'CREATE' || !({{ include "fairgate.isProtected" "oldObject" }}) || {{ include "fairgate.isProtected" "object" }})
{{- end }}
{{/* Whether the statement of a resource claim about the pod that it was generated for is true. */}}
{{- define "fairgate.claimOwnerIsTrue" -}}
((!{{ include "fairgate.isGenerated" "object" }} && (request.operation == 'CREATE' || !{{ include "fairgate.isGenerated" "oldObject" }})) ||
 (request.operation == 'UPDATE' && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences &&
  object.metadata.?annotations[?'resource.kubernetes.io/pod-claim-name'] == oldObject.metadata.?annotations[?'resource.kubernetes.io/pod-claim-name'] &&
  object.metadata.?annotations[?'resource.kubernetes.io/extended-resource-claim'] == oldObject.metadata.?annotations[?'resource.kubernetes.io/extended-resource-claim']) ||
 {{ include "fairgate.managesClaims" . }})
{{- end }}

{{/* Whether the caller may update the parent tenant. Argument: CEL of an optional name. */}}
{{- define "fairgate.mayUpdate" -}}
({{ . }}.orValue('') == '' ? authorizer.group('fairgate.io').resource('tenants').check('update').allowed() :
 authorizer.group('fairgate.io').resource('tenants').name({{ . }}.orValue('')).check('update').allowed())
{{- end }}

{{/* Whether an update adds a namespace to a Tenant. */}}
{{- define "fairgate.addsNamespaces" -}}
(object.spec.?namespaces != oldObject.spec.?namespaces &&
 object.spec.?namespaces.orValue([]).exists(n, !(n in oldObject.spec.?namespaces.orValue([]))))
{{- end }}

{{/*
Whether the caller may change a Tenant, except its users: the caller may update its parent. A namespace
that it gains may be another tenant's, so this needs the right on all tenants. Through owner references
the garbage collector deletes a Tenant, and finalizers prevent that.
*/}}
{{- define "fairgate.governs" -}}
{{- $kept := include "fairgate.kept" (dict "keys" "k != 'users'" "before" "dyn(oldObject.spec)" "after" "dyn(object.spec)") -}}
(request.operation == 'CREATE' ? {{ include "fairgate.mayUpdate" "object.spec.?parent" }} :
 request.operation == 'DELETE' ? {{ include "fairgate.mayUpdate" "oldObject.spec.?parent" }} :
 ({{ $kept }} && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences &&
  object.metadata.?finalizers == oldObject.metadata.?finalizers) ||
 ({{ include "fairgate.addsNamespaces" . }} ? authorizer.group('fairgate.io').resource('tenants').check('update').allowed() :
  ({{ include "fairgate.mayUpdate" "oldObject.spec.?parent" }} && {{ include "fairgate.mayUpdate" "object.spec.?parent" }})))
{{- end }}

{{/* Whether the weights of a tenant's users are unchanged, or the caller may change them. */}}
{{- define "fairgate.weighsUsers" -}}
(request.operation != 'UPDATE' ||
 dyn(object.spec).?users.orValue([]) == dyn(oldObject.spec).?users.orValue([]) ||
 authorizer.group('fairgate.io').resource('tenants').subresource('users').name(oldObject.metadata.name).check('update').allowed())
{{- end }}

{{/* Whether the annotations that record the last change of a Fairgate resource are unchanged. */}}
{{- define "fairgate.keepsAuthor" -}}
(object.metadata.?annotations[?'fairgate.io/changed-by'] == oldObject.metadata.?annotations[?'fairgate.io/changed-by'] &&
 object.metadata.?annotations[?'fairgate.io/changed'] == oldObject.metadata.?annotations[?'fairgate.io/changed'])
{{- end }}

{{/* Whether they are absent, name the caller, or are unchanged. Fairgate's API may name other users. */}}
{{- define "fairgate.authorIsTrue" -}}
((!('fairgate.io/changed-by' in object.metadata.?annotations.orValue({})) && !('fairgate.io/changed' in object.metadata.?annotations.orValue({}))) ||
 object.metadata.?annotations[?'fairgate.io/changed-by'].orValue('') == request.userInfo.username ||
 request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:fairgate-api' ||
 (request.operation == 'UPDATE' && {{ include "fairgate.keepsAuthor" . }}))
{{- end }}

{{/*
Whether a request may break a rule. Each expression decides alone, in one evaluation, whether the API
server evaluates a policy or calls the validating webhook. Most requests end here, so the checks that
decide most requests come first. They must be true whenever a rule of the policy is broken.
*/}}
{{- define "fairgate.mayBreakCreate" -}}
!(({{ include "fairgate.isHeld" "object" }} && object.spec.?nodeName.orValue('') == '' &&
 {{ include "fairgate.usualScheduler" . }} && {{ include "fairgate.evictsNobody" . }} &&
 {{ include "fairgate.isStamped" . }}) ||
 !{{ include "fairgate.concerns" (dict "root" . "pod" "object") }} ||
 {{ include "fairgate.isMirror" . }}) ||
({{ include "fairgate.isHeld" "object" }} && {{ include "fairgate.isTooLarge" (dict "root" . "pod" "object") }}) ||
{{ include "fairgate.reachesDevices" . }} ||
{{ include "fairgate.keepsOthersOff" . }}
{{- end }}

{{/* An update of a pod itself. It never changes the status. */}}
{{- define "fairgate.mayBreakUpdate" -}}
({{ include "fairgate.concerns" (dict "root" . "pod" "oldObject") }} &&
 (!{{ include "fairgate.keepsPlace" . }} || {{ include "fairgate.isTooLarge" (dict "root" . "pod" "object") }}) &&
 !{{ include "fairgate.may" "release" }}) ||
({{ include "fairgate.touchesDevices" . }} && {{ include "fairgate.reachesDevices" . }})
{{- end }}

{{/* An update of a pod's status. It never changes the spec. */}}
{{- define "fairgate.mayBreakStatus" -}}
!{{ include "fairgate.phaseIsKnown" . }} ||
!{{ include "fairgate.claimsAreKnown" . }} ||
!{{ include "fairgate.keepsNomination" . }} ||
(object.metadata.?annotations != oldObject.metadata.?annotations && {{ include "fairgate.isTooLarge" (dict "root" . "pod" "object") }}) ||
!{{ include "fairgate.keepsStamps" . }}
{{- end }}

{{/*
The pods whose status updates are judged: those with Fairgate's label, before or after the update.
Admission writes the label on every managed pod, adoption on older ones, and fairgate-update and
fairgate-status keep it. Updates of other pods reach no CEL.
*/}}
{{- define "fairgate.labelled" -}}
matchExpressions: [{key: fairgate.io/tenant, operator: Exists}]
{{- end }}
