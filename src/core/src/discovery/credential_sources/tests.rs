//! Tests of the objects that a pod suggests, after the conventions of distributions.

use serde_json::{Value, json};

use super::*;
use crate::{discovery::etcd_pod, objects::data_object::Secret};

/// Returns the credentials of a member with these flags, mounts and volumes.
fn sources(annotation: Option<&str>, flags: &[&str], mounts: &Value, volumes: &Value) -> CredentialSources {
    let command = [["etcd", "--advertise-client-urls=https://etcd-1.etcd:2379"].as_slice(), flags].concat();
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "etcd-1", "namespace": "prod"},
        "spec": {
            "containers": [{
                "name": "etcd",
                "image": "etcd",
                "command": command,
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
        "status": {"podIP": "10.0.0.1"},
    }))
    .unwrap();
    if let Some(value) = annotation {
        pod.metadata.annotations.insert(CLIENT_TLS_SECRET.to_owned(), value.to_owned());
    }
    etcd_pod::read(&pod, &pod.metadata.annotations).unwrap().credentials
}

const TLS_FLAGS: [&str; 3] =
    ["--cert-file=/tls/server/tls.crt", "--key-file=/tls/server/tls.key", "--trusted-ca-file=/tls/ca/ca.crt"];

/// Returns the names of the objects, each with `(CA)` if only its CA is used, without those that have no evidence.
fn described(sources: &CredentialSources) -> Vec<String> {
    let guessed = ["etcd-client-tls", "etcd-client-certs", "etcd-root-client-certs", "etcd-client"];
    let known = sources.tls.iter().filter(|source| !guessed.contains(&source.object.name.as_str()));
    let describe = |source: &TlsSource| match source.part {
        UsedPart::Ca => format!("{} (CA)", source.object.describe("prod")),
        UsedPart::CertificateAndCa => source.object.describe("prod"),
    };
    known.map(describe).collect()
}

fn secret(name: &str) -> Value {
    json!({"name": name, "secret": {"secretName": name}})
}

/// A Secret of a CA that is mounted beside the server's, as in charts for kcp and in aenix' operator.
#[test]
fn secret_of_ca_provides_no_identity() {
    let mounts = json!([{"name": "kcp-etcd-ca", "mountPath": "/tls/ca"}, {"name": "kcp-etcd-server", "mountPath": "/tls/server"}]);
    let volumes = json!([secret("kcp-etcd-ca"), secret("kcp-etcd-server")]);
    let found = sources(None, &TLS_FLAGS, &mounts, &volumes);
    assert_eq!(
        described(&found),
        ["Secret prod/kcp-etcd-server (CA)", "Secret prod/kcp-etcd-ca (CA)", "Secret prod/kcp-etcd-server"]
    );
    let all = Secret::from([("tls.crt", "C"), ("tls.key", "K"), ("ca.crt", "CA"), ("ca.key", "K")]);
    assert!(
        found
            .tls
            .iter()
            .filter(|source| source.object.name == "kcp-etcd-ca")
            .all(|source| source.pairs(&all).is_empty())
    );

    // The key of a CA under the names of a certificate for clients, as in control planes of k0smotron.
    let items = json!([{"key": "tls.crt", "path": "ca.crt"}, {"key": "tls.key", "path": "ca.key"}]);
    let volumes = json!([
        {"name": "ca", "projected": {"sources": [{"secret": {"name": "kmc-etcd", "items": items}}]}},
        secret("server"),
    ]);
    let mounts =
        json!([{"name": "ca", "mountPath": "/tls/ca"}, {"name": "server", "mountPath": "/tls/server"}]);
    let found = sources(None, &TLS_FLAGS, &mounts, &volumes);
    let source = found.tls.iter().find(|source| source.object.name == "kmc-etcd").unwrap();
    assert_eq!((source.pairs(&all), source.ca(&all)), (Vec::new(), Some("tls.crt")));
}

#[test]
fn keys_outside_the_items_of_a_volume_are_not_used() {
    let all = Secret::from([
        ("tls.crt", "C"),
        ("tls.key", "K"),
        ("own.crt", "C"),
        ("own.key", "K"),
        ("ca.crt", "CA"),
    ]);
    let items = json!([{"key": "own.crt", "path": "client.crt"}, {"key": "own.key", "path": "client.key"}]);
    let volumes = json!([{"name": "certs", "secret": {"secretName": "etcd-client", "items": items}}]);
    let found = sources(None, &[], &json!([{"name": "certs", "mountPath": "/certs"}]), &volumes);
    let source = &found.tls[0];
    assert_eq!((source.pairs(&all), source.ca(&all)), (vec![("own.crt", "own.key")], None));
}

#[test]
fn names_are_compared_by_words() {
    let names = |volume: &str, secret_name: &str| {
        let volumes = json!([{"name": volume, "secret": {"secretName": secret_name}}]);
        let mounts = json!([{"name": volume, "mountPath": "/client"}]);
        !described(&sources(None, &TLS_FLAGS, &mounts, &volumes)).is_empty()
    };
    assert!(names("certs", "apiserver-etcd-client-certificate"), "server is no word of apiserver");
    assert!(names("client-certs", "shop-etcd-crt"));
    assert!(!names("certs", "clientele"));
    assert!(!names("certs", "etcd-client-server"));
    assert!(!names("certs", "etcd-client-ca"), "a CA for clients");
}

