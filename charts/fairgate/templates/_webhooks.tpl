{{/*
The webhooks: they hold pods, and are the second layer of enforcement after the policies. The webhook
process writes the caBundle. It is not set here, so that an upgrade of the chart does not remove it.
*/}}
{{- define "fairgate.enforcement.webhooks" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: fairgate
  labels: {{- include "fairgate.labels" . | nindent 4 }}
  # Otherwise AKS adds a namespaceSelector of its own, by which namespaces could leave the webhooks
  # out, and the watchdog removes it again and again. exemptNamespaces has kube-system.
  annotations: {admissions.enforcer/disabled: "true"}
webhooks:
  - name: hold.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/admit") | nindent 4 }}
    # Another webhook may add the GPU after this one was called.
    reinvocationPolicy: IfNeeded
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE], scope: Namespaced}
    # Pods without a managed resource never reach the webhook.
    matchConditions:
      - name: asks-for-managed-resource
        expression: |-
          {{- include "fairgate.asks" (dict "root" . "spec" "object.spec") | nindent 10 }}
  # Called for two kinds of updates. kubectl apply of the same manifest names the original
  # PriorityClass of the pod again, which the API server would refuse. If there is no answer, it
  # refuses it. And a user removes the gate: the name is written on the pod. If there is no answer,
  # the author is unknown. One webhook for both, because the API server converts both objects for
  # the conditions of each webhook.
  - name: update-pod.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/admit" "failurePolicy" "Ignore" "labelledOnly" true) | nindent 4 }}
    reinvocationPolicy: Never
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [UPDATE], scope: Namespaced}
    matchConditions:
      - name: names-another-class-or-loses-the-gate
        expression: >-
          (oldObject.spec.?priorityClassName.orValue('').startsWith('fairgate') &&
          (object.spec.?priorityClassName != oldObject.spec.?priorityClassName ||
          object.spec.?preemptionPolicy != oldObject.spec.?preemptionPolicy)) ||
          ({{ include "fairgate.isHeld" "oldObject" | replace "\n" " " }} && !{{ include "fairgate.isHeld" "object" | replace "\n" " " }} &&
          request.userInfo.username != 'system:serviceaccount:{{ .Release.Namespace }}:fairgate-controller')
  - name: stamp.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/stamp") | nindent 4 }}
    reinvocationPolicy: IfNeeded
    rules: {{- include "fairgate.templateRules" (dict "root" . "only" "specs") | nindent 6 }}
    matchConditions:
      - name: is-not-left-to-its-controller
        expression: |-
          !{{ include "fairgate.isLeftToController" (dict "root" . "only" "specs") | replace "\n" " " }}
      - name: asks-for-managed-resource
        expression: |-
          {{- include "fairgate.isToBeStamped" . | nindent 10 }}
  # Kinds whose requests are at no known place are stamped whether they request devices or not. If
  # there is no answer, the object is accepted without a stamp, so that Fairgate delays no other work.
  - name: stamp-annotations.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/stamp" "failurePolicy" "Ignore") | nindent 4 }}
    reinvocationPolicy: IfNeeded
    rules: {{- include "fairgate.templateRules" (dict "root" . "only" "annotations") | trim | nindent 6 }}
    matchConditions:
      - name: is-not-left-to-its-controller
        expression: |-
          !{{ include "fairgate.isLeftToController" (dict "root" . "only" "annotations") | replace "\n" " " }}
      - name: is-new-or-lost-its-stamp
        expression: |-
          {{- include "fairgate.isToBeAnnotated" . | nindent 10 }}
  # A watch does not contain the user that made a change, so the name is written on the object. If
  # there is no answer, the change is accepted without a name, and its author is unknown.
  - name: sign.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/sign" "everywhere" true "failurePolicy" "Ignore") | nindent 4 }}
    reinvocationPolicy: IfNeeded
    rules:
      - {apiGroups: [fairgate.io], apiVersions: ["*"], resources: [tenants, pools, policies], operations: [CREATE, UPDATE], scope: Cluster}
    matchConditions:
      - name: changes-what-is-recorded
        expression: |-
          request.operation == 'CREATE' || object.?spec != oldObject.?spec || !{{ include "fairgate.keepsAuthor" . | replace "\n" " " }}
---
# Called only if a policy would refuse, so that releases and updates by nodes do not depend on it.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: fairgate
  labels: {{- include "fairgate.labels" . | nindent 4 }}
  annotations: {admissions.enforcer/disabled: "true"}
