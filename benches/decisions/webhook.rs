//! The endpoint of the guard that receives the reviews.

/// The path of the validating webhook, with the timeout that the API server sends.
pub(crate) const PATH: &str = "/validate?timeout=10s";
