//! Validity of certificates from files.

use std::time::Duration;

use kube::Client;
use tokio::time::sleep;

use crate::{Readiness, tls::ServedCertificate};
use etcd_guard_kubernetes::api_server_time;

/// Interval of the checks. A Service needs up to two seconds to stop routing to a replica that is not ready.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Reports to `readiness` whether the served certificate is valid by the clock of the API server, so that the Service
/// routes to replicas with a newer certificate. While the time cannot be read, the last result stays. Never returns.
pub(crate) async fn watch_validity(client: Client, serving: ServedCertificate, readiness: Readiness) {
    let mut was_valid = true;
    loop {
        match api_server_time(&client).await {
            Ok(now) => {
                let is_valid = serving.is_valid(now.unix_timestamp());
                readiness.set_certificate_trusted(is_valid);
                if was_valid && !is_valid {
                    tracing::warn!(
                        "not ready: the certificate has expired or is not valid yet; replace the certificate files"
                    );
                }
                was_valid = is_valid;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read the time of the API server to check the certificate");
            }
        }
        sleep(CHECK_INTERVAL).await;
    }
}
