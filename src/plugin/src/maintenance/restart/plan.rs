//! The order of a restart, and the conditions under which it starts or is resumed.

use std::fmt::Write;

use k8s_openapi::api::apps::v1::StatefulSet;
use serde::Serialize;

use super::{
    super::{
        health::{PodState, cluster_obstacle, require_backup},
        replace::REPLACE,
        upgrade::{self, Release},
    },
    ownership::{Manager, managers},
    record::{ImageChange, Record},
    view::{ON_DELETE, is_observed, partition, rollout, strategy_type, update_revision},
};
use etcd_guard_api::{ClusterStatus, Role};
use etcd_guard_cli::printing::NONE;

/// A member in the order of the restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    pub(crate) pod: String,
    pub(crate) role: Role,
    pub(crate) version: Option<String>,
    pub(crate) state: StepState,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StepState {
    Pending,
    Restarted,
}

/// The options of the user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// The image of an upgrade.
    pub(crate) image: Option<String>,
    /// The container that gets the image.
    pub(crate) container: Option<String>,
    /// Whether to change a StatefulSet although another controller manages it.
    pub(crate) is_paused: bool,
    /// Whether an upgrade needs no backup.
    pub(crate) is_without_backup: bool,
}

/// How a restart begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beginning {
    pub(crate) record: Record,
    /// Whether the record exists already.
    pub(crate) is_resumed: bool,
    /// The manager because of which the restart only evicts pods.
    pub(crate) manager: Option<Manager>,
    pub(crate) warnings: Vec<String>,
}

/// Returns the members in the order of their restart: completed ones, then learners and followers from the highest ordinal
/// down, then the leader.
pub(crate) fn steps(
    record: &Record,
    pods: &[PodState],
    update_revision: &str,
    cluster: Option<&ClusterStatus>,
) -> Vec<Step> {
    let mut steps: Vec<Step> = record
        .pods
        .keys()
        .map(|name| {
            let members = cluster.iter().flat_map(|cluster| &cluster.members);
            let member = members.into_iter().find(|member| member.pod.as_ref() == Some(name));
            let pod = pods.iter().find(|pod| pod.name == *name);
            let is_restarted = pod.is_some_and(|pod| record.is_restarted(pod, update_revision));
            Step {
                pod: name.clone(),
                role: member.map(|member| member.role).unwrap_or_default(),
                version: member.and_then(|member| member.version.clone()),
                state: if is_restarted { StepState::Restarted } else { StepState::Pending },
            }
        })
        .collect();
    steps.sort_by_key(|step| {
        let is_pending = step.state == StepState::Pending;
        (is_pending, is_pending && step.role == Role::Leader, std::cmp::Reverse(ordinal(&step.pod)))
    });
    steps
}

pub(super) fn ordinal(pod: &str) -> u64 {
    pod.rsplit('-').next().and_then(|ordinal| ordinal.parse().ok()).unwrap_or_default()
}

/// Returns the record with which the restart begins, or the reason for its refusal.
pub(crate) fn begin(
    set: &StatefulSet,
    pods: &[PodState],
    cluster: Option<&ClusterStatus>,
    selection: &Selection,
) -> anyhow::Result<Beginning> {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let annotations = set.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(REPLACE)) {
        anyhow::bail!("a member of {name} is being replaced (annotation {REPLACE}): finish that first");
    }
    let managers = managers(set);
    let controller = managers.iter().find(|manager| !matches!(manager, Manager::Tool(_)));
    let controller = controller.filter(|_| !selection.is_paused);
    if let Some(manager) = controller.filter(|_| selection.image.is_some()) {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        anyhow::bail!(
            "{manager} manages StatefulSet {name} and would reverse a new image; {}",
            manager.image_advice(namespace)
        );
    }
    let existing = Record::find(set, pods)?;
    let only_evicts = existing.as_ref().map_or(controller.is_some(), Record::only_evicts);
    let manager = controller.filter(|_| only_evicts).cloned();
    let warnings = if only_evicts { Vec::new() } else { warnings(name, &managers) };
    if let Some(rollout) = rollout(set, pods).filter(|_| only_evicts) {
        anyhow::bail!(rollout);
    }
    let image = selection.image.as_deref().map(|image| image_change(set, image, selection)).transpose()?;
    if let Some(record) = existing {
        let differs =
            |image: &ImageChange| record.image.as_ref().is_none_or(|recorded| recorded.to != image.to);
        if image.as_ref().is_some_and(differs) {
            let recorded = record.image.as_ref().map_or("no change of the image", |image| &image.to);
            anyhow::bail!(
                "a restart of {name} with {recorded} is in progress since {}; repeat the command without --image \
                 to complete it, or with --abort to end it",
                record.started_at
            );
        }
        check_upgrade(record.image.as_ref(), cluster)?;
        return Ok(Beginning { record, is_resumed: true, manager, warnings });
    }
    if let Some(manager) = &manager {
        refuse_rollout_of(manager, set, pods)?;
        let record = Record::of_evictions(pods);
        return Ok(Beginning { record, is_resumed: false, manager: Some(manager.clone()), warnings });
    }
    let partition = partition(set);
    let status = set.status.as_ref();
    let is_staged = status.is_some_and(|status| status.current_revision != status.update_revision);
    if partition > 0 && (is_staged || image.is_some()) {
        anyhow::bail!(
            "the update strategy of {name} has partition {partition}, and a restart would update pods below it; \
             set the partition to 0 first"
        );
    }
    check_upgrade(image.as_ref(), cluster)?;
    // A pod that is replaced for another cause would start with the new image.
    if let Some(obstacle) = image.as_ref().and(cluster).and_then(cluster_obstacle) {
        anyhow::bail!(
            "an upgrade requires a healthy cluster: {obstacle}; inspect it: kubectl etcd-guard status"
        );
    }
    if let Some(cluster) = image.as_ref().and(cluster).filter(|_| !selection.is_without_backup) {
        // Only a restore returns to the former minor version without etcd's downgrade.
        require_backup(cluster, "an upgrade")?;
    }
    Ok(Beginning { record: Record::new(set, pods, image)?, is_resumed: false, manager, warnings })
}

