//! One call to the apiserver, with a limit and with words for what went wrong.

use std::{future::Future, time::Duration};

use kube::Client;
use time::OffsetDateTime;
use tokio::time::timeout;

/// Longest that one call may take: a healthy apiserver answers in milliseconds.
const CALL_LIMIT: Duration = Duration::from_secs(3);

/// A call that did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Somebody else wrote since the object was read, or it is there or gone against expectation.
    #[error("{what}: somebody else was faster")]
    Conflict {
        /// What was to be done.
        what: String,
    },
    /// Any other reason. Whether the call took effect is not known.
    #[error("{what} failed: {cause}")]
    Failed {
        /// What was to be done.
        what: String,
        /// The apiserver's or the connection's own words.
        cause: String,
    },
}

/// Awaits a call about an object that was there within the limit. One that is not found was deleted since it was read.
pub(super) async fn call<T>(
    what: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    limited(what, call, &[404, 409]).await
}

/// The same for a creation: what is not found is the namespace that it goes to, and trying again does not help.
pub(super) async fn create<T>(
    what: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    limited(what, call, &[409]).await
}

async fn limited<T>(
    what: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
    conflicts: &[u16],
) -> Result<T, CallError> {
    let failed = |cause| CallError::Failed { what: what.to_owned(), cause };
    match timeout(CALL_LIMIT, call).await {
        Err(_) => Err(failed(format!("no answer within {}", humantime::format_duration(CALL_LIMIT)))),
        Ok(Err(kube::Error::Api(status))) if conflicts.contains(&status.code) => {
            Err(CallError::Conflict { what: what.to_owned() })
        }
        Ok(Err(kube::Error::Api(status))) => Err(failed(status.message.clone())),
        Ok(Err(error)) => Err(failed(super::lookup::innermost(&error))),
        Ok(Ok(value)) => Ok(value),
    }
}

/// What time it is for the apiserver. Certificates are valid or not by its clock, whatever this machine's says.
pub async fn apiserver_time(client: &Client) -> Result<OffsetDateTime, CallError> {
    let what = "asking the apiserver for the time";
    let failed = |cause: String| CallError::Failed { what: what.to_owned(), cause };
    let request = http::Request::get("/version")
        .body(kube::client::Body::empty())
        .map_err(|error| failed(error.to_string()))?;
    let response = call(what, client.send(request)).await?;
    let date = response.headers().get(http::header::DATE).and_then(|it| it.to_str().ok());
    let date = date.ok_or_else(|| failed(String::from("the answer has no date")))?;
    let time = httpdate::parse_http_date(date).map_err(|error| failed(error.to_string()))?;
    Ok(OffsetDateTime::from(time))
}
