//! Dry runs of the creation of pods.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use kube::Client;
use serde_json::Value;
use tokio::time::timeout;

use crate::k8s::error::{CallError, error_message};

/// Timeout of a dry run: the maximum timeout of an admission webhook, which the API server waits for.
const DRY_RUN_TIMEOUT: Duration = Duration::from_secs(30);

/// Evaluates the creation of pods without creating them.
pub struct PodDryRun {
    client: Client,
    namespace: String,
}

// === impl PodDryRun ===

impl PodDryRun {
    /// Creates pods in this namespace through this client.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// Returns the error of the API server if it rejects a pod. Unknown fields are errors as well.
    pub async fn create(&self, pod: &Value) -> Result<(), CallError> {
        let operation = format!("a dry run of the creation of a pod in namespace {}", self.namespace);
        let failed = |cause| CallError::Failed { operation, cause };
        let path = format!("/api/v1/namespaces/{}/pods?dryRun=All&fieldValidation=Strict", self.namespace);
        let request = http::Request::post(path).header(CONTENT_TYPE, "application/json");
        let request = match request.body(pod.to_string().into_bytes()) {
            Ok(request) => request,
            Err(error) => return Err(failed(error.to_string())),
        };
        match timeout(DRY_RUN_TIMEOUT, self.client.request::<Value>(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(failed(error_message(&error))),
            Err(_) => {
                Err(failed(format!("no answer within {}", humantime::format_duration(DRY_RUN_TIMEOUT))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::fake::{api_server_with, status_failure};

    #[tokio::test]
    async fn returns_message_of_api_server() {
        let client = api_server_with(|call, pod| {
            assert_eq!(call.uri.query(), Some("dryRun=All&fieldValidation=Strict"));
            match pod["spec"].as_object() {
                Some(_) => (201, json!({"kind": "Pod"})),
                None => (422, status_failure(422, "spec is missing")),
            }
        });
        let dry_run = PodDryRun::new(client, "prod");
        assert!(dry_run.create(&json!({"spec": {}})).await.is_ok());
        let error = dry_run.create(&json!({})).await.unwrap_err().to_string();
        assert!(error.contains("namespace prod failed: spec is missing"), "{error}");
    }
}
