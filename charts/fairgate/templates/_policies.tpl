{{/*
The first layer of enforcement: admission policies that the API server evaluates itself, even while
Fairgate is down. _cel.tpl has the expressions that they share with the webhooks.

The API server converts old and new object once to evaluate the matchConditions of a policy, and three
more times to evaluate its validations. So policies on the path of every pod have a matchCondition
that most requests do not meet.

Policies, bindings and webhooks state all defaults of the API server. A live object then equals its
document, and a starting webhook process needs no dry run to compare them.
*/}}
{{- define "fairgate.policies" -}}
{{- if and .Values.policies.enabled (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) }}
{{- $labels := include "fairgate.labels" . | nindent 4 }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fairgate-create
  labels: {{- $labels }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    objectSelector: {}
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE], scope: Namespaced}
  matchConditions:
    - name: may-break-a-rule
      expression: |-
        {{- include "fairgate.mayBreakCreate" . | nindent 8 }}
  variables:
    - name: isOurs
      expression: |-
        {{- include "fairgate.concerns" (dict "root" . "pod" "object") | nindent 8 }} && !{{ include "fairgate.isMirror" . | replace "\n" " " }}
    - name: excess
      expression: |-
        {{- include "fairgate.excess" (dict "root" . "pod" "object") | nindent 8 }}
  validations:
    - expression: "!variables.isOurs || object.spec.?nodeName.orValue('') == ''"
      message: {{ include "fairgate.say.nodeName" . }}
      reason: Forbidden
    - expression: |-
        !variables.isOurs || {{ include "fairgate.isHeld" "object" | replace "\n" " " }}
      message: {{ include "fairgate.say.ungated" . }}
      reason: Forbidden
    - expression: |-
        !variables.isOurs || {{ include "fairgate.isStamped" . | replace "\n" " " }}
      message: {{ include "fairgate.say.unstamped" . }}
      reason: Forbidden
    - expression: |-
        !variables.isOurs || {{ include "fairgate.usualScheduler" . | replace "\n" " " }}
      messageExpression: {{ include "fairgate.say.scheduler" . }}
      reason: Forbidden
    {{- if .Values.preemption.twins }}
    - expression: |-
        !variables.isOurs || {{ include "fairgate.evictsNobody" . }}
      message: {{ include "fairgate.say.preemption" . }}
      reason: Forbidden
    {{- end }}
    - expression: "!variables.isOurs || variables.excess == ''"
      messageExpression: variables.excess
      reason: Forbidden
    # The next two rules apply to every pod.
    - expression: |-
        !{{ include "fairgate.reachesDevices" . | replace "\n" " " }}
      messageExpression: |-
        {{- include "fairgate.say.devices" . | nindent 8 }}
      reason: Forbidden
    - expression: |-
        !{{ include "fairgate.keepsOthersOff" . | replace "\n" " " }}
      message: {{ include "fairgate.say.distance" . }}
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fairgate-update
  labels: {{- $labels }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    objectSelector: {}
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods, pods/ephemeralcontainers, pods/resize]
        operations: [UPDATE]
        scope: Namespaced
  matchConditions:
    - name: may-break-a-rule
      expression: |-
        {{- include "fairgate.mayBreakUpdate" . | nindent 8 }}
  variables:
    - name: isOurs
      expression: |-
        {{- include "fairgate.concerns" (dict "root" . "pod" "oldObject") | nindent 8 }}
    - name: mayRelease
      expression: {{ include "fairgate.may" "release" | replace "\n" " " }}
    - name: touchesDevices
      expression: |-
        {{- include "fairgate.touchesDevices" . | nindent 8 }}
    - name: excess
      expression: |-
        {{- include "fairgate.excess" (dict "root" . "pod" "object") | nindent 8 }}
  validations:
    - expression: |-
        !variables.isOurs || !({{ include "fairgate.isHeld" "oldObject" | replace "\n" " " }}) || {{ include "fairgate.isHeld" "object" | replace "\n" " " }} || variables.mayRelease
      message: {{ include "fairgate.say.gate" . }}
      reason: Forbidden
    - expression: |-
        !variables.isOurs || variables.mayRelease || {{ include "fairgate.keepsStamps" . | replace "\n" " " }}
      message: {{ include "fairgate.say.stamps" . }}
      reason: Forbidden
    # A release may add entries. Other changes of a pod that was already too large are allowed.
    - expression: |-
        !variables.isOurs || variables.excess == '' || variables.mayRelease || {{ include "fairgate.isTooLarge" (dict "root" . "pod" "oldObject") }}
      messageExpression: variables.excess
      reason: Forbidden
    - expression: |-
        !variables.touchesDevices || !{{ include "fairgate.reachesDevices" . | replace "\n" " " }}
      messageExpression: |-
        {{- include "fairgate.say.devices" . | nindent 8 }}
      reason: Forbidden