/// Returns an error if the manager of a set with the strategy `OnDelete` seems to replace its pods itself.
fn refuse_rollout_of(manager: &Manager, set: &StatefulSet, pods: &[PodState]) -> anyhow::Result<()> {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let revision = update_revision(set);
    let updated = pods.iter().filter(|pod| pod.revision == revision).count();
    let is_mixed = strategy_type(set) == ON_DELETE && is_observed(set) && (1..pods.len()).contains(&updated);
    anyhow::ensure!(
        !is_mixed,
        "{updated} of {} pods of StatefulSet {name} have its new template: {manager} seems to replace them itself. If it does \
         not, pause it, then restart all: kubectl etcd-guard restart -n {namespace} statefulset/{name} --paused",
        pods.len()
    );
    Ok(())
}

/// Returns the warnings about other managers of a StatefulSet that is changed.
fn warnings(name: &str, managers: &[Manager]) -> Vec<String> {
    let warning = |manager: &Manager| match manager {
        Manager::Owner { .. } | Manager::GitOps(_) => {
            format!("{manager} manages StatefulSet {name} and may reverse the change of its update strategy")
        }
        Manager::Tool(tool) => {
            format!("{tool} manages StatefulSet {name}; do not run it during the restart")
        }
    };
    managers.iter().map(warning).collect()
}

/// Returns the change of the image of the container that runs etcd.
fn image_change(set: &StatefulSet, to: &str, selection: &Selection) -> anyhow::Result<ImageChange> {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let containers = pod.map(|pod| pod.containers.as_slice()).unwrap_or_default();
    let name = selection.container.as_deref().unwrap_or("etcd");
    let container = match (containers, &selection.container) {
        ([container], None) => Some(container),
        _ => containers.iter().find(|container| container.name == name),
    };
    let Some(container) = container else {
        let names: Vec<&str> = containers.iter().map(|container| container.name.as_str()).collect();
        anyhow::bail!("no container is named {name}; select one with --container: {}", names.join(", "));
    };
    Ok(ImageChange {
        container: container.name.clone(),
        from: container.image.clone().unwrap_or_default(),
        to: to.to_owned(),
    })
}

/// Checks the preconditions of an upgrade.
fn check_upgrade(image: Option<&ImageChange>, cluster: Option<&ClusterStatus>) -> anyhow::Result<()> {
    let Some(image) = image else { return Ok(()) };
    let Some(target) = Release::of_image(&image.to) else {
        anyhow::bail!("the tag of image {} contains no release of etcd, such as v3.6.16", image.to);
    };
    let Some(cluster) = cluster else {
        anyhow::bail!(
            "the releases of the members are unknown without the guard, and an upgrade requires them; check the guard: \
             kubectl etcd-guard doctor"
        );
    };
    let objections = upgrade::objections(cluster, target);
    anyhow::ensure!(objections.is_empty(), "the upgrade to {target} is refused: {}", objections.join("; "));
    Ok(())
}

/// Returns the plan as a table.
pub(crate) fn table(title: &str, steps: &[Step]) -> String {
    let mut text = format!("{title}\n");
    let width = steps.iter().map(|step| step.pod.len()).max().unwrap_or_default().max("POD".len());
    // Writing to a String does not fail.
    let _ = writeln!(text, "  STEP   {:width$}   ROLE        VERSION    STATE", "POD");
    for (index, step) in steps.iter().enumerate() {
        let state = match step.state {
            StepState::Restarted => "restarted",
            StepState::Pending if step.role == Role::Leader => "pending; leadership is moved first",
            StepState::Pending => "pending",
        };
        let version = step.version.as_deref().unwrap_or(NONE);
        let role = step.role.as_str();
        let _ =
            writeln!(text, "  {:<4}   {:width$}   {role:<9}   {version:<8}   {state}", index + 1, step.pod);
    }
    text
}

#[cfg(test)]
mod tests;
