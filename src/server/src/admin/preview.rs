//! `POST /check`: previews the verdict on a request.

use std::sync::Arc;

use super::{answer::answer, loopback::EVALUATION_TIMEOUT};
use crate::webhook::{http_response::Rejection, review::Review, state::WebhookState};
use axum::{
    extract::{Request as HttpRequest, State},
    response::Response,
};
use etcd_guard_api::{Preview, Role};
use etcd_guard_core::{reason::Reason, request::Request, verdict::Verdict};
use etcd_guard_guard::Deadline;

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
    let documentation = (!verdict.allows()).then(|| state.manual.reason(verdict.reason));
    answer(&Preview { policy, documentation, ..from_verdict(verdict, code) })
}

/// Returns the preview of a verdict. `code` is the HTTP status of a denial.
pub(crate) fn from_verdict(verdict: Verdict, code: Option<u16>) -> Preview {
    let tally = verdict.tally.as_ref();
    Preview {
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
        documentation: None,
        message: verdict.line(),
        next: verdict
            .remedy
            .map(|remedy| std::iter::once(remedy).chain(verdict.advice).collect::<Vec<_>>().join("; ")),
        warnings: verdict.warnings,
        cluster: verdict.cluster,
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
