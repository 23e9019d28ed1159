//! Flags that `etcdctl` needs in a member's container, for the commands in denials.

use crate::{
    discovery::{member_settings::MemberSettings, recognition::DEFAULT_CLIENT_PORT},
    etcd::endpoint::Endpoint,
    objects::pod::Container,
    snapshot::EtcdctlFlags,
};

/// Returns the flags for this member. Certificates are the member's own server certificate and CA as its container mounts
/// them: with client authentication, etcd connects to itself with that certificate as well. Without a CA, the server
/// certificate itself is the trusted certificate: Go accepts a certificate that is in the pool of roots, whichever CA
/// issued it.
pub(super) fn read(
    container: &Container,
    settings: &MemberSettings,
    endpoint: Option<&Endpoint>,
) -> EtcdctlFlags {
    let is_set = |flag: &str| {
        let name = format!("ETCDCTL_{}", flag.to_uppercase());
        container.env.iter().any(|variable| variable.name == name)
    };
    let Some(endpoint) = endpoint else { return EtcdctlFlags::default() };
    let port = endpoint.url.rsplit_once(':').map_or("", |(_, port)| port);
    let mut connection = Vec::new();
    if let Some(tls) = &endpoint.tls {
        let host = match tls.server_name.as_str() {
            name if name.contains(':') && !name.starts_with('[') => format!("[{name}]"),
            name => name.to_owned(),
        };
        connection.push(("endpoints", Some(format!("https://{host}:{port}"))));
        let trusted = settings.get("trusted-ca-file").or_else(|| settings.get("cert-file"));
        connection.push(("cacert", trusted.map(str::to_owned)));
        if settings.get("client-cert-auth") == Some("true") {
            connection.push(("cert", settings.get("cert-file").map(str::to_owned)));
            connection.push(("key", settings.get("key-file").map(str::to_owned)));
        }
    } else if port != DEFAULT_CLIENT_PORT.to_string() {
        connection.push(("endpoints", Some(endpoint.url.clone())));
    }
    EtcdctlFlags {
        connection: connection
            .into_iter()
            .filter(|(flag, _)| !is_set(flag))
            .filter_map(|(flag, value)| Some((flag, value?)))
            .collect(),
        user: None,
        has_user: is_set("user"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{discovery::etcd_pod, objects::pod::Pod};

    /// The command for a pod whose etcd has these flags and this environment.
    fn command(flags: &[&str], env: &Value) -> String {
        let command = [["etcd"].as_slice(), flags].concat();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "etcd-1", "namespace": "prod", "uid": "u"},
            "spec": {
                "subdomain": "etcd",
                "containers": [{"name": "etcd", "command": command, "env": env}],
            },
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        }))
        .unwrap();
        let etcd_pod = etcd_pod::read(&pod, &pod.metadata.annotations).unwrap();
        etcd_pod.etcdctl.command("prod", "etcd-1", "etcd", "member list")
    }

    const TLS: [&str; 5] = [
        "--advertise-client-urls=https://etcd-1.etcd:2379",
        "--cert-file=/certs/server.crt",
        "--key-file=/certs/server.key",
        "--trusted-ca-file=/certs/ca.crt",
        "--client-cert-auth=true",
    ];

    #[test]
    fn names_endpoint_and_certificates_of_a_member_with_tls() {
        assert_eq!(
            command(&TLS, &json!([])),
            "kubectl -n prod exec etcd-1 -c etcd -- etcdctl --endpoints=https://etcd-1.etcd:2379 \
             --cacert=/certs/ca.crt --cert=/certs/server.crt --key=/certs/server.key member list"
        );
    }

    #[test]
    fn trusts_the_server_certificate_without_ca() {
        assert_eq!(
            command(&TLS[..3], &json!([])),
            "kubectl -n prod exec etcd-1 -c etcd -- etcdctl --endpoints=https://etcd-1.etcd:2379 \
             --cacert=/certs/server.crt member list"
        );
    }

    #[test]
    fn omits_flags_that_the_environment_sets() {
        let env = json!([
            {"name": "ETCDCTL_CACERT", "value": "/ca"},
            {"name": "ETCDCTL_CERT", "value": "/cert"},
            {"name": "ETCDCTL_KEY", "value": "/key"},
            {"name": "ETCDCTL_ENDPOINTS", "value": "https://127.0.0.1:2379"},
        ]);
        assert_eq!(command(&TLS, &env), "kubectl -n prod exec etcd-1 -c etcd -- etcdctl member list");
    }

    #[test]
    fn names_the_endpoint_of_another_port_only() {
        let plain = "kubectl -n prod exec etcd-1 -c etcd -- etcdctl member list";
        assert_eq!(command(&["--advertise-client-urls=http://etcd-1.etcd:2379"], &json!([])), plain);
        assert_eq!(
            command(&["--advertise-client-urls=http://etcd-1.etcd:4001"], &json!([])),
            "kubectl -n prod exec etcd-1 -c etcd -- etcdctl --endpoints=http://10.0.0.1:4001 member list"
        );
    }
}
