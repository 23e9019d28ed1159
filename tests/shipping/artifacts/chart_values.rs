//! Every value of the chart has an effect on the rendered objects.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{helm_template, objects, project_path};

/// A value, and its effect.
struct Effect {
    /// `PATH=JSON`
    value: &'static str,
    /// Flags that the value requires.
    with: &'static [&'static str],
    /// Kind and name of an object.
    object: &'static str,
    /// JSON pointer to a field of the object.
    pointer: &'static str,
    /// Content of the field; null if the object or the field is absent.
    expected: Value,
}

const SERVERS: &str = "Deployment etcd-guard";
const CERTIFICATES: &str = "Deployment etcd-guard-certificates";
const WEBHOOKS: &str = "ValidatingWebhookConfiguration etcd-guard";
const MONITORING: &[&str] = &["--set=monitoring.enabled=true"];
const LXCFS: &[&str] = &["--set=parts.lxcfs=true"];
const LXCFS_IMAGE: &str = "/spec/template/spec/containers/0/image";
const SHA: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

fn effect(value: &'static str, object: &'static str, pointer: &'static str, expected: Value) -> Effect {
    Effect { value, with: &[], object, pointer, expected }
}

// === impl Effect ===

impl Effect {
    fn with(self, with: &'static [&'static str]) -> Self {
        Self { with, ..self }
    }

    fn path(&self) -> &str {
        self.value.split_once('=').unwrap().0
    }

    /// Returns the field as rendered with these flags.
    fn field(&self, flags: &[&str]) -> Value {
        self.field_of(&objects(&helm_template(flags)))
    }

    /// Returns the field of one of these objects.
    fn field_of(&self, all: &[Value]) -> Value {
        let object = all.iter().find(|object| {
            let name = object["metadata"]["name"].as_str().unwrap();
            format!("{} {name}", object["kind"].as_str().unwrap()) == self.object
        });
        object.and_then(|object| object.pointer(self.pointer)).cloned().unwrap_or_default()
    }
}

