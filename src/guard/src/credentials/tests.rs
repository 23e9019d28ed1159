use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{authority_check::authority, *};
use etcd_guard_core::{
    discovery::etcd_pod,
    etcd::{endpoint::Endpoint, error::MemberError, probe_result::ProbeResult},
    objects::pod::Pod,
};
use etcd_guard_kubernetes::fake;

/// A password that must not appear in any text.
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

/// Returns the member of pod `etcd-1` of a TLS cluster with these annotations.
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

/// Returns the member after its credentials were read from these responses of the API server.
async fn complete<const N: usize>(pod: EtcdPod, answers: [(&str, u16, Value); N]) -> EtcdPod {
    let credentials = CredentialReader::new(SecretReader::new(fake::api_server(answers)));
    let mut pods = [((), pod)];
    credentials.add_to("prod", &mut pods, Instant::now() + Duration::from_secs(5)).await;
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
async fn prefers_client_secret_to_server_secret() {
    let of_clients = secret(&[("tls.crt", "client"), ("tls.key", "k"), ("ca.crt", "ca of clients")]);
    let of_server = secret(&[("server.crt", "server"), ("server.key", "k"), ("own-ca.crt", "ca of server")]);
    let (clients, server) = (path("etcd-client-tls"), path("etcd-server"));
    let member = complete(pod(&[]), [(&clients, 200, of_clients), (&server, 200, of_server.clone())]).await;
    let endpoint = member.endpoint.unwrap();
    assert_eq!((certificate(&endpoint), ca(&endpoint)), (Some(&b"client"[..]), Some(&b"ca of clients"[..])));
    assert_eq!(member.problem, None);

    let member = complete(pod(&[]), [(&server, 200, of_server)]).await;
    let endpoint = member.endpoint.unwrap();
    assert_eq!((certificate(&endpoint), ca(&endpoint)), (Some(&b"server"[..]), Some(&b"ca of server"[..])));
    assert_eq!(member.problem, None);
}

#[tokio::test]
async fn reads_ca_and_certificate_from_two_secrets() {
    let of_clients = secret(&[("tls.crt", "client"), ("tls.key", "k")]);
    let of_server = secret(&[("own-ca.crt", "ca of server")]);
    let (clients, server) = (path("etcd-client-tls"), path("etcd-server"));
    let member = complete(pod(&[]), [(&clients, 200, of_clients), (&server, 200, of_server)]).await;
    let endpoint = member.endpoint.unwrap();
    assert_eq!((certificate(&endpoint), ca(&endpoint)), (Some(&b"client"[..]), Some(&b"ca of server"[..])));
}

/// etcd would authenticate the holder of a CA's key as the user with the name of the CA.
#[tokio::test]
async fn key_of_ca_is_no_client_certificate() {
    let (pem, key_pem) = authority();
    let named = || pod(&[("etcd-guard.io/client-tls-secret", "own")]);
    let content = secret(&[("ca.crt", "ca"), ("tls.crt", &pem), ("tls.key", &key_pem)]);
    let member = complete(named(), [(&path("own"), 200, content)]).await;
    let endpoint = member.endpoint.unwrap();
    assert_eq!((certificate(&endpoint), ca(&endpoint)), (None, Some(&b"ca"[..])));
    let problem = "found no client certificate: Secret prod/own contains the key of a CA, which is not used as a client \
                   certificate";
    assert_eq!((member.problem.as_deref(), member.lacks_role), (Some(problem), false));
}

#[tokio::test]
async fn names_forbidden_secret_and_the_role_to_apply() {
    let named = pod(&[("etcd-guard.io/client-tls-secret", "own")]);
    let member = complete(named, [(&path("own"), 403, fake::status_failure(403, "forbidden"))]).await;
    let expected = "found neither a CA nor a client certificate: the guard is not allowed to read Secret prod/own: apply the \
                    Role that kubectl etcd-guard inspect --role prints";
    assert_eq!((member.problem.as_deref(), member.lacks_role), (Some(expected), true));
    // Without a CA the handshake fails, and the missing credentials are the cause.
    let result =
        member.with_problem(ProbeResult::NoStatus { cause: MemberError::Tls(String::from("UnknownIssuer")) });
    assert_eq!(
        result.cause(),
        Some(&MemberError::CredentialsRejected(format!("TLS: UnknownIssuer; {expected}")))
    );
    let refused = ProbeResult::NoStatus { cause: MemberError::Refused(String::from("Connection refused")) };
    assert_eq!(member.with_problem(refused.clone()), refused, "an absent member rejects no credentials");
}

/// Without permissions, all candidates are forbidden, and the text has a limit. The Secret that the member uses is the last.
#[tokio::test]
async fn names_all_forbidden_secrets_with_one_remedy() {
    let names =
        ["etcd-client-tls", "etcd-client-certs", "etcd-root-client-certs", "etcd-client", "etcd-server"];
    let paths = names.map(path);
    let answers = std::array::from_fn::<_, 5, _>(|number| {
        (paths[number].as_str(), 403, fake::status_failure(403, "forbidden"))
    });
    let problem = complete(pod(&[]), answers).await.problem.unwrap();
    let listed = names.map(|name| format!("Secret prod/{name}")).join(", ");
    let expected = format!(
        "the guard is not allowed to read {listed}: apply the Role that kubectl etcd-guard inspect --role prints"
    );
    assert_eq!(problem, format!("found neither a CA nor a client certificate: {expected}"));
}

#[tokio::test]
async fn names_every_secret_that_does_not_exist() {
    let problem = complete(pod(&[]), []).await.problem.unwrap();
    for name in ["etcd-client-tls", "etcd-client-certs", "etcd-root-client-certs", "etcd-server"] {
        assert!(problem.contains(&format!("Secret prod/{name} does not exist")), "{problem}");
    }
}

#[tokio::test]
async fn reads_user_without_showing_the_password() {
    let annotated =
        || pod(&[("etcd-guard.io/auth-secret", "users"), ("etcd-guard.io/endpoints", "http://:2379")]);
    let users = path("users");
    let member =
        complete(annotated(), [(&users, 200, secret(&[("username", "guard"), ("password", PASSWORD)]))])
            .await;
    let user = member.endpoint.clone().unwrap().user.unwrap();
    assert_eq!((user.name.as_str(), user.password.as_ref()), ("guard", PASSWORD));
    assert!(!format!("{member:?}").contains(PASSWORD));

    let member = complete(annotated(), [(&users, 200, secret(&[("token", PASSWORD)]))]).await;
    let problem = "Secret prod/users contains no password (password, etcd-root-password, root-password)";
    assert_eq!((member.endpoint.unwrap().user, member.problem.as_deref()), (None, Some(problem)));

    // An invalid Secret is named, and its content is not quoted.
    let member = complete(annotated(), [(&users, 200, json!({"data": PASSWORD}))]).await;
    assert_eq!(member.problem.as_deref(), Some("reading Secret prod/users failed: the body is not a Secret"));
}

/// A Secret with a CA under the usual names and a certificate for clients under others.
#[tokio::test]
async fn certificate_of_ca_does_not_hide_the_client_certificate() {
    let (pem, key_pem) = authority();
    let content = secret(&[
        ("tls.crt", &pem),
        ("tls.key", &key_pem),
        ("client.crt", "client"),
        ("client.key", "k"),
        ("ca.crt", "ca"),
    ]);
    let named = pod(&[("etcd-guard.io/client-tls-secret", "own")]);
    let member = complete(named, [(&path("own"), 200, content)]).await;
    assert_eq!(certificate(member.endpoint.as_ref().unwrap()), Some(&b"client"[..]));
    assert_eq!(member.problem, None);
}

#[tokio::test]
async fn reads_ca_of_annotation_from_config_map() {
    let named = pod(&[("etcd-guard.io/client-tls-secret", "own#c,k configmap/trust#root")]);
    let pair = secret(&[("c", "client"), ("k", "key"), ("ca.crt", "other")]);
    let trust = json!({"data": {"root": "ca"}});
    let trust_path = "/api/v1/namespaces/prod/configmaps/trust";
    let member = complete(named.clone(), [(&path("own"), 200, pair.clone()), (trust_path, 200, trust)]).await;
    let endpoint = member.endpoint.unwrap();
    assert_eq!((certificate(&endpoint), ca(&endpoint)), (Some(&b"client"[..]), Some(&b"ca"[..])));
    let forbidden = fake::status_failure(403, "forbidden");
    let member = complete(named, [(&path("own"), 200, pair), (trust_path, 403, forbidden)]).await;
    let problem = member.problem.unwrap();
    let expected = "found no CA: the guard is not allowed to read ConfigMap prod/trust: apply the Role that kubectl etcd-guard inspect";
    assert!(problem.starts_with(expected), "{problem}");
}

/// A member that issues its own certificate, with these annotations.
fn auto_tls_pod(name: &str, annotations: &[(&str, &str)]) -> EtcdPod {
    let annotations: BTreeMap<String, String> =
        annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "prod"},
        "spec": {"containers": [{
            "name": "etcd",
            "image": "etcd",
            "env": [
                {"name": "ETCD_AUTO_TLS", "value": "true"},
                {"name": "ETCD_LISTEN_CLIENT_URLS", "value": "https://0.0.0.0:2379"},
            ],
        }]},
        "status": {"podIP": "10.0.0.1"},
    }))
    .unwrap();
    etcd_pod::read(&pod, &annotations).unwrap()
}

