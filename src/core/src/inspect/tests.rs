use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::{
    config::policies::Policies,
    objects::data_object::{DataKind, Secret},
};

fn account() -> GuardAccount {
    GuardAccount { namespace: String::from("guards"), name: String::from("etcd-guard") }
}

/// Inspects a pod in YAML that inherits the annotations of these objects.
fn inspect_pod(yaml: &str, owners: Vec<AnnotatedObject>) -> Inspection {
    let pod: Pod = serde_saphyr::from_str(yaml).unwrap();
    let object = InspectedObject { object: String::from("the pod"), pod, owners };
    let mut inspection = inspect(&object, &Policies::default(), Timestamp::UNIX_EPOCH);
    inspection.add_role(&account());
    inspection
}

fn names(inspection: &Inspection, is_chosen: impl Fn(&InspectedCredential) -> bool) -> Vec<&str> {
    let chosen = inspection.credentials.iter().filter(|credential| is_chosen(credential));
    chosen.map(|credential| credential.name.as_str()).collect()
}

/// Returns the text of a pod of the corpus.
fn corpus(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/corpus");
    std::fs::read_to_string(format!("{folder}/{name}.yaml")).unwrap()
}

const MIRROR: &str = "
metadata: {name: etcd-node1, namespace: kube-system, annotations: {kubernetes.io/config.mirror: abc}}
spec: {containers: [{name: etcd, image: registry.k8s.io/etcd:3.6.4-0, command: [etcd, --name=node1]}]}
";

#[test]
fn every_distribution_is_recognized_with_its_role() {
    for name in [
        "bitnami-12-password",
        "cozystack",
        "etcd-druid-gardener",
        "etcd-io-example",
        "etcd-io-operator",
        "hypershift",
        "kamaji-cert-manager",
        "vcluster-deployed",
    ] {
        let inspection = inspect_pod(&corpus(name), Vec::new());
        assert!(inspection.recognized, "{name}: {inspection:?}");
        assert_eq!(inspection.container.as_deref(), Some("etcd"), "{name}");
        assert!(inspection.rule.is_some(), "{name}");
        assert!(inspection.endpoint.is_some() && inspection.storage.is_some(), "{name}: {inspection:?}");
        // The Role permits the reads of all objects that the guard reads, and of no other object.
        let mut expected = names(&inspection, |_| true);
        expected.sort_unstable();
        expected.dedup();
        let permitted: Vec<&str> = match inspection.role.first() {
            Some(role) => {
                let rules = role["rules"].as_array().unwrap();
                assert!(rules.iter().all(|rule| rule["verbs"] == json!(["get"])), "{role}");
                let named = rules.iter().flat_map(|rule| rule["resourceNames"].as_array().unwrap());
                let mut permitted: Vec<&str> = named.map(|name| name.as_str().unwrap()).collect();
                permitted.sort_unstable();
                permitted
            }
            None => Vec::new(),
        };
        assert_eq!(permitted, expected, "{name}");
    }
}

#[test]
fn pods_without_a_member_have_a_stable_reason() {
    let result = |yaml: &str| {
        let inspection = inspect_pod(yaml, Vec::new());
        assert!(!inspection.recognized && inspection.role.is_empty(), "{inspection:?}");
        assert_eq!((inspection.container, inspection.credentials.len()), (None, 0));
        inspection.reason
    };
    let etcd = "spec: {containers: [{name: etcd, image: etcd, command: [etcd]}]}";
    assert_eq!(result(MIRROR), InspectionReason::MirrorPod);
    assert_eq!(
        result("metadata: {name: a}\nspec: {containers: [{name: app, image: app}]}"),
        InspectionReason::NotEtcd
    );
    let excluded = format!("metadata: {{name: a, annotations: {{etcd-guard.io/member: 'false'}}}}\n{etcd}");
    assert_eq!(result(&excluded), InspectionReason::Excluded);
    let terminating = format!("metadata: {{name: a, deletionTimestamp: '2026-01-01T00:00:00Z'}}\n{etcd}");
    assert_eq!(result(&terminating), InspectionReason::Terminating);
    let finished = format!("metadata: {{name: a}}\n{etcd}\nstatus: {{phase: Succeeded}}");
    assert_eq!(result(&finished), InspectionReason::Finished);
}