/// Settings of pods.
fn pods() -> Vec<Effect> {
    let image = format!("etcd-guard@{SHA}");
    vec![
        effect("replicaCount=5", SERVERS, "/spec/replicas", json!(5)),
        effect(r#"image.repository="r.io/guard""#, SERVERS, LXCFS_IMAGE, json!("r.io/guard:0.1.0")),
        effect(r#"image.tag="next""#, SERVERS, LXCFS_IMAGE, json!("etcd-guard:next")),
        effect(
            r#"image.digest="sha256:1111111111111111111111111111111111111111111111111111111111111111""#,
            "Job etcd-guard-unregister",
            LXCFS_IMAGE,
            json!(image),
        ),
        effect(
            r#"image.pullPolicy="Always""#,
            SERVERS,
            "/spec/template/spec/containers/0/imagePullPolicy",
            json!("Always"),
        ),
        effect(
            r#"imagePullSecrets=[{"name":"registry"}]"#,
            CERTIFICATES,
            "/spec/template/spec/imagePullSecrets",
            json!([{"name": "registry"}]),
        ),
        effect(
            r#"serviceAccount.annotations={"a":"b"}"#,
            "ServiceAccount etcd-guard",
            "/metadata/annotations",
            json!({"a": "b"}),
        ),
        effect(
            r#"podAnnotations={"a":"b"}"#,
            SERVERS,
            "/spec/template/metadata/annotations",
            json!({"a": "b"}),
        ),
        effect(r#"podLabels={"a":"b"}"#, CERTIFICATES, "/spec/template/metadata/labels/a", json!("b")),
        effect(r#"nodeSelector={"a":"b"}"#, SERVERS, "/spec/template/spec/nodeSelector", json!({"a": "b"})),
        effect(
            r#"tolerations=[{"operator":"Exists"}]"#,
            CERTIFICATES,
            "/spec/template/spec/tolerations",
            json!([{"operator": "Exists"}]),
        ),
        effect(
            r#"affinity={"podAffinity":{}}"#,
            SERVERS,
            "/spec/template/spec/affinity",
            json!({"podAffinity": {}}),
        ),
        effect(
            r#"topologySpreadConstraints=[{"maxSkew":2}]"#,
            SERVERS,
            "/spec/template/spec/topologySpreadConstraints",
            json!([{"maxSkew": 2, "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "etcd-guard"}}}]),
        ),
        effect("hostNetwork=true", SERVERS, "/spec/template/spec/hostNetwork", json!(true)),
        effect("hostNetwork=true", SERVERS, "/spec/template/spec/containers/0/env/0/name", json!("HOSTNAME")),
        effect(
            r#"priorityClassName="mine""#,
            SERVERS,
            "/spec/template/spec/priorityClassName",
            json!("mine"),
        ),
        effect(
            r#"resources={"limits":{"memory":"1Gi"}}"#,
            SERVERS,
            "/spec/template/spec/containers/0/resources/limits/memory",
            json!("1Gi"),
        ),
        effect(
            r#"extraEnv=[{"name":"A","value":"b"}]"#,
            SERVERS,
            "/spec/template/spec/containers/0/env",
            json!([{"name": "A", "value": "b"}]),
        ),
        effect(
            r#"extraVolumes=[{"name":"v","emptyDir":{}}]"#,
            SERVERS,
            "/spec/template/spec/volumes/2",
            json!({"name": "v", "emptyDir": {}}),
        ),
        effect(
            r#"extraVolumeMounts=[{"name":"v","mountPath":"/v"}]"#,
            SERVERS,
            "/spec/template/spec/containers/0/volumeMounts/2",
            json!({"name": "v", "mountPath": "/v"}),
        ),
    ]
}

/// Settings of pods that platforms require.
fn platforms() -> Vec<Effect> {
    let pod = |value, field, expected| effect(value, SERVERS, field, expected);
    vec![
        pod(r#"global.imageRegistry="r.io""#, LXCFS_IMAGE, json!("r.io/etcd-guard:0.1.0")),
        pod(
            r#"global.imagePullSecrets=[{"name":"registry"}]"#,
            "/spec/template/spec/imagePullSecrets",
            json!([{"name": "registry"}]),
        ),
        pod(r#"image.registry="r.io""#, LXCFS_IMAGE, json!("r.io/etcd-guard:0.1.0")),
        pod(r#"commonLabels={"team":"db"}"#, "/metadata/labels/team", json!("db")),
        pod("podSecurityContext.runAsUser=7", "/spec/template/spec/securityContext/runAsUser", json!(7)),
        pod(
            "podSecurityContext.runAsGroup=null",
            "/spec/template/spec/securityContext/runAsGroup",
            Value::Null,
        ),
        pod(
            "podSecurityContext.runAsNonRoot=null",
            "/spec/template/spec/securityContext/runAsNonRoot",
            Value::Null,
        ),
        pod("podSecurityContext.fsGroup=null", "/spec/template/spec/securityContext/fsGroup", Value::Null),
        pod(
            r#"podSecurityContext.seccompProfile={"type":"Unconfined"}"#,
            "/spec/template/spec/securityContext/seccompProfile/type",
            json!("Unconfined"),
        ),
        effect(
            r#"securityContext={"privileged":false}"#,
            CERTIFICATES,
            "/spec/template/spec/containers/0/securityContext/privileged",
            json!(false),
        ),
        pod(
            r#"strategy={"type":"Recreate","rollingUpdate":null}"#,
            "/spec/strategy",
            json!({"type": "Recreate"}),
        ),
        pod(
            r#"livenessProbe={"periodSeconds":20}"#,
            "/spec/template/spec/containers/0/livenessProbe/periodSeconds",
            json!(20),
        ),
        pod(
            r#"readinessProbe={"periodSeconds":5}"#,
            "/spec/template/spec/containers/0/readinessProbe/periodSeconds",
            json!(5),
        ),
        pod(
            "terminationGracePeriodSeconds=60",
            "/spec/template/spec/terminationGracePeriodSeconds",
            json!(60),
        ),
        pod(r#"runtimeClassName="gvisor""#, "/spec/template/spec/runtimeClassName", json!("gvisor")),
        pod(r#"schedulerName="mine""#, "/spec/template/spec/schedulerName", json!("mine")),
        pod(
            r#"hostAliases=[{"ip":"192.0.2.1","hostnames":["a"]}]"#,
            "/spec/template/spec/hostAliases/0/ip",
            json!("192.0.2.1"),
        ),
        pod(r#"dnsPolicy="Default""#, "/spec/template/spec/dnsPolicy", json!("Default")),
        pod(
            r#"dnsConfig={"nameservers":["192.0.2.1"]}"#,
            "/spec/template/spec/dnsConfig/nameservers/0",
            json!("192.0.2.1"),
        ),
        pod("ports.webhook=10250", "/spec/template/spec/containers/0/ports/0/containerPort", json!(10250)),
        pod(
            "ports.admin=9000",
            "/spec/template/spec/containers/0/args/2",
            json!("--admin-listen=0.0.0.0:9000"),
        ),
        pod(r#"extraContainers=[{"name":"x"}]"#, "/spec/template/spec/containers/1/name", json!("x")),
        pod(r#"extraInitContainers=[{"name":"x"}]"#, "/spec/template/spec/initContainers/0/name", json!("x")),
        effect(
            r#"extraObjects=["{apiVersion: v1, kind: ConfigMap, metadata: {name: '{{ .Release.Name }}-x'}}"]"#,
            "ConfigMap etcd-guard-x",
            "/apiVersion",
            json!("v1"),
        ),
    ]
}

/// Settings of objects beside the pods.
fn surroundings() -> Vec<Effect> {
    const ACCOUNT: &str = "ServiceAccount etcd-guard";
    const SERVICE: &str = "Service etcd-guard";
    const BUDGET: &str = "PodDisruptionBudget etcd-guard";
    const POLICY: &str = "NetworkPolicy etcd-guard";
    let certificates = |value, field, expected| effect(value, CERTIFICATES, field, expected);
    vec![
        effect("serviceAccount.create=false", "ServiceAccount mine", "", Value::Null)
            .with(&["--set=serviceAccount.name=mine"]),
        effect(
            r#"serviceAccount.name="mine""#,
            "ClusterRoleBinding etcd-guard",
            "/subjects/0/name",
            json!("mine"),
        ),
        effect(r#"serviceAccount.labels={"a":"b"}"#, ACCOUNT, "/metadata/labels/a", json!("b")),
        effect(
            "serviceAccount.automountServiceAccountToken=false",
            ACCOUNT,
            "/automountServiceAccountToken",
            json!(false),
        ),
        effect("rbac.create=false", "ClusterRole etcd-guard", "", Value::Null)
            .with(&["--set=unregister.enabled=false"]),
        effect(r#"service.type="NodePort""#, SERVICE, "/spec/type", json!("NodePort")),
        effect(r#"service.labels={"a":"b"}"#, SERVICE, "/metadata/labels/a", json!("b")),
        effect(r#"service.annotations={"a":"b"}"#, SERVICE, "/metadata/annotations/a", json!("b")),
        effect(
            r#"service.ipFamilyPolicy="SingleStack""#,
            SERVICE,
            "/spec/ipFamilyPolicy",
            json!("SingleStack"),
        ),
        effect(r#"service.ipFamilies=["IPv6"]"#, SERVICE, "/spec/ipFamilies/0", json!("IPv6")),
        effect("podDisruptionBudget.maxUnavailable=2", BUDGET, "/spec/maxUnavailable", json!(2)),
        effect("podDisruptionBudget.minAvailable=1", BUDGET, "/spec/minAvailable", json!(1)),
        effect(
            r#"podDisruptionBudget.unhealthyPodEvictionPolicy="IfHealthyBudget""#,
            BUDGET,
            "/spec/unhealthyPodEvictionPolicy",
            json!("IfHealthyBudget"),
        ),
        effect(
            r#"networkPolicy.from=[{"ipBlock":{"cidr":"10.0.0.0/28"}}]"#,
            POLICY,
            "/spec/ingress/1",
            json!({"ports": [{"port": "webhook", "protocol": "TCP"}], "from": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]}),
        ),
        effect(
            r#"networkPolicy.adminFrom=[{"podSelector":{}}]"#,
            POLICY,
            "/spec/ingress/0/from/0",
            json!({"podSelector": {}}),
        ),
        effect(
            r#"networkPolicy.egress=[{"to":[]}]"#,
            POLICY,
            "/spec/policyTypes",
            json!(["Ingress", "Egress"]),
        ),
        effect(
            r#"certificates.issuerRef={"kind":"ClusterIssuer","name":"internal"}"#,
            "Certificate etcd-guard",
            "/spec/issuerRef",
            json!({"kind": "ClusterIssuer", "name": "internal"}),
        )
        .with(&["--set=certificates.mode=cert-manager"]),
        certificates(
            r#"certificates.resources={"limits":{"memory":"1Gi"}}"#,
            "/spec/template/spec/containers/0/resources/limits/memory",
            json!("1Gi"),
        ),
        certificates(
            r#"certificates.nodeSelector={"a":"b"}"#,
            "/spec/template/spec/nodeSelector",
            json!({"a": "b"}),
        ),
        certificates(
            r#"certificates.tolerations=[{"operator":"Exists"}]"#,
            "/spec/template/spec/tolerations/0/operator",
            json!("Exists"),
        ),
        certificates(
            r#"certificates.affinity={"podAffinity":{}}"#,
            "/spec/template/spec/affinity",
            json!({"podAffinity": {}}),
        ),
    ]
}

/// Settings of lxcfs.
fn lxcfs() -> Vec<Effect> {
    let all = vec![
        effect(r#"lxcfs.image.repository="l""#, "DaemonSet lxcfs", LXCFS_IMAGE, json!("l:0.1.0")),
        effect(
            r#"lxcfs.image.registry="r.io""#,
            "DaemonSet lxcfs",
            LXCFS_IMAGE,
            json!("r.io/etcd-guard-lxcfs:0.1.0"),
        ),
        effect(r#"lxcfs.image.tag="t""#, "DaemonSet lxcfs", LXCFS_IMAGE, json!("etcd-guard-lxcfs:t")),
        effect(
            r#"lxcfs.image.digest="sha256:1111111111111111111111111111111111111111111111111111111111111111""#,
            "DaemonSet lxcfs",
            LXCFS_IMAGE,
            json!(format!("etcd-guard-lxcfs@{SHA}")),
        ),
        effect(
            r#"lxcfs.image.pullPolicy="Never""#,
            "DaemonSet lxcfs",
            "/spec/template/spec/containers/0/imagePullPolicy",
            json!("Never"),
        ),
    ];
    all.into_iter().map(|effect| effect.with(LXCFS)).collect()
}

/// Arguments of the programs, and the configuration file.
fn arguments() -> Vec<Effect> {
    let last = |value, object, index, expected: &str| effect(value, object, index, json!(expected));
    vec![
        last(
            r#"logLevel="debug""#,
            CERTIFICATES,
            "/spec/template/spec/containers/0/args/1",
            "--log-level=debug",
        ),
        last(
            r#"certificates.life="720h""#,
            CERTIFICATES,
            "/spec/template/spec/containers/0/args/1",
            "--certificate-life=720h",
        ),
        last("register=true", CERTIFICATES, "/spec/template/spec/containers/0/args/1", "--register"),
        last(
            r#"clientCaConfigMap="ca""#,
            SERVERS,
            "/spec/template/spec/containers/0/args/7",
            "--client-ca=/etc/etcd-guard/client-ca/ca.crt",
        ),
        last(
            r#"tracing.otlpEndpoint="http://c:4317""#,
            SERVERS,
            "/spec/template/spec/containers/0/args/7",
            "--otlp-endpoint=http://c:4317",
        ),
        last(
            r#"extraArgs=["--linger=1s"]"#,
            SERVERS,
            "/spec/template/spec/containers/0/args/7",
            "--linger=1s",
        ),
        last(
            r#"monitoring.surveyInterval="5m""#,
            SERVERS,
            "/spec/template/spec/containers/0/args/7",
            "--survey-interval=5m",
        )
        .with(MONITORING),
        last(
            "monitoring.clusterMetrics=500",
            SERVERS,
            "/spec/template/spec/containers/0/args/8",
            "--cluster-metrics=500",
        )
        .with(MONITORING),
        last(r#"config="a: b""#, "ConfigMap etcd-guard-config", "/data/config.yaml", "a: b\n"),
        last(
            r#"defaultMode="audit""#,
            "ConfigMap etcd-guard-config",
            "/data/config.yaml",
            "apiVersion: etcd-guard.io/v1alpha1\nguard:\n  defaults:\n    mode: audit\n",
        ),
    ]
}

/// Names, and whether objects exist.
fn existence() -> Vec<Effect> {
    vec![
        effect(
            r#"nameOverride="gate""#,
            "Service etcd-guard",
            "/spec/selector",
            json!({"app.kubernetes.io/name": "gate"}),
        ),
        effect(r#"fullnameOverride="gate""#, "Deployment gate", "/spec/replicas", json!(2)),
        effect("podDisruptionBudget.enabled=false", "PodDisruptionBudget etcd-guard", "", Value::Null),
        effect("networkPolicy.enabled=false", "NetworkPolicy etcd-guard-certificates", "", Value::Null),
        effect("resourceQuota.enabled=false", "ResourceQuota etcd-guard", "", Value::Null),
        effect("unregister.enabled=false", "Job etcd-guard-unregister", "", Value::Null),
        effect(r#"certificates.mode="files""#, CERTIFICATES, "", Value::Null),
        effect("createNamespace=true", "Namespace etcd-guard", "/kind", json!("Namespace")),
        effect(
            "parts.inject=true",
            "MutatingWebhookConfiguration etcd-guard-inject",
            "/webhooks/0/name",
            json!("inject.etcd-guard.io"),
        ),
        effect(
            "parts.nodes=true",
            "MutatingWebhookConfiguration etcd-guard-nodes",
            "/webhooks/0/name",
            json!("nodes.etcd-guard.io"),
        ),
        effect(
            "parts.nodesPolicy=true",
            "MutatingAdmissionPolicy etcd-guard-nodes",
            "/spec/failurePolicy",
            json!("Ignore"),
        )
        .with(&[
            "--set=parts.nodes=true",
            "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
        ]),
        effect(
            "parts.rules=true",
            "ValidatingWebhookConfiguration etcd-guard-rules",
            "/webhooks/0/name",
            json!("rules.etcd-guard.io"),
        ),
        effect(
            "parts.nodeDeletions=true",
            "ValidatingWebhookConfiguration etcd-guard-node-deletions",
            "/webhooks/0/name",
            json!("nodes.guard.etcd-guard.io"),
        ),
        effect(
            "parts.handover=true",
            "ClusterRole etcd-guard-handover",
            "/rules/0/verbs",
            json!(["get", "list", "watch"]),
        ),
        effect("parts.lxcfs=true", "DaemonSet lxcfs", "/kind", json!("DaemonSet")),
    ]
}

/// Entries of the webhook configuration. By default, they are guard, eviction, intent, resources and others.
fn webhooks() -> Vec<Effect> {
    let kind = json!([{"apiGroups": ["example.com"], "apiVersions": ["*"], "operations": ["DELETE"],
        "resources": ["etcds"], "scope": "Namespaced"}]);
    vec![
        effect("webhooks.guard=false", WEBHOOKS, "/webhooks/0/name", json!("eviction.guard.etcd-guard.io")),
        effect("webhooks.guard=false", WEBHOOKS, "/webhooks/3", Value::Null),
        effect("webhooks.eviction=false", WEBHOOKS, "/webhooks/1/name", json!("intent.guard.etcd-guard.io")),
        effect("webhooks.intent=false", WEBHOOKS, "/webhooks/2/name", json!("resources.guard.etcd-guard.io")),
        effect(r#"webhooks.resources="""#, WEBHOOKS, "/webhooks/3/name", json!("others.guard.etcd-guard.io")),
        effect(r#"webhooks.failurePolicy="Ignore""#, WEBHOOKS, "/webhooks/2/failurePolicy", json!("Ignore")),
        effect(
            r#"optInLabel.key="example.com/etcd""#,
            WEBHOOKS,
            "/webhooks/3/namespaceSelector/matchLabels",
            json!({"example.com/etcd": "enabled"}),
        ),
        effect(
            r#"optInLabel.value="yes""#,
            SERVERS,
            "/spec/template/spec/containers/0/args/7",
            json!("--opt-in-label=etcd-guard.io/guard=yes"),
        ),
        effect(r#"webhooks.annotations={"a":"b"}"#, WEBHOOKS, "/metadata/annotations/a", json!("b")),
        effect(r#"webhooks.labels={"a":"b"}"#, WEBHOOKS, "/metadata/labels/a", json!("b")),
        effect(
            r#"webhooks.excludedNamespaces=["legacy"]"#,
            WEBHOOKS,
            "/webhooks/0/namespaceSelector/matchExpressions/0/values",
            json!(["kube-system", "etcd-guard", "legacy"]),
        ),
        effect("webhooks.timeoutSeconds=7", WEBHOOKS, "/webhooks/3/timeoutSeconds", json!(7)),
        effect(
            r#"ownerKinds=[{"group":"example.com","resource":"etcds"}]"#,
            WEBHOOKS,
            "/webhooks/2/rules/4",
            kind[0].clone(),
        ),
    ]
}

fn monitoring() -> Vec<Effect> {
    let labels = json!({
        "app.kubernetes.io/name": "etcd-guard", "app.kubernetes.io/instance": "etcd-guard",
        "app.kubernetes.io/version": "0.1.0", "app.kubernetes.io/managed-by": "Helm",
        "app.kubernetes.io/part-of": "etcd-guard", "helm.sh/chart": "etcd-guard-0.1.0", "release": "prometheus",
    });
    let objects = vec![
        effect(
            r#"monitoring.labels={"release":"prometheus"}"#,
            "PodMonitor etcd-guard",
            "/metadata/labels",
            labels,
        ),
        effect("monitoring.podMonitor.enabled=false", "PodMonitor etcd-guard", "", Value::Null),
        effect(
            r#"monitoring.podMonitor.interval="7s""#,
            "PodMonitor etcd-guard",
            "/spec/podMetricsEndpoints/0/interval",
            json!("7s"),
        ),
        effect(
            r#"monitoring.podMonitor.relabelings=[{"action":"drop"}]"#,
            "PodMonitor etcd-guard",
            "/spec/podMetricsEndpoints/0/relabelings/0/action",
            json!("drop"),
        ),
        effect(
            r#"monitoring.podMonitor.metricRelabelings=[{"action":"drop"}]"#,
            "PodMonitor etcd-guard",
            "/spec/podMetricsEndpoints/0/metricRelabelings/0/action",
            json!("drop"),
        ),
        effect(
            r#"monitoring.prometheusRule.disabledAlerts=["EtcdGuardDown"]"#,
            "PrometheusRule etcd-guard",
            "/spec/groups/0/rules/0/alert",
            json!("EtcdGuardReplicaNotReady"),
        ),
        effect(
            "monitoring.serviceMonitor.enabled=true",
            "Service etcd-guard-metrics",
            "/spec/clusterIP",
            json!("None"),
        ),
        effect("monitoring.prometheusRule.enabled=false", "PrometheusRule etcd-guard", "", Value::Null),
        effect(
            r#"monitoring.prometheusRule.runbookBaseUrl="https://wiki/run""#,
            "PrometheusRule etcd-guard",
            "/spec/groups/0/rules/0/annotations/runbook_url",
            json!("https://wiki/run#etcdguarddown"),
        ),
        effect(
            "monitoring.dashboard.enabled=true",
            "ConfigMap etcd-guard-dashboard",
            "/metadata/labels/grafana_dashboard",
            json!("1"),
        ),
    ];
    let mut all: Vec<_> = objects.into_iter().map(|effect| effect.with(MONITORING)).collect();
    all.push(effect(
        "monitoring.enabled=true",
        "PrometheusRule etcd-guard",
        "/kind",
        json!("PrometheusRule"),
    ));
    let relabelings = [
        (
            r#"monitoring.serviceMonitor.relabelings=[{"action":"drop"}]"#,
            "/spec/endpoints/0/relabelings/0/action",
        ),
        (
            r#"monitoring.serviceMonitor.metricRelabelings=[{"action":"drop"}]"#,
            "/spec/endpoints/0/metricRelabelings/0/action",
        ),
    ];
    all.extend(relabelings.map(|(value, pointer)| {
        effect(value, "ServiceMonitor etcd-guard", pointer, json!("drop"))
            .with(&["--set=monitoring.enabled=true,monitoring.serviceMonitor.enabled=true"])
    }));
    all.push(
        effect(
            r#"monitoring.serviceMonitor.interval="7s""#,
            "ServiceMonitor etcd-guard",
            "/spec/endpoints/0/interval",
            json!("7s"),
        )
        .with(&["--set=monitoring.enabled=true,monitoring.serviceMonitor.enabled=true"]),
    );
    all.push(
        effect(
            r#"monitoring.dashboard.labels={"a":"b"}"#,
            "ConfigMap etcd-guard-dashboard",
            "/metadata/labels/a",
            json!("b"),
        )
        .with(&["--set=monitoring.enabled=true,monitoring.dashboard.enabled=true"]),
    );
    all
}

fn effects() -> Vec<Effect> {
    [pods(), platforms(), surroundings(), lxcfs(), arguments(), existence(), webhooks(), monitoring()]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn every_value_has_its_effect() {
    // Most values have the same objects without them.
    let mut without = BTreeMap::new();
    for effect in effects() {
        let value = format!("--set-json={}", effect.value);
        let changed = [effect.with, &[value.as_str()]].concat();
        assert_eq!(effect.field(&changed), effect.expected, "{}", effect.value);
        let defaults = without.entry(effect.with).or_insert_with(|| objects(&helm_template(effect.with)));
        assert_ne!(effect.field_of(defaults), effect.expected, "{} is the default", effect.value);
    }
}

/// Adds the paths of the values that are no tables, and of empty tables.
fn add_leaves(prefix: &str, values: &Value, leaves: &mut Vec<String>) {
    match values.as_object() {
        Some(table) if !table.is_empty() => {
            for (key, value) in table {
                let separator = if prefix.is_empty() { "" } else { "." };
                add_leaves(&format!("{prefix}{separator}{key}"), value, leaves);
            }
        }
        _ => leaves.push(prefix.to_owned()),
    }
}

#[test]
fn effects_cover_every_value() {
    let file = std::fs::read_to_string(project_path("deploy/chart/etcd-guard/values.yaml")).unwrap();
    let mut leaves = Vec::new();
    add_leaves("", &serde_saphyr::from_str(&file).unwrap(), &mut leaves);
    assert!(leaves.len() > 50, "{leaves:?}");
    let effects = effects();
    for leaf in leaves {
        let is_covered = effects.iter().any(|effect| {
            leaf.strip_prefix(effect.path()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        });
        assert!(is_covered, "{leaf} has no row in this table");
    }
}

#[test]
fn audit_default_keeps_configuration_file() {
    let map = effect("", "ConfigMap etcd-guard-config", "/data/config.yaml", Value::Null);
    let merged = |config: &str| {
        let flags = ["--set=defaultMode=audit", config];
        serde_saphyr::from_str::<Value>(map.field(&flags).as_str().unwrap()).unwrap()["guard"].take()
    };
    let others = merged("--set-string=config=guard: {floor: {mode: audit}}");
    assert_eq!(others, json!({"defaults": {"mode": "audit"}, "floor": {"mode": "audit"}}));
    let own = merged("--set-string=config=guard: {defaults: {mode: enforce}}");
    assert_eq!(own, json!({"defaults": {"mode": "enforce"}}));
}
