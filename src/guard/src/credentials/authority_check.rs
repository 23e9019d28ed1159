//! The invariant that the key of a CA is never the identity of the guard.

#![allow(clippy::expect_used, reason = "fuzzers detect failures by panics")]

use std::sync::OnceLock;

use etcd_guard_core::{
    discovery::{
        credential_selection::{Credentials, Selection},
        etcd_pod::EtcdPod,
    },
    objects::data_object::Secret,
};

/// Asserts that no object which this member suggests provides the certificate of a CA as an identity, and that no key is
/// chosen that has the name of a CA, or that a volume shows as a file with such a name.
///
/// # Panics
///
/// If the invariant is violated.
pub(crate) fn assert_no_authority_key(member: &EtcdPod) {
    static AUTHORITY: OnceLock<String> = OnceLock::new();
    let authority = AUTHORITY.get_or_init(|| authority().0);
    for source in &member.credentials.tls {
        let keys = source.possible_keys();
        let content: Secret = keys.into_iter().map(|name| (name, authority.clone())).collect();
        let has_word = |name: &str| name.split(['-', '.', '_']).any(|word| word.eq_ignore_ascii_case("ca"));
        for (certificate, key) in source.pairs(&content) {
            let mut names =
                [certificate, key].into_iter().flat_map(|key| source.shown_files(key).chain(Some(key)));
            assert!(!names.any(has_word), "{source:?} chooses {certificate} and {key}");
        }
        let mut found = Credentials::default();
        found.add("Secret prod/etcd", source, &content, &Selection::new(source, &content));
        assert!(found.identity.is_none(), "{source:?} uses the key of a CA");
    }
}

/// Returns the certificate and the key of a CA (PEM).
pub(super) fn authority() -> (String, String) {
    let mut authority = rcgen::CertificateParams::new(Vec::new()).expect("the parameters of a certificate");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    (authority.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
}
