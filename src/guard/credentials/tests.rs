use std::time::Duration;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::*;
use crate::{
    etcd::{Cause, Endpoint, Reply},
    guard::etcd_pod,
    k8s::{fake, pod::Pod},
};

/// A password that no text may show.
const PASSWORD: &str = "hunter2";

fn secret(pairs: &[(&str, &str)]) -> Value {
    let data: serde_json::Map<String, Value> = pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(ByteString(value.as_bytes().to_vec()))))
        .collect();
    json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}, "data": data})
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/prod/secrets/{name}")
}

/// The pod `etcd-1` of a cluster that speaks TLS, with these annotations.
fn pod(annotations: &[(&str, &str)]) -> EtcdPod {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "etcd-1", "namespace": "prod", "uid": "u1", "annotations": annotations},
        "spec": {
            "containers": [{
                "name": "etcd",
                "image": "etcd",
                "command": ["etcd", "--advertise-client-urls=https://etcd-1.etcd:2379", "--cert-file=/tls/server.crt",
                            "--key-file=/tls/server.key", "--trusted-ca-file=/tls/own-ca.crt"],
                "volumeMounts": [{"name": "tls", "mountPath": "/tls"}]
            }],
            "volumes": [{"name": "tls", "secret": {"secretName": "etcd-server"}}]
        },
        "status": {"podIP": "10.0.0.1"}
    }))
    .unwrap();
    etcd_pod::read(&pod, &pod.metadata.annotations).unwrap()
}

/// The pod with what these answers of the apiserver bring.
async fn complete<const N: usize>(pod: EtcdPod, answers: [(&str, u16, Value); N]) -> EtcdPod {
    let credentials = Credentials::new(Secrets::new(fake::apiserver(answers)));
    let mut pods = [((), pod)];
    credentials.complete("prod", &mut pods, Instant::now() + Duration::from_secs(5)).await;
    let [((), pod)] = pods;
    pod
}

fn certificate(endpoint: &Endpoint) -> Option<&[u8]> {
    Some(&endpoint.tls.as_ref()?.identity.as_ref()?.certificate)
}

fn ca(endpoint: &Endpoint) -> Option<&[u8]> {
    endpoint.tls.as_ref()?.ca.as_deref()
}

#[tokio::test]
async fn a_secret_for_clients_comes_before_that_of_the_server() {
    let of_clients = secret(&[("tls.crt", "client"), ("tls.key", "k"), ("ca.crt", "ca of clients")]);
    let of_server = secret(&[("server.crt", "server"), ("server.key", "k"), ("own-ca.crt", "ca of server")]);
    let (clients, server) = (path("etcd-client-tls"), path("etcd-server"));
    let it = complete(pod(&[]), [(&clients, 200, of_clients), (&server, 200, of_server.clone())]).await;
    let endpoint = it.endpoint.unwrap();
    assert_eq!((certificate(&endpoint), ca(&endpoint)), (Some(&b"client"[..]), Some(&b"ca of clients"[..])));
    assert_eq!(it.gap, None);

    let it = complete(pod(&[]), [(&server, 200, of_server)]).await;
    let endpoint = it.endpoint.unwrap();
    assert_eq!((certificate(&endpoint), ca(&endpoint)), (Some(&b"server"[..]), Some(&b"ca of server"[..])));
    assert_eq!(it.gap, None);
}

#[tokio::test]
async fn the_ca_may_lie_in_another_secret_than_the_certificate() {
    let of_clients = secret(&[("tls.crt", "client"), ("tls.key", "k")]);
    let of_server = secret(&[("own-ca.crt", "ca of server")]);
    let (clients, server) = (path("etcd-client-tls"), path("etcd-server"));
    let it = complete(pod(&[]), [(&clients, 200, of_clients), (&server, 200, of_server)]).await;
    let endpoint = it.endpoint.unwrap();
    assert_eq!((certificate(&endpoint), ca(&endpoint)), (Some(&b"client"[..]), Some(&b"ca of server"[..])));
}

#[tokio::test]
async fn a_secret_that_may_not_be_read_is_named_together_with_the_role() {
    let named = pod(&[("etcd-guard.io/client-tls-secret", "own")]);
    let it = complete(named, [(&path("own"), 403, fake::failure(403, "forbidden"))]).await;
    let expected = "no CA and no client certificate were found: the guard may not read Secret prod/own: apply Role \
                    etcd-guard-secrets in namespace prod (docs/tls-and-auth.md)";
    assert_eq!(it.gap.as_deref(), Some(expected));
    // Without a CA the handshake fails: that is a matter of credentials then.
    let reply = it.with_gap(Reply::Silent { cause: Cause::Tls(String::from("UnknownIssuer")) });
    assert_eq!(reply.cause(), Some(&Cause::CredentialsRejected(format!("TLS: UnknownIssuer; {expected}"))));
    let nobody = Reply::Silent { cause: Cause::Refused(String::from("Connection refused")) };
    assert_eq!(it.with_gap(nobody.clone()), nobody, "who is not there rejects nothing");
}

#[tokio::test]
async fn all_secrets_that_were_looked_for_are_named() {
    let gap = complete(pod(&[]), []).await.gap.unwrap();
    for name in ["etcd-client-tls", "etcd-client-certs", "etcd-root-client-certs", "etcd-server"] {
        assert!(gap.contains(&format!("Secret prod/{name} does not exist")), "{gap}");
    }
}

#[tokio::test]
async fn a_user_is_read_and_never_shown() {
    let annotated =
        || pod(&[("etcd-guard.io/auth-secret", "users"), ("etcd-guard.io/endpoints", "http://:2379")]);
    let users = path("users");
    let it = complete(annotated(), [(&users, 200, secret(&[("username", "guard"), ("password", PASSWORD)]))])
        .await;
    let user = it.endpoint.clone().unwrap().user.unwrap();
    assert_eq!((user.name.as_str(), user.password.as_ref()), ("guard", PASSWORD));
    assert!(!format!("{it:?}").contains(PASSWORD));

    let it = complete(annotated(), [(&users, 200, secret(&[("token", PASSWORD)]))]).await;
    let gap = "Secret prod/users holds no password (password, etcd-root-password, root-password)";
    assert_eq!((it.endpoint.unwrap().user, it.gap.as_deref()), (None, Some(gap)));

    // What is no Secret is named and not quoted.
    let it = complete(annotated(), [(&users, 200, json!({"data": PASSWORD}))]).await;
    assert_eq!(it.gap.as_deref(), Some("reading Secret prod/users failed: it is no Secret"));
}
