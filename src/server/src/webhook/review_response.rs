//! The AdmissionReview that the API server accepts as a response.
//!
//! The API server accepts only HTTP 200 with a review of the request's version and uid. Any other response is a failed
//! call.

use std::{collections::BTreeMap, mem};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;

use etcd_guard_core::{
    documentation::Manual,
    escape::{MAX_TEXT_CHARS, into_bounded_line, to_bounded_line},
    reason::Refusal,
    verdict::Verdict,
};

/// The `kind` of a review.
pub(super) const KIND: &str = "AdmissionReview";

/// The version that every supported API server accepts.
pub(super) const V1: &str = "admission.k8s.io/v1";

/// A response, in the version of the request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReviewResponse<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: AdmissionResponse<'a>,
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
    /// Present exactly if there is a patch: the API server treats one without the other as a failed call.
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    /// The JSON patch in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
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
        let response = AdmissionResponse {
            uid,
            allowed,
            status,
            warnings,
            audit_annotations,
            patch_type: None,
            patch: None,
        };
        Self { api_version, kind: KIND, response }
    }

    /// Adds a serialized JSON patch.
    pub(super) fn with_patch(mut self, patch: Option<&[u8]>) -> Self {
        self.response.patch_type = patch.map(|_| "JSONPatch");
        self.response.patch = patch.map(|patch| STANDARD.encode(patch));
        self
    }
}

// === impl Status ===

impl Status {
    /// Creates the status of a denial, with the message escaped and cut.
    pub(super) fn failure(message: String, reason: &'static str, code: u16) -> Self {
        let message = into_bounded_line(message, MAX_TEXT_CHARS);
        Self { outcome: "Failure", message, reason, code }
    }

    /// Creates the status of a denial of the guard. Its last line is the section of the manual for its reason.
    pub(super) fn denial(verdict: &Verdict, refusal: Refusal, manual: &Manual) -> Self {
        let section = format!("See {}", manual.reason(verdict.reason));
        let lines = verdict.lines().into_iter().chain([section]);
        let lines: Vec<String> = lines.map(|line| into_bounded_line(line, MAX_TEXT_CHARS)).collect();
        Self { outcome: "Failure", message: lines.join("\n"), reason: refusal.reason, code: refusal.code }
    }

    /// Creates the status of a denial for a malformed request.
    pub(super) fn bad_request(message: String) -> Self {
        Self::failure(message, "BadRequest", 400)
    }
}
