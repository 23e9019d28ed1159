//! Whether a pod's process is ready, by the probe that its container names.

use std::{net::Ipv4Addr, net::SocketAddr, time::Duration};

use k8s_openapi::{api::core::v1::Container, apimachinery::pkg::util::intstr::IntOrString};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::super::http_client;

/// Far more often than the pod asks for: a test waits for this.
const PERIOD: Duration = Duration::from_millis(200);

/// A frozen process takes the connection and answers nothing.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Where a container says that its readiness is to be asked for.
#[derive(Clone, Debug)]
pub struct Probe {
    address: SocketAddr,
    path: String,
}

impl Probe {
    /// The container's readiness probe, if it has one over HTTP.
    pub fn of(container: &Container, address: Ipv4Addr) -> Option<Self> {
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
        Some(Self { address: SocketAddr::from((address, port)), path: get.path.clone().unwrap_or_default() })
    }

    /// Probes until nobody wants to know any more.
    pub async fn run(self, ready: watch::Sender<bool>) {
        while !ready.is_closed() {
            let answer = timeout(ANSWER_LIMIT, http_client::get(self.address, &self.path)).await;
            let is_ready = matches!(answer, Ok(Ok(response)) if response.status.is_success());
            ready.send_if_modified(|known| std::mem::replace(known, is_ready) != is_ready);
            sleep(PERIOD).await;
        }
    }
}