webhooks:
  - name: create.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE], scope: Namespaced}
    matchConditions:
      - name: may-break-a-rule
        expression: |-
          {{- include "fairgate.mayBreakCreate" . | nindent 10 }}
  - name: update.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods, pods/ephemeralcontainers, pods/resize]
        operations: [UPDATE]
        scope: Namespaced
    matchConditions:
      - name: may-break-a-rule
        expression: |-
          {{- include "fairgate.mayBreakUpdate" . | nindent 10 }}
  - name: status.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate" "labelledOnly" true) | nindent 4 }}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods/status], operations: [UPDATE], scope: Namespaced}
    matchConditions:
      - name: may-break-a-rule
        expression: |-
          {{- include "fairgate.mayBreakStatus" . | nindent 10 }}
  # A pod without a gate or a release is not charged. But it may not get its first managed resource.
  - name: resize.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods/resize], operations: [UPDATE], scope: Namespaced}
    matchConditions:
      - name: resizes-a-charged-pod
        expression: |-
          {{- include "fairgate.concerns" (dict "root" . "pod" "oldObject") | nindent 10 }} ||
          {{- include "fairgate.asks" (dict "root" . "spec" "object.spec") | nindent 10 }}
  - name: bind.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods/binding, bindings], operations: [CREATE], scope: Namespaced}
    matchConditions:
      - name: may-not-bind
        expression: |-
          !{{ include "fairgate.mayBind" . }}
  - name: delete.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [DELETE], scope: Namespaced}
    matchConditions:
      - name: has-grace-period-0
        expression: {{ include "fairgate.isForcedDelete" . }}
      - name: may-not-vanish
        expression: |-
          !({{ include "fairgate.mayVanish" . | replace "\n" " " }} || {{ include "fairgate.confirmsEnd" . }})
  - name: evict.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods/eviction], operations: [CREATE], scope: Namespaced}
    matchConditions:
      - name: has-grace-period-0
        expression: {{ include "fairgate.isForcedEviction" . }}
      - name: confirms-no-end
        expression: |-
          !{{ include "fairgate.confirmsEnds" . }}
  - name: claims.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules:
      - {apiGroups: [resource.k8s.io], apiVersions: ["*"], resources: [resourceclaims], operations: [CREATE, UPDATE], scope: Namespaced}
    matchConditions:
      - name: frees-a-claim-in-use-or-forges-its-owner
        expression: |-
          (!{{ include "fairgate.keepsClaim" . | replace "\n" " " }} && !{{ include "fairgate.may" "release" | replace "\n" " " }}) ||
          !{{ include "fairgate.keepsDevices" . | replace "\n" " " }} ||
          !{{ include "fairgate.claimOwnerIsTrue" . | replace "\n" " " }}
  - name: templates.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules: {{- include "fairgate.templateRules" (dict "root" .) | nindent 6 }}
    matchConditions:
      - name: claims-to-be-another
        expression: |-
          !{{ include "fairgate.stampsAreTrue" (dict "root" . "before" (include "fairgate.stampsBefore" (dict "root" .)) "after" (include "fairgate.stamps" (include "fairgate.templates" (dict "root" . "of" "object")))) | replace "\n" " " }}
  - name: tenants.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate" "everywhere" true) | nindent 4 }}
    rules:
      - {apiGroups: [fairgate.io], apiVersions: ["*"], resources: [tenants], operations: [CREATE, UPDATE, DELETE], scope: Cluster}
    matchConditions:
      - name: exceeds-the-rights-of-the-caller
        expression: |-
          !{{ include "fairgate.governs" . | replace "\n" " " }}
  # A separate webhook, because one condition may query the authorizer for at most two rights.
  - name: users.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate" "everywhere" true) | nindent 4 }}
    rules:
      - {apiGroups: [fairgate.io], apiVersions: ["*"], resources: [tenants], operations: [UPDATE], scope: Cluster}
    matchConditions:
      - name: exceeds-the-rights-of-the-caller
        expression: |-
          !{{ include "fairgate.weighsUsers" . | replace "\n" " " }} && {{ include "fairgate.governs" . | replace "\n" " " }}
{{- end }}

{{/* Common fields of all webhooks: (dict "root" $ "path" "/admit" "everywhere" false "failurePolicy" "Fail" "labelledOnly" false). */}}
{{- define "fairgate.webhook" -}}
admissionReviewVersions: [v1]
# A request that could not be checked is refused, so that no pod bypasses the gate.
failurePolicy: {{ .failurePolicy | default "Fail" }}
matchPolicy: Equivalent
sideEffects: None
timeoutSeconds: {{ .root.Values.webhook.timeoutSeconds }}
clientConfig:
  {{- if .root.Values.external.webhookUrl }}
  url: {{ printf "%s%s" (trimSuffix "/admit" .root.Values.external.webhookUrl) .path | quote }}
  {{- else }}
  service: {name: fairgate-webhook, namespace: {{ .root.Release.Namespace }}, path: {{ .path }}, port: 443}
  {{- end }}
# The defaults of the API server, stated: see _policies.tpl.
{{- if .labelledOnly }}
objectSelector: {{- include "fairgate.labelled" .root | nindent 2 }}
{{- else }}
objectSelector: {}
{{- end }}
{{- if .everywhere }}
namespaceSelector: {}
{{- else }}
# Selects only by this label, which users cannot forge, and never by labels that users can set.
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: {{- include "fairgate.exemptNamespaces" .root | fromJsonArray | toYaml | nindent 8 }}
{{- end }}
{{- end }}
