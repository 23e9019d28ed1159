//! The names of keys and files under which common tools store certificates, private keys and CAs.

/// Keys of client certificates and of their private keys.
pub(super) const CLIENT_KEYS: [(&str, &str); 9] = [
    ("tls.crt", "tls.key"),
    ("client.crt", "client.key"),
    ("client.pem", "client-key.pem"),
    ("etcd-client.crt", "etcd-client.key"),
    ("apiserver-etcd-client.crt", "apiserver-etcd-client.key"),
    ("healthcheck-client.crt", "healthcheck-client.key"),
    ("etcd-healthcheck-client.crt", "etcd-healthcheck-client.key"),
    ("cert.pem", "key.pem"),
    ("root.pem", "root-key.pem"),
];

/// Keys of certificates that servers present, which are often valid for clients as well.
pub(super) const SERVER_KEYS: [(&str, &str); 3] =
    [("etcd-server.crt", "etcd-server.key"), ("server.crt", "server.key"), ("server.pem", "server-key.pem")];

/// Keys of CA certificates. A Secret with all certificates of a control plane contains the CA of etcd beside the CA of the
/// API server, which is then in `ca.crt`.
pub(super) const CA_KEYS: [&str; 9] = [
    "etcd-ca.crt",
    "etcd-client-ca.crt",
    "ca.crt",
    "ca.pem",
    "server-ca.crt",
    "ca-bundle.crt",
    "bundle.crt",
    "ca-cert.pem",
    "service-ca.crt",
];

/// The words of a name: `apiserver-etcd-client.crt` consists of `apiserver`, `etcd`, `client` and `crt`.
pub(super) fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(['-', '.', '_'])
}

/// Whether one of the words of a name is this word. `server` is no word of `apiserver`.
pub(super) fn has_word(name: &str, word: &str) -> bool {
    words(name).any(|part| part.eq_ignore_ascii_case(word))
}

/// Whether a name is that of a CA, so that its private key could sign certificates for every user.
pub(super) fn names_authority(name: &str) -> bool {
    has_word(name, "ca")
}