---
# Nodes update the status of every pod several times. Only pods with Fairgate's label match.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fairgate-status
  labels: {{- $labels }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods/status], operations: [UPDATE], scope: Namespaced}
    objectSelector:
      {{- include "fairgate.labelled" . | nindent 6 }}
  matchConditions:
    - name: may-break-a-rule
      expression: |-
        {{- include "fairgate.mayBreakStatus" . | nindent 8 }}
  variables:
    - name: isOurs
      expression: |-
        {{- include "fairgate.concerns" (dict "root" . "pod" "oldObject") | nindent 8 }}
    - name: mayRelease
      expression: {{ include "fairgate.may" "release" | replace "\n" " " }}
    - name: excess
      expression: |-
        {{- include "fairgate.excess" (dict "root" . "pod" "object") | nindent 8 }}
  validations:
    - expression: |-
        !variables.isOurs || variables.mayRelease || {{ include "fairgate.keepsStamps" . | replace "\n" " " }}
      message: {{ include "fairgate.say.stamps" . }}
      reason: Forbidden
    - expression: |-
        !variables.isOurs || ({{ include "fairgate.phaseIsKnown" . | replace "\n" " " }} && {{ include "fairgate.claimsAreKnown" . | replace "\n" " " }})
      message: {{ include "fairgate.say.phase" . }}
      reason: Forbidden
    - expression: |-
        {{ include "fairgate.keepsNomination" . | replace "\n" " " }}
      message: {{ include "fairgate.say.nominated" . }}
      reason: Forbidden
    - expression: |-
        !variables.isOurs || variables.excess == '' || variables.mayRelease || {{ include "fairgate.isTooLarge" (dict "root" . "pod" "oldObject") }}
      messageExpression: variables.excess
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fairgate-bind
  labels: {{- $labels }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    objectSelector: {}
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods/binding, bindings], operations: [CREATE], scope: Namespaced}
  matchConditions:
    - name: may-not-bind
      expression: |-
        !{{ include "fairgate.mayBind" . }}
  validations:
    - expression: {{ include "fairgate.mayBind" . }}
      messageExpression: {{ include "fairgate.say.bind" . }}
      reason: Forbidden
