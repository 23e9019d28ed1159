//! Which policy is in force for what is asked about, for people who ask before anything goes.

use super::{
    Guard,
    deadline::Deadline,
    etcd_pod,
    family::Family,
    policy::{ALLOW_UNTIL, LEADER, LeaderPolicy, MODE, Policy},
    request::{Operation, Request},
    settings::Setting,
    settled,
};
use crate::{config::Choice, k8s::pod::Pod};

// === impl Guard ===

impl Guard {
    /// The choices in force for this request, and who made them. None for what no choice matters to, which is a pod without
    /// etcd, and for a pod that cannot be read.
    pub async fn in_force(&self, request: &Request, deadline: Deadline) -> Vec<Setting> {
        let (namespace, name) = (&request.namespace, &request.name);
        if let Operation::Intent(intent) = request.operation {
            if intent.is_harmless() {
                return Vec::new();
            }
            let mut settings = self.policies.settings_of_owner(namespace, intent.stateful_set(name));
            // What is said of leaders and data is said of pods.
            settings.retain(|it| [MODE, ALLOW_UNTIL].contains(&it.name.as_str()));
            return settings;
        }
        match self.looker.pod_of(request, deadline).await {
            Ok(pod) if settled(&pod).is_none() && runs_etcd(&pod) => {
                let mut settings = self.policies.settings(&Family::of(namespace, &pod), &pod).settings;
                let seconds = request.grace_period(&pod);
                if let Some(leader) = settings.iter_mut().find(|it| it.name == LEADER)
                    && leader.value == LeaderPolicy::Allow.word()
                    && Policy::is_too_short(seconds)
                {
                    LeaderPolicy::Deny.word().clone_into(&mut leader.value);
                    leader.from = format!("a grace period of {} s", seconds.unwrap_or_default());
                }
                settings
            }
            Ok(_) | Err(_) => Vec::new(),
        }
    }
}

fn runs_etcd(pod: &Pod) -> bool {
    etcd_pod::read(pod, &pod.metadata.annotations).is_some()
}