/// The CA is in a `ConfigMap`, as in control planes of hypershift.
#[test]
fn ca_of_flags_can_be_in_a_config_map() {
    let mounts =
        json!([{"name": "etcd-ca", "mountPath": "/tls/ca"}, {"name": "server", "mountPath": "/tls/server"}]);
    let volumes = json!([{"name": "etcd-ca", "configMap": {"name": "etcd-ca"}}, secret("server")]);
    let found = sources(None, &TLS_FLAGS, &mounts, &volumes);
    assert_eq!(
        described(&found),
        ["Secret prod/server (CA)", "ConfigMap prod/etcd-ca (CA)", "Secret prod/server"]
    );
    // With the annotation, the CA of the flags is the fallback.
    let found = sources(Some("own"), &TLS_FLAGS, &mounts, &volumes);
    assert_eq!(
        described(&found),
        ["Secret prod/own", "Secret prod/server (CA)", "ConfigMap prod/etcd-ca (CA)"]
    );
}

/// One Secret with all certificates of a control plane, as of vcluster.
#[test]
fn annotated_secret_keeps_the_keys_of_the_flags() {
    let flags =
        ["--cert-file=/pki/own.crt", "--key-file=/pki/own.key", "--trusted-ca-file=/pki/third-ca.crt"];
    let mounts = json!([{"name": "certs", "mountPath": "/pki"}]);
    let found = sources(Some("certs"), &flags, &mounts, &json!([secret("certs")]));
    let pki = Secret::from([("ca.crt", "other"), ("third-ca.crt", "CA"), ("own.crt", "C"), ("own.key", "K")]);
    let source = &found.tls[0];
    assert_eq!((source.pairs(&pki), source.ca(&pki)), (vec![("own.crt", "own.key")], Some("third-ca.crt")));
    let without_flags = sources(Some("certs"), &[], &json!([]), &json!([]));
    let pki = Secret::from([
        ("ca.crt", "other"),
        ("etcd-ca.crt", "CA"),
        ("etcd-server.crt", "C"),
        ("etcd-server.key", "K"),
    ]);
    let source = &without_flags.tls[0];
    assert_eq!(source.ca(&pki), Some("etcd-ca.crt"));
    assert_eq!(source.pairs(&pki), [("etcd-server.crt", "etcd-server.key")]);
    assert_eq!(source.ca(&Secret::from([("server-ca.crt", "CA")])), Some("server-ca.crt"));
}

#[test]
fn annotation_names_keys_and_a_second_object() {
    let found = sources(Some("client#c.pem,k.pem,root.pem"), &TLS_FLAGS, &json!([]), &json!([]));
    let all = Secret::from([
        ("c.pem", "C"),
        ("k.pem", "K"),
        ("root.pem", "CA"),
        ("ca.crt", "other"),
        ("tls.crt", "C"),
        ("tls.key", "K"),
    ]);
    let source = &found.tls[0];
    assert_eq!((source.pairs(&all), source.ca(&all)), (vec![("c.pem", "k.pem")], Some("root.pem")));
    assert_eq!(source.missing_keys(&Secret::from([("c.pem", "C")])), ["k.pem", "root.pem"]);
    assert_eq!(
        described(&sources(
            Some("own  configmap/etcd-ca#service-ca.crt secret/other#ca.pem"),
            &[],
            &json!([]),
            &json!([])
        )),
        ["Secret prod/own", "ConfigMap prod/etcd-ca (CA)", "Secret prod/other (CA)"]
    );
}

/// Every pod mounts the CA of the API server with the token of its account.
#[test]
fn ca_of_the_api_server_is_not_trusted() {
    let mounts =
        json!([{"name": "token", "mountPath": "/var/run/secrets"}, {"name": "pki", "mountPath": "/pki"}]);
    let volumes = json!([
        {"name": "token", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}},
        {"name": "pki", "configMap": {"name": "etcd-ca"}},
    ]);
    assert_eq!(described(&sources(None, &[], &mounts, &volumes)), ["ConfigMap prod/etcd-ca (CA)"]);
}

#[test]
fn key_of_a_mounted_file_follows_sub_paths() {
    let mounts = json!([
        {"name": "pki", "mountPath": "/tls/ca/ca.crt", "subPath": "etcd-ca.pem"},
        {"name": "pki", "mountPath": "/tls/server", "subPath": "server"},
    ]);
    let items = json!([{"key": "cert", "path": "server/tls.crt"}, {"key": "key", "path": "server/tls.key"}, {"key": "root", "path": "etcd-ca.pem"}]);
    let volumes = json!([{"name": "pki", "secret": {"secretName": "pki", "items": items}}]);
    let found = sources(None, &TLS_FLAGS, &mounts, &volumes);
    let all = Secret::from([("cert", "C"), ("key", "K"), ("root", "CA")]);
    assert!(found.tls.iter().any(|source| source.ca(&all) == Some("root")));
    assert!(found.tls.iter().any(|source| source.pairs(&all).contains(&("cert", "key"))));
}
