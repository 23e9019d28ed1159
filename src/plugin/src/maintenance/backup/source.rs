//! The member whose database is read: its address and its credentials, with the rights of the caller, and the connection to it.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail};
use http::Uri;
use k8s_openapi::api::core::v1::Pod;
use tokio::{net::TcpStream, time::timeout};

use crate::{
    api_server::ApiServer,
    cli::inspect::{LiveReader, inspect_member},
    durations,
};
use etcd_guard_core::{
    discovery::{
        credential_selection::{CertificateSearch, Credentials, Selection},
        credential_sources::{CredentialSources, SELF_SIGNED},
        etcd_pod::EtcdPod,
    },
    etcd::{endpoint::url_host, error::MemberError},
    objects::data_object::{DataObject, Secret},
};
use etcd_guard_etcd::{BackupSource, Dial, MemberStream, detect_scheme};

/// Time for each answer of the member, and for each piece of its database.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Time for a connection to the address of the pod.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A connected member.
pub(crate) struct Member {
    pub(crate) source: BackupSource,
    pod: String,
    /// The user as which the member knows this client.
    identity: String,
}

// === impl Member ===

impl Member {
    /// Connects to the member of a pod in the namespace of this client: at the address of the pod, or through a port-forward.
    pub(crate) async fn connect(api_server: &ApiServer, pod: &str, is_direct: bool) -> anyhow::Result<Self> {
        let namespace = &api_server.namespace;
        let (mut member, reader) = read(api_server, pod).await?;
        let url = |member: &EtcdPod| -> Option<Uri> { member.endpoint.as_ref()?.url.parse().ok() };
        let Some(address) = url(&member) else {
            let problem = member.problem.as_deref().unwrap_or("it has no address");
            bail!("the client port of pod {namespace}/{pod} is unknown: {problem}");
        };
        let dial = dial(api_server, pod, &address, is_direct)?;
        // tonic would hide the cause of a failure.
        drop(dial().await?);
        if member.possible_tls.is_some() {
            member.set_scheme(detect_scheme(&dial).await);
        }
        let credentials = credentials(&reader, namespace, &member.credentials).await?;
        let mut endpoint = member.endpoint.context("the member has no address")?;
        credentials.apply_to(&mut endpoint);
        let connected = BackupSource::connect(&endpoint, dial, ANSWER_LIMIT).await;
        let identity = endpoint.identity_description();
        let source = connected.map_err(|cause| explain(pod, &identity, &cause))?;
        Ok(Self { source, pod: pod.to_owned(), identity })
    }

    /// Returns the error for a failed call to this member.
    pub(crate) fn explain(&self, cause: &MemberError) -> anyhow::Error {
        explain(&self.pod, &self.identity, cause)
    }
}

fn explain(pod: &str, identity: &str, cause: &MemberError) -> anyhow::Error {
    match cause {
        MemberError::CredentialsRejected(text) => anyhow::anyhow!(
            "the member of pod {pod} rejects {identity}: {text}; for a backup, etcd requires a user with the role root"
        ),
        other => anyhow::anyhow!("the member of pod {pod} failed: {other}"),
    }
}

/// Returns the member that the specification of a pod describes, and the reader of its credentials.
async fn read(api_server: &ApiServer, pod: &str) -> anyhow::Result<(EtcdPod, LiveReader)> {
    let namespace = &api_server.namespace;
    let (mut inspection, reader) = inspect_member(api_server, pod).await?;
    let file = inspection.member.as_ref().and_then(|member| member.config_file.clone());
    if let Some(file) = file {
        let content = reader.content(&file.object).await?;
        inspection.record_content(&file.object, content);
    }
    let member = inspection.member.take();
    let member = member.with_context(|| format!("pod {namespace}/{pod}: {}", inspection.message))?;
    Ok((member, reader))
}

fn boxed(stream: impl MemberStream + 'static) -> Box<dyn MemberStream> {
    Box::new(stream)
}

