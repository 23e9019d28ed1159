//! The AdmissionReview that the API server accepts as a response.
//!
//! The API server accepts only HTTP 200 with a review of the request's version and uid. Any other response is a failed
//! call.

use std::{collections::BTreeMap, mem};

use base64::Engine;
use serde::Serialize;

use crate::escape::{MAX_TEXT_CHARS, into_bounded_line, to_bounded_line};

/// The `kind` of a review.
pub(super) const KIND: &str = "AdmissionReview";

/// The version that every supported API server accepts.
pub(super) const V1: &str = "admission.k8s.io/v1";

/// Initial capacity of a response body, in bytes: more than most responses without a patch need.
const INITIAL_CAPACITY: usize = 512;

/// A response, in the version of the request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReviewResponse<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: AdmissionResponse<'a>,
    /// The serialized JSON patch. [`ReviewResponse::to_json`] appends it to the response.
    #[serde(skip)]
    patch: Option<Vec<u8>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<&'static str, String>,
}

/// The result of a mutating webhook.
#[derive(Debug, Default)]
pub(super) struct Mutation {
    /// Message of the denial; absent if the request is allowed.
    pub(super) denial: Option<String>,
    /// The serialized JSON patch; absent if the object stays unchanged.
    pub(super) patch: Option<Vec<u8>>,
    pub(super) warnings: Vec<String>,
    /// The reason code, as in metrics.
    pub(super) reason: String,
}

/// A `meta/v1` `Status` of a denial. kubectl prints its prefix, such as "(Forbidden)", only if both code and reason are
/// set.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    #[serde(rename = "status")]
    outcome: &'static str,
    message: String,
    reason: &'static str,
    code: u16,
}

// === impl ReviewResponse ===

impl<'a> ReviewResponse<'a> {
    /// Creates a response that denies the request if `status` is present and allows it otherwise. Warnings and annotations
    /// are escaped and cut.
    pub(super) fn new(
        api_version: &'static str,
        uid: &'a str,
        status: Option<Status>,
        warnings: &[String],
        mut audit_annotations: BTreeMap<&'static str, String>,
    ) -> Self {
        let allowed = status.is_none();
        let warnings = warnings.iter().map(|warning| to_bounded_line(warning, MAX_TEXT_CHARS)).collect();
        for value in audit_annotations.values_mut() {
            *value = into_bounded_line(mem::take(value), MAX_TEXT_CHARS);
        }
        let response = AdmissionResponse { uid, allowed, status, warnings, audit_annotations };
        Self { api_version, kind: KIND, response, patch: None }
    }

    /// Adds a serialized JSON patch.
    pub(super) fn with_patch(self, patch: Option<Vec<u8>>) -> Self {
        Self { patch, ..self }
    }

    /// Serializes the response.
    pub(super) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let patch = self.patch.as_deref().map(encode_base64).unwrap_or_default();
        let mut body = Vec::with_capacity(INITIAL_CAPACITY + patch.len());
        serde_json::to_writer(&mut body, self)?;
        // The patch is appended, because serde would search it for characters to escape. `response` is the last member
        // of the body and is not empty. `patch` and `patchType` are written together: the API server treats one without
        // the other as a failed call.
        if !patch.is_empty() && body.ends_with(b"}}") {
            body.truncate(body.len() - 2);
            body.extend_from_slice(br#","patchType":"JSONPatch","patch":""#);
            body.extend_from_slice(&patch);
            body.extend_from_slice(b"\"}}");
        }
        Ok(body)
    }
}

/// Encodes bytes in the base64 alphabet that Go uses for `[]byte` in JSON.
fn encode_base64(bytes: &[u8]) -> Vec<u8> {
    // `vec![0; n]` gets zeroed memory from the allocator. Growing a `Vec` writes each zero, which took longer than the
    // encoding.
    let mut text = vec![0; bytes.len().div_ceil(3) * 4];
    let written = base64_engine().encode_slice(bytes, &mut text);
    text.truncate(written.unwrap_or_default());
    text
}

/// Returns the fastest engine for the processor.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn base64_engine() -> impl Engine {
    base64::engine::Simd::standard(base64::engine::general_purpose::PAD)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn base64_engine() -> impl Engine {
    base64::engine::general_purpose::STANDARD
}

// === impl Status ===

impl Status {
    /// Creates the status of a denial, with the message escaped and cut.
    pub(super) fn failure(message: String, reason: &'static str, code: u16) -> Self {
        let message = into_bounded_line(message, MAX_TEXT_CHARS);
        Self { outcome: "Failure", message, reason, code }
    }

    /// Creates the status of a denial for a malformed request.
    pub(super) fn bad_request(message: String) -> Self {
        Self::failure(message, "BadRequest", 400)
    }
}
