{{/* All alerts, as a list. */}}
{{- define "etcd-guard.alerts" -}}
- alert: EtcdGuardDown
  # Counts replicas that report to be ready. A replica that is not scraped does not count.
  expr: absent(etcd_guard_ready == 1)
  for: 2m
  labels: {severity: critical}
  annotations:
    summary: No replica of etcd-guard is ready.
    description: >-
      Until a replica is ready, the API server rejects in guarded namespaces: deletions of living etcd pods, evictions of all
      pods, scale-downs, and deletions of workloads, claims and the namespaces themselves.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguarddown
    {{- end }}

- alert: EtcdGuardReplicaNotReady
  expr: etcd_guard_ready == 0
  for: 15m
  labels: {severity: warning}
  annotations:
    summary: A replica of etcd-guard has not been ready for 15 minutes.
    description: >-
      While another replica is ready, no request is rejected for this. If that replica fails too, deletions and evictions in
      guarded namespaces are rejected.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardreplicanotready
    {{- end }}

# The next two alerts query metrics of the API server, which the Prometheus operator's kube-prometheus scrapes. They detect a
# Service, a network or a certificate that fails although the replicas are ready.
- alert: EtcdGuardWebhookFailing
  expr: >-
    sum by (name) (increase(apiserver_admission_webhook_rejection_count{name=~"(.+[.])?etcd-guard[.]io",
    error_type=~"calling_webhook_error|apiserver_internal_error"}[10m])) > 0
  for: 2m
  labels: {severity: critical}
  annotations:
    summary: The API server rejects requests because calls of the webhook {{`{{ $labels.name }}`}} fail.
    description: >-
      The API server does not reach the guard, does not accept its certificate, or gets no answer in time. It rejects deletions
      and evictions in guarded namespaces, whether the etcd clusters are healthy or not.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardwebhookfailing
    {{- end }}

- alert: EtcdGuardWebhookFailOpen
  expr: >-
    sum by (name) (increase(apiserver_admission_webhook_fail_open_count{name=~"(.+[.])?etcd-guard[.]io"}[10m])) > 0
  for: 2m
  labels: {severity: warning}
  annotations:
    summary: The API server admits requests without the webhook {{`{{ $labels.name }}`}} because its calls fail.
    description: >-
      Until the calls succeed, the API server skips this webhook: checks of deletions (of nodes, of objects that members use,
      of pods that only an annotation declares), of updates that restart etcd, or mutation.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardwebhookfailopen
    {{- end }}

- alert: EtcdGuardDeniesForLong
  # A drain retries every 5 s; a rollout retries at growing intervals, up to 17 minutes.
  expr: >-
    sum by (reason) (increase(etcd_guard_admission_requests_total{verdict="denied",
    webhook=~"(eviction[.])?guard[.]etcd-guard[.]io"}[20m])) > 0
  for: 40m
  labels: {severity: warning}
  annotations:
    summary: Deletions of etcd pods are denied repeatedly ({{`{{ $labels.reason }}`}}).
    description: A drain, a rollout or an autoscaler has been denied for most of an hour. Waiting alone has not helped.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguarddeniesforlong
    {{- end }}

# The next three alerts name the cluster with --cluster-metrics. Clusters without a name are counted: all of them without the
# flag, otherwise those that exceed its limit or could not be surveyed. A cluster that two replicas survey at the
# same time is counted twice. If this lasts longer than `for`, it causes a second alert, which does not name the cluster.
- alert: EtcdGuardNoSpareVoter
  expr: >-
    max by (namespace, cluster) (etcd_guard_cluster_state{state="no_spare"}) == 1
    or
    sum(etcd_guard_clusters{state="no_spare"}) - (sum(max by (namespace, cluster)
    (etcd_guard_cluster_state{state="no_spare"})) or vector(0)) > 0
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: >-
      {{`{{ if $labels.cluster }}`}}The etcd cluster {{`{{ $labels.namespace }}`}}/{{`{{ $labels.cluster }}`}} has no voter to spare.{{`{{ else }}`}}{{`{{
      $value }}`}} guarded etcd cluster(s) have no voter to spare.{{`{{ end }}`}}
    description: >-
      Every healthy voter is needed for the quorum. The loss of one more voter stops writes. Until a voter returns, the guard
      denies the deletion of every voter that the quorum needs.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardnosparevoter
    {{- end }}

