//! Which policy is in force for what is asked about, for people who ask before anything goes.

use super::{
    Guard,
    deadline::Deadline,
    etcd_pod,
    family::Family,
    policy::{ALLOW_UNTIL, MODE},
    request::{Operation, Request},
    settings::Setting,
};

// === impl Guard ===

impl Guard {
    /// The choices in force for this request, and who made them. None for what no choice matters to, which is a pod without
    /// etcd, and for a pod that cannot be read.
    pub async fn in_force(&self, request: &Request, deadline: Deadline) -> Vec<Setting> {
        let (namespace, name) = (&request.namespace, &request.name);
        if let Operation::Intent(intent) = request.operation {
            let mut settings = self.policies.settings_of_owner(namespace, intent.stateful_set(name));
            // What is said of leaders and data is said of pods.
            settings.retain(|it| [MODE, ALLOW_UNTIL].contains(&it.name.as_str()));
            return settings;
        }
        match self.looker.pod_of(request, deadline).await {
            Ok(pod) if etcd_pod::read(&pod, &pod.metadata.annotations).is_some() => {
                self.policies.settings(&Family::of(namespace, &pod), &pod).settings
            }
            Ok(_) | Err(_) => Vec::new(),
        }
    }
}
