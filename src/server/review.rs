//! The `AdmissionReview` envelope: what the apiserver sends, and what it accepts as an answer.
//!
//! The apiserver takes only HTTP 200 with a review of the same version and uid for an answer; anything else is a failed
//! call. So whenever there is a uid, a mistake in the rest of the body is told as a denial of that uid.
//!
//! Source: apiserver `pkg/admission/plugin/webhook/request/admissionreview.go`.

mod objects;

use std::{borrow::Cow, collections::BTreeMap};

use base64::Engine;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub(super) use self::objects::Objects;
use crate::{
    guard::{Glance, Operation, Verdict},
    json::abridged,
    k8s::admission::{AdmissionRequest, clipped},
};

const KIND: &str = "AdmissionReview";
const V1: &str = "admission.k8s.io/v1";
/// Longer than most answers without a patch.
const COMMON_LENGTH: usize = 512;

const VERSIONS: [&str; 2] = [V1, "admission.k8s.io/v1beta1"];

/// A body, and what is read of it where nothing is wrong with it.
pub(super) struct Body<'a> {
    whole: &'a [u8],
    /// None if it is no text.
    text: Option<Cow<'a, str>>,
}

/// A review as it came: version checked, its request read if it can be.
#[derive(Debug)]
pub(super) struct Review<'a> {
    api_version: &'static str,
    uid: Cow<'a, str>,
    request: Result<AdmissionRequest<'a>, serde_json::Error>,
}

/// A body that is no review, and the uid in it if there is one to answer to.
#[derive(Debug, thiserror::Error)]
#[error("{mistake}")]
pub(super) struct ReviewError {
    uid: Option<String>,
    mistake: Mistake,
}

#[derive(Debug, thiserror::Error)]
enum Mistake {
    #[error("the body is empty: an AdmissionReview in JSON is expected")]
    Empty,
    #[error("the body is no AdmissionReview in JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("the body names no kind: an AdmissionReview is expected")]
    NoKind,
    #[error("the body is a {0:?}: an AdmissionReview is expected")]
    WrongKind(String),
    #[error("version {0:?} of AdmissionReview is not known: admission.k8s.io/v1 and v1beta1 are")]
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

/// A review without a mistake, read in one pass: the objects inside are most of a body.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "Stored: Deserialize<'de>"))]
struct Whole<'a, Stored = &'a RawValue> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    request: AdmissionRequest<'a, Stored>,
}

/// The request of a review in which anything else may be wrong.
#[derive(Deserialize)]
struct Outline<'a> {
    #[serde(borrow, default)]
    request: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Identified<'a> {
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
}

/// The answer, in the version of the question.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
    /// A JSON patch in JSON: the response's last members.
    #[serde(skip)]
    patch: Option<Vec<u8>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<&'static str, String>,
}

/// What a mutating webhook answers.
#[derive(Debug, Default)]
pub(super) struct Mutation {
    /// Why the request is denied, if it is.
    pub(super) denial: Option<String>,
    /// A JSON patch in JSON; none if nothing is to be changed.
    pub(super) patch: Option<Vec<u8>>,
    pub(super) warnings: Vec<String>,
    /// Why, in the words of metrics.
    pub(super) reason: String,
}

/// `meta/v1` `Status`. Both code and reason, or kubectl prints neither "(Forbidden)" nor anything in its place.
#[derive(Debug, Serialize)]
struct Status {
    #[serde(rename = "status")]
    outcome: &'static str,
    message: String,
    reason: &'static str,
    code: u16,
}

// === impl Answer ===

impl Answer<'_> {
    /// The answer in JSON.
    pub(super) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let patch = self.patch.as_deref().map(in_base64).unwrap_or_default();
        let mut body = Vec::with_capacity(COMMON_LENGTH + patch.len());
        serde_json::to_writer(&mut body, self)?;
        // Written behind the rest: as a text it would be searched for what must be escaped. The response is the last member,
        // and has some of its own. Both of the patch or neither: the apiserver takes one without the other for a failed
        // call.
        if !patch.is_empty() && body.ends_with(b"}}") {
            body.truncate(body.len() - 2);
            body.extend_from_slice(br#","patchType":"JSONPatch","patch":""#);
            body.extend_from_slice(&patch);
            body.extend_from_slice(b"\"}}");
        }
        Ok(body)
    }
}