- alert: EtcdGuardQuorumLost
  expr: >-
    max by (namespace, cluster) (etcd_guard_cluster_state{state="no_quorum"}) == 1
    or
    sum(etcd_guard_clusters{state="no_quorum"}) - (sum(max by (namespace, cluster)
    (etcd_guard_cluster_state{state="no_quorum"})) or vector(0)) > 0
  for: 2m
  labels: {severity: critical}
  annotations:
    summary: >-
      {{`{{ if $labels.cluster }}`}}The etcd cluster {{`{{ $labels.namespace }}`}}/{{`{{ $labels.cluster }}`}} has no proven quorum.{{`{{ else }}`}}{{`{{
      $value }}`}} guarded etcd cluster(s) have no proven quorum.{{`{{ end }}`}}
    description: Fewer members than the quorum complete a linearizable read. The cluster accepts no writes.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardquorumlost
    {{- end }}

- alert: EtcdGuardClusterUnreachable
  expr: >-
    max by (namespace, cluster) (etcd_guard_cluster_state{state="unknown"}) == 1
    or
    sum(etcd_guard_clusters{state="unknown"}) - (sum(max by (namespace, cluster)
    (etcd_guard_cluster_state{state="unknown"})) or vector(0)) > 0
  for: 10m
  labels: {severity: critical}
  annotations:
    summary: >-
      {{`{{ if $labels.cluster }}`}}No member of the etcd cluster {{`{{ $labels.namespace }}`}}/{{`{{ $labels.cluster }}`}} answers.{{`{{ else }}`}}No
      member answers in {{`{{ $value }}`}} guarded etcd cluster(s).{{`{{ end }}`}}
    description: >-
      All members are down, the guard cannot reach them, or they reject its credentials. Until a member answers, the guard
      denies the deletion of running members.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardclusterunreachable
    {{- end }}

- alert: EtcdGuardRecognitionGap
  # A namespace may receive the label before its cluster.
  expr: sum by (gap) (etcd_guard_recognition_gaps) > 0
  for: 30m
  labels: {severity: warning}
  annotations:
    summary: 'The guard may not recognize etcd members in {{`{{ $value }}`}} place(s) ({{`{{ $labels.gap }}`}}).'
    description: >-
      Guarded namespaces have no recognized member (no_member), or unrecognized pods declare a port of etcd (port). The guard
      approves the deletion of unrecognized members without a probe.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardrecognitiongap
    {{- end }}

- alert: EtcdGuardSurveyStale
  # Exceeds the interval of the survey by a multiple. If your interval is longer than five minutes, raise the limit.
  expr: time() - etcd_guard_survey_timestamp_seconds > 900
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: A replica of etcd-guard has not finished a survey for {{`{{ $value | humanizeDuration }}`}}.
    description: >-
      The metrics of this replica show an old state of the clusters, and the alerts about clusters may miss a problem. Verdicts
      do not depend on surveys.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardsurveystale
    {{- end }}

- alert: EtcdGuardReservationStuck
  expr: max(etcd_guard_longest_reservation_seconds) > 300
  for: 1m
  labels: {severity: warning}
  annotations:
    summary: The deletion of an etcd pod is approved repeatedly, but the pod is not deleted.
    description: >-
      The deletion of the pod has been reserved for {{`{{ $value | humanizeDuration }}`}}. Meanwhile the guard counts the pod as
      deleted, and denies the deletion of other pods that the quorum needs.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardreservationstuck
    {{- end }}

- alert: EtcdGuardCertificateEnds
  # Renewal is due weeks before the end. A replica without a certificate exports 0.
  expr: min(etcd_guard_certificate_expiry_timestamp_seconds) - time() < 7 * 86400
  for: 15m
  labels: {severity: critical}
  annotations:
    summary: A certificate of etcd-guard expires within a week.
    description: >-
      The certificate expires in {{`{{ $value | humanizeDuration }}`}} and was not renewed. After that, the API server rejects it,
      with the same effect as if no replica were ready.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardcertificateends
    {{- end }}

- alert: EtcdGuardBreakGlassUsed
  expr: sum(increase(etcd_guard_break_glass_total[15m])) > 0
  labels: {severity: warning}
  annotations:
    summary: A break-glass annotation overruled a denial.
    description: The guard approved a deletion that it would have denied. Its log has the requester and the reason.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardbreakglassused
    {{- end }}

- alert: EtcdGuardConfigRejected
  expr: min(etcd_guard_config_in_force) == 0
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: The configuration file of etcd-guard is invalid and is not in effect.
    description: The last valid file stays in effect. A replica that restarts now does not start.
    {{- with $.Values.monitoring.prometheusRule.runbookBaseUrl }}
    runbook_url: {{ . }}#etcdguardconfigrejected
    {{- end }}
{{- end }}