/// Returns how to connect to the client port of a member.
fn dial(api_server: &ApiServer, pod: &str, url: &Uri, is_direct: bool) -> anyhow::Result<Dial> {
    let host = url_host(url).context("the URL of the member has no host")?.to_owned();
    let port = url.port_u16().context("the URL of the member has no port")?;
    if is_direct {
        return Ok(Arc::new(move || {
            let host = host.clone();
            Box::pin(async move {
                let connected = timeout(CONNECT_LIMIT, TcpStream::connect((host.as_str(), port))).await;
                let failed =
                    |cause: String| io::Error::other(format!("no connection to {host} port {port}: {cause}"));
                match connected {
                    Ok(Ok(stream)) => Ok(boxed(stream)),
                    Ok(Err(error)) => Err(failed(error.to_string())),
                    Err(_) => Err(failed(format!("no answer within {}", durations::text(CONNECT_LIMIT)))),
                }
            })
        }));
    }
    let (api_server, pod) = (api_server.clone(), pod.to_owned());
    // Copies the bytes of the stream as long as it exists.
    let forwarder = Arc::new(Mutex::new(None));
    Ok(Arc::new(move || {
        let (api_server, pod, forwarder) = (api_server.clone(), pod.clone(), Arc::clone(&forwarder));
        Box::pin(async move {
            let namespace = &api_server.namespace;
            let pods = api_server.namespaced::<Pod>(namespace);
            let operation = format!(
                "port-forward to pod {namespace}/{pod} failed; it requires the permissions to get and create \
                 pods/portforward in that namespace"
            );
            let forward = api_server.call(operation, pods.portforward(&pod, &[port])).await;
            let mut forward = forward.map_err(io::Error::other)?;
            let stream = forward.take_stream(port);
            let stream = stream.ok_or_else(|| io::Error::other("the port-forward returned no stream"))?;
            *forwarder.lock().unwrap_or_else(PoisonError::into_inner) = Some(forward);
            Ok(boxed(stream))
        })
    }))
}

/// Returns the credentials that the guard would use, if the caller may read them.
async fn credentials(
    reader: &LiveReader,
    namespace: &str,
    sources: &CredentialSources,
) -> anyhow::Result<Credentials> {
    let mut found = Credentials::default();
    if sources.accepts_self_signed {
        found.accepts_any_certificate = true;
    } else if sources.is_self_signed {
        bail!("{SELF_SIGNED}");
    } else if !sources.tls.is_empty() {
        let (mut search, mut failures) = (CertificateSearch::new(sources), Vec::new());
        for source in &sources.tls {
            if !search.needs(source) {
                continue;
            }
            match object(reader, namespace, &source.object).await? {
                Ok(content) => {
                    let selection = Selection::new(source, &content);
                    search.add(&selection);
                    let name = source.object.describe(namespace);
                    failures.extend(found.add(&name, source, &content, &selection));
                }
                Err(failure) if failures.contains(&failure) => {}
                Err(failure) => failures.push(failure),
            }
        }
        anyhow::ensure!(search.is_complete(), "{}: {}", found.missing(), failures.join(", "));
    }
    if let Some(source) = &sources.user {
        let secret = DataObject::secret(&source.secret);
        let content = object(reader, namespace, &secret).await?.map_err(anyhow::Error::msg)?;
        if let Some(problem) = found.add_user(&secret.describe(namespace), source, &content) {
            bail!(problem);
        }
    }
    Ok(found)
}

/// Returns the content of an object, or why it has none. The outer error is that of the API server.
async fn object(
    reader: &LiveReader,
    namespace: &str,
    object: &DataObject,
) -> anyhow::Result<Result<Secret, String>> {
    let named = object.describe(namespace);
    match reader.content(object).await {
        Ok(Some(content)) => Ok(Ok(content)),
        Ok(None) => Ok(Err(format!("{named} does not exist"))),
        Err(error) if error.code == Some(403) => Ok(Err(format!(
            "you are not allowed to get {} {} in namespace {namespace}",
            object.kind.resource(),
            object.name
        ))),
        Err(error) => Err(error.into()),
    }
}
