//! The API server, called with the identity and the permissions of the user: typed calls with one timeout, and errors that name
//! what was called and print their cause once.

use std::{fmt::Debug, time::Duration};

use anyhow::{Context, bail};
use http::{HeaderMap, Method, Request, Uri, header};
use http_body_util::BodyExt;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::{Node, Pod},
};
use kube::{
    Api, Client, Resource,
    api::{ListParams, Patch, PatchParams, PostParams},
    client::{AuthError, Body, UpgradeConnectionError},
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::timeout;

use crate::durations;
use etcd_guard_cli::printing::plain;
use etcd_guard_core::escape::{MAX_ERROR_CHARS, to_bounded_line, to_shell_word};

/// Timeout of one call of the API server, or of the guard through a port-forward. The API server ends a request after 34 s, with
/// the time of all its webhooks, and the guard answers within 15 s.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(40);

/// What is wrong with the certificate of the server, by the error of rustls.
const CERTIFICATE_ERRORS: [(&str, &str); 5] = [
    (
        "UnknownIssuer",
        "its certificate is signed by an unknown authority; compare certificate-authority in the kubeconfig",
    ),
    ("NotValidForName", "its certificate is for other names; compare server in the kubeconfig"),
    (
        "certificate not valid for name",
        "its certificate is for other names; compare server in the kubeconfig",
    ),
    (
        "CaUsedAsEndEntity",
        "its certificate is that of an authority; compare certificate-authority in the kubeconfig",
    ),
    ("Expired", "its certificate has expired, or the clock of this machine is wrong"),
];

/// A client of the API server with the identity of the user.
#[derive(Clone)]
pub(crate) struct ApiServer {
    pub(crate) client: Client,
    /// The namespace that the user selected, or the default of the kubeconfig context.
    pub(crate) namespace: String,
    /// Its URL.
    pub(crate) url: Uri,
    /// The kubectl command with the flags that select the same cluster and the same identity.
    pub(crate) kubectl: String,
}

/// A call without the wanted result.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{operation}: {cause}")]
pub(crate) struct CallError {
    /// What was called, for instance `failed to read pod prod/etcd-1`.
    operation: String,
    /// The message of the API server, or the root cause of the connection's error; on one line, and cut.
    pub(crate) cause: String,
    /// The HTTP status; `None` without a response.
    pub(crate) code: Option<u16>,
}

/// A response of the API server with everything that a client sees.
#[derive(Clone, Debug, Default)]
pub(crate) struct Response {
    /// The HTTP status.
    pub(crate) code: u16,
    /// The message of an error response.
    pub(crate) message: String,
    pub(crate) headers: HeaderMap,
    /// The returned object or list; null in an error response.
    pub(crate) object: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
}

/// Returns the cause of an error in words for users, which names the server, and the HTTP status.
fn cause_of(error: &kube::Error, url: &Uri) -> (String, Option<u16>) {
    let server = server(url);
    match error {
        kube::Error::Api(status) if status.code == 401 => (unauthorized(url), Some(401)),
        kube::Error::Api(status) if status.message.is_empty() => {
            (format!("{server} responded with HTTP status {}", status.code), Some(status.code))
        }
        kube::Error::Api(status) => (attributed(&status.message, status.code, url), Some(status.code)),
        kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(status)) => {
            let code = status.as_u16();
            let cause =
                if code == 401 { unauthorized(url) } else { format!("{server} responded with {status}") };
            (cause, Some(code))
        }
        kube::Error::SerdeError(_) => (format!("the response of {server} is not readable"), None),
        error => match auth_error(error) {
            Some(cause) => (format!("no credentials for {server}: {cause}"), None),
            None => (format!("no connection to {server}: {}", root_cause(error)), None),
        },
    }
}

/// Returns the URL without the slash at its end.
fn server(url: &Uri) -> String {
    format!("the API server at {}", url.to_string().trim_end_matches('/'))
}

/// Returns the message of an error response, with the server if the error may be that of another one than you think.
fn attributed(message: &str, code: u16, url: &Uri) -> String {
    match code {
        403 | 500.. => format!("{} responded: {message}", server(url)),
        _ => message.to_owned(),
    }
}

fn unauthorized(url: &Uri) -> String {
    format!("{} rejects your credentials (401): log in again, or choose another --context", server(url))
}

