//! Calls to the API server with a timeout and typed errors.

use std::{future::Future, time::Duration};

use kube::Client;
use time::OffsetDateTime;
use tokio::time::timeout;

use super::error::{CallError, error_message};

/// Timeout of one call: a healthy API server responds within milliseconds.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Awaits a call that changes an object that was read before. Status 404 is a conflict, because the object was deleted
/// after the read.
pub async fn call<T>(
    operation: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    with_timeout(operation, call, &[404, 409]).await
}

/// Awaits a call that creates an object. Status 404 is a failure, because the namespace does not exist.
pub(super) async fn create<T>(
    operation: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    with_timeout(operation, call, &[409]).await
}

/// Awaits the deletion of an object. False if the object does not exist. Status 409 is a conflict: the object still
/// exists.
pub async fn delete<T>(
    operation: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<bool, CallError> {
    let deletion = async {
        match call.await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error),
        }
    };
    with_timeout(operation, deletion, &[409]).await
}

async fn with_timeout<T>(
    operation: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
    conflicts: &[u16],
) -> Result<T, CallError> {
    let failed = |cause| CallError::Failed { operation: operation.to_owned(), cause };
    match timeout(CALL_TIMEOUT, call).await {
        Err(_) => Err(failed(format!("no answer within {}", humantime::format_duration(CALL_TIMEOUT)))),
        Ok(Err(kube::Error::Api(status))) if conflicts.contains(&status.code) => {
            Err(CallError::Conflict { operation: operation.to_owned() })
        }
        Ok(Err(error)) => Err(failed(error_message(&error))),
        Ok(Ok(value)) => Ok(value),
    }
}

/// Returns the API server's time. The API server compares the validity of certificates with this time.
pub async fn api_server_time(client: &Client) -> Result<OffsetDateTime, CallError> {
    let operation = "reading the time of the API server";
    let failed = |cause: String| CallError::Failed { operation: operation.to_owned(), cause };
    let request = http::Request::get("/version")
        .body(kube::client::Body::empty())
        .map_err(|error| failed(error.to_string()))?;
    let response = call(operation, client.send(request)).await?;
    let date = response.headers().get(http::header::DATE).and_then(|date| date.to_str().ok());
    let date = date.ok_or_else(|| failed(String::from("the response has no Date header")))?;
    let time = httpdate::parse_http_date(date).map_err(|error| failed(error.to_string()))?;
    Ok(OffsetDateTime::from(time))
}
