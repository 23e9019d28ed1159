//! `etcdctl` commands that run in a member's own container.

use crate::escape::to_shell_word;

/// Flags that `etcdctl` needs in one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdctlFlags {
    /// Names and values of the flags for endpoint and TLS. Flags that the container's environment sets are omitted:
    /// `etcdctl` rejects a flag if its variable is set as well.
    pub connection: Vec<(&'static str, String)>,
    /// Name of the etcd user; `etcdctl` prompts for the password.
    pub user: Option<String>,
    /// Whether the container's environment sets the user.
    pub has_user: bool,
}

// === impl EtcdctlFlags ===

impl EtcdctlFlags {
    /// The same flags for a cluster that requires this user.
    pub fn with_user(&self, user: Option<&str>) -> Self {
        Self { user: user.filter(|_| !self.has_user).map(str::to_owned), ..self.clone() }
    }

    /// The command that runs `etcdctl` in this container, for a shell. Paths and names from pods and Secrets can contain any
    /// character, and are quoted.
    pub fn command(&self, namespace: &str, pod: &str, container: &str, arguments: &str) -> String {
        // The prompt for the password needs a terminal.
        let terminal = if self.user.is_some() { " -it" } else { "" };
        let user = self.user.iter().map(|name| ("user", name));
        let flags = self.connection.iter().map(|(name, value)| (*name, value)).chain(user);
        let words = flags.map(|(name, value)| format!("--{name}={}", to_shell_word(value)));
        let words: Vec<String> = words.chain([arguments.to_owned()]).collect();
        let [namespace, pod, container] = [namespace, pod, container].map(to_shell_word);
        format!("kubectl -n {namespace} exec{terminal} {pod} -c {container} -- etcdctl {}", words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(flags: &EtcdctlFlags) -> String {
        flags.command("prod", "etcd-1", "etcd", "move-leader 2")
    }

    #[test]
    fn omits_flags_that_a_plain_member_does_not_need() {
        let plain = "kubectl -n prod exec etcd-1 -c etcd -- etcdctl move-leader 2";
        assert_eq!(command(&EtcdctlFlags::default()), plain);
        let has_user = EtcdctlFlags { has_user: true, ..EtcdctlFlags::default() };
        assert_eq!(command(&has_user.with_user(Some("root"))), plain);
    }

    #[test]
    fn prompts_for_the_password_and_quotes_for_a_shell() {
        let flags = EtcdctlFlags {
            connection: vec![
                ("endpoints", String::from("https://[::1]:2379")),
                ("cacert", String::from("/certs/ca.crt")),
                ("cert", String::from("/my certs/$(reboot)'.crt\n")),
            ],
            ..EtcdctlFlags::default()
        };
        assert_eq!(
            command(&flags.with_user(Some("guard"))),
            "kubectl -n prod exec -it etcd-1 -c etcd -- etcdctl --endpoints='https://[::1]:2379' \
             --cacert=/certs/ca.crt --cert='/my certs/$(reboot)'\\''.crt' --user=guard move-leader 2"
        );
    }
}
