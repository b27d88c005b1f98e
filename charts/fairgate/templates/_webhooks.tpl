{{/*
What holds pods, and the second layer of what the policies say. No caBundle here: the webhook
process writes it, so that an upgrade of the chart never takes it away.
*/}}
{{- define "fairgate.enforcement.webhooks" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: fairgate
  labels: {{- include "fairgate.labels" . | nindent 4 }}
webhooks:
  - name: hold.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/admit") | nindent 4 }}
    # Another webhook may add the GPU after we have looked.
    reinvocationPolicy: IfNeeded
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE], scope: Namespaced}
    # Pods without a managed resource never reach us.
    matchConditions:
      - name: asks-for-managed-resource
        expression: |-
          {{- include "fairgate.asks" (dict "root" . "spec" "object.spec") | nindent 10 }}
  # kubectl apply of the same manifest names the pod's original PriorityClass again, which the API
  # server would refuse. Asked only then; without an answer that is what it does.
  - name: keep-priority.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/admit" "failurePolicy" "Ignore") | nindent 4 }}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [UPDATE], scope: Namespaced}
    matchConditions:
      - name: has-twin-of-its-class
        expression: oldObject.spec.?priorityClassName.orValue('').startsWith('fairgate')
      - name: names-another-class
        expression: >-
          object.spec.?priorityClassName != oldObject.spec.?priorityClassName ||
          object.spec.?preemptionPolicy != oldObject.spec.?preemptionPolicy
  - name: stamp.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/stamp") | nindent 4 }}
    reinvocationPolicy: IfNeeded
    rules: {{- include "fairgate.templateRules" . | nindent 6 }}
    matchConditions:
      - name: is-made-by-no-controller
        expression: |-
          !({{ include "fairgate.isController" . | replace "\n" " " }})
      - name: asks-for-managed-resource
        expression: |-
          {{- include "fairgate.isToBeStamped" . | nindent 10 }}
  # The API server tells a watcher what changed, and not who changed it: the name is written on it.
  # Without an answer the change goes on, unsigned, and counts as made by nobody known.
  - name: sign.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/sign" "everywhere" true "failurePolicy" "Ignore") | nindent 4 }}
    reinvocationPolicy: IfNeeded
    rules:
      - {apiGroups: [fairgate.io], apiVersions: ["*"], resources: [tenants, pools, policies], operations: [CREATE, UPDATE], scope: Cluster}
    matchConditions:
      - name: changes-what-is-recorded
        expression: |-
          request.operation == 'CREATE' || object.?spec != oldObject.?spec || !{{ include "fairgate.keepsAuthor" . | replace "\n" " " }}
  - name: sign-by-hand.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/sign" "failurePolicy" "Ignore") | nindent 4 }}
    reinvocationPolicy: IfNeeded
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [UPDATE], scope: Namespaced}
    matchConditions:
      - name: takes-our-gate-off
        expression: |-
          {{ include "fairgate.isHeld" "oldObject" | replace "\n" " " }} && !{{ include "fairgate.isHeld" "object" | replace "\n" " " }}
      - name: is-not-the-leader
        expression: >-
          request.userInfo.username != 'system:serviceaccount:{{ .Release.Namespace }}:fairgate-controller'
---
# Asked only where a policy would refuse, so that releases and the work of nodes go on without us.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: fairgate
  labels: {{- include "fairgate.labels" . | nindent 4 }}
webhooks:
  - name: create.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE], scope: Namespaced}
    matchConditions:
      - name: lacks-gate-or-stamps-or-reaches-devices
        expression: |-
          !(({{ include "fairgate.isHeld" "object" | replace "\n" " " }} && object.spec.?nodeName.orValue('') == '' &&
          {{ include "fairgate.usualScheduler" . | replace "\n" " " }} && {{ include "fairgate.evictsNobody" . }} &&
          {{ include "fairgate.isStamped" . | replace "\n" " " }}) ||
          !{{ include "fairgate.concerns" (dict "root" . "pod" "object") | replace "\n" " " }} ||
          {{ include "fairgate.isMirror" . | replace "\n" " " }}) ||
          {{ include "fairgate.reachesDevices" . | replace "\n" " " }}
  - name: update.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods, pods/status, pods/ephemeralcontainers, pods/resize]
        operations: [UPDATE]
        scope: Namespaced
    matchConditions:
      - name: changes-what-is-ours-or-reaches-devices
        expression: |-
          ({{ include "fairgate.concerns" (dict "root" . "pod" "oldObject") | replace "\n" " " }} &&
          ((!{{ include "fairgate.keepsPlace" . | replace "\n" " " }} && !{{ include "fairgate.may" "release" | replace "\n" " " }}) ||
          !{{ include "fairgate.phaseIsKnown" . | replace "\n" " " }})) ||
          ({{ include "fairgate.touchesDevices" . | replace "\n" " " }} && {{ include "fairgate.reachesDevices" . | replace "\n" " " }})
  - name: bind.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods/binding, bindings], operations: [CREATE], scope: Namespaced}
    matchConditions:
      - name: may-not-bind
        expression: |-
          !{{ include "fairgate.mayBind" . }}
  - name: templates.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate") | nindent 4 }}
    rules: {{- include "fairgate.templateRules" . | nindent 6 }}
    matchConditions:
      - name: claims-to-be-another
        expression: |-
          !{{ include "fairgate.stampsAreTrue" (dict "root" . "before" (include "fairgate.stampsBefore" .) "after" (include "fairgate.stamps" (include "fairgate.templates" (dict "root" . "of" "object")))) | replace "\n" " " }}
  - name: tenants.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate" "everywhere" true) | nindent 4 }}
    rules:
      - {apiGroups: [fairgate.io], apiVersions: ["*"], resources: [tenants], operations: [CREATE, UPDATE, DELETE], scope: Cluster}
    matchConditions:
      - name: exceeds-the-rights-of-the-caller
        expression: |-
          !{{ include "fairgate.governs" . | replace "\n" " " }}
  # Apart, because one condition may ask the authorizer about two rights and not three.
  - name: users.fairgate.io
    {{- include "fairgate.webhook" (dict "root" . "path" "/validate" "everywhere" true) | nindent 4 }}
    rules:
      - {apiGroups: [fairgate.io], apiVersions: ["*"], resources: [tenants], operations: [UPDATE], scope: Cluster}
    matchConditions:
      - name: exceeds-the-rights-of-the-caller
        expression: |-
          !{{ include "fairgate.weighsUsers" . | replace "\n" " " }} && {{ include "fairgate.governs" . | replace "\n" " " }}
{{- end }}

{{/* What all webhooks have in common: (dict "root" $ "path" "/admit" "everywhere" false "failurePolicy" "Fail"). */}}
{{- define "fairgate.webhook" -}}
admissionReviewVersions: [v1]
# What could not be judged does not happen: nothing passes unheld.
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
{{- if not .everywhere }}
# Only by this label, which nobody can forge; never by labels that users set.
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: {{- toYaml .root.Values.exemptNamespaces | nindent 8 }}
{{- end }}
{{- end }}