#[test]
fn configuration_file_replaces_the_settings_of_the_pod() {
    let pod = "metadata: {name: etcd-0, namespace: prod}
spec:
  containers:
  - {name: etcd, image: etcd, command: [etcd, --config-file=/etc/etcd/etcd.yaml], volumeMounts: [{name: f, mountPath: /etc/etcd}, {name: tls, mountPath: /tls}]}
  volumes: [{name: f, configMap: {name: settings}}, {name: tls, secret: {secretName: server}}]";
    let mut inspection = inspect_pod(pod, Vec::new());
    assert_eq!(inspection.scheme, Some("probed"));
    assert_eq!(inspection.credentials[0].purpose, "configuration");
    let rules = |inspection: &Inspection| inspection.role[0]["rules"].as_array().unwrap().clone();
    let of_config_maps =
        rules(&inspection).into_iter().find(|rule| rule["resources"] == json!(["configmaps"]));
    assert_eq!(of_config_maps.unwrap()["resourceNames"], json!(["settings"]));

    let file = "listen-client-urls: https://0.0.0.0:4379\nclient-transport-security: {cert-file: /tls/a.crt, key-file: /tls/a.key, trusted-ca-file: /tls/root.crt}";
    let found = |pairs: &[(&str, &str)]| {
        let content = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        ObjectState { content: Some(ObjectContent::Found(content)), ..ObjectState::default() }
    };
    let settings = DataObject { kind: DataKind::ConfigMap, name: String::from("settings") };
    let mut states = BTreeMap::from([(settings, found(&[("etcd.yaml", file)]))]);
    inspection.record(&states);
    assert_eq!(
        (inspection.scheme, inspection.endpoint.as_deref()),
        (Some("https"), Some("https://POD_IP:4379"))
    );
    assert!(inspection.objects().contains(&DataObject::secret("server")), "{inspection:?}");
    states.insert(DataObject::secret("server"), found(&[("a.crt", "C"), ("a.key", "K"), ("root.crt", "A")]));
    inspection.record(&states);
    inspection.add_role(&account());
    let used = inspection.credentials.iter().find(|credential| credential.name == "server").unwrap();
    assert_eq!(used.found, ["a.crt", "a.key", "root.crt"]);
    assert_eq!(rules(&inspection).len(), 2);
    assert_eq!(inspection.warnings, Vec::<String>::new());
}

#[test]
fn annotation_of_namespace_declares_only_its_container() {
    let of_namespace = |value: &str| AnnotatedObject {
        object: String::from("namespace prod"),
        relation: Relation::Namespace,
        annotations: Ok(BTreeMap::from([(String::from("etcd-guard.io/member"), value.to_owned())])),
    };
    let pod = corpus("tidb-pd");
    let inspection = inspect_pod(&pod, Vec::new());
    assert_eq!(inspection.reason, InspectionReason::NotEtcd);
    let suggestion = &inspection.suggestions[0];
    assert_eq!((suggestion.annotation, suggestion.value.as_str()), ("etcd-guard.io/member", "pd"));
    let inspection = inspect_pod(&pod, vec![of_namespace("pd")]);
    assert!(inspection.recognized && inspection.rule.as_deref() == Some("annotation etcd-guard.io/member"));
    let other = "metadata: {name: a}\nspec: {containers: [{name: app, image: app}]}";
    assert_eq!(inspect_pod(other, vec![of_namespace("pd")]).reason, InspectionReason::NotEtcd);
    assert_eq!(inspect_pod(other, vec![of_namespace("true")]).reason, InspectionReason::NotEtcd);
}

#[test]
fn report_names_the_rule_and_the_vetoes() {
    let inspection = inspect_pod(
        "metadata: {name: a}\nspec: {containers: [{name: proxy, image: etcd, command: [etcd, grpc-proxy, start]}]}",
        Vec::new(),
    );
    assert_eq!(inspection.reason, InspectionReason::NotEtcd);
    assert_eq!(inspection.vetoes, ["proxy: the container runs etcd grpc-proxy, which is no member"]);
    let inspection = inspect_pod(&corpus("bitnami-12"), Vec::new());
    assert!(inspection.rule.as_deref().is_some_and(|rule| rule.starts_with("member-only variable ETCD_")));
}

