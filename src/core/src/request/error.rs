//! Errors of admission requests that the guard cannot evaluate.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A review without a verdict of the guard.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The webhook configuration sends requests that the guard does not evaluate.
    #[error(
        "etcd-guard evaluates deletions, evictions and updates of pods, deletions and scaling of their owners, and deletions of \
         objects that they use, not {operation} of {resource}: correct the rules of the webhook configuration"
    )]
    UnsupportedOperation {
        /// CREATE, UPDATE, DELETE or CONNECT.
        operation: String,
        /// Resource and subresource.
        resource: String,
    },
    /// A part of the request does not match its type.
    #[error("the request's {part} is not readable: {cause}")]
    Unreadable {
        /// Name of the part.
        part: &'static str,
        /// The parser's error.
        cause: String,
    },
    /// Neither the request nor the old object contains the name.
    #[error("neither the request nor its oldObject has a {0}")]
    MissingName(&'static str),
    /// A name that Kubernetes does not accept either.
    #[error("{0:?} is not a valid {1}")]
    InvalidName(String, &'static str),
}

/// Parses one part of a request, if the request has it.
pub(super) fn parse<'a, T: Deserialize<'a>>(
    part: &'static str,
    raw: Option<&'a RawValue>,
) -> Result<Option<T>, RequestError> {
    let Some(raw) = raw else { return Ok(None) };
    serde_json::from_str(raw.get())
        .map_err(|error| RequestError::Unreadable { part, cause: error.to_string() })
}