/// Returns the cause of an error of the credentials, for instance of the program that issues tokens.
fn auth_error(error: &kube::Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        match current.downcast_ref::<AuthError>() {
            Some(AuthError::AuthExecRun { out, .. }) => {
                let stderr = String::from_utf8_lossy(&out.stderr);
                let last =
                    stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed no error");
                let status = out.status.code().map(|code| format!(" with status {code}")).unwrap_or_default();
                return Some(format!("the exec plugin of the kubeconfig failed{status}: {last}"));
            }
            Some(AuthError::AuthExecStart(start)) => {
                return Some(format!(
                    "the exec plugin of the kubeconfig did not start: {}",
                    plain(&start.to_string())
                ));
            }
            Some(other) => return Some(plain(&other.to_string())),
            None => cause = current.source(),
        }
    }
    None
}

/// Returns the last error of the chain: `refused` in `service error: client error (Connect): tcp connect error: refused`.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = plain(&cause.to_string());
    // rustls names the variants of its errors.
    let known = CERTIFICATE_ERRORS.iter().find(|(name, _)| text.contains(name));
    known.map_or(text, |(_, words)| String::from(*words))
}

/// Whether the kubelet reports a pod as ready. A terminating pod can be ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

// === impl ApiServer ===

impl ApiServer {
    /// Creates a client. `kubectl` has the flags that select the same cluster.
    pub(crate) fn new(
        mut config: kube::Config,
        namespace: Option<String>,
        kubectl: String,
    ) -> anyhow::Result<Self> {
        config.read_timeout = Some(CALL_TIMEOUT);
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let url = config.cluster_url.clone();
        let client = etcd_guard_cli::client::client(config)
            .map_err(|error| anyhow::anyhow!(to_bounded_line(&cause_of(&error, &url).0, MAX_ERROR_CHARS)))?;
        Ok(Self { client, namespace, url, kubectl })
    }

