//! Validation that all sections share: diagnostics and YAML with line numbers, and the syntax of Kubernetes for names,
//! keys, quantities and parts of pods.

mod diagnostic;
pub(super) mod document;
pub(super) mod pod;
pub(super) mod pod_parts;
pub(super) mod quantities;
pub(super) mod syntax;

pub(in crate::config) use self::diagnostic::Validator;
pub use self::{
    diagnostic::Diagnostic,
    pod::{PodSecurity, PodSecurityLevel},
    pod_parts::{MAX_NAME_SERVERS, MAX_SEARCH_DOMAINS},
};
