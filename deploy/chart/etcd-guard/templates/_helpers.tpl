{{/* Value of the label app.kubernetes.io/name of the servers, which selects their pods. */}}
{{- define "etcd-guard.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/*
Name of the Deployment and of the other objects that nothing refers to by name. The Service, the service accounts, the
Secrets, the webhook configurations and the admission policies have fixed names.
*/}}
{{- define "etcd-guard.fullname" -}}
{{ .Values.fullnameOverride | default "etcd-guard" | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "etcd-guard.labels" -}}
app.kubernetes.io/name: {{ include "etcd-guard.name" . }}
{{ include "etcd-guard.releaseLabels" . }}
{{- end }}

{{- define "etcd-guard.lxcfsLabels" -}}
app.kubernetes.io/name: etcd-guard-lxcfs
{{ include "etcd-guard.releaseLabels" . }}
{{- end }}

{{- define "etcd-guard.releaseLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: etcd-guard
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Name of the servers' service account. */}}
{{- define "etcd-guard.serviceAccount" -}}
{{ .Values.serviceAccount.name | default "etcd-guard" }}
{{- end }}

{{/* The image of a part, from (dict "image" VALUES "root" $). */}}
{{- define "etcd-guard.image" -}}
{{- $registry := (.root.Values.global).imageRegistry | default .image.registry -}}
{{- $name := empty $registry | ternary .image.repository (printf "%s/%s" $registry .image.repository) -}}
{{- if .image.digest -}}
image: "{{ $name }}@{{ .image.digest }}"
{{- else -}}
image: "{{ $name }}:{{ .image.tag | default .root.Chart.AppVersion }}"
{{- end }}
{{- with .image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/*
Settings of every pod that runs the guard's image, from (dict "root" $ "placement" VALUES), where VALUES may set
nodeSelector and tolerations of its own.
*/}}
{{- define "etcd-guard.pod" -}}
{{- $values := .root.Values }}
{{- with concat $values.imagePullSecrets ((($values.global).imagePullSecrets) | default list) }}
imagePullSecrets:
{{ toYaml . }}
{{- end }}
{{- with .placement.nodeSelector | default $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .placement.tolerations | default $values.tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with $values.hostAliases }}
hostAliases:
{{ toYaml . }}
{{- end }}
{{- with $values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Security context of a pod. On OpenShift, without the user and the groups: the platform assigns them, and rejects pods that
name their own.
*/}}
{{- define "etcd-guard.podSecurity" -}}
{{- $context := .Values.podSecurityContext -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" -}}
{{- end -}}
{{- toYaml $context }}
{{- end }}

{{- define "etcd-guard.containerSecurity" -}}
{{- toYaml .Values.securityContext }}
{{- end }}

{{/* The namespaces that a webhook never reviews: those of the first argument, the guard's own, and the configured ones. */}}
{{- define "etcd-guard.excluded" -}}
{{- concat .namespaces (list .root.Release.Namespace) .root.Values.webhooks.excludedNamespaces | toJson }}
{{- end }}

{{/* Labels and annotations of a webhook configuration, with their indentation. */}}
{{- define "etcd-guard.configurationMetadata" }}
  labels:
    {{- include "etcd-guard.labels" $ | nindent 4 }}
    {{- with .Values.webhooks.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- $annotations := .Values.webhooks.annotations }}
{{- if eq .Values.certificates.mode "cert-manager" }}
{{- $certificate := ternary "etcd-guard" "etcd-guard-ca" (not (empty .Values.certificates.issuerRef)) }}
{{- $annotations = merge (dict "cert-manager.io/inject-ca-from" (printf "%s/%s" .Release.Namespace $certificate)) $annotations }}
{{- end }}
{{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{/* Argument with the label that opts a namespace in, unless it is the default of the program. */}}
{{- define "etcd-guard.optInLabel" -}}
{{- $label := printf "%s=%s" .Values.optInLabel.key .Values.optInLabel.value -}}
{{- if ne $label "etcd-guard.io/guard=enabled" -}}
- --opt-in-label={{ $label }}
{{- end -}}
{{- end }}

{{/* Settings that the entries of the webhook configuration etcd-guard have in common. */}}
{{- define "etcd-guard.entry" -}}
clientConfig:
  service: {name: etcd-guard, namespace: {{ .Release.Namespace }}, port: 443, path: /validate}
# For a request on a namespace, the selector matches the labels of that namespace.
namespaceSelector:
  matchLabels: {{ dict .Values.optInLabel.key .Values.optInLabel.value | toJson }}
  matchExpressions:
  # These namespaces are never guarded, independent of their labels: the control plane and the guard must be able to
  # restart.
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ include "etcd-guard.excluded" (dict "root" $ "namespaces" (list "kube-system")) }}}
matchPolicy: Equivalent
sideEffects: NoneOnDryRun
timeoutSeconds: {{ .Values.webhooks.timeoutSeconds }}
admissionReviewVersions: [v1, v1beta1]
{{- end }}

{{/* Content of the configuration file: `config`, and `defaultMode` where the file has no guard.defaults.mode. */}}
{{- define "etcd-guard.config" -}}
{{- if .Values.defaultMode -}}
{{- $mode := dict "guard" (dict "defaults" (dict "mode" .Values.defaultMode)) -}}
{{- $file := .Values.config | fromYaml | default dict -}}
{{- mergeOverwrite (dict "apiVersion" "etcd-guard.io/v1alpha1") $mode $file | toYaml -}}
{{- else -}}
{{- .Values.config -}}
{{- end -}}
{{- end }}