/// As Go reads bytes in JSON.
fn in_base64(bytes: &[u8]) -> Vec<u8> {
    // Memory that is zero already: a `Vec` that grows by zeros writes each of them, which took longer than base64 itself.
    let mut text = vec![0; bytes.len().div_ceil(3) * 4];
    let written = base64_engine().encode_slice(bytes, &mut text);
    text.truncate(written.unwrap_or_default());
    text
}

/// The fastest that there is for the processor.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn base64_engine() -> impl Engine {
    base64::engine::Simd::standard(base64::engine::general_purpose::PAD)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn base64_engine() -> impl Engine {
    base64::engine::general_purpose::STANDARD
}

// === impl ReviewError ===

impl ReviewError {
    /// The answer to the uid, if there is one, in the version that every apiserver of today knows.
    pub(super) fn answer(&self) -> Option<Answer<'_>> {
        let status = Some(bad_request(self.to_string()));
        let uid = self.uid.as_deref()?;
        let response =
            Response { uid, allowed: false, status, warnings: &[], audit_annotations: BTreeMap::new() };
        Some(Answer { api_version: V1, kind: KIND, response, patch: None })
    }
}

/// The uid of a request that cannot be read otherwise.
fn bad_request(message: String) -> Status {
    Status { outcome: "Failure", message, reason: "BadRequest", code: 400 }
}

fn known_version(version: &str) -> Option<&'static str> {
    VERSIONS.into_iter().find(|it| *it == version)
}

fn uid_of(request: &RawValue) -> Cow<'_, str> {
    serde_json::from_str::<Identified<'_>>(request.get()).map(|it| it.uid).unwrap_or_default()
}

// === impl Whole ===

impl<'a, Stored: Deserialize<'a>> Whole<'a, Stored> {
    /// Version and request of a review without a mistake.
    fn read(text: &'a str) -> Option<(&'static str, AdmissionRequest<'a, Stored>)> {
        let whole: Self = serde_json::from_str(text).ok()?;
        let is_review = whole.kind == KIND && !whole.request.uid.is_empty();
        let version = known_version(&whole.api_version).filter(|_| is_review)?;
        Some((version, whole.request))
    }
}

// === impl Body ===

impl<'a> Body<'a> {
    /// A body as it came.
    pub(super) fn of(whole: &'a [u8]) -> Self {
        // Looked through for wrong characters once, and not text by text.
        Self { whole, text: std::str::from_utf8(whole).ok().map(abridged) }
    }

    /// What is read of it, if it is text.
    pub(super) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }
}

// === impl Review ===

impl<'a> Review<'a> {
    /// Reads the envelope.
    pub(super) fn read(body: &'a Body<'_>) -> Result<Self, ReviewError> {
        match body.text().and_then(Whole::read) {
            Some((api_version, request)) => {
                Ok(Self { api_version, uid: request.uid.clone(), request: Ok(request) })
            }
            None => Self::read_with_mistake(body.whole),
        }
    }

