{{/*
Size limits of a pod that requests managed resources. app/core/podspec/size_limits.py has the same numbers and
sentences; tests/unit/core/podspec/test_size_limits.py compares them. Each line has a key, the number of entries as CEL of
the pod POD, the limit, and the words of the message. Cheap limits come first: a long list of terms is
refused before the entries of the terms are counted.
*/}}
{{- define "fairgate.bounds" -}}
{{- $nodes := "POD.spec.?affinity.?nodeAffinity" -}}
{{- $terms := printf "%s.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms.orValue([])" $nodes -}}
{{- $preferred := printf "%s.?preferredDuringSchedulingIgnoredDuringExecution.orValue([])" $nodes -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution.orValue([])" -}}
{{- $rules := printf "(POD.spec.?affinity.?podAffinity.?%s + POD.spec.?affinity.?podAntiAffinity.?%s)" $required $required -}}
{{- $spreads := "POD.spec.?topologySpreadConstraints.orValue([])" -}}
{{- $sizes := "POD.spec.?%s.orValue([]).size()" -}}
{{- $amounts := "POD.spec.?%s.orValue([]).map(c, c.?resources.?limits.orValue({}).size() + c.?resources.?requests.orValue({}).size()).sum()" -}}
{{- $listed := "%s.map(x, x.?values.orValue([]).size()).sum()" -}}
{{- $expressions := printf $listed "t.?matchExpressions.orValue([])" -}}
{{- $fields := printf $listed "t.?matchFields.orValue([])" -}}
{{- $selector := "t.?%s.?matchLabels.orValue({}).size() + t.?%s.?matchExpressions.orValue([]).size()" -}}
{{- $own := printf $selector "labelSelector" "labelSelector" -}}
{{- $other := printf $selector "namespaceSelector" "namespaceSelector" -}}
{{- $of := printf $listed "t.?labelSelector.?matchExpressions.orValue([])" -}}
{{- $ofOther := printf $listed "t.?namespaceSelector.?matchExpressions.orValue([])" -}}
selector | POD.spec.?nodeSelector.orValue({}).size() | 50 | keys in spec.nodeSelector
tolerations | POD.spec.?tolerations.orValue([]).size() | 50 | tolerations
node_terms | {{ $terms }}.size() | 50 | terms in its required node affinity
node_requirements | {{ $terms }}.map(t, t.?matchExpressions.orValue([]).size() + t.?matchFields.orValue([]).size()).sum() | 100 | requirements in its required node affinity
node_values | {{ $terms }}.map(t, {{ $expressions }} + {{ $fields }}).sum() | 250 | values in its required node affinity
preferences | {{ $preferred }}.size() | 50 | terms in its preferred node affinity
pod_terms | {{ $rules }}.size() | 50 | terms in its required pod affinity and anti-affinity
spreads | {{ $spreads }}.size() | 20 | topology spread constraints
pod_requirements | {{ $rules }}.map(t, {{ $own }} + {{ $other }} + t.?matchLabelKeys.orValue([]).size() + t.?mismatchLabelKeys.orValue([]).size()).sum() + {{ $spreads }}.map(t, {{ $own }} + t.?matchLabelKeys.orValue([]).size()).sum() | 100 | requirements in its pod affinity and spread constraints
pod_values | {{ $rules }}.map(t, {{ $of }} + {{ $ofOther }} + t.?namespaces.orValue([]).size()).sum() + {{ $spreads }}.map(t, {{ $of }}).sum() | 200 | values and namespaces in its pod affinity and spread constraints
containers | {{ printf $sizes "containers" }} + {{ printf $sizes "initContainers" }} | 100 | containers
resources | {{ printf $amounts "containers" }} + {{ printf $amounts "initContainers" }} | 300 | entries in the resource limits and requests of its containers
claims | POD.spec.?resourceClaims.orValue([]).size() | 50 | resource claims
gates | POD.spec.?schedulingGates.orValue([]).size() | 20 | scheduling gates
{{- end }}

{{/*
Whether an annotation that Fairgate reads is too long. POD is the pod. A managed pod has two stamps, so
a pod with two annotations has none of a user.
*/}}
{{- define "fairgate.isWordy" -}}
(POD.metadata.?annotations.orValue({}).size() > 2 && {{ include "fairgate.userKeys" . }}.exists(k, POD.metadata.?annotations[?k].orValue('').size() > 4096))
{{- end }}

{{/*
The message for a pod that exceeds a limit, '' for other pods: (dict "root" $ "pod" "object").
*/}}
{{- define "fairgate.excess" -}}
{{- $whole := "" -}}
{{- range splitList "\n" (include "fairgate.bounds" .root) -}}
{{- $parts := splitList " | " . -}}
{{- $whole = printf "%s%s > %s ? %s :\n" $whole (index $parts 1) (index $parts 2) (include "fairgate.say.tooLarge" (dict "most" (index $parts 2) "what" (index $parts 3))) -}}
{{- end -}}
{{- $whole = printf "%s%s ? %s : ''" $whole (include "fairgate.isWordy" .root) (include "fairgate.say.tooLarge" (dict "most" "4096" "what" "characters in an annotation of fairgate.io")) -}}
({{ replace "POD" .pod $whole }})
{{- end }}

{{/*
Whether a pod exceeds a limit: (dict "root" $ "pod" "object"). Most pods have no required affinity and
no spread constraints, so the limits on those are evaluated only for a pod that has some.
*/}}
{{- define "fairgate.isTooLarge" -}}
{{- $plain := list -}}{{- $nodes := list -}}{{- $pods := list -}}
{{- range splitList "\n" (include "fairgate.bounds" .root) -}}
{{- $parts := splitList " | " . -}}
{{- $term := printf "%s > %s" (index $parts 1) (index $parts 2) -}}
{{- if contains "nodeAffinity" $term -}}
{{- $nodes = append $nodes $term -}}
{{- else if or (contains "podAffinity" $term) (contains "topologySpreadConstraints" $term) -}}
{{- $pods = append $pods $term -}}
{{- else -}}
{{- $plain = append $plain $term -}}
{{- end -}}
{{- end -}}
{{- $required := "?requiredDuringSchedulingIgnoredDuringExecution.hasValue()" -}}
{{- $hasRules := printf "POD.spec.?affinity.?podAffinity.%s || POD.spec.?affinity.?podAntiAffinity.%s || POD.spec.?topologySpreadConstraints.hasValue()" $required $required -}}
{{- $hasNodes := "POD.spec.?affinity.?nodeAffinity.hasValue()" -}}
{{- $whole := printf "(%s || (%s && (%s)) || ((%s) && (%s)) || %s)" (join " || " $plain) $hasNodes (join " || " $nodes) $hasRules (join " || " $pods) (include "fairgate.isWordy" .root) -}}
{{ replace "POD" .pod $whole }}
{{- end }}

{{- define "fairgate.say.tooLarge" -}}
'Fairgate: a pod that requests managed resources may have at most {{ .most }} {{ .what }}; use fewer.'
{{- end }}
