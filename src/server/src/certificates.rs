//! Self-managed certificates, and the webhook configurations that trust them.
//!
//! A [`CertificateSet`] is a CA certificate, the one leaf certificate that the CA signed, and the key of the leaf. The
//! key of the CA is dropped as soon as it has signed. One Secret contains the sets: the current set and, for a while
//! before it changes, the next one. [`plan`] decides the next step and is pure; [`CertificateReconciler`] observes the
//! cluster and carries out the step. In the shipped manifests it runs in a Deployment without a listener, because RBAC
//! cannot restrict the content of a webhook configuration: the servers mount the Secret and hold no right on either.
//!
//! Safety invariant: no server serves a leaf whose CA is not in the `caBundle` of every entry of the guard's own
//! webhook configuration. The servers need no agreement on which of them already serve the new leaf, because a CA is
//! removed from a bundle only after it has expired, and its leaf with it.
//!
//! This module handles TLS and webhook configurations only; it does not depend on the guard.

mod bundle;
mod certificate_set;
pub(crate) mod plan;
mod reconciler;
mod server_probe;
mod stored_sets;
mod validity;

pub(crate) use self::{
    reconciler::{CertificateReconciler, CertificateSettings},
    server_probe::ServerAddress,
    validity::watch_validity,
};
