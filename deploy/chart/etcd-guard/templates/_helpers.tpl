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
{{- end }}

{{/* The image of a part, from (dict "image" VALUES "root" $). */}}
{{- define "etcd-guard.image" -}}
{{- if .image.digest -}}
image: "{{ .image.repository }}@{{ .image.digest }}"
{{- else -}}
image: "{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}"
{{- end }}
{{- with .image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* Settings of every pod that runs the guard's image. */}}
{{- define "etcd-guard.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{ toYaml . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "etcd-guard.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "etcd-guard.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Annotation by which cert-manager sets the caBundle of a webhook configuration, with its indentation. */}}
{{- define "etcd-guard.caAnnotation" }}
{{- if eq .Values.certificates.mode "cert-manager" }}
  annotations:
    cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/etcd-guard-ca
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
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, {{ .Release.Namespace }}]}
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
