//! The AdmissionReview that the API server sends.
//!
//! The API server treats anything but HTTP 200 with a review of the same version and uid as a failed call. Therefore an
//! invalid review that contains a uid is answered with a denial of that uid.
//!
//! Source: apiserver `pkg/admission/plugin/webhook/request/admissionreview.go`.

use std::{borrow::Cow, collections::BTreeMap, mem};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::review_response::{KIND, Mutation, ReviewResponse, Status, V1};
use crate::{
    guard::{Operation, PodHeader, Verdict},
    k8s::{
        admission::{AdmissionRequest, truncated},
        pod::Pod,
    },
};

/// The supported versions of AdmissionReview.
const VERSIONS: [&str; 2] = [V1, "admission.k8s.io/v1beta1"];

/// A body, and its text.
pub(in crate::server) struct ReviewBody<'a> {
    bytes: &'a [u8],
    /// Absent if the body is not UTF-8.
    text: Option<&'a str>,
}

/// A review with a supported version. Its request may be unreadable.
#[derive(Debug)]
pub(in crate::server) struct Review<'a> {
    pub(super) api_version: &'static str,
    uid: Cow<'a, str>,
    request: Result<AdmissionRequest<'a>, serde_json::Error>,
}

/// A body that is not a valid review, and its uid if it contains one.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub(in crate::server) struct ReviewError {
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

/// A valid review, parsed in one pass, because the objects in its request are the largest part of a body.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "Stored: Deserialize<'de>"))]
struct ValidReview<'a, Stored = &'a RawValue> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    request: AdmissionRequest<'a, Stored>,
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
    /// Returns a denial of the uid, if the body contains one, in the version that every supported API server accepts.
    pub(super) fn to_response(&self) -> Option<ReviewResponse<'_>> {
        let status = Some(Status::bad_request(self.to_string()));
        Some(ReviewResponse::new(V1, self.uid.as_deref()?, status, &[], BTreeMap::new()))
    }
}

/// Returns the version as a constant, if it is supported.
pub(super) fn supported_version(version: &str) -> Option<&'static str> {
    VERSIONS.into_iter().find(|supported| *supported == version)
}

/// Returns the uid of a request; empty without a uid. Other fields may be invalid.
fn read_uid(request: &RawValue) -> Cow<'_, str> {
    serde_json::from_str::<UidField<'_>>(request.get()).map(|field| field.uid).unwrap_or_default()
}

// === impl ValidReview ===

impl<'a, Stored: Deserialize<'a>> ValidReview<'a, Stored> {
    /// Returns the version and the request of a valid review.
    fn read(text: &'a str) -> Option<(&'static str, AdmissionRequest<'a, Stored>)> {
        let review: Self = serde_json::from_str(text).ok()?;
        let is_valid = review.kind == KIND && !review.request.uid.is_empty();
        let version = supported_version(&review.api_version).filter(|_| is_valid)?;
        Some((version, review.request))
    }
}

// === impl ReviewBody ===

impl<'a> ReviewBody<'a> {
    pub(in crate::server) fn new(bytes: &'a [u8]) -> Self {
        // UTF-8 is validated once for the body, instead of once per string.
        Self { bytes, text: std::str::from_utf8(bytes).ok() }
    }

    /// Returns the body, if it is UTF-8.
    pub(super) fn text(&self) -> Option<&'a str> {
        self.text
    }
}

// === impl Review ===

impl<'a> Review<'a> {
    pub(super) fn new(api_version: &'static str, request: AdmissionRequest<'a>) -> Self {
        Self { api_version, uid: request.uid.clone(), request: Ok(request) }
    }

    /// Reads a review.
    pub(in crate::server) fn read(body: &'a ReviewBody<'_>) -> Result<Self, ReviewError> {
        match body.text().and_then(ValidReview::read) {
            Some((api_version, request)) => Ok(Self::new(api_version, request)),
            None => Self::read_invalid(body.bytes),
        }
    }

    /// Reads a review, and the stored pod of a deletion in the same pass, because the pod is the largest part of a body.
    /// The request of another review contains its unparsed objects.
    pub(super) fn read_with_pod(body: &'a ReviewBody<'_>) -> Result<(Self, Option<Pod>), ReviewError> {
        let read = body.text().and_then(ValidReview::<Pod>::read);
        if let Some((api_version, request)) = read.filter(|(_, request)| request.is_pod_deletion()) {
            let (request, pod) = request.split_old_object();
            return Ok((Self::new(api_version, request), pod));
        }
        Ok((Self::read(body)?, None))
    }

