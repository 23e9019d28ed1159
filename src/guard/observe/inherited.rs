//! The annotations that pods inherit from their StatefulSets and their namespace.

use crate::guard::{
    discovery::etcd_pod,
    model::deadline::Deadline,
    observe::{error::ObserveError, observer::ClusterObserver},
    policy::effective::Mode,
};
use crate::k8s::{StatefulSet, pod::Pod};

// === impl ClusterObserver ===

impl ClusterObserver {
    /// Waits until the annotations of the owners in this namespace are known.
    pub(in crate::guard) async fn wait_for_annotations(
        &self,
        namespace: &str,
        deadline: Deadline,
    ) -> Result<(), ObserveError> {
        // An earlier state can be known, and be listed again.
        self.annotations.hurry(namespace);
        // Most calls find them known. Only the others need a span of the traces.
        if !self.annotations.is_known(namespace) {
            let known = self.annotations.wait_until_known(namespace);
            let known =
                deadline.within("listing namespaces and StatefulSets from the API server", known).await?;
            known.map_err(ObserveError::Lookup)?;
        }
        Ok(())
    }

    /// Waits until the annotations of the pods' owners are known, and adds them to the pods.
    pub(in crate::guard) async fn add_inherited(
        &self,
        namespace: &str,
        pods: &mut [Pod],
        deadline: Deadline,
    ) -> Result<(), ObserveError> {
        self.wait_for_annotations(namespace, deadline).await?;
        self.apply_inherited(namespace, pods);
        Ok(())
    }

    /// Whether the annotation of this pod could exclude it from the guard. The floor of the configuration can forbid the
    /// exclusion of pods that evidently run etcd.
    pub(in crate::guard) fn accepts_exclusion(&self, pod: &Pod) -> bool {
        !self.includes_evident_members() || !etcd_pod::is_evident_member(pod)
    }

    fn includes_evident_members(&self) -> bool {
        self.config.borrow().guard.floor.mode == Mode::Enforce
    }

    /// Returns a pod of this StatefulSet as the controller would create it, with the annotations of its owners.
    pub(in crate::guard) fn pod_of_set(&self, namespace: &str, set: &StatefulSet) -> Pod {
        self.inherit(namespace, set.template(namespace))
    }

    /// Returns a pod with the annotations of its owners.
    pub(in crate::guard) fn inherit(&self, namespace: &str, mut pod: Pod) -> Pod {
        self.apply_inherited(namespace, std::slice::from_mut(&mut pod));
        pod
    }

    /// Adds the annotations of the pods' owners, and removes annotations that the floor of the configuration forbids.
    pub(super) fn apply_inherited(&self, namespace: &str, pods: &mut [Pod]) {
        self.annotations.apply_inherited(
            namespace,
            pods,
            &etcd_pod::MEMBER_ANNOTATIONS,
            etcd_pod::inherits_from_namespace,
        );
        if self.includes_evident_members() {
            for pod in pods {
                etcd_pod::include_evident_member(pod);
            }
        }
    }

    /// Returns whether [`Self::apply_inherited`] may change this pod.
    pub(super) fn may_inherit(&self, namespace: &str, pod: &Pod) -> bool {
        self.annotations.has_any(namespace, pod.stateful_set(), &etcd_pod::MEMBER_ANNOTATIONS)
            || etcd_pod::is_excluded(pod)
    }
}
