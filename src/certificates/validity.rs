//! Certificates from files: whether what is served is valid now.

use std::time::Duration;

use kube::Client;
use tokio::time::sleep;

use crate::{
    k8s::apiserver_time,
    server::{Readiness, tls::Serving},
};

/// How often it is asked. Certificates end by the second, and a Service turns away within two.
const PAUSE: Duration = Duration::from_secs(5);

/// Says through `readiness` whether what is served is valid by the apiserver's clock, so that callers turn to a replica that
/// has a newer one. While the time cannot be asked, what was said stays. Runs for as long as it is awaited.
pub async fn watch_validity(client: Client, serving: Serving, readiness: Readiness) {
    let mut was_valid = true;
    loop {
        match apiserver_time(&client).await {
            Ok(now) => {
                let is_valid = serving.is_valid(now.unix_timestamp());
                readiness.certificate_trusted(is_valid);
                if was_valid && !is_valid {
                    tracing::warn!("not ready: the certificate has ended or is not valid yet");
                }
                was_valid = is_valid;
            }
            Err(error) => tracing::debug!(%error, "whether the certificate is valid is not known"),
        }
        sleep(PAUSE).await;
    }
}
