//! Self-managed certificates, and the webhook configurations that trust them.
//!
//! A [`CertificateSet`] is a CA certificate, the one leaf certificate that the CA signed, and the key of the leaf. The
//! key of the CA is dropped as soon as it has signed. All replicas share the sets in one Secret: the current set and,
//! for a while before a renewal, the next one. [`plan`] decides the next step and is pure; [`CertificateReconciler`]
//! observes the cluster and carries out the step.
//!
//! Safety invariant: no replica serves a leaf whose CA is not in the `caBundle` of every entry of the guard's own
//! webhook configuration. The replicas need no agreement on which of them already serve the new leaf, because a CA is
//! removed from a bundle only after it has expired, and its leaf with it.
//!
//! This module handles TLS and webhook configurations only; it does not depend on the guard.

mod bundle;
mod certificate_set;
pub mod plan;
mod reconciler;
mod registration;
mod stored_sets;
mod validity;

pub use self::{
    certificate_set::{CertificateSet, CertificateSetError},
    reconciler::{CertificateReconciler, CertificateSettings},
    registration::{Registration, WebhookGroup, shipped_configurations},
    validity::watch_validity,
};
