//! The selection of the keys in an object that provide a client certificate and a CA, and the credentials that follow. Pure.

use std::sync::Arc;

use crate::{
    discovery::credential_sources::{CredentialSources, TlsSource, UsedPart, UserSecret},
    etcd::endpoint::{ClientIdentity, Endpoint, User},
    objects::data_object::Secret,
};

/// The credentials of one cluster, as far as they were found.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The CA of the members.
    pub ca: Option<Arc<[u8]>>,
    /// Whether every certificate of a member is accepted.
    pub accepts_any_certificate: bool,
    /// Whether an object gave the CA that is used for its CA only. The CA beside a client certificate does not replace it.
    has_designated_ca: bool,
    /// The client certificate.
    pub identity: Option<ClientIdentity>,
    /// The user.
    pub user: Option<User>,
}

/// The keys of one object that the guard uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection<'a> {
    /// The keys of the client certificate and of its private key.
    pub pair: Option<(&'a str, &'a str)>,
    /// The key of the CA.
    pub ca: Option<&'a str>,
    /// Whether the object has only certificates of CAs. Private keys of CAs are not used.
    pub has_only_authorities: bool,
}

/// The state of a search through the sources of a cluster's certificates, in their order.
pub struct CertificateSearch {
    has_ca: bool,
    has_certificate: bool,
    is_any_read: bool,
}

/// Whether a certificate chain (PEM) begins with the certificate of a CA. The key of a CA can sign certificates of any
/// user, and etcd would authenticate its holder as the user with the name of the CA.
fn is_authority(chain: &[u8]) -> bool {
    let mut blocks = x509_parser::pem::Pem::iter_from_buffer(chain).filter_map(Result::ok);
    let first = blocks.find(|block| block.label == "CERTIFICATE");
    first.is_some_and(|block| block.parse_x509().is_ok_and(|certificate| certificate.is_ca()))
}

// === impl Credentials ===

impl Credentials {
    /// Adds the certificate and the CA in one object. `name` describes the object. Returns the reason why the object provides less than
    /// expected.
    pub fn add(
        &mut self,
        name: &str,
        source: &TlsSource,
        content: &Secret,
        selection: &Selection<'_>,
    ) -> Option<String> {
        let identity = selection.pair.and_then(|(certificate, key)| {
            Some(ClientIdentity { certificate: content.get(certificate)?, key: content.get(key)? })
        });
        let ca = selection.ca.and_then(|key| content.get(key));
        // A CA in the same Secret as the certificate takes precedence.
        let uses_identity = self.identity.is_none() && identity.is_some();
        if ca.is_some() && (self.ca.is_none() || (uses_identity && !self.has_designated_ca)) {
            self.ca.clone_from(&ca);
            self.has_designated_ca = source.part == UsedPart::Ca;
        }
        if uses_identity {
            self.identity.clone_from(&identity);
        }
        let missing = source.missing_keys(content);
        if !missing.is_empty() {
            return Some(format!("{name} contains no {}", missing.join(" and no ")));
        }
        match (identity, ca, source.part) {
            (None, _, UsedPart::CertificateAndCa) if selection.has_only_authorities => {
                Some(format!("{name} contains the key of a CA, which is not used as a client certificate"))
            }
            (None, None, UsedPart::CertificateAndCa) => {
                Some(format!("{name} contains neither a certificate nor a CA"))
            }
            (None, None, UsedPart::Ca) => Some(format!("{name} contains no CA")),
            _ => None,
        }
    }

    /// Adds the user in a Secret. `name` describes the Secret. Returns the reason why it provides none.
    pub fn add_user(&mut self, name: &str, source: &UserSecret, content: &Secret) -> Option<String> {
        match source.password(content) {
            Some(password) => {
                self.user = Some(User { name: source.user_name(content), password: password.into() });
                None
            }
            None => Some(format!("{name} contains no password ({})", source.key_names())),
        }
    }

    /// What the search for certificates did not find.
    pub fn missing(&self) -> &'static str {
        match (&self.ca, &self.identity) {
            (None, None) => "found neither a CA nor a client certificate",
            (None, Some(_)) => "found no CA",
            _ => "found no client certificate",
        }
    }

    /// Adds the credentials to the endpoint of a member.
    pub fn apply_to(self, endpoint: &mut Endpoint) {
        if let Some(tls) = &mut endpoint.tls {
            tls.ca = self.ca;
            tls.accepts_any_certificate = self.accepts_any_certificate;
            tls.identity = self.identity;
        }
        endpoint.user = self.user;
    }
}

// === impl Selection ===

impl<'a> Selection<'a> {
    /// Selects the keys of one object.
    pub fn new(source: &'a TlsSource, content: &'a Secret) -> Self {
        let pairs = source.pairs(content);
        let is_usable = |(certificate, _): &(&str, &str)| {
            content.get(certificate).is_some_and(|chain| !is_authority(&chain))
        };
        let pair = pairs.iter().copied().find(is_usable);
        Self { pair, ca: source.ca(content), has_only_authorities: pair.is_none() && !pairs.is_empty() }
    }
}

// === impl CertificateSearch ===

impl CertificateSearch {
    /// Starts a search.
    pub fn new(sources: &CredentialSources) -> Self {
        Self { has_ca: false, has_certificate: !sources.requires_certificate, is_any_read: false }
    }

    /// Whether the next source is read.
    pub fn needs(&self, source: &TlsSource) -> bool {
        self.may_need(source) && (!source.is_fallback || self.is_any_read)
    }

    /// Whether the next source is read if an earlier one of unknown content can be read.
    pub fn may_need(&self, source: &TlsSource) -> bool {
        let is_superfluous = source.part == UsedPart::Ca && self.has_ca;
        !self.is_complete() && !is_superfluous
    }

    /// Records an object that was read.
    pub fn add(&mut self, selection: &Selection<'_>) {
        self.is_any_read = true;
        self.has_ca |= selection.ca.is_some();
        self.has_certificate |= selection.pair.is_some();
    }

    /// Whether all certificates are found.
    pub fn is_complete(&self) -> bool {
        self.has_ca && self.has_certificate
    }
}
