//! The selection of the keys in an object that provide a client certificate and a CA. Pure.

use crate::{
    discovery::credential_sources::{CredentialSources, TlsSource, UsedPart},
    objects::data_object::Secret,
};

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