#[test]
fn unknown_address_is_shown_as_such() {
    let inspection = inspect_pod(
        "metadata: {name: etcd-0}\nspec: {containers: [{name: etcd, image: etcd, command: [etcd, \
         '--cert-file=/a', '--listen-client-urls=https://0.0.0.0:2379']}]}",
        Vec::new(),
    );
    assert_eq!(inspection.endpoint.as_deref(), Some("https://POD_IP:2379"));
    assert_eq!(inspection.server_name.as_deref(), Some("POD_IP"));
    assert!(inspection.other_endpoints.is_empty() && inspection.warnings.is_empty(), "{inspection:?}");
}

#[test]
fn advertised_address_is_never_shown_as_unknown() {
    for advertised in ["192.0.2.1", "192.0.2.10", "192.0.2.2"] {
        let inspection = inspect_pod(
            &format!(
                "metadata: {{name: etcd-0}}\nspec: {{containers: [{{name: etcd, image: etcd, command: [etcd, \
                 '--advertise-client-urls=http://{advertised}:2379', '--initial-advertise-peer-urls=http://{advertised}:2380', \
                 '--listen-client-urls=http://0.0.0.0:2379']}}]}}"
            ),
            Vec::new(),
        );
        assert_eq!(inspection.peer_urls, [format!("http://{advertised}:2380")]);
        let endpoint = inspection.endpoint.as_deref().unwrap();
        assert!(
            ["http://POD_IP:2379", &format!("http://{advertised}:2379")].contains(&endpoint),
            "{endpoint}"
        );
    }
}

#[test]
fn script_of_a_hook_is_part_of_the_role() {
    let pod = "metadata: {name: etcd-0, namespace: prod}
spec:
  containers:
  - name: etcd
    image: etcd
    command: [etcd, --data-dir=/data, '--listen-client-urls=http://0.0.0.0:2379']
    lifecycle: {preStop: {exec: {command: [/scripts/stop.sh]}}}
    volumeMounts: [{name: scripts, mountPath: /scripts}, {name: data, mountPath: /data}]
  volumes: [{name: scripts, configMap: {name: etcd-scripts}}, {name: data, persistentVolumeClaim: {claimName: data}}]";
    let scripts = DataObject { kind: DataKind::ConfigMap, name: String::from("etcd-scripts") };
    for (content, storage, warning) in [
        (None, "removed-by-hook", Some("/scripts/stop.sh (ConfigMap prod/etcd-scripts was not read)")),
        (Some("etcdctl member remove $ID"), "removed-by-hook", None),
        (Some("etcdctl move-leader $ID"), "persistent", None),
        (Some("/opt/leave"), "removed-by-hook", Some("/opt/leave (another script runs it)")),
    ] {
        let mut inspection = inspect_pod(pod, Vec::new());
        let content = content.map(|text| {
            ObjectContent::Found([(String::from("stop.sh"), text.to_owned())].into_iter().collect())
        });
        let state = ObjectState { content, ..ObjectState::default() };
        let states = BTreeMap::from([(scripts.clone(), state)]);
        inspection.record(&states);
        inspection.record(&states);
        assert_eq!(inspection.storage, Some(storage));
        let warnings: Vec<&str> = inspection.warnings.iter().map(String::as_str).collect();
        assert_eq!(warnings.len(), usize::from(warning.is_some()), "{warnings:?}");
        assert!(warning.is_none_or(|warning| warnings[0].ends_with(warning)), "{warnings:?}");
        inspection.add_role(&account());
        assert_eq!(inspection.role[0]["rules"][0]["resourceNames"], json!(["etcd-scripts"]));
    }
}