#[tokio::test]
async fn explains_certificates_that_etcd_issues_itself() {
    for annotations in [&[][..], &[("etcd-guard.io/accept-auto-tls", "yes")]] {
        let member = complete(auto_tls_pod("etcd-1", annotations), []).await;
        assert!(!member.endpoint.as_ref().unwrap().tls.as_ref().unwrap().accepts_any_certificate);
        let failed = ProbeResult::NoStatus { cause: MemberError::Tls(String::from("UnknownIssuer")) };
        let text = member.with_problem(failed).cause().unwrap().to_string();
        assert!(text.contains("accept-auto-tls=true") && text.contains("--trusted-ca-file"), "{text}");
    }
}

#[tokio::test]
async fn accepts_own_certificates_only_without_ca() {
    let accepting = [("etcd-guard.io/accept-auto-tls", "true")];
    let member = complete(auto_tls_pod("etcd-1", &accepting), []).await;
    assert_eq!(member.problem, None);
    assert!(member.endpoint.unwrap().tls.unwrap().accepts_any_certificate);
    let mut pods = [((), pod(&[])), ((), auto_tls_pod("etcd-1", &accepting))];
    let found = secret(&[("tls.crt", "client"), ("tls.key", "key"), ("ca.crt", "ca")]);
    let client = fake::api_server([(&path("etcd-client-tls"), 200, found)]);
    let deadline = Instant::now() + Duration::from_secs(60);
    CredentialReader::new(SecretReader::new(client)).add_to("prod", &mut pods, deadline).await;
    let [((), signed), ((), own)] = pods;
    assert_eq!(ca(&signed.endpoint.unwrap()), Some(&b"ca"[..]));
    let tls = own.endpoint.unwrap().tls.unwrap();
    assert!(!tls.accepts_any_certificate && own.problem.unwrap().contains("beside members"));
}

#[test]
fn guessed_port_proves_no_stopped_process() {
    let unread = String::from("the settings of etcd are unknown: Secret prod/file does not exist");
    let member = EtcdPod { unread_settings: Some(unread.clone()), ..pod(&[]) };
    let refused = ProbeResult::NoStatus { cause: MemberError::Refused(String::from("Connection refused")) };
    assert_eq!(
        member.with_problem(refused).cause(),
        Some(&MemberError::Unreachable(format!("Connection refused: {unread}")))
    );
    let timed_out = ProbeResult::NoStatus { cause: MemberError::TimedOut(Duration::from_secs(1)) };
    assert_eq!(member.with_problem(timed_out.clone()), timed_out);
}