---
# Only changes of resource claims evaluate this policy.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fairgate-claims
  labels: {{- $labels }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    objectSelector: {}
    resourceRules:
      - {apiGroups: [resource.k8s.io], apiVersions: ["*"], resources: [resourceclaims], operations: [CREATE, UPDATE], scope: Namespaced}
  validations:
    - expression: |-
        {{ include "fairgate.keepsClaim" . | replace "\n" " " }} || {{ include "fairgate.may" "release" | replace "\n" " " }}
      message: {{ include "fairgate.say.claim" . }}
      reason: Forbidden
    - expression: |-
        {{- include "fairgate.keepsDevices" . | nindent 8 }}
      message: {{ include "fairgate.say.claimDevices" . }}
      reason: Forbidden
    - expression: |-
        {{- include "fairgate.claimOwnerIsTrue" . | nindent 8 }}
      message: {{ include "fairgate.say.claimOwner" . }}
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fairgate-delete
  labels: {{- $labels }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    objectSelector: {}
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [DELETE], scope: Namespaced}
  # Most deletions do not match.
  matchConditions:
    - name: has-grace-period-0
      expression: {{ include "fairgate.isForcedDelete" . }}
  validations:
    - expression: |-
        {{ include "fairgate.mayVanish" . | replace "\n" " " }} || {{ include "fairgate.confirmsEnd" . }}
      message: {{ include "fairgate.say.forced" . }}
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fairgate-evict
  labels: {{- $labels }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    objectSelector: {}
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods/eviction], operations: [CREATE], scope: Namespaced}
  validations:
    # The rules of an eviction cannot read its pod.
    - expression: |-
        !({{ include "fairgate.isForcedEviction" . }}) || {{ include "fairgate.confirmsEnds" . }}
      message: {{ include "fairgate.say.forced" . }}
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fairgate-templates
  labels: {{- $labels }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    objectSelector: {}
    resourceRules: {{- include "fairgate.templateRules" (dict "root" .) | nindent 6 }}
  variables:
    - name: stamps
      expression: |-
        {{- include "fairgate.stamps" (include "fairgate.templates" (dict "root" . "of" "object")) | nindent 8 }}
    - name: before
      expression: |-
        {{- include "fairgate.stampsBefore" (dict "root" .) | nindent 8 }}
  validations:
    - expression: |-
        {{- include "fairgate.stampsAreTrue" (dict "root" . "before" "variables.before" "after" "variables.stamps") | nindent 8 }}
      message: {{ include "fairgate.say.template" . }}
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fairgate-tenants
  labels: {{- $labels }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    objectSelector: {}
    resourceRules:
      - {apiGroups: [fairgate.io], apiVersions: ["*"], resources: [tenants], operations: [CREATE, UPDATE, DELETE], scope: Cluster}
  validations:
    - expression: |-
        {{- include "fairgate.governs" . | nindent 8 }}
      message: {{ include "fairgate.say.tenant" . }}
      reason: Forbidden
    - expression: |-
        {{- include "fairgate.weighsUsers" . | nindent 8 }}
      message: {{ include "fairgate.say.users" . }}
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: fairgate-authors
  labels: {{- $labels }}
spec:
  failurePolicy: Fail
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    objectSelector: {}
    resourceRules:
      - {apiGroups: [fairgate.io], apiVersions: ["*"], resources: [tenants, pools, policies], operations: [CREATE, UPDATE], scope: Cluster}
  validations:
    - expression: |-
        {{- include "fairgate.authorIsTrue" . | nindent 8 }}
      message: {{ include "fairgate.say.author" . }}
      reason: Forbidden
{{- range list "create" "update" "status" "bind" "delete" "evict" "claims" "templates" "tenants" "authors" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: fairgate-{{ . }}
  labels: {{- $labels }}
spec:
  policyName: fairgate-{{ . }}
  validationActions: [Deny]
  {{- if not (has . (list "tenants" "authors")) }}
  matchResources:
    matchPolicy: Equivalent
    objectSelector: {}
    namespaceSelector:
      matchExpressions:
        - key: kubernetes.io/metadata.name
          operator: NotIn
          values: {{- include "fairgate.exemptNamespaces" $ | fromJsonArray | toYaml | nindent 12 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Messages of refusals. app/core/admission/validation.py has the same sentences. */}}
{{- define "fairgate.say.nodeName" -}}
"Fairgate: spec.nodeName would bypass the queue; remove it, or use spec.nodeSelector to choose nodes."
{{- end }}
{{- define "fairgate.say.ungated" -}}
"Fairgate: this pod requests a managed resource without the gate fairgate.io/queue, so it did not pass Fairgate's webhook; try again, or ask a cluster admin."
{{- end }}
{{- define "fairgate.say.unstamped" -}}
"Fairgate: labels and annotations that begin with fairgate.io/ differ from those of Fairgate's webhook; remove them from the pod."
{{- end }}
{{- define "fairgate.say.scheduler" -}}
"'Fairgate: the scheduler ' + object.spec.?schedulerName.orValue('default-scheduler') + ' may not bind pods that request managed resources; use {{ join " or " .Values.schedulers.names }}.'"
{{- end }}
{{- define "fairgate.say.preemption" -}}
"Fairgate: a pod that requests managed resources may not preempt; remove preemptionPolicy, and Fairgate's webhook sets the PriorityClass."
{{- end }}
{{- define "fairgate.say.gate" -}}
"Fairgate: only Fairgate removes the gate fairgate.io/queue; run kubectl describe pod to see the pod's place in the queue."
{{- end }}
{{- define "fairgate.say.stamps" -}}
"Fairgate: labels, annotations and fields that Fairgate uses are immutable; delete the pod and create it again to change them."
{{- end }}
{{- define "fairgate.say.phase" -}}
"Fairgate: only the pod's node and kube-system's controllers write phase and startTime of this pod, and they and schedulers the names of its generated claims; delete the pod to end it."
{{- end }}
{{- define "fairgate.say.nominated" -}}
"Fairgate: a held pod may not have status.nominatedNodeName, because the scheduler would keep capacity of that node free for it; leave the field empty."
{{- end }}
{{- define "fairgate.say.bind" -}}
"'Fairgate: ' + request.userInfo.username + ' may not bind pods here; only accounts with the verb bind on podgates.fairgate.io may.'"
{{- end }}
{{- define "fairgate.say.forced" -}}
"Fairgate: a bound pod is not deleted or evicted with a grace period of 0: its devices would count as free while its processes may still run; use --grace-period=1, which its node confirms."
{{- end }}
{{- define "fairgate.say.claim" -}}
"Fairgate: a pod was released for this resource claim, so the finalizer fairgate.io/claim-in-use stays until the pod ends; delete the pod to free the claim."
{{- end }}
{{- define "fairgate.say.claimOwner" -}}
"Fairgate: only Kubernetes may name the pod of a generated resource claim; remove the controller owner and the annotations that begin with resource.kubernetes.io/."
{{- end }}
{{- define "fairgate.say.devices" -}}
{{ include "fairgate.isTooLong" . | replace "\n" " " }} ? {{ include "fairgate.say.long" . }} :
{{ include "fairgate.namesDevices" . | replace "\n" " " }} ? {{ include "fairgate.say.variable" . }} :
{{ include "fairgate.mountsDevices" . | replace "\n" " " }} ? {{ include "fairgate.say.path" . }} :
{{ include "fairgate.isPrivileged" . | replace "\n" " " }} ? {{ include "fairgate.say.privileged" . }} : {{ include "fairgate.say.toleration" . }}
{{- end }}
{{- define "fairgate.say.variable" -}}
"Fairgate: {{ join ", " .Values.devices.variables }} would give access to devices that the pod does not request; remove the variable and request the devices in resources.limits."
{{- end }}
{{- define "fairgate.say.long" -}}
"Fairgate: a pod may have at most {{ include "fairgate.mostSearched" . }} volumes, tolerations, and variables per container, because each is checked for access to devices; use fewer."
{{- end }}
{{- define "fairgate.say.path" -}}
"Fairgate: a hostPath volume gives access to the devices of the node; remove it and request the devices in resources.limits."
{{- end }}
{{- define "fairgate.say.privileged" -}}
"Fairgate: a privileged container has access to all devices of its node; set privileged to false, or ask a cluster admin for an exempt namespace."
{{- end }}
{{- define "fairgate.say.toleration" -}}
"Fairgate: a pod that requests no device may not tolerate {{ join ", " .Values.devices.taints }}, which reserves nodes with devices; remove the toleration."
{{- end }}
{{- define "fairgate.say.distance" -}}
"Fairgate: a required podAntiAffinity may not select pods of other namespaces, or labels that begin with fairgate.io/. Remove those parts, use a preferred term, or ask a cluster admin to list this namespace in exemptNamespaces."
{{- end }}
{{- define "fairgate.say.template" -}}
"Fairgate: only Fairgate sets the annotation fairgate.io/submitter of a pod template; leave it unchanged, or remove it."
{{- end }}
{{- define "fairgate.say.claimDevices" -}}
"Fairgate: devices are allocated to this resource claim, so the finalizer resource.kubernetes.io/delete-protection stays until Kubernetes frees them; delete the pods that use the claim."
{{- end }}
{{- define "fairgate.say.tenant" -}}
"Fairgate: changing a tenant requires the right to update its parent, or all tenants if it is at top level or gains a namespace; ask an admin, or change the weights of your own users."
{{- end }}
{{- define "fairgate.say.users" -}}
"Fairgate: changing the weights of users requires the right to update tenants/users of this tenant; ask a cluster admin."
{{- end }}
{{- define "fairgate.say.author" -}}
"Fairgate: fairgate.io/changed-by is written by Fairgate, and names whoever makes the change; leave it as it was, or out."
{{- end }}
