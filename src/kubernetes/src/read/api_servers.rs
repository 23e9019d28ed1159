//! The addresses at which API servers listen. The guard connects to none of them on behalf of a member list.

use std::net::IpAddr;

use kube::core::{
    Request,
    params::{GetParams, ListParams},
};
use serde::Deserialize;

use super::api_reader::ApiReader;
use crate::error::LookupError;

/// The `EndpointSlices` of the Service `kubernetes`.
const ENDPOINT_SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// The name of the `EndpointSlice` with all API servers. API servers write it themselves, under the name of the Service.
const ENDPOINT_SLICE: &str = "kubernetes";

/// An `EndpointSlice`.
#[derive(Deserialize)]
struct EndpointSlice {
    #[serde(default)]
    endpoints: Vec<SliceEndpoint>,
    #[serde(default)]
    ports: Vec<SlicePort>,
}

/// The addresses of one API server.
#[derive(Deserialize)]
struct SliceEndpoint {
    #[serde(default)]
    addresses: Vec<String>,
}

/// A port of all addresses.
#[derive(Deserialize)]
struct SlicePort {
    port: Option<u16>,
}

/// The answer to `GET /api` (`meta/v1` `APIVersions`).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiVersions {
    #[serde(default, rename = "serverAddressByClientCIDRs")]
    server_addresses: Vec<ServerAddress>,
}

/// An address of the API server for some clients.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerAddress {
    server_address: String,
}

// === impl ApiReader ===

impl ApiReader {
    /// Returns the endpoints of the Service `kubernetes`, each as `HOST:PORT`: all API servers. The guard's role permits
    /// to read this one object.
    pub async fn endpoints_of_api_servers(&self) -> Result<Vec<String>, LookupError> {
        let subject = String::from("EndpointSlice default/kubernetes");
        let request = Request::new(ENDPOINT_SLICES).get(ENDPOINT_SLICE, &GetParams::default());
        let slice: EndpointSlice = self.read(subject, request).await?;
        Ok(slice.host_ports())
    }

    /// Returns the addresses that the responding API server advertises to its clients, each as `HOST:PORT`. Every
    /// authenticated client may read them.
    pub async fn advertised_api_server(&self) -> Result<Vec<String>, LookupError> {
        let subject = String::from("the address of the API server");
        let request = Request::new("/api").list(&ListParams::default());
        let versions: ApiVersions = self.read(subject, request).await?;
        Ok(versions.server_addresses.into_iter().map(|address| address.server_address).collect())
    }
}

// === impl EndpointSlice ===

impl EndpointSlice {
    fn host_ports(&self) -> Vec<String> {
        let ports: Vec<u16> = self.ports.iter().filter_map(|port| port.port).collect();
        let addresses = self.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        addresses.flat_map(|address| ports.iter().map(move |port| host_port(address, *port))).collect()
    }
}

fn host_port(host: &str, port: u16) -> String {
    match host.parse() {
        Ok(IpAddr::V6(_)) => format!("[{host}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake::{api_server, status_failure};

    #[tokio::test]
    async fn reads_addresses_of_all_api_servers() {
        let endpoint = |address: &str| json!({"addresses": [address], "conditions": {"ready": true}});
        let slice = json!({
            "addressType": "IPv4",
            "endpoints": [endpoint("192.0.2.1"), endpoint("fd00::2")],
            "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
        });
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
        let versions = json!({"serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "192.0.2.1:6443"}]});
        let reader = ApiReader::new(api_server([(path, 200, slice), ("/api", 200, versions)]));
        assert_eq!(reader.endpoints_of_api_servers().await.unwrap(), ["192.0.2.1:6443", "[fd00::2]:6443"]);
        assert_eq!(reader.advertised_api_server().await.unwrap(), ["192.0.2.1:6443"]);

        let reader = ApiReader::new(api_server([(path, 403, status_failure(403, "forbidden"))]));
        assert!(matches!(reader.endpoints_of_api_servers().await, Err(LookupError::Forbidden { .. })));
    }
}
