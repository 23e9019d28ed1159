//! The certificates of the servers, and the CA certificates in the webhook configurations.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier, verify_server_name},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use time::OffsetDateTime;
use x509_parser::parse_x509_certificate;

use super::report::{Finding, Line, State};

/// Remaining validity below which a certificate is reported: the alert on its expiry has the same threshold.
const MIN_REMAINING_SECONDS: i64 = 7 * 86_400;

/// The certificate chain of one server.
#[derive(Clone, Debug)]
pub(super) struct ServedChain {
    /// For instance `replica etcd-guard-0`.
    pub(super) subject: String,
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

/// The `caBundle` of one webhook, and the name that the API server requires in the certificate.
#[derive(Clone, Debug)]
pub(super) struct TrustedBundle {
    /// The name of the webhook.
    pub(super) webhook: String,
    /// Base64 of PEM, as in the API.
    pub(super) bundle: String,
    pub(super) server_name: String,
}

/// Checks that each webhook trusts each served certificate at the time of the API server. `is_complete` is false if the
/// chain of a server could not be read.
pub(super) fn bundles(
    bundles: &[TrustedBundle],
    chains: &[ServedChain],
    now: OffsetDateTime,
    remedy: &str,
) -> Line {
    let mut findings: Vec<Finding> = Vec::new();
    for bundle in bundles {
        if let Err(cause) = check_bundle(bundle, chains, now)
            && !findings.iter().any(|(_, text)| text.ends_with(&cause))
        {
            findings.push((State::Failure, format!("{}: {cause}", bundle.webhook)));
        }
    }
    let count = bundles.len();
    if findings.is_empty() && chains.is_empty() {
        let text = format!("valid in {count} webhooks, but no certificate of a server could be read");
        findings.push((State::Warning, text));
    }
    let message = format!("{count} webhooks trust the served certificate");
    Line::from_findings("ca-bundle", "", &message, &findings, remedy)
}

fn check_bundle(bundle: &TrustedBundle, chains: &[ServedChain], now: OffsetDateTime) -> Result<(), String> {
    let pem = STANDARD.decode(&bundle.bundle).unwrap_or_default();
    let trusted: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect();
    if trusted.is_empty() {
        return Err(String::from("the caBundle is empty"));
    }
    let is_valid = |certificate: &CertificateDer<'_>| {
        parse_x509_certificate(certificate)
            .is_ok_and(|(_, parsed)| parsed.validity().not_after.timestamp() >= now.unix_timestamp())
    };
    if !trusted.iter().any(is_valid) {
        return Err(String::from("all certificates of the caBundle have expired or cannot be parsed"));
    }
    for chain in chains {
        verify(&chain.certificates, &trusted, &bundle.server_name, now).map_err(|cause| {
            format!("the caBundle does not accept the certificate of {}: {cause}", chain.subject)
        })?;
    }
    Ok(())
}

/// Verifies a chain as the API server does.
fn verify(
    chain: &[CertificateDer<'static>],
    trusted: &[CertificateDer<'static>],
    server_name: &str,
    now: OffsetDateTime,
) -> Result<(), String> {
    let (leaf, intermediates) = chain.split_first().ok_or("the server sent no certificate")?;
    let name = ServerName::try_from(server_name).map_err(|error| error.to_string())?;
    // The API server trusts a certificate that the bundle contains itself.
    if trusted.contains(leaf) {
        let parsed = ParsedCertificate::try_from(leaf).map_err(|error| error.to_string())?;
        return verify_server_name(&parsed, &name).map_err(|error| error.to_string());
    }
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        // A certificate that cannot be parsed accepts no chain.
        let _ = roots.add(certificate.clone());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| error.to_string())?;
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(
        now.unix_timestamp().try_into().unwrap_or_default(),
    ));
    let result = verifier.verify_server_cert(leaf, intermediates, &name, &[], now);
    result.map(|_| ()).map_err(|error| error.to_string())
}

/// Reports validity and issuer of each served certificate at the time of the API server. `unread` are the causes why the
/// certificate of a server is unknown.
pub(super) fn validity(chains: &[ServedChain], unread: &[String], now: OffsetDateTime, remedy: &str) -> Line {
    let mut findings: Vec<Finding> =
        unread.iter().map(|cause| (State::Warning, format!("unknown: {cause}"))).collect();
    let mut texts: Vec<String> = Vec::new();
    for chain in chains {
        match describe(chain, now) {
            Ok(text) if texts.contains(&text) => {}
            Ok(text) => texts.push(text),
            Err((state, text)) => findings.push((state, format!("{}: {text}", chain.subject))),
        }
    }
    let message = format!("{} (servers: {})", texts.join("; "), chains.len());
    Line::from_findings("certificate", "", &message, &findings, remedy)
}

