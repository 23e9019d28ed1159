//! The parts of members that their specifications do not contain: settings in etcd's configuration file, the scheme at which
//! a member listens, and the credentials.
//!
//! Discovery itself stays free of I/O: docs/decisions/0058-settings-outside-the-pod.md.

use std::borrow::Borrow;

use tokio::time::Instant;

use crate::guard::{discovery::etcd_pod::EtcdPod, observe::observer::ClusterObserver};
use crate::{
    etcd::{Scheme, detect_schemes},
    k8s::pod::Pod,
};

// === impl ClusterObserver ===

impl ClusterObserver {
    /// Completes the members of these pods. A file, Secret or `ConfigMap` that several pods share is read once.
    pub(super) async fn complete<P: Borrow<Pod>>(
        &self,
        namespace: &str,
        pods: &mut [(P, EtcdPod)],
        until: Instant,
    ) {
        self.read_config_files(namespace, pods, until).await;
        set_schemes(pods, until).await;
        self.credentials.add_to(namespace, pods, until).await;
    }

    async fn read_config_files<P: Borrow<Pod>>(
        &self,
        namespace: &str,
        pods: &mut [(P, EtcdPod)],
        until: Instant,
    ) {
        for (pod, member) in pods {
            let Some(file) = &member.config_file else { continue };
            let is_optional = member.is_config_file_optional;
            let content = self.credentials.config_file(namespace, file, is_optional, until).await;
            let pod: &Pod = (*pod).borrow();
            let complete = |text: String| member.with_config_file(pod, &pod.metadata.annotations, &text);
            match content.and_then(|text| text.map(complete).transpose()) {
                Ok(Some(complete)) => *member = complete,
                // The settings remain unknown, and the scheme is probed.
                Err(problem) if member.endpoint.is_some() => {
                    let problem = format!("the settings of etcd are unknown: {problem}");
                    member.unread_settings = Some(problem.clone());
                    member.problem = Some(problem);
                }
                Ok(None) | Err(_) => {}
            }
        }
    }
}

/// Determines the schemes that the specifications do not show.
async fn set_schemes<P>(pods: &mut [(P, EtcdPod)], until: Instant) {
    let mut unknown: Vec<&mut EtcdPod> =
        pods.iter_mut().map(|(_, member)| member).filter(|member| member.possible_tls.is_some()).collect();
    if unknown.is_empty() {
        return;
    }
    let endpoints: Vec<_> = unknown.iter().filter_map(|member| member.endpoint.as_ref()).collect();
    let schemes = detect_schemes(&endpoints, until).await;
    // A member that does not reply must not make a cluster with TLS look like one that also uses plain HTTP.
    let default = schemes.iter().flatten().find(|scheme| **scheme == Scheme::Https).copied();
    let mut schemes = schemes.into_iter();
    for member in unknown.iter_mut().filter(|member| member.endpoint.is_some()) {
        member.set_scheme(schemes.next().flatten().or(default));
    }
}
