//! Annotations for facts that the specification of a pod does not show, or shows incompletely.

use serde::Serialize;

use crate::{
    annotations::{ACCEPT_AUTO_TLS, CLIENT_TLS_SECRET, ENDPOINTS, MEMBER},
    discovery::{etcd_pod::EtcdPod, recognition::unrecognized_listener},
    objects::pod::Pod,
};

/// The DNS domain of most clusters. The specification of a pod does not show the domain of its cluster.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// A suggested annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// The name of the annotation.
    pub annotation: &'static str,
    /// The value. Words in capital letters stand for names that the specification does not show.
    pub value: String,
    /// The condition under which the annotation is required.
    pub condition: String,
}

/// Returns the annotations that can be required to reach a member.
pub(super) fn for_member(pod: &Pod, member: &EtcdPod) -> Vec<Suggestion> {
    let annotations = &pod.metadata.annotations;
    let mut suggestions = Vec::new();
    let mut suggest = |annotation: &'static str, value: String, condition: &str| {
        if !annotations.contains_key(annotation) {
            suggestions.push(Suggestion { annotation, value, condition: condition.to_owned() });
        }
    };
    if member.loopback.is_some() {
        suggest(MEMBER, String::from("false"), "if the member serves only the containers of its own pod");
    }
    let tls = member.endpoint.as_ref().and_then(|endpoint| endpoint.tls.as_ref());
    if tls.or(member.possible_tls.as_ref()).is_none() {
        return suggestions;
    }
    let port = member.endpoint.as_ref().and_then(|endpoint| endpoint.url.rsplit(':').next());
    let port = port.unwrap_or_default();
    let condition = "if the certificate of the members does not contain the TLS name above";
    match pod.spec.subdomain.as_str() {
        "" => suggest(ENDPOINTS, format!("https://NAME_IN_CERTIFICATE:{port}"), condition),
        service => {
            let name = format!("$(POD_NAME).{service}.$(POD_NAMESPACE).svc.{CLUSTER_DOMAIN}");
            suggest(ENDPOINTS, format!("https://{name}:{port}"), condition);
        }
    }
    if member.credentials.is_self_signed {
        let condition = "to accept the certificate that etcd issues itself (--auto-tls)";
        suggest(ACCEPT_AUTO_TLS, String::from("true"), condition);
    } else {
        suggest(
            CLIENT_TLS_SECRET,
            String::from("SECRET#tls.crt,tls.key secret/CA_SECRET#ca.crt"),
            "if the credentials above contain no certificate for clients, or not the CA of the members",
        );
    }
    suggestions
}

/// Returns the annotation that declares the member of a pod that is not recognized and declares a port of etcd.
pub(super) fn for_other_pod(pod: &Pod) -> Vec<Suggestion> {
    let container = unrecognized_listener(pod);
    let suggestion = container.map(|container| Suggestion {
        annotation: MEMBER,
        value: container.to_owned(),
        condition: format!("if container {container} runs etcd, for example inside another program"),
    });
    suggestion.into_iter().collect()
}