/// Describes a valid certificate, or returns its defect.
fn describe(chain: &ServedChain, now: OffsetDateTime) -> Result<String, Finding> {
    let malformed = || (State::Failure, String::from("the certificate cannot be parsed"));
    let leaf = chain.certificates.first().ok_or_else(malformed)?;
    let (_, parsed) = parse_x509_certificate(leaf).map_err(|_| malformed())?;
    let (start, end) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
    let (now, issuer) = (now.unix_timestamp(), parsed.issuer().to_string());
    if now > end {
        return Err((State::Failure, format!("expired {} ago, issued by {issuer}", duration(now - end))));
    }
    if now < start {
        let text = format!("not valid until {} from now, issued by {issuer}", duration(start - now));
        return Err((State::Failure, text));
    }
    let text = format!("expires in {}, issued by {issuer}", duration(end - now));
    // Certificates with a short life are renewed later.
    if end - now < MIN_REMAINING_SECONDS.min((end - start) / 4) {
        return Err((State::Warning, text));
    }
    Ok(text)
}

/// Formats seconds in the largest unit.
fn duration(seconds: i64) -> String {
    match seconds {
        172_800.. => format!("{} days", seconds / 86_400),
        7_200.. => format!("{} hours", seconds / 3_600),
        _ => format!("{seconds} seconds"),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    const DAY: i64 = 86_400;
    const NOW: i64 = 1_800_000_000;

    /// A CA, and a leaf with this validity in days from now.
    fn issue(start: i64, end: i64) -> (String, ServedChain) {
        let time = |days: i64| OffsetDateTime::from_unix_timestamp(NOW + days * DAY).unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.distinguished_name.push(DnType::CommonName, "CA of a test");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (ca.not_before, ca.not_after) = (time(-1000), time(1000));
        let ca_key = KeyPair::generate().unwrap();
        let bundle = STANDARD.encode(ca.self_signed(&ca_key).unwrap().pem());
        let mut leaf = CertificateParams::new(vec![String::from("etcd-guard.ops.svc")]).unwrap();
        (leaf.not_before, leaf.not_after) = (time(start), time(end));
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &Issuer::new(ca, ca_key)).unwrap();
        let chain =
            ServedChain { subject: String::from("replica a"), certificates: vec![leaf.der().clone()] };
        (bundle, chain)
    }

    fn now() -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(NOW).unwrap()
    }

    fn trusted(bundle: &str, server_name: &str) -> TrustedBundle {
        TrustedBundle {
            webhook: String::from("guard.etcd-guard.io"),
            bundle: bundle.to_owned(),
            server_name: server_name.to_owned(),
        }
    }

    #[test]
    fn bundle_must_accept_every_served_certificate() {
        let (bundle, chain) = issue(-10, 80);
        let (other, _) = issue(-10, 80);
        let name = "etcd-guard.ops.svc";
        let line = |entries: &[TrustedBundle], chains: &[ServedChain]| bundles(entries, chains, now(), "fix");
        assert_eq!(line(&[trusted(&bundle, name)], std::slice::from_ref(&chain)).state, State::Ok);
        let wrong = line(&[trusted(&bundle, name), trusted(&other, name)], std::slice::from_ref(&chain));
        assert_eq!(wrong.state, State::Failure);
        assert!(wrong.message.contains("does not accept the certificate of replica a"), "{wrong:?}");
        assert_eq!(
            line(&[trusted(&bundle, "etcd-guard.other.svc")], std::slice::from_ref(&chain)).state,
            State::Failure
        );
        let empty = line(&[trusted("", name)], std::slice::from_ref(&chain));
        assert!(empty.message.contains("the caBundle is empty"), "{empty:?}");
        assert_eq!(line(&[trusted(&bundle, name)], &[]).state, State::Warning);
        let leaf = STANDARD.encode(pem(&chain));
        assert_eq!(line(&[trusted(&leaf, name)], &[chain]).state, State::Ok, "the leaf itself is trusted");
    }

    fn pem(chain: &ServedChain) -> String {
        let text = STANDARD.encode(&chain.certificates[0]);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    }

    #[test]
    fn reports_expired_and_expiring_certificates() {
        let state = |start, end| validity(&[issue(start, end).1], &[], now(), "renew").state;
        assert_eq!(state(-10, 80), State::Ok);
        assert_eq!(state(-84, 6), State::Warning);
        assert_eq!(state(-1, 1), State::Ok, "a certificate with a short life");
        assert_eq!(state(-90, -1), State::Failure);
        assert_eq!(state(1, 90), State::Failure);
        let unread = [String::from("replica b: refused")];
        assert_eq!(validity(&[issue(-10, 80).1], &unread, now(), "renew").state, State::Warning);
        let line = validity(&[issue(-90, -3).1], &[], now(), "renew");
        assert_eq!(line.message, "replica a: expired 3 days ago, issued by CN=CA of a test");
    }
}
