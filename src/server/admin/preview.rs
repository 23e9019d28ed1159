//! `POST /check`: previews the verdict on a request.

use std::sync::Arc;

use axum::{
    extract::{Request as HttpRequest, State},
    response::Response,
};
use serde::{Deserialize, Serialize};

use super::{answer::answer, loopback::EVALUATION_TIMEOUT};
use crate::{
    guard::{Deadline, PolicySetting, Reason, Request, Role, Verdict},
    server::webhook::{http_response::Rejection, review::Review, state::WebhookState},
};

/// The verdict that a request would get now. The preview is not counted, logged or reserved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// `allowed`, `denied`, or `audited`: allowed with a warning because of the policy.
    pub verdict: String,
    /// The reason code.
    pub reason: String,
    /// The explanation, one or two sentences.
    pub message: String,
    /// The second sentence of `message`, if present: the remedy or the next step.
    pub next: Option<String>,
    /// HTTP status of a denial.
    pub code: Option<u16>,
    /// The warnings that kubectl would print.
    pub warnings: Vec<String>,
    /// The cluster, `NAMESPACE/OWNER`, if known.
    pub cluster: Option<String>,
    /// Number of voters in the member list, if the verdict depends on it.
    pub voters: Option<usize>,
    /// Number of voters that the probe found healthy.
    pub healthy: Option<usize>,
    /// Number of voters that form a quorum.
    pub quorum: Option<usize>,
    /// Number of healthy voters after the operation.
    pub remaining: Option<usize>,
    /// The leader's member id in hexadecimal.
    pub leader: Option<String>,
    /// The member id of the pod in hexadecimal, if the verdict depends on it.
    pub member: Option<String>,
    /// The role of that member.
    pub role: Option<Role>,
    /// The effective policy, setting by setting.
    #[serde(default)]
    pub policy: Vec<PolicySetting>,
}

pub(super) async fn preview(
    State(state): State<Arc<WebhookState>>,
    request: HttpRequest,
) -> Result<Response, Rejection> {
    let deadline = Deadline::from_timeout(Some(EVALUATION_TIMEOUT));
    let body = state.body_reader.read(request).await?;
    let bad_request = |error: &dyn std::fmt::Display| Rejection::bad_request(error.to_string());
    let review = Review::read(&body.bytes).map_err(|error| bad_request(&error))?;
    let request = Request::from_admission(&review.request).map_err(|error| bad_request(&error))?;
    let (verdict, policy) = tokio::join!(
        state.guard.preview(&request, deadline),
        state.guard.effective_policy(&request, deadline)
    );
    let code = verdict.refusal(request.operation).map(|refusal| refusal.code);
    answer(&Preview { policy, ..Preview::from_verdict(verdict, code) })
}

// === impl Preview ===

impl Preview {
    pub(in crate::server) fn from_verdict(verdict: Verdict, code: Option<u16>) -> Self {
        let tally = verdict.tally.as_ref();
        Self {
            verdict: verdict.outcome().to_owned(),
            reason: verdict.reason.as_str().to_owned(),
            code,
            voters: tally.map(|tally| tally.voters),
            healthy: tally.map(|tally| tally.healthy),
            quorum: tally.map(|tally| tally.quorum),
            remaining: tally.map(|tally| tally.remaining),
            leader: tally.and_then(|tally| tally.leader).map(|id| id.to_string()),
            member: verdict.member.map(|id| id.to_string()),
            role: role(&verdict),
            policy: Vec::new(),
            message: verdict.message,
            next: verdict.remedy,
            warnings: verdict.warnings,
            cluster: verdict.cluster,
        }
    }
}

/// Returns the role of the pod's member, if the verdict depends on it.
fn role(verdict: &Verdict) -> Option<Role> {
    let leader = verdict.tally.as_ref()?.leader;
    match (verdict.member, verdict.reason) {
        (Some(_), Reason::NotAVoter) => Some(Role::Learner),
        (None, Reason::NotAVoter) => Some(Role::NotListed),
        (Some(member), _) if leader == Some(member) => Some(Role::Leader),
        (Some(_), _) => Some(Role::Follower),
        (None, _) => None,
    }
}
