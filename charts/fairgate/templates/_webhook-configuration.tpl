{{/*
The gate's keeper. No caBundle here: the webhook process writes it, so that an upgrade of the chart
never takes it away.
*/}}
{{- define "fairgate.enforcement.webhooks" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: fairgate
  labels: {{- include "fairgate.labels" . | nindent 4 }}
webhooks:
  - name: hold.fairgate.io
    admissionReviewVersions: [v1]
    # A GPU pod that could not be judged is not created: nothing passes unheld.
    failurePolicy: Fail
    matchPolicy: Equivalent
    sideEffects: None
    # Another webhook may add the GPU after we have looked.
    reinvocationPolicy: IfNeeded
    timeoutSeconds: {{ .Values.webhook.timeoutSeconds }}
    clientConfig:
      {{- if .Values.external.webhookUrl }}
      url: {{ .Values.external.webhookUrl | quote }}
      {{- else }}
      service: {name: fairgate-webhook, namespace: {{ .Release.Namespace }}, path: /admit, port: 443}
      {{- end }}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE], scope: Namespaced}
    # Only by this label, which nobody can forge; never by labels that users set.
    namespaceSelector:
      matchExpressions:
        - key: kubernetes.io/metadata.name
          operator: NotIn
          values: {{- toYaml .Values.exemptNamespaces | nindent 12 }}
    # Pods without a managed resource never reach us.
    matchConditions:
      - name: asks-for-managed-resource
        expression: |-
          {{- include "fairgate.asks" . | nindent 10 }}
{{- end }}