    /// Reads the envelope and a glance at the stored pod, in one pass. The request comes without that pod, and with its names.
    pub(super) fn read_with_glance(text: &'a str) -> Option<(Self, Option<Glance<'a>>)> {
        let (api_version, request) = Whole::<Glance<'a>>::read(text)?;
        let (request, pod) = request.without_stored();
        let review = |request: AdmissionRequest<'a>| Self {
            api_version,
            uid: request.uid.clone(),
            request: Ok(request),
        };
        let Some(pod) = pod else { return Some((review(request), None)) };
        // A deletion of a collection sends one request per pod, without its name.
        let or = |it: Option<Cow<'a, str>>, other: &str| {
            it.filter(|it| !it.is_empty()).or_else(|| Some(Cow::Owned(other.to_owned())))
        };
        let request = AdmissionRequest {
            name: or(request.name, pod.name()),
            namespace: or(request.namespace, pod.namespace()),
            ..request
        };
        Some((review(request), Some(pod)))
    }

    /// Reads step by step, to tell the mistake and whom.
    fn read_with_mistake(body: &'a [u8]) -> Result<Self, ReviewError> {
        let anonymous = |mistake| ReviewError { uid: None, mistake };
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(anonymous(Mistake::Empty));
        }
        let envelope: Envelope<'a> = match serde_json::from_slice(body) {
            Ok(envelope) => envelope,
            Err(error) => {
                // Whatever is wrong with the rest: a uid is answered to.
                let request = serde_json::from_slice(body).ok().and_then(|it: Outline<'a>| it.request);
                let uid = request.map(uid_of).filter(|uid| !uid.is_empty()).map(Cow::into_owned);
                return Err(ReviewError { uid, mistake: Mistake::NotJson(error) });
            }
        };
        // Once, as a rule: a body may have megabytes.
        let request = envelope.request.map(|it| serde_json::from_str::<AdmissionRequest<'a>>(it.get()));
        let uid = match &request {
            Some(Ok(request)) => request.uid.clone(),
            _ => envelope.request.map(uid_of).unwrap_or_default(),
        };
        let known = Some(uid.clone().into_owned()).filter(|uid| !uid.is_empty());
        let identified = |mistake| ReviewError { uid: known, mistake };
        if envelope.kind.is_empty() {
            return Err(identified(Mistake::NoKind));
        }
        if envelope.kind != KIND {
            return Err(identified(Mistake::WrongKind(clipped(&envelope.kind).to_owned())));
        }
        let Some(request) = request else { return Err(identified(Mistake::NoRequest)) };
        if uid.is_empty() {
            return Err(identified(Mistake::NoUid));
        }
        let Some(api_version) = known_version(&envelope.api_version) else {
            return Err(identified(Mistake::WrongVersion(clipped(&envelope.api_version).to_owned())));
        };
        Ok(Self { api_version, uid, request })
    }

    /// The request inside.
    pub(super) fn request(&self) -> Result<&AdmissionRequest<'a>, &serde_json::Error> {
        self.request.as_ref()
    }

    /// Which call this is, for logs.
    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    /// The answer that carries a verdict.
    pub(super) fn answer<'b>(&'b self, verdict: &'b Verdict, operation: Operation) -> Answer<'b> {
        let status = verdict.refusal(operation).map(|refusal| Status {
            outcome: "Failure",
            message: verdict.text(),
            reason: refusal.reason,
            code: refusal.code,
        });
        self.wrap(status, &verdict.warnings, verdict.audit_annotations().into_iter().collect())
    }

    /// The answer that carries a mutation, or the denial of a small rule.
    pub(super) fn answer_mutation<'b>(&'b self, mutation: &'b mut Mutation) -> Answer<'b> {
        let status = mutation.denial.take().map(|message| Status {
            outcome: "Failure",
            message,
            reason: "Forbidden",
            code: 403,
        });
        let patch = mutation.patch.take();
        let reason = BTreeMap::from([("reason", std::mem::take(&mut mutation.reason))]);
        Answer { patch, ..self.wrap(status, &mutation.warnings, reason) }
    }

    /// The answer to a request that cannot be judged because of a mistake in it.
    pub(super) fn bad_request(&self, message: String) -> Answer<'_> {
        self.wrap(Some(bad_request(message)), &[], BTreeMap::new())
    }

    fn wrap<'b>(
        &'b self,
        status: Option<Status>,
        warnings: &'b [String],
        audit_annotations: BTreeMap<&'static str, String>,
    ) -> Answer<'b> {
        let allowed = status.is_none();
        Answer {
            api_version: self.api_version,
            kind: KIND,
            response: Response { uid: &self.uid, allowed, status, warnings, audit_annotations },
            patch: None,
        }
    }
}
