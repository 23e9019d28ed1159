//! Readiness of a pod's process by the HTTP probe of its container.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use k8s_openapi::{api::core::v1::Container, apimachinery::pkg::util::intstr::IntOrString};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::http_client;

/// The longest time for a response: a frozen process accepts connections and does not respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The target of an HTTP readiness probe.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    address: SocketAddr,
    path: String,
    period: Duration,
}

impl Probe {
    /// Returns the container's readiness probe with this interval, if it is an HTTP probe.
    pub(super) fn from_container(container: &Container, address: Ipv4Addr, period: Duration) -> Option<Self> {
        let get = container.readiness_probe.as_ref()?.http_get.as_ref()?;
        let port = match &get.port {
            IntOrString::Int(number) => *number,
            IntOrString::String(name) => {
                let named = |port: &&_| -> bool {
                    let port: &k8s_openapi::api::core::v1::ContainerPort = port;
                    port.name.as_ref() == Some(name)
                };
                container.ports.iter().flatten().find(named)?.container_port
            }
        };
        let port = u16::try_from(port).ok()?;
        Some(Self {
            address: SocketAddr::from((address, port)),
            path: get.path.clone().unwrap_or_default(),
            period,
        })
    }

    /// Probes until the receiver is dropped.
    pub(super) async fn run(self, ready: watch::Sender<bool>) {
        while !ready.is_closed() {
            let answer = timeout(RESPONSE_TIMEOUT, http_client::get(self.address, &self.path)).await;
            let is_ready = matches!(answer, Ok(Ok(response)) if response.status.is_success());
            ready.send_if_modified(|known| std::mem::replace(known, is_ready) != is_ready);
            sleep(self.period).await;
        }
    }
}