    /// Reads a review and the header of its stored pod in one pass. The returned request contains the name and the
    /// namespace of the pod, but not the pod.
    pub(super) fn read_with_header(text: &'a str) -> Option<(Self, Option<PodHeader<'a>>)> {
        let (api_version, request) = ValidReview::<PodHeader<'a>>::read(text)?;
        let (request, pod) = request.split_old_object();
        let Some(pod) = pod else { return Some((Self::new(api_version, request), None)) };
        // The deletion of a collection sends one request per pod, and these requests contain no name.
        let name_or = |name: Option<Cow<'a, str>>, other: &str| {
            name.filter(|name| !name.is_empty()).or_else(|| Some(Cow::Owned(other.to_owned())))
        };
        let request = AdmissionRequest {
            name: name_or(request.name, pod.name()),
            namespace: name_or(request.namespace, pod.namespace()),
            ..request
        };
        Some((Self::new(api_version, request), Some(pod)))
    }

    /// Reads a review step by step, to report what is invalid and the uid to deny.
    fn read_invalid(body: &'a [u8]) -> Result<Self, ReviewError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(ReviewError { uid: None, fault: Fault::Empty });
        }
        let envelope: Envelope<'a> = match serde_json::from_slice(body) {
            Ok(envelope) => envelope,
            Err(error) => {
                // The body may contain a uid although other fields are invalid.
                let request =
                    serde_json::from_slice(body).ok().and_then(|field: RequestField<'a>| field.request);
                let uid = request.map(read_uid).filter(|uid| !uid.is_empty()).map(Cow::into_owned);
                return Err(ReviewError { uid, fault: Fault::NotJson(error) });
            }
        };
        // A valid request is parsed only once, because it may have several megabytes.
        let request =
            envelope.request.map(|request| serde_json::from_str::<AdmissionRequest<'a>>(request.get()));
        let uid = match &request {
            Some(Ok(request)) => request.uid.clone(),
            _ => envelope.request.map(read_uid).unwrap_or_default(),
        };
        let known_uid = Some(uid.clone().into_owned()).filter(|uid| !uid.is_empty());
        let invalid = |fault| ReviewError { uid: known_uid, fault };
        if envelope.kind.is_empty() {
            return Err(invalid(Fault::NoKind));
        }
        if envelope.kind != KIND {
            return Err(invalid(Fault::WrongKind(truncated(&envelope.kind).to_owned())));
        }
        let Some(request) = request else { return Err(invalid(Fault::NoRequest)) };
        if uid.is_empty() {
            return Err(invalid(Fault::NoUid));
        }
        let Some(api_version) = supported_version(&envelope.api_version) else {
            return Err(invalid(Fault::WrongVersion(truncated(&envelope.api_version).to_owned())));
        };
        Ok(Self { api_version, uid, request })
    }

    /// Returns the request.
    pub(in crate::server) fn request(&self) -> Result<&AdmissionRequest<'a>, &serde_json::Error> {
        self.request.as_ref()
    }

    /// Returns the uid of the request.
    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the response with a verdict of the guard.
    pub(super) fn verdict_response<'b>(
        &'b self,
        verdict: &'b Verdict,
        operation: Operation,
    ) -> ReviewResponse<'b> {
        let status = verdict
            .refusal(operation)
            .map(|refusal| Status::failure(verdict.text(), refusal.reason, refusal.code));
        self.response(status, &verdict.warnings, verdict.audit_annotations().into_iter().collect())
    }

    /// Returns the response with a mutation, or with the denial by a rule that needs no etcd cluster.
    pub(super) fn mutation_response<'b>(&'b self, mutation: &'b mut Mutation) -> ReviewResponse<'b> {
        let status = mutation.denial.take().map(|message| Status::failure(message, "Forbidden", 403));
        let patch = mutation.patch.take();
        let reason = BTreeMap::from([("reason", mem::take(&mut mutation.reason))]);
        self.response(status, &mutation.warnings, reason).with_patch(patch)
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
        ReviewResponse::new(self.api_version, &self.uid, status, warnings, audit_annotations)
    }
}
