//! The AdmissionReview that the API server sends.
//!
//! The API server treats anything but HTTP 200 with a review of the same version and uid as a failed call. Therefore an
//! invalid review that contains a uid is answered with a denial of that uid.
//!
//! Source: apiserver `pkg/admission/plugin/webhook/request/admissionreview.go`.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    mutator::Mutation,
    review_response::{KIND, ReviewResponse, Status, V1},
};
use etcd_guard_core::{
    documentation::Manual,
    objects::admission::{AdmissionRequest, truncated},
    request::Operation,
    verdict::Verdict,
};

/// The supported versions of AdmissionReview.
const VERSIONS: [&str; 2] = [V1, "admission.k8s.io/v1beta1"];

/// A review with a supported version and a uid. Its objects are not parsed yet.
#[derive(Debug)]
pub(crate) struct Review<'a> {
    api_version: &'static str,
    pub(crate) request: AdmissionRequest<'a>,
}

/// A body that is not a valid review, and its uid if it contains one.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub(crate) struct ReviewError {
    /// The version of the response.
    api_version: &'static str,
    uid: Option<String>,
    fault: Fault,
}

#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the body is empty; expected an AdmissionReview in JSON")]
    Empty,
    #[error("the body is not an AdmissionReview in JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("the body has no kind; expected AdmissionReview")]
    NoKind,
    #[error("the body is of kind {0:?}; expected AdmissionReview")]
    WrongKind(String),
    #[error(
        "AdmissionReview version {0:?} is not supported; use admission.k8s.io/v1 or admission.k8s.io/v1beta1"
    )]
    WrongVersion(String),
    #[error("the AdmissionReview has no request")]
    NoRequest,
    #[error("the AdmissionReview's request has no uid")]
    NoUid,
    #[error("the request of the AdmissionReview is not readable: {0}")]
    UnreadableRequest(serde_json::Error),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    request: Option<&'a RawValue>,
}

/// The request of a review. Other fields of the review may be invalid.
#[derive(Deserialize)]
struct RequestField<'a> {
    #[serde(borrow, default)]
    request: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct UidField<'a> {
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
}

// === impl ReviewError ===

impl ReviewError {
    /// Returns a denial of the uid, if the body contains one.
    pub(super) fn to_response(&self) -> Option<ReviewResponse<'_>> {
        let status = Some(Status::bad_request(self.to_string()));
        Some(ReviewResponse::new(self.api_version, self.uid.as_deref()?, status, &[], BTreeMap::new()))
    }
}

/// Returns the uid of a request, if it has one. Other fields may be invalid.
fn read_uid(request: &RawValue) -> Option<String> {
    let field: UidField<'_> = serde_json::from_str(request.get()).ok()?;
    Some(field.uid.into_owned()).filter(|uid| !uid.is_empty())
}

// === impl Review ===

impl<'a> Review<'a> {
    /// Reads a review.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, ReviewError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(ReviewError { api_version: V1, uid: None, fault: Fault::Empty });
        }
        let Envelope { api_version, kind, request } = match serde_json::from_slice(body) {
            Ok(envelope) => envelope,
            Err(error) => {
                // The body may contain a uid although other fields are invalid.
                let request =
                    serde_json::from_slice(body).ok().and_then(|field: RequestField<'a>| field.request);
                let fault = Fault::NotJson(error);
                return Err(ReviewError { api_version: V1, uid: request.and_then(read_uid), fault });
            }
        };
        let version = VERSIONS.into_iter().find(|supported| *supported == api_version);
        let parsed = request.map(|request| serde_json::from_str::<AdmissionRequest<'a>>(request.get()));
        let uid = match &parsed {
            Some(Ok(request)) => Some(request.uid.clone().into_owned()).filter(|uid| !uid.is_empty()),
            _ => request.and_then(read_uid),
        };
        let fault = match (parsed, version) {
            _ if kind.is_empty() => Fault::NoKind,
            _ if kind != KIND => Fault::WrongKind(truncated(&kind).to_owned()),
            (None, _) => Fault::NoRequest,
            _ if uid.is_none() => Fault::NoUid,
            (_, None) => Fault::WrongVersion(truncated(&api_version).to_owned()),
            (Some(Err(error)), _) => Fault::UnreadableRequest(error),
            (Some(Ok(request)), Some(api_version)) => return Ok(Self { api_version, request }),
        };
        // Every supported API server accepts a response of version v1.
        Err(ReviewError { api_version: version.unwrap_or(V1), uid, fault })
    }

    /// Returns the uid of the request.
    pub(super) fn uid(&self) -> &str {
        &self.request.uid
    }

    /// Returns the response with a verdict of the guard.
    pub(super) fn verdict_response<'b>(
        &'b self,
        verdict: &'b Verdict,
        operation: Operation,
        manual: &Manual,
    ) -> ReviewResponse<'b> {
        let refusal = verdict.refusal(operation);
        let status = refusal.map(|refusal| Status::denial(verdict, refusal, manual));
        self.response(status, &verdict.warnings, verdict.audit_annotations().into_iter().collect())
    }

    /// Returns the response with a mutation, or with the denial by a rule that needs no etcd cluster.
    pub(super) fn mutation_response(&self, mutation: Mutation) -> ReviewResponse<'_> {
        let Mutation { reason, denial, patch, warnings, .. } = mutation;
        let status = denial.map(|message| Status::failure(message, "Forbidden", 403));
        let reason = BTreeMap::from([("reason", reason.to_owned())]);
        self.response(status, &warnings, reason).with_patch(patch.as_deref())
    }

    /// Returns the response to a request that is malformed.
    pub(super) fn bad_request_response(&self, message: String) -> ReviewResponse<'_> {
        self.response(Some(Status::bad_request(message)), &[], BTreeMap::new())
    }

    fn response<'b>(
        &'b self,
        status: Option<Status>,
        warnings: &[String],
        audit_annotations: BTreeMap<&'static str, String>,
    ) -> ReviewResponse<'b> {
        ReviewResponse::new(self.api_version, self.uid(), status, warnings, audit_annotations)
    }
}
