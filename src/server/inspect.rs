//! For people who look before anything goes: what a deletion would be answered, and how the clusters are.
//!
//! On the plain port, and only for callers on the pod's own loopback: `kubectl port-forward` comes from there, so that the right
//! to `pods/portforward` in the guard's namespace is the right to ask. Who has that may read nothing here that the
//! etcd clusters' pods would not tell, and changes nothing.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Query, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{
    review::{Body, Review},
    routes::{Rejection, Webhooks},
};
use crate::guard::{Deadline, Guard, Reason, Request as Question, Role, Setting, Survey, Verdict};

/// How long an answer may take: a person waits, and a cluster with a frozen member takes two seconds.
const LIMIT: Duration = Duration::from_secs(15);

/// What a deletion would be answered. Nothing is counted, logged or reserved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// `allowed`, `denied`, or `audited`: allowed with a warning because of the policy.
    pub verdict: String,
    /// The reason code.
    pub reason: String,
    /// One or two sentences.
    pub message: String,
    /// The second of them, where there is one: what would make it pass, or how to go on.
    pub next: Option<String>,
    /// HTTP status of a denial.
    pub code: Option<u16>,
    /// What kubectl would print beside the answer.
    pub warnings: Vec<String>,
    /// The cluster, `NAMESPACE/OWNER`, where it is known.
    pub cluster: Option<String>,
    /// Voters in the member list, where it came to counting.
    pub voters: Option<usize>,
    /// Voters that were just proven healthy.
    pub healthy: Option<usize>,
    /// Voters that a majority takes.
    pub quorum: Option<usize>,
    /// Healthy voters that would remain.
    pub remaining: Option<usize>,
    /// The leader's id in hexadecimal.
    pub leader: Option<String>,
    /// The id of the pod's own member in hexadecimal, where it came to counting.
    pub member: Option<String>,
    /// What that is in its cluster.
    pub role: Option<Role>,
    /// The policy in force, choice by choice.
    #[serde(default)]
    pub policy: Vec<Setting>,
}

/// Whether a caller comes from the pod itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct IsLocal(pub(super) bool);

#[derive(Deserialize)]
struct StatusParameters {
    /// Only this namespace.
    #[serde(default)]
    namespace: Option<String>,
}

/// The routes, for local callers.
pub(super) fn routes(webhooks: Arc<Webhooks>) -> Router {
    Router::new()
        .route("/check", post(check))
        .route("/status", get(status))
        .with_state(webhooks)
        .layer(middleware::from_fn(local_only))
}

async fn local_only(request: Request, next: Next) -> Response {
    if request.extensions().get::<IsLocal>().is_some_and(|it| it.0) {
        return next.run(request).await;
    }
    let text = "this is answered on the pod's own loopback only: kubectl port-forward leads there\n";
    (StatusCode::FORBIDDEN, text).into_response()
}

async fn check(State(webhooks): State<Arc<Webhooks>>, request: Request) -> Result<Response, Rejection> {
    let deadline = Deadline::of(Some(LIMIT));
    let body = webhooks.read_body(request).await?;
    let bad = |error: &dyn std::fmt::Display| Rejection::bad_request(error.to_string());
    let body = Body::of(&body.bytes);
    let review = Review::read(&body).map_err(|error| bad(&error))?;
    let request = review.request().map_err(|error| bad(&error))?;
    let mut question = Question::read(request).map_err(|error| bad(&error))?;
    // Whatever the review says: this is a question.
    question.dry_run = true;
    let (verdict, policy) =
        tokio::join!(webhooks.guard.judge(&question, deadline), webhooks.guard.in_force(&question, deadline));
    let code = verdict.refusal(question.operation).map(|it| it.code);
    Ok(Json(Preview { policy, ..Preview::of(verdict, code) }).into_response())
}

async fn status(
    State(webhooks): State<Arc<Webhooks>>,
    Query(StatusParameters { namespace }): Query<StatusParameters>,
) -> Json<Survey> {
    let guard: &Arc<Guard> = &webhooks.guard;
    Json(guard.survey(namespace.as_deref(), Deadline::of(Some(LIMIT))).await)
}

// === impl Preview ===

impl Preview {
    fn of(verdict: Verdict, code: Option<u16>) -> Self {
        let tally = verdict.tally.as_ref();
        Self {
            verdict: verdict.word().to_owned(),
            reason: verdict.reason.word().to_owned(),
            code,
            voters: tally.map(|it| it.voters),
            healthy: tally.map(|it| it.healthy),
            quorum: tally.map(|it| it.quorum),
            remaining: tally.map(|it| it.remaining),
            leader: tally.and_then(|it| it.leader).map(|id| id.to_string()),
            member: verdict.member.map(|id| id.to_string()),
            role: role(&verdict),
            policy: Vec::new(),
            message: verdict.message,
            next: verdict.next,
            warnings: verdict.warnings,
            cluster: verdict.cluster,
        }
    }
}

/// What the pod's member is, as far as the verdict rests on it.
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

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::ServiceExt;

    use super::*;

    async fn status(caller: Option<IsLocal>) -> StatusCode {
        let router = Router::new().route("/status", get(|| async {})).layer(middleware::from_fn(local_only));
        let mut request = Request::get("/status").body(Body::empty()).unwrap();
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        router.oneshot(request).await.unwrap().status()
    }

    #[tokio::test]
    async fn only_who_comes_from_the_pod_itself_is_answered() {
        assert_eq!(status(Some(IsLocal(true))).await, StatusCode::OK);
        assert_eq!(status(Some(IsLocal(false))).await, StatusCode::FORBIDDEN);
        assert_eq!(status(None).await, StatusCode::FORBIDDEN);
    }
}