#[test]
fn policy_and_annotations_of_owners_apply() {
    let owner = |object: &str, relation: Relation, pairs: &[(&str, &str)]| AnnotatedObject {
        object: object.to_owned(),
        relation,
        annotations: Ok(pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()),
    };
    let owners = vec![
        owner(
            "namespace prod",
            Relation::Namespace,
            &[
                ("etcd-guard.io/leader", "transfer"),
                ("etcd-guard.io/mode", "audit"),
                ("etcd-guard.io/client-tls-secret", "far"),
            ],
        ),
        owner(
            "EtcdCluster shop",
            Relation::Owner,
            &[("etcd-guard.io/single-member", "allow"), ("etcd-guard.io/client-tls-secret", "other")],
        ),
        owner(
            "StatefulSet etcd",
            Relation::StatefulSet,
            &[("etcd-guard.io/leader", "deny"), ("etcd-guard.io/client-tls-secret", "near")],
        ),
        AnnotatedObject {
            object: String::from("Unreadable etcd"),
            relation: Relation::Owner,
            annotations: Err(String::from("forbidden")),
        },
    ];
    let inspection = inspect_pod(&corpus("bitnami-12-password"), owners);
    let from = |name: &str| {
        let setting = inspection.policy.iter().find(|setting| setting.name.ends_with(name)).unwrap();
        (setting.value.as_str(), setting.from.as_str())
    };
    assert_eq!(from("/leader"), ("deny", "StatefulSet etcd"));
    assert_eq!(from("/mode"), ("audit", "namespace prod"));
    assert_eq!(from("/single-member"), ("allow", "EtcdCluster shop"));
    assert_eq!(from("/ephemeral-data"), ("deny", "configuration"));
    assert_eq!(names(&inspection, |credential| credential.purpose == "certificates")[0], "near");
    assert!(names(&inspection, |_| true).iter().all(|name| !["far", "other"].contains(name)));
    assert!(inspection.warnings.iter().any(|warning| warning.contains("Unreadable etcd are unknown")));
}

#[test]
fn role_contains_only_secrets_that_are_needed() {
    let mut inspection = inspect_pod(&corpus("bitnami-12-password"), Vec::new());
    let certificates = names(&inspection, |credential| credential.purpose == "certificates");
    let [first, second, ..] = certificates[..] else { panic!("{certificates:?}") };
    let (first, second) = (first.to_owned(), second.to_owned());
    let password = names(&inspection, |credential| credential.purpose == "password")[0].to_owned();
    let complete = Secret::from([("tls.crt", "C"), ("tls.key", "K"), ("ca.crt", "A")]);
    let user = Secret::from([("etcd-root-password", "very-secret")]);
    let contents = [
        (first.clone(), ObjectContent::Missing),
        (second.clone(), ObjectContent::Found(complete)),
        (password.clone(), ObjectContent::Found(user)),
    ];
    let state = |content| ObjectState { content: Some(content), ..ObjectState::default() };
    let states = contents.map(|(name, content)| (DataObject::secret(&name), state(content)));
    inspection.record(&BTreeMap::from(states));
    inspection.add_role(&account());
    assert_eq!(names(&inspection, |credential| credential.needed), [second.as_str(), password.as_str()]);
    assert_eq!(names(&inspection, |credential| credential.exists == Some(false)), [first.as_str()]);
    let mut expected = vec![second, password];
    expected.sort();
    assert_eq!(inspection.role[0]["rules"][0]["resourceNames"], json!(expected));
    let subject = json!({"kind": "ServiceAccount", "name": "etcd-guard", "namespace": "guards"});
    assert_eq!(inspection.role[1]["subjects"], json!([subject]));
    let text = format!("{inspection:?} {}", serde_json::to_string(&inspection).unwrap());
    assert!(!text.contains("very-secret"), "{text}");
}

#[test]
fn role_excludes_names_that_no_object_has() {
    let annotations =
        "annotations: {etcd-guard.io/client-tls-secret: '../x', etcd-guard.io/auth-secret: 'a b'}";
    let inspection = inspect_pod(
        &format!(
            "metadata: {{name: etcd-0, {annotations}}}\nspec: {{containers: [{{name: etcd, image: etcd, \
             command: [etcd, '--listen-client-urls=https://0.0.0.0:2379']}}]}}"
        ),
        Vec::new(),
    );
    assert_eq!(names(&inspection, |_| true).len(), 2);
    assert_eq!(inspection.role, Vec::<Value>::new());
}