    /// Awaits a call. `operation` begins the error, for instance `failed to read pod prod/etcd-1`.
    pub(crate) fn call<T>(
        &self,
        operation: impl Into<String>,
        call: impl Future<Output = kube::Result<T>>,
    ) -> impl Future<Output = Result<T, CallError>> {
        // Boxed here, so that the future of the caller does not grow by that of the call.
        let (operation, call, url) = (operation.into(), Box::pin(call), self.url.clone());
        async move {
            let (cause, code) = match timeout(CALL_TIMEOUT, call).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => cause_of(&error, &url),
                Err(_) => {
                    let limit = durations::text(CALL_TIMEOUT);
                    (format!("no response of {} within {limit}", server(&url)), None)
                }
            };
            Err(CallError { operation, cause: to_bounded_line(&cause, MAX_ERROR_CHARS), code })
        }
    }

    /// A fake API server.
    #[cfg(test)]
    pub(crate) fn fake(client: Client, kubectl: &str) -> Self {
        let url = Uri::from_static("http://localhost");
        Self { client, namespace: String::from("default"), url, kubectl: kubectl.to_owned() }
    }

    /// Names the API server in notices.
    pub(crate) fn describe(&self) -> String {
        server(&self.url)
    }

    /// Returns a command of this program, with the flags that select the same cluster and the same identity.
    pub(crate) fn command(&self, name: &str) -> String {
        format!("kubectl etcd-guard {name}{}", self.kubectl.strip_prefix("kubectl").unwrap_or_default())
    }

    /// The objects of a kind in a namespace.
    pub(crate) fn namespaced<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(
        &self,
        namespace: &str,
    ) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The objects of a kind without a namespace, or in all namespaces.
    pub(crate) fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Creates a review, which the API server answers and does not store. `operation` begins the error.
    pub(crate) async fn review<K>(&self, operation: &str, review: &K) -> Result<K, CallError>
    where
        K: Resource<Scope = ClusterResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + serde::Serialize,
    {
        self.call(operation, self.all::<K>().create(&PostParams::default(), review)).await
    }

    pub(crate) async fn stateful_set(&self, namespace: &str, name: &str) -> anyhow::Result<StatefulSet> {
        let set = self.namespaced::<StatefulSet>(namespace);
        let set =
            self.call(format!("failed to read StatefulSet {namespace}/{name}"), set.get_opt(name)).await?;
        set.with_context(|| {
            format!(
                "StatefulSet {namespace}/{name} does not exist; list them: {} -n {namespace} get statefulsets",
                self.kubectl
            )
        })
    }

    /// Returns a pod, or `None` if it does not exist.
    pub(crate) async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, CallError> {
        let pods = self.namespaced::<Pod>(namespace);
        self.call(format!("failed to read pod {namespace}/{name}"), pods.get_opt(name)).await
    }

    /// Returns the pods that this StatefulSet controls.
    pub(crate) async fn pods_of(&self, namespace: &str, set: &StatefulSet) -> Result<Vec<Pod>, CallError> {
        let labels =
            set.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone()).unwrap_or_default();
        let selector: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let listed = self.pods_in(namespace, &selector.join(",")).await?;
        let is_owned = |pod: &Pod| {
            let owners = pod.metadata.owner_references.iter().flatten();
            owners.into_iter().any(|owner| Some(&owner.uid) == set.metadata.uid.as_ref())
        };
        Ok(listed.into_iter().filter(is_owned).collect())
    }

    /// Returns the pods of a namespace with these labels.
    pub(crate) async fn pods_in(&self, namespace: &str, selector: &str) -> Result<Vec<Pod>, CallError> {
        let (pods, parameters) = (self.namespaced::<Pod>(namespace), ListParams::default().labels(selector));
        let operation = format!("failed to list the pods of namespace {namespace}");
        Ok(self.call(operation, pods.list(&parameters)).await?.items)
    }

    /// Returns the pods on a node, in all namespaces.
    pub(crate) async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, CallError> {
        let (pods, parameters) =
            (self.all::<Pod>(), ListParams::default().fields(&format!("spec.nodeName={node}")));
        Ok(self.call("failed to list the pods of all namespaces", pods.list(&parameters)).await?.items)
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<Node>, CallError> {
        let nodes = self.all::<Node>();
        Ok(self.call("failed to list nodes", nodes.list(&ListParams::default())).await?.items)
    }

    /// Applies a strategic merge patch to a StatefulSet.
    pub(crate) async fn patch_set(
        &self,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<StatefulSet, CallError> {
        let sets = self.namespaced::<StatefulSet>(namespace);
        let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let operation = format!("failed to change StatefulSet {namespace}/{name}");
        self.call(operation, sets.patch(name, &parameters, &patch)).await
    }

    /// Returns an error if the user may not evict pods of this namespace. If the API server does not answer the review, the
    /// eviction itself reports the cause.
    pub(crate) async fn require_evictions(&self, namespace: &str) -> anyhow::Result<()> {
        let eviction = ResourceAttributes {
            namespace: Some(namespace.to_owned()),
            verb: Some(String::from("create")),
            resource: Some(String::from("pods")),
            subresource: Some(String::from("eviction")),
            ..ResourceAttributes::default()
        };
        if matches!(self.is_permitted(eviction).await, Ok(false)) {
            bail!(
                "the permission to create pods/eviction in namespace {namespace} is missing, and no pod was evicted; check \
                 the permission: {} auth can-i create pods --subresource=eviction -n {}",
                self.kubectl,
                to_shell_word(namespace)
            );
        }
        Ok(())
    }

    /// Whether the user has a permission.
    pub(crate) async fn is_permitted(&self, attributes: ResourceAttributes) -> anyhow::Result<bool> {
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let status = self.review("cannot find out what you may do", &review).await?.status;
        status.map(|status| status.allowed).context("the review has no status")
    }

    /// Returns the object at this path, or `None` if it does not exist. `operation` begins the error.
    pub(crate) async fn object(&self, operation: &str, path: &str) -> Result<Option<Value>, CallError> {
        let response =
            self.get(path).await.map_err(|error| CallError { operation: operation.to_owned(), ..error })?;
        match response.code {
            200..300 => Ok(Some(response.object)),
            // Without a message, the API server does not serve the resource.
            404 if !response.message.is_empty() => Ok(None),
            code => {
                let cause = attributed(&response.cause(), code, &self.url);
                Err(CallError { operation: operation.to_owned(), cause, code: Some(code) })
            }
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Response, CallError> {
        self.send(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Response> {
        Ok(self.send(Method::POST, path, Some(body)).await?)
    }

    /// Sends a merge patch.
    pub(crate) async fn patch(&self, path: &str, body: &Value) -> anyhow::Result<Response> {
        Ok(self.send(Method::PATCH, path, Some(body)).await?)
    }

    /// Sends the options in the body, as clients do.
    pub(crate) async fn delete(&self, path: &str, options: &Value) -> anyhow::Result<Response> {
        Ok(self.send(Method::DELETE, path, Some(options)).await?)
    }

    /// Returns an error only if there was no response. An error response is a [`Response`].
    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response, CallError> {
        let operation = format!("{method} {path}");
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content_type);
        let exchange = async {
            let response =
                self.client.send(request.body(Body::from(body)).map_err(kube::Error::HttpError)?).await?;
            let (head, body) = response.into_parts();
            let (code, headers) = (head.status.as_u16(), head.headers);
            let body = body.collect().await?.to_bytes();
            if head.status.is_success() {
                let object = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
                return Ok(Response { code, message: String::new(), headers, object });
            }
            let Status { message } = serde_json::from_slice(&body).unwrap_or_default();
            let message = if code == 401 { unauthorized(&self.url) } else { message };
            Ok(Response { code, message, headers, object: Value::Null })
        };
        self.call(operation, exchange).await
    }
}

// === impl Response ===

impl Response {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Returns the object, or the error response as an error. `operation` describes the call.
    pub(crate) fn into_object(self, operation: &str) -> anyhow::Result<Value> {
        anyhow::ensure!(self.is_success(), "{operation}: {} ({})", self.message, self.code);
        Ok(self.object)
    }

    /// Returns the message of an error response on one line, or its status.
    pub(crate) fn cause(&self) -> String {
        match self.message.as_str() {
            "" => format!("HTTP status {}", self.code),
            message => to_bounded_line(message, MAX_ERROR_CHARS),
        }
    }

    /// Whether the API server could not call the webhook (`failed calling webhook`). The condition is temporary.
    pub(crate) fn is_webhook_failure(&self) -> bool {
        self.code >= 500 && self.message.contains("failed calling webhook")
    }

    /// Whether the API server did not come to judge the object: it rejected the credentials, is overloaded, or failed.
    pub(crate) fn has_no_verdict(&self) -> bool {
        matches!(self.code, 401 | 429 | 500..) && !self.is_webhook_failure()
    }

    /// Whether the user lacks a permission, by the message of the API server's authorizer (`authorizationErrorMessage`
    /// in k8s.io/apiserver, `endpoints/handlers/responsewriters/errors.go`). Admission plugins use the same status code.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.code == 403 && self.message.contains("forbidden: User \"") && self.message.contains("\" cannot ")
    }

    /// Whether a warning that kubectl prints beside the response contains this text.
    pub(crate) fn has_warning(&self, text: &str) -> bool {
        let mut warnings = self.headers.get_all(header::WARNING).iter();
        // A long warning ends with an ellipsis, which is not ASCII.
        warnings.any(|warning| String::from_utf8_lossy(warning.as_bytes()).contains(text))
    }

    /// Returns the webhook that denied the request and the reason code, which starts the guard's message and ends at a colon.
    pub(crate) fn denial(&self) -> Option<(&str, &str)> {
        let (_, rest) = self.message.split_once("admission webhook \"")?;
        let (webhook, message) = rest.split_once('"')?;
        let (_, text) = message.split_once("denied the request: ")?;
        let (code, _) = text.split_once(": ")?;
        let is_code = code.starts_with(|first: char| first.is_ascii_uppercase())
            && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_code.then_some((webhook, code))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use etcd_guard_kubernetes::fake::{api_server, status_failure};

    #[tokio::test]
    async fn error_names_the_call_and_prints_the_cause_once() {
        let forbidden = status_failure(403, "pods \"etcd-1\" is forbidden: User \"alice\" cannot get");
        let mut absent = status_failure(404, "pods \"etcd-2\" not found");
        absent["reason"] = json!("NotFound");
        let client = api_server([
            ("/api/v1/namespaces/prod/pods/etcd-1", 403, forbidden),
            ("/api/v1/namespaces/prod/pods/etcd-2", 404, absent),
        ]);
        let server = ApiServer::fake(client, "kubectl");
        let error = server.pod("prod", "etcd-1").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to read pod prod/etcd-1: the API server at http://localhost responded: pods \"etcd-1\" is forbidden: \
             User \"alice\" cannot get"
        );
        assert_eq!(error.code, Some(403));
        assert!(server.pod("prod", "etcd-2").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn rejected_credentials_name_the_server() {
        let server =
            ApiServer::fake(api_server([("/x", 401, status_failure(401, "Unauthorized"))]), "kubectl");
        let expected = "the API server at http://localhost rejects your credentials (401): log in again, or choose \
                        another --context";
        assert_eq!(server.get("/x").await.unwrap().cause(), expected);
        let pods = "/api/v1/namespaces/prod/pods/etcd-1";
        let server =
            ApiServer::fake(api_server([(pods, 401, status_failure(401, "Unauthorized"))]), "kubectl");
        assert_eq!(server.pod("prod", "etcd-1").await.unwrap_err().cause, expected);
    }

    #[tokio::test]
    async fn response_has_status_and_message() {
        let server = ApiServer::fake(api_server([("/none", 404, Value::Null)]), "kubectl");
        let response = server.get("/absent").await.unwrap();
        assert_eq!((response.code, response.message.as_str()), (404, "/absent not found"));
        assert!(server.object("failed", "/absent").await.unwrap().is_none());
        let error = server.object("failed", "/none").await.unwrap_err();
        assert_eq!(error.to_string(), "failed: HTTP status 404", "the resource is not served");
    }
}
